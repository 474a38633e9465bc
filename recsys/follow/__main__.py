"""python -m recsys.follow FILE [cycles=N] [watch=true] [seconds=60] [readmit=[day=2026-01-31]] [recover=true]
python -m recsys.follow status FILE
python -m recsys.follow.follow_demo root=DIR

Follows data as it arrives: checks new partitions, trains on from the champion, judges the challenger on the next
partition, and puts it into service or not. One call does all that can be done now; repeat it by cron, or set
watch=true. `status` prints where everything is, and why. `demo` follows twelve days of a sample, with a poisoned day
and a canary with a bug.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.cli import command_line
from recsys.schema.command_schemas import FollowCommandConfig

if TYPE_CHECKING:
    from recsys.follow.follow_settings import FollowConfig
    from recsys.follow.model_registry import ModelRegistry

ACTIONS = ("run", "status", "demo")
USAGE = "python -m recsys.follow FILE, status FILE, or demo root=DIR"


def _command(cfg: FollowCommandConfig) -> None:
    if cfg.action == "demo":
        if cfg.root is None:
            raise UserError(f"root: is missing; name a new folder; usage: {USAGE}")
        from recsys.follow.follow_demo import demo

        demo(Path(cfg.root), cfg.seed)
        return
    if cfg.file is None:
        raise UserError(f"file: is missing; usage: {USAGE}")
    if cfg.action == "status":
        from recsys.follow.history_page import show

        show(Path(cfg.file))
        return
    readmit = cfg.readmit if not cfg.watch else []
    follow(Path(cfg.file), cfg.cycles, readmit, cfg.seconds if cfg.watch else None, recovers=cfg.recover)


def follow(
    file: Path, cycles: int | None, readmit: list[str], seconds: float | None, *, recovers: bool = False
) -> None:
    """Follow the data of a settings file.

    cycles: the most cycles to end; None: no limit
    readmit: partitions to look at again
    seconds: time until the next look; None looks once
    recovers: whether to make a state that agrees with the registry first, if they differ
    """
    from recsys.follow.follow_settings import load_settings

    settings = load_settings(file)
    check_training_settings(settings, file)
    from recsys.follow.cycle import ContinuousTraining
    from recsys.follow.history_page import write_page
    from recsys.follow.recover import recover

    while True:
        follower = ContinuousTraining(settings)
        with follower.alone():
            if recovers:
                recover(follower.root, follower.state, follower.registry, follower.partitions)
                recovers = False
            follower.readmit(readmit)
            ended = follower.run(cycles)
            if settings.items is not None and follower.state.current is None:
                from recsys.follow.today_items import serve_new_items

                serve_new_items(settings, follower.registry)
            write_page(follower)
            _copy_versions(settings, follower.registry)
        if seconds is None:
            say(follower.what_waits())
            return
        if not ended:
            time.sleep(seconds)


def _copy_versions(settings: FollowConfig, registry: ModelRegistry) -> None:
    """Copy the registry's roles to MLflow and W&B; what they refuse is said, and changes nothing here."""
    from recsys.follow import copy_versions

    if not registry.aliases():
        return
    if settings.mlflow is not None:
        try:
            copy_versions.copy_to_mlflow(registry, settings.mlflow)
        except UserError as e:
            say(str(e))
    if settings.wandb and (line := copy_versions.copy_to_wandb(registry)) is not None:
        say(line)


def check_training_settings(settings: FollowConfig, file: Path) -> None:
    """Check the settings of trainings, of the export and of the gate without reading data. file: for errors

    Raises:
        UserError: overrides cannot be composed, the model cannot go on from another one, or the gate and the checks
            need what the model does not have.
    """
    from recsys.config.compose import compose
    from recsys.follow.training_config import check_metrics, training_config
    from recsys.job.check_config import check_config
    from recsys.job.resumed import cannot_start_from

    check_extra("export", "recsys.follow", "onnx", "onnxscript", "onnxruntime")
    if (stream := settings.partitions.stream) is not None and stream.startswith("kafka:"):
        check_extra("kafka", f"{file}: partitions.stream={stream}")
    for overrides in (settings.increment.overrides, settings.full.overrides):
        with command_line.explained([*settings.train, *overrides]):
            cfg = training_config(settings, settings.root / "prepared", ["train"], ["window"], overrides)
            if (why := cannot_start_from(cfg)) is not None:
                raise UserError(f"{file}: train: {why}")
            check_config(cfg)
    check_metrics(settings, cfg, file)
    if settings.items is not None and cfg.kind.scores_rows:
        raise UserError(f"{file}: items={settings.items}: applies to retrieval models; leave it out")
    with command_line.explained(settings.export, "export"):
        try:
            compose("export", ["run=run", "output=output", *settings.export])
        except UserError as e:
            raise UserError(f"{file}: export: {e}") from e


def main() -> None:
    """Run the command with this process's overrides; an action and a file may come first."""
    words = [a for a in sys.argv[1:] if "=" not in a and not a.startswith("-")]
    keys = ("action", "file") if words and words[0] in ACTIONS else ("file",)
    command_line.run("follow", _command, command_line.named_words(keys, f"usage: {USAGE}"))


if __name__ == "__main__":
    main()
