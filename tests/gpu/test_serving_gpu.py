"""Serving on a GPU: an exported model's outputs on CUDA's provider are those of the run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.config.compose import compose, parsed
from recsys.export import __main__ as export
from recsys.export.artefact import load
from recsys.export.artefact.graph_io import CUDA, providers
from recsys.training.run import train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.mark.parametrize(
    ("model", "data"), [("dlrm", "sample_interactions"), ("two_tower", "sample_interactions_retrieval")]
)
def test_a_model_is_served_on_the_gpu(model: str, data: str, tmp_path: Path) -> None:
    """Loading compares the recorded examples; here, single rows are compared with the CPU's outputs, too."""
    ort = pytest.importorskip("onnxruntime")
    if CUDA not in ort.get_available_providers():
        pytest.skip("onnxruntime-gpu is not installed")
    assert providers("auto")[0][0] == CUDA
    prepared = f"data.prepared={tmp_path / 'prepared'}"
    train(compose("train", [f"model={model}", f"data={data}", "debug=fast", prepared, f"run_dir={tmp_path / 'run'}"]))
    export._command(parsed("export", [f"run={tmp_path / 'run'}", f"output={tmp_path / 'model'}"]))
    on_gpu, on_cpu = (load(tmp_path / "model", device=device) for device in ("cuda", "cpu"))
    if on_cpu.kind == "ranking":
        outputs = [m.run(m.features(m.example)) for m in (on_gpu, on_cpu)]
        for name, wanted in outputs[1].items():
            np.testing.assert_allclose(outputs[0][name], wanted, atol=1e-5)
