"""Names of the files in a run folder, on which other programs rely, the text of its config, and its checkpoints."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from recsys.base.errors import UserError

CONFIG = "config.yaml"
MAX_BYTES = 2**22  # of it; ten thousand features take a quarter
FEATURES = "features.json"
DATA = "data.json"
STARTS = "starts.json"  # what made the run (starts.py)
CALIBRATION = "calibration.json"  # how predictions are calibrated, if they are
# written at the end, and read by recsys.report
RESULTS = ("metrics.json", "metrics.csv", "curves.json", "test_predictions.parquet", "test_ranks.parquet")
# Everything that a run writes to its folder, config.yaml last; other files in it are the user's.
OWN = (
    *("checkpoints", "vocabularies", "items", "sides", "raw.parquet", FEATURES, "transforms.json", "plan.json"),
    *(*RESULTS, CALIBRATION, "validation_*.parquet", "test_predictions_*.parquet", "evaluate-*.json"),
    *("manifest.json", DATA, STARTS, "train.log", "profile", "tensorboard", "wandb", "wandb_id", ".owner.json", CONFIG),
)


def run_folder(run: str | Path, key: str = "run") -> Path:
    """Return the folder of the run that a key names. Raises UserError if it holds no run."""
    path = Path(str(run))  # YAML reads 2024 and nan as numbers
    if not (path / CONFIG).exists():
        raise UserError(f"{key}={run}: is not a run folder (it has no {CONFIG})")
    return path


def config_text(path: Path) -> str:
    """Return the text of a run's config.yaml.

    Raises UserError if it is too large to be parsed in seconds, or has aliases, which no run writes: a few nested ones
    stand for a config of any size.
    """
    if (size := path.stat().st_size) > MAX_BYTES:
        raise UserError(f"{path}: has {size >> 20} MiB, more than a config of a run, {MAX_BYTES >> 20}; restore it")
    text = path.read_text(encoding="utf-8")
    if "&" in text and "*" in text:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        alias = next((e for e in yaml.parse(text, Loader=loader) if isinstance(e, yaml.AliasEvent)), None)
        if alias is not None:
            raise UserError(f"{path}, line {alias.start_mark.line + 1}: has an alias of YAML; write the value itself")
    return text


def checkpoints_of(run_dir: Path, kinds: Sequence[str] = ("step", "best")) -> list[Path]:
    """Return the checkpoints of a run, the newest first.

    If a step-N and a best-N have the same number of steps, step-N, which is written last, comes first.
    """
    found = [p for kind in kinds for p in (run_dir / "checkpoints").glob(f"{kind}-*") if p.is_dir()]
    return sorted(found, key=lambda p: (p.name.rsplit("-", 1)[1], p.name.startswith("step")), reverse=True)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint with the most steps, or None."""
    return next(iter(checkpoints_of(run_dir)), None)


def best_checkpoint(run_dir: Path) -> Path | None:
    """Return the best checkpoint by validation, or the newest if nothing was validated."""
    return next(iter(checkpoints_of(run_dir, ["best"])), None) or newest_checkpoint(run_dir)
