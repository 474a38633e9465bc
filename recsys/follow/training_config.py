"""Compose the training configs of continuous training, and check the settings against them before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from omegaconf import DictConfig, open_dict

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.gate import DEFAULT_CHANGE, ROWS
from recsys.job.run_config import RunConfig


def config_of(
    settings: FollowConfig, prepared: Path, training: Sequence[str], window: Sequence[str], overrides: Sequence[str]
) -> DictConfig:
    """Return the config of a training on files of some partitions, whose test rows are those of a window.

    training, window: files below the folder of partitions
    """
    cfg = compose("train", [*settings.train, *overrides])
    train_files, test_files = [escape(f) for f in training], [escape(f) for f in window]  # the config has globs
    with open_dict(cfg):
        cfg.data.root = str(settings.partitions.folder)
        cfg.data.prepared = str(prepared)
        cfg.data.source.files = [*train_files, *test_files]
        cfg.data.split.update({"by": "files", "train_files": train_files, "test_files": test_files})
        cfg.data.split.update({"validation_files": [], "validation": 0.0, "validation_rows": "last"})
    return cfg


def check_metrics(settings: FollowConfig, cfg: RunConfig, file: Path) -> None:
    """Raise UserError if the gate or the checks cannot judge the predictions of this kind of model."""
    if cfg.data.k_core:
        why = "counts the rows of a whole data set, and continuous training reads new rows alone"
        raise UserError(f"{file}: train: data.k_core {why}; leave it out, or use min_count of the features")
    gate, names = settings.gate, tuple(DEFAULT_CHANGE["queries"])
    if cfg.kind.scores_rows:
        names = ROWS
        name, label = next(iter(cfg.data.label_kinds.items()), ("label", None))
        if label is not None and not isinstance(label, BinaryLabelColumn):
            why = "the gate judges the first label, which must be binary"
            raise UserError(f"{file}: train: {name} is a label of kind {label.kind}; {why}")
    elif settings.check.slices:
        raise UserError(f"{file}: check.slices: a retrieval model predicts no labels to check; leave it out")
    judged: dict[str, Mapping[str, float]] = {"change": gate.change or {}}
    judged |= {"at_least": gate.at_least, "at_most": gate.at_most}
    judged |= {f"slices.{column}": limits for column, limits in gate.slices.items()}
    for key, limits in judged.items():
        if wrong := next((m for m in limits if (m in ROWS) != cfg.kind.scores_rows), None):
            why = f"is not a metric of {cfg.kind.name} models; name another one: {', '.join(names)}"
            raise UserError(f"{file}: gate.{key}.{wrong}: {why}")
