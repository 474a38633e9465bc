"""python -m recsys.worker train|evaluate JOB.json: one rank of what recsys.launch.spawn has started."""

import json
import sys
from pathlib import Path
from typing import Any

from recsys import cli
from recsys.failures import leave
from recsys.progress import log_to


def main() -> None:
    """Everything is decided by the process that spawned this one: nothing is composed or prepared again."""
    work, job = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    {"train": _train, "evaluate": _evaluate}[work](job)


def _train(job: dict[str, Any]) -> None:
    from recsys.config import accelerator_of, load_config
    from recsys.data.prepare import Prepared
    from recsys.launch import process_group, started_by_torchrun
    from recsys.train import fit

    path = Path(job["run"])
    log_to(path / "train.log")
    cfg = load_config(path / "config.yaml")
    t = cfg.trainer
    with process_group(accelerator_of(cfg), t.threads, started_by_torchrun(), t.timeout_minutes) as ranks:
        fit(cfg, path, Prepared(Path(job["prepared"])), job["resumed"], ranks)


def _evaluate(job: dict[str, Any]) -> None:
    from recsys.config import typed
    from recsys.evaluate import evaluate, show

    metrics = evaluate(job["run"], job["split"], job["checkpoint"], cfg=typed(job["config"]))
    show(metrics, Path(job["run"]), job["split"])


if __name__ == "__main__":
    leave(cli.call(main))
