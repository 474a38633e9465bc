"""Name the keys that were set, and that a run of this kind of model and data does not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from omegaconf import DictConfig, OmegaConf

from recsys.config.compose import compose, composing
from recsys.data.features.resolved_data import ResolvedData
from recsys.job.run_config import RunConfig
from recsys.schema.class_facts import own_model
from recsys.schema.data_schema import DataConfig, LabelConfig
from recsys.schema.fields import defaults, flatten

MAX_SHOWN = 20
SHARES = ("order", "time", "random", "hash")
SLICED = "with metrics.slices or protocol.exposure"
FILTERED = "where protocol.filter_history leaves out the history"
IN_SHARES = f"with data.split.by={', '.join(SHARES)}"
TIMED = ("time", "hash", "kfold")
TRAINER = (
    *("max_*", "batch_size", "accumulate", "precision", "loss_scale", "tf32", "recompute", "compile", "cuda_graphs"),
    *("pipeline", "log_*", "save_*", "validate_*", "early_stopping.*"),
)
STEP_KEYS = (
    *(
        "optim.*",
        "dims",
        "sharding.*",
        "loader.[!b]*",
        "loader.balance_lists",
        "checkpoint.every_*",
        "checkpoint.keep_*",
        "debug.profile_steps",
    ),
    *(
        "loss.ndcg",
        "loss.others",
        "data.sparse.*.vectors.*",
        "debug.train_batches",
        *(f"trainer.{key}" for key in TRAINER),
    ),
)
LABEL_KEYS = tuple(f"data.label.{part.name}" for part in fields(LabelConfig) if part.name != "column")
WINDOW_KEYS = ("data.sequences.stride", "data.sequences.reverse")
ITEM_KEYS = tuple(f"data.items.{key}" for key in ("key", "names", "format", "columns", "dense.*", "sparse.*"))


@dataclass(frozen=True)
class Rule:
    """Keys that only some runs read.

    keys: patterns of their names
    reads: whether a run reads them
    why: what reads them, as the end of a sentence
    """

    keys: tuple[str, ...]
    reads: Callable[[RunConfig], bool]
    why: str


def of_data(reads: Callable[[ResolvedData], bool]) -> Callable[[RunConfig], bool]:
    """Return a condition on a run's data."""
    return lambda cfg: reads(cfg.data)


def draws_rows(data: ResolvedData) -> bool:
    """Return whether the split draws rows, which its seed decides."""
    return data.split.by in ("random", "hash", "kfold") or data.split.validation_rows == "random"


def reads_groups(data: ResolvedData) -> bool:
    """Return whether anything depends on the groups of rows."""
    by_group = data.split.by == "leave_one_out" or (data.group is not None and data.group.by in data.k_core)
    return by_group or data.together or bool(data.look_backs) or data.item_feature is not None


def has_tables(cfg: RunConfig) -> bool:
    """Return whether the model looks ids up; one of recsys's own that predicts codes of items does not."""
    own = own_model(str(cfg.model.get("_target_") or ""))
    return own is None or not own.constants.get("generates")


def reads_validation(data: ResolvedData) -> bool:
    """Return whether the share of validation rows matters: 0 always does."""
    of_files = data.split.by == "files" and not data.split.validation_files
    return of_files or data.split.by in SHARES or not data.split.validation


