"""Compose the training configs of continuous training, and check the settings against them before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from omegaconf import open_dict

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.gate import DEFAULT_CHANGE, ROWS
from recsys.job.run_config import RunConfig


def training_config(
    settings: FollowConfig,
    prepared: Path,
    training: Sequence[str],
    window: Sequence[str],
    overrides: Sequence[str],
    context: Sequence[str] = (),
) -> RunConfig:
    """Return the config of a training on files of some partitions, whose test rows are those of a window.

    training, window, context: files below the folder of partitions; features that look back read those of `context`
    """
    cfg = compose("train", [*settings.train, *overrides])
    # the config has globs
    train_files, test_files, before = ([escape(f) for f in files] for files in (training, window, context))
    with open_dict(cfg):
        cfg.data.root = str(settings.partitions.folder)
        cfg.data.prepared = str(prepared)
        cfg.data.source.files = [*before, *train_files, *test_files]
        cfg.data.split.update({"by": "files", "train_files": train_files, "test_files": test_files})
        cfg.data.split.update({"validation_files": [], "validation": 0.0, "validation_rows": "last"})
        cfg.data.split.update({"context_files": before, "window": None, "origins": None, "fold": 0, "test": 0.1})
    return RunConfig.of(cfg)


def check_metrics(settings: FollowConfig, cfg: RunConfig, file: Path) -> None:
    """Raise UserError if the gate or the checks cannot judge the predictions of this kind of model."""
    if cfg.data.k_core:
        why = "counts the rows of a whole data set, and continuous training reads new rows alone"
        raise UserError(f"{file}: train: data.k_core {why}; leave it out, or use min_count of the features")
    looks_back = [*cfg.data.look_backs]
    if settings.partitions.context and (not looks_back or not cfg.kind.scores_rows):
        why = "is for ranking models with features that look back (lag, last, difference, age), and there are none"
        raise UserError(f"{file}: partitions.context={settings.partitions.context}: {why}; leave it out")
    if looks_back and cfg.kind.scores_rows and settings.partitions.context == 0:
        say(
            f"{', '.join(looks_back)}: look back no further than the first partition of a training; "
            "partitions.context: N reads N more"
        )
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
