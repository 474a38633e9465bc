"""Train NVIDIA's small DLRM from files, through the loader: the share of a step that waits for data.

    PYTHONPATH=benchmarks python benchmarks/gpu/from_files.py                        # minutes, on a GPU
    PYTHONPATH=benchmarks python benchmarks/gpu/from_files.py --device cpu --small   # a test of the script

Rows of Criteo's shape are prepared first; then recsys.train runs as a user runs it. from_files.json has the median of
the rates that the run logs, of 10 steps each: in the first step of a process, CUDA and Triton begin, for seconds. Its
parts are the shares of the time of all steps.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from contestants import Arguments, Contestants, measure
from in_memory import DEFAULTS, NOTHING
from steady import Sample

LAYERS = ["model.dim=128", "model.bottom_mlp=[512,256,128]", "model.top_mlp=[1024,1024,512,256]"]
SMALL = ["model.dim=8", "model.bottom_mlp=[8]", "model.top_mlp=[8]"]


def main() -> None:
    given = Arguments.parse(__doc__ or "")
    rows, batch = (4000, 256) if given.small else (4_000_000, 65_536)
    parts: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        settings = [
            "model=dlrm", "data=criteo", f"data.sample.rows={rows}", f"data.prepared={home}/prepared",
            f"trainer.batch_size={batch}", f"trainer.accelerator={'cpu' if given.device == 'cpu' else 'gpu'}",
            "trainer.max_epochs=2", "trainer.log_every_n_steps=10", "trainer.early_stopping.patience=null",
            *(SMALL if given.small else LAYERS),
        ]  # fmt: skip
        names = iter(range(1000))

        def train(name: str, overrides: list[str]) -> Sample:
            run = Path(home) / f"run-{next(names)}"
            command = [sys.executable, "-m", "recsys.train", *settings, *overrides, f"run_dir={run}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError((done.stderr.strip() or "no output").splitlines()[-1])
            found = json.loads((run / "metrics.json").read_text())["train"]
            parts[name] = {part: float(share) for part, share in found["time"].items()}
            logged = pl.read_csv(run / "metrics.csv", infer_schema_length=None)["train/samples_per_second"]
            rate = float(np.median(logged.drop_nulls()))
            return Sample(found["samples"], found["samples"] / rate, found["cpu_seconds"])

        plain = [*NOTHING, "trainer.pipeline=auto"]
        half = [*plain, "trainer.precision=bf16-mixed"]
        contestants: Contestants = {
            "bf16-mixed": lambda: train("bf16-mixed", half),
            "float32": lambda: train("float32", plain),
            "bf16-mixed, no pipeline": lambda: train("bf16-mixed, no pipeline", [*half, "trainer.pipeline=none"]),
            DEFAULTS: lambda: train(DEFAULTS, []),
        }
        about = f"DLRM from files on {given.device}, {rows:,} rows, batch {batch:,}"
        measure(given, "from_files", about, contestants, "samples", parts=parts)


if __name__ == "__main__":
    main()