RULES = (
    Rule(STEP_KEYS, lambda cfg: not cfg.kind.fitted_at_once, "by models that are trained step by step"),
    Rule(("optim.sparse.[!nl]*", "loader.unknown", "sharding.*"), has_tables, "by models with embedding tables"),
    Rule(("protocol.*",), lambda cfg: not cfg.kind.scores_rows, "by models that retrieve items"),
    Rule(("metrics.bins", "metrics.exact_rows"), lambda cfg: cfg.kind.scores_rows, "by models that score rows"),
    Rule(("metrics.k",), of_data(lambda d: d.together), "with data.group.together=true"),
    Rule(("metrics.slice_values",), lambda cfg: bool(cfg.metrics.slices or cfg.protocol.exposure), SLICED),
    Rule(("protocol.rank_repeats",), lambda c: c.protocol.filter_history and "full" in c.protocol.candidates, FILTERED),
    Rule(("protocol.negatives", "protocol.seed"), lambda c: c.protocol.candidates != ["full"], "by sampled candidates"),
    Rule(("optim.sparse.beta*",), lambda c: "adam" in c.optim.sparse.name, "by optim.sparse.name=adam and its like"),
    Rule(("optim.interval",), lambda cfg: cfg.optim.scheduler is not None, "by schedules other than constant"),
    Rule(("trainer.loss_scale",), lambda cfg: cfg.precision == "16-mixed", "with trainer.precision=16-mixed"),
    Rule(LABEL_KEYS, of_data(lambda d: d.label.column is not None), "with data.label.column"),
    Rule((*LABEL_KEYS, "data.labels.*"), of_data(lambda d: d.sequences is None), "without data.sequences"),
    Rule(("data.split.test",), of_data(lambda d: d.split.by in SHARES or not d.split.test), IN_SHARES),
    Rule(("data.split.validation",), of_data(reads_validation), IN_SHARES),
    Rule(("data.split.column",), of_data(lambda d: d.split.by in TIMED), "with data.split.by=time, hash and kfold"),
    Rule(("data.split.*_files",), of_data(lambda d: d.split.by == "files"), "with data.split.by=files"),
    Rule(("data.split.seed",), of_data(draws_rows), "with data.split.by=random, hash and kfold"),
    Rule(("data.sequences.*",), of_data(lambda d: d.sequences is not None), "with data.sequences.max_length"),
    Rule(("data.group.*",), of_data(lambda d: d.group is not None), "with data.group.by"),
    Rule(("data.group.*",), of_data(reads_groups), "by sequences, features of earlier rows, and group.together=true"),
    Rule(("data.semantic_ids.*",), of_data(lambda d: d.semantic_ids is not None), "with semantic_ids.vectors or codes"),
    Rule(ITEM_KEYS, of_data(lambda d: d.items.file is not None), "with data.items.file"),
    Rule(WINDOW_KEYS, lambda cfg: not cfg.kind.fitted_at_once, "by models that are trained step by step"),
    Rule(("data.sequences.held_out",), of_data(lambda d: d.split.by != "leave_one_out"), "without leave_one_out"),
    Rule(("data.items.*",), of_data(lambda d: d.item_feature is not None), "with data.items.feature"),
)


def unread_keys(cfg: RunConfig, composed: DictConfig | RunConfig) -> dict[str, str]:
    """Return the keys that differ from their defaults and that the run does not read, with what would read them.

    composed: the config of the run as Hydra composed it, which still has the parts that the run lacks
    """
    own = flatten(cfg.plain)
    if isinstance(composed, DictConfig):
        own = flatten(OmegaConf.to_container(composed, throw_on_missing=False)) | own
    with composing():
        standard = flatten(OmegaConf.to_container(compose("train")))
    of_schema = flatten({"data": defaults(DataConfig)})
    known = {key: value for key, value in standard.items() if not key.startswith("data.")} | of_schema
    given = [key for key, value in own.items() if value != known.get(key)]
    lists = [n for n, c in cfg.data.sparse_columns.items() if c.source.is_list or c.look_back is not None]
    single = {f"data.sparse.{n}.max_length": "by lists" for n in cfg.data.sparse if n not in lists}
    of_features = {key: why for key, why in single.items() if key in given}
    # the first rule of a key says why
    return of_features | {
        key: rule.why
        for rule in reversed(RULES)
        if (keys := matching(given, rule.keys)) and not rule.reads(cfg)  # which may ask torch for the device
        for key in keys
    }


def matching(keys: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the keys that one of the patterns matches."""
    return [key for key in keys if any(fnmatchcase(key, pattern) for pattern in patterns)]


def unread_line(cfg: RunConfig, composed: DictConfig | RunConfig) -> str | None:
    """Return a line that names the unread keys, or None if there are none. composed: see `unread_keys`"""
    by_reader: dict[str, list[str]] = {}
    for key, why in unread_keys(cfg, composed).items():
        by_reader.setdefault(why, []).append(key)
    parts = []
    for why, keys in by_reader.items():
        more = f" and {len(keys) - MAX_SHOWN} more" if len(keys) > MAX_SHOWN else ""
        verb = "is" if len(keys) == 1 else "are"
        parts.append(f"{', '.join(sorted(keys)[:MAX_SHOWN])}{more} {verb} read only {why}")
    return f"no effect on this run: {'; '.join(parts)}" if parts else None
