"""One exported run for the tests of this room, built once a session, whichever processes ask for it."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

from recsys.config.compose import compose, parsed
from recsys.job import run_config

CRITEO = ["data=criteo", "data.sample.rows=3000", "trainer.threads=1", "trainer.max_epochs=1", "trainer.batch_size=256"]


def beside_a_gpu(accelerator: str) -> str:
    return "gpu" if accelerator == "auto" else accelerator


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of dlrm, with the artefact of it beside it, written as beside a GPU: what measures it runs on the CPU."""
    from recsys.export import __main__ as export
    from recsys.training.run import train

    root = tmp_path_factory.getbasetemp()
    home = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "exported"
    home.mkdir(exist_ok=True)
    with FileLock(home / "lock"):
        if not (home / "artefact").exists():
            given = [*CRITEO, f"data.prepared={home / 'prepared'}", f"run_dir={home / 'run'}"]
            train(compose("train", ["model=dlrm", *given]))
            form = ["format=[onnx,single_graph,torchscript]", "triton=true", "name=clicks"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(run_config, "device_of", beside_a_gpu)
                export._command(parsed("export", [f"run={home / 'run'}", f"output={home / 'artefact'}", *form]))
    return home / "run"


@pytest.fixture(scope="session")
def artefact(run: Path) -> Path:
    return run.parent / "artefact"
