# /// script
# requires-python = "==3.11.*"
# dependencies = ["nvtabular==23.8.0", "setuptools<70"]
# [tool.uv]
# exclude-newer = "2024-03-01T00:00:00Z"
# ///
"""`prepare_nvtabular.py FILE ROWS`: NVTabular on the CPU fits and applies what benchmarks/prepare.py does.

It fills missing numbers with 0, takes their logarithm, standardises them, and maps categories that occur five times or
more to ids. Its packages are those of early 2024, when its last release was half a year old. Partitions of 16 MB and
Dask's threads are 1.6 times as fast as its defaults. It writes to the working directory.
"""

import json
import sys
import time
import warnings

warnings.simplefilter("ignore")  # it warns that PyTorch and Triton are not installed

import dask  # noqa: E402
import numpy as np  # noqa: E402
import nvtabular as nvt  # noqa: E402
from nvtabular import ops  # noqa: E402

NUMBERS, IDS = [f"int_{i}" for i in range(1, 14)], [f"cat_{i}" for i in range(1, 27)]

wall, cpu = time.perf_counter(), time.process_time()
dask.config.set(scheduler="threads")
raw = nvt.Dataset(
    sys.argv[1],
    engine="csv",
    part_size="16MB",
    cpu=True,
    sep="\t",
    header=None,
    names=["label", *NUMBERS, *IDS],
    dtype={"label": "int64"} | dict.fromkeys(NUMBERS, "float64") | dict.fromkeys(IDS, "str"),
)
numbers = NUMBERS >> ops.FillMissing(0) >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize(out_dtype=np.float32)
ids = IDS >> ops.Categorify(freq_threshold=5, out_path="categories")
workflow = nvt.Workflow(numbers + ids + ["label"])
workflow.fit(raw)
workflow.transform(raw).to_parquet("prepared")
print(json.dumps({"units": int(sys.argv[2]), "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))
