"""A run uses the secrets of its config, and none of its files contains them."""

from pathlib import Path

import pytest
from forks import WARM, run_forked

SECRET = "s3cret-pa55"  # pragma: allowlist secret
OWN = f"""
from pytorch_lightning.loggers import CSVLogger
from recsys.models.deepfm import DeepFM


class Model(DeepFM):
    def __init__(self, features, *, password: str, device=None) -> None:
        assert password == "{SECRET}", password
        super().__init__(features, dim=4, device=device)


class Logger(CSVLogger):
    def __init__(self, save_dir: str, api_key: str) -> None:
        assert api_key == "{SECRET}", api_key
        super().__init__(save_dir, name="own")
"""
COMMAND = [
    *("data.sample.rows=1200", "trainer.batch_size=300", "trainer.threads=1", "logger=[wandb,tensorboard]"),
    *("model=own", f"model.password={SECRET}", f"+logger.mine={{_target_: own_parts.Logger, api_key: {SECRET}}}"),
]


def holding(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]


@pytest.mark.slow
def test_a_run_of_two_processes(tmp_path: Path) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "own.yaml").write_text("_target_: own_parts.Model\npassword: ???\n")
    env = WARM | {"PYTHONPATH": str(tmp_path), "WANDB_API_KEY": "", "HOME": str(tmp_path)}

    def run(command: str, *arguments: str, status: int = 0, **more: str) -> str:
        done = run_forked(f"recsys.{command}", *arguments, cwd=tmp_path, env=env | more)
        assert done.returncode == status, done.stderr[-3000:]
        assert SECRET not in done.stdout + done.stderr
        return done.stderr

    run("train", *COMMAND, "run_dir=run", "trainer.devices=2")
    assert (tmp_path / "run" / "wandb").is_dir() and (tmp_path / "run" / "tensorboard").is_dir()
    assert [p.name for p in holding(tmp_path)] == ["own_parts.py"]
    run("train", *COMMAND, "resume=run", "trainer.max_epochs=2")
    hint = "model.password: is a secret, which the run's config.yaml does not hold; set it on the command line, or in"
    assert f"{hint} the environment variable RECSYS_SECRET_MODEL_PASSWORD" in run("evaluate", "run=run", status=2)
    run("evaluate", "run=run", RECSYS_SECRET_MODEL_PASSWORD=SECRET)
    assert [p.name for p in holding(tmp_path)] == ["own_parts.py"]
