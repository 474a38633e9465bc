"""The settings that meet: arrays of models that score rows, of models that retrieve items, and of cadences of a training.

`RANKING`, `RETRIEVAL` and `CADENCES` have one line for each setting. The first value of a setting is its default. Where `when` does
not allow a setting, only its default is tried. `combinations` holds each allowed pair of values of an array.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations as subsets
from itertools import permutations, product
from typing import Any

SEED = os.environ["RECSYS_PAIRS_SEED"]  # by default the date (tests/conftest.py)
Chosen = Mapping[str, str]  # setting -> the name of its value
Row = tuple[tuple[str, str], ...]  # settings and their values
Pair = tuple[tuple[str, str], ...]
When = Mapping[str, Collection[str]]  # another setting -> those of its values that allow this one


@dataclass(frozen=True)
class Setting:
    """A setting: the names of its values, with the config keys that each sets, and which others allow it."""

    name: str
    values: Mapping[str, Mapping[str, Any]]
    when: When = field(default_factory=dict)

    @property
    def default(self) -> str:
        return next(iter(self.values))


def key(name: str, *values: Any, when: When | None = None) -> Setting:
    """Return the setting of one config key, named by its values; the default None leaves the key out."""
    return Setting(name, {str(v): {} if v is None else {name: v} for v in values}, when or {})


LABELS = {
    "click": {"data.labels": {"click": {}}},
    "two": {"data.labels": {"click": {}, "like": {}}},
    "nested": {"data.labels": {"click": {}, "buy": {"only_if": "click"}}},
    "classes": {"data.labels": {"cls": {"kind": "classes", "classes": ["red", "green", "blue"]}}},
    "mixed": {"data.labels": {"cls": {"kind": "classes", "classes": ["red", "green", "blue"]}, "click": {}}},
    "number": {"data.label": {"column": "num", "kind": "regression", "log": True}},
}
SMALL = {"model.dim": 4}
EXPERTS = {"model.experts": 2, "model.expert_mlp": [4], "model.tower_mlp": [4]}
HISTORY = {
    "data.group": {"by": "user", "order": "ts"},
    "data.sparse.history": {"column": "item", "table": "item", "last": 3},
}
RANKERS = {
    "lr": {"model": "lr"},
    "dlrm": {"model": "dlrm", **SMALL, "model.bottom_mlp": [4], "model.top_mlp": [4]},
    "deepfm": {"model": "deepfm", **SMALL, "model.deep_mlp": [4]},
    "gbm": {"model": "gbm", "model.trees": 10, "model.min_rows": 5},
    "mmoe": {"model": "mmoe", **SMALL, **EXPERTS, **LABELS["two"]},
    "mmoe_nested": {"model": "mmoe", **SMALL, **EXPERTS, **LABELS["nested"]},
    "esmm": {"model": "esmm", **SMALL, "model.tower_mlp": [4], "data.labels": {"click": {}, "buy": {}}},
    "din": {"model": "din", **SMALL, **HISTORY},
}
FILES = {
    "by": "files",
    "train_files": ["train.csv"],
    "validation_files": ["validation.csv"],
    "test_files": ["test.csv"],
}
SHARES = {"validation": 0.2, "test": 0.2}
BY_STEPS = {"model": {*RANKERS} - {"gbm"}}
ONE_LABEL = {"lr", "dlrm", "deepfm", "gbm", "din"}  # or several
RANKING = [
    Setting("labels", LABELS, {"model": ONE_LABEL}),
    Setting("model", RANKERS),  # after the labels: some models have their own
    Setting(
        "encoder",
        {
            "vocabulary": {},
            "hash": {"data.sparse_defaults.encode": "hash", "data.sparse_defaults.buckets": 50},
            "min_count": {"data.sparse_defaults.min_count": 25},
            "capacity": {"data.sparse_defaults.capacity": 15},
        },
    ),
    Setting(
        "dense",
        {
            "plain": {"data.dense.x": {"transform": []}},
            "standardise": {"data.dense.x": {"transform": ["standardise"]}},
            "quantile": {"data.dense.x": {"fill": "median", "transform": [{"quantile": 4}]}},
            "target": {
                "data.dense.x": {"transform": []},
                "data.dense.noise": {"transform": [{"target": {"smoothing": 1}}]},
            },
        },
    ),
    Setting("features", {"items": {}, "noise": {"data.sparse.noise_id": {"column": "noise"}}, "history": HISTORY}),
    key("numeric", None, "periodic", when={"model": {*RANKERS} - {"lr", "gbm"}}),
    Setting("dims", {"one": {}, "auto": {"dims": "auto", "model.dim": 32}}, {"model": {"deepfm", "mmoe"}}),
    Setting("weights", {"none": {}, "column": {"data.weight": {"column": "weight"}}}),
    key("data.sample_negatives", None, 0.3, when={"labels": {"click"}, "model": ONE_LABEL}),
    Setting(
        "split",
        {
            "files": {"data.split": FILES},
            "time": {"data.split": {"by": "time", "column": "ts", **SHARES}},
            "order": {"data.split": {"by": "order", **SHARES}},
            "hash": {"data.split": {"by": "hash", "column": "item", **SHARES}},
            "kfold": {"data.split": {"by": "kfold", "column": "item", "folds": 4}},
        },
    ),
    key("calibration", None, "platt", "isotonic", when={"labels": {"click", "two", "nested", "number"}}),
    Setting(
        "optimizer",
        {
            "adam": {"optim.dense.lr": 0.02, "optim.sparse.lr": 0.2},
            "sgd": {"optim.dense": {"_target_": "torch.optim.SGD", "lr": 0.1}, "optim.sparse.name": "sgd"},
            "sparse_adam": {"optim.sparse.name": "adam", "optim.sparse.lr": 0.02},
        },
        BY_STEPS,
    ),
    key("schedule", None, "cosine", "polynomial", when=BY_STEPS),
    key("optim.ema", None, 0.5, when=BY_STEPS),
    Setting(
        "batches",
        {
            # one validation, so that rounding does not choose among checkpoints that are as good
            "full": {
                **{"trainer.batch_size": 4096, "trainer.max_epochs": 6, "trainer.validate_every": 6},
                "loader.unknown": 0.0,
            },
            "small": {"trainer.batch_size": 128, "trainer.max_epochs": 3},
            "accumulated": {"trainer.batch_size": 128, "trainer.accumulate": 2, "trainer.max_epochs": 3},
            "steps": {"trainer.batch_size": 128},
        },
    ),
    key("trainer.precision", None, "bf16-mixed", when=BY_STEPS),
    key("sharding", None, "rowwise", "dataparallel", when=BY_STEPS),
    key("data.split.window", None, 3600.0, when={"split": {"time"}, "batches": {"steps"}} | BY_STEPS),
    key("metrics.gauc", None, "user"),
    key("metrics.slices", None, ["item"]),
]
REFUSED = [  # values of two settings that one line refuses
    ({("labels", "classes"), ("labels", "mixed")}, {("dense", "target")}),
    ({("labels", "classes"), ("labels", "number")}, {("metrics.gauc", "user")}),
    ({("trainer.accumulate", "2")}, {("validate", "3 steps"), ("validate", "13 steps")}),
    ({("trainer.accumulate", "2")}, {("validate", "3 steps, late")}),
    ({("trainer.accumulate", "3")}, {("validate", "4 steps"), ("validate", "13 steps")}),
    ({("scheduler", "exponential")}, {("validate", "3 steps, late")}),
]
PLATEAU = {"mode": "max", "factor": 0.3, "patience": 0, "threshold": 9}  # each validation lowers the rates
ITEMS = {
    "none": {},
    "file": {"data.items": {"file": "items.csv", "key": "item", "sparse": {"brand": {}}}},
    "vectors": {"data.items": {"vectors": {"text": {"file": "vectors.parquet", "key": "item"}}}},
}
USER = {"data.sparse.user": {"per": "group"}}
ROWS = {  # instead of sequences: a row for each event, which knows those before it
    "data.sequences": {"max_length": 0},
    "data.items.feature": "item",
    "data.sparse": {
        "user": {"per": None},
        "history": {"column": "item", "table": "item", "last": 5},
        "previous": {"column": "item", "table": "item", "lag": 1},
    },
}
RETRIEVERS = {
    "item_knn": {"model": "item_knn"},
    "popularity": {"model": "popularity"},
    "ease": {"model": "ease"},
    "session_knn": {"model": "session_knn", "model.sample_size": 5, "model.k": 3},
    "transition": {"model": "transition"},
    "slim": {"model": "slim"},
    "ials": {"model": "ials", **SMALL},
    "sasrec": {"model": "sasrec", **SMALL},
    "gru4rec": {"model": "gru4rec", **SMALL},
    "two_tower": {"model": "two_tower", **USER},  # as wide as it is: sums of many numbers depend on their order
    "mf": {"model": "mf", **SMALL, **USER},
    "mult_vae": {"model": "mult_vae"},
    "gf_cf": {"model": "gf_cf"},
    "chebycf": {"model": "chebycf"},
    "lightgcn": {"model": "lightgcn", **SMALL, **USER},
    "ultragcn": {"model": "ultragcn", **SMALL, **USER},
    "bert4rec": {"model": "bert4rec", **SMALL, "model.heads": 2},
    "tiger": {
        **{"model": "tiger", "model.dim": 8, "model.hidden": 8, "model.heads": 2, "model.beam": 30},
        **{"model.encoder_layers": 1, "model.decoder_layers": 1},
        "data.semantic_ids": {"vectors": {"file": "vectors.parquet", "key": "item"}, "levels": 2, "size": 4},
    },
}
CLOSED = {"gf_cf", "chebycf", "item_knn", "popularity", "ease", "session_knn", "transition", "slim", "ials"}
STEPWISE = {"model": {*RETRIEVERS} - CLOSED}
RETRIEVAL = [
    Setting("model", RETRIEVERS),
    Setting("items", ITEMS, {"model": {*RETRIEVERS} - {"tiger"}}),
    key("data.sparse.item.min_count", None, 12),
    key("data.k_core", None, {"item": 15}),
    Setting("user", {"none": {}, "group": USER}),
    Setting("weights", {"none": {}}),
    Setting("lists", {"long": {"data.sequences.max_length": 12}, "short": {"data.sequences.max_length": 3}}),
    Setting("rows", {"none": {}, "history": ROWS}, {"model": {"two_tower"}, "user": {"none"}}),
    Setting(
        "split",
        {
            "leave_one_out": {"data.split": {"by": "leave_one_out"}},
            "time": {"data.split": {"by": "time", "column": "ts", **SHARES}},
            "hash": {"data.split": {"by": "hash", "column": "user", **SHARES}},
        },
    ),
    key("data.sequences.held_out", None, "all", when={"split": {"time"}}),
    key("data.sequences.reverse", None, True, when={"model": {"sasrec", "gru4rec"}}),
    key("protocol.candidates", None, ["uniform"], ["full", "popularity"]),
    key("protocol.filter_history", None, False),
    key("data.items.ids", None, False, when={"items": {"file", "vectors"}, "model": {"two_tower", "sasrec"}}),
    key("loss", None, "full_softmax", "bpr", when={"model": {*RETRIEVERS} - CLOSED - {"tiger", "ultragcn"}}),
    key("schedule", None, "cosine", when=STEPWISE),
    Setting(
        "batches",
        {
            "full": {"trainer.batch_size": 512, "trainer.max_epochs": 3},
            "small": {"trainer.batch_size": 16, "trainer.max_epochs": 2},
        },
    ),
    key("metrics.slices", None, ["item"]),
]
CADENCES = [  # of a training: epochs have ten batches, of which accumulated ones take five or four steps
    Setting("model", {"dlrm": {**RANKERS["dlrm"], **LABELS["click"]}, "mmoe": RANKERS["mmoe"]}),
    Setting(
        "validate",
        {
            "epoch": {},
            "2 epochs": {"trainer.validate_every": 2},
            "3 steps": {"trainer.validate_every_n_steps": 3},
            "4 steps": {"trainer.validate_every_n_steps": 4},
            "13 steps": {"trainer.validate_every_n_steps": 13},
            "3 steps, late": {"trainer.validate_every_n_steps": 3, "trainer.validate_from": 0.4},
        },
    ),
    Setting(
        "checkpoint",
        {
            "end": {},
            "1 step": {"checkpoint.every_n_steps": 1},
            "2 steps": {"checkpoint.every_n_steps": 2},
            "3 steps": {"checkpoint.every_n_steps": 3},
            "time": {"checkpoint.every_minutes": 1e-6},
            "many": {"checkpoint.every_n_steps": 1, "checkpoint.keep_last": 3, "checkpoint.keep_best": 2},
        },
    ),
    key("trainer.accumulate", None, 2, 3),
    key("trainer.early_stopping.patience", None, 1, 2),
    key("trainer.max_steps", None, 7),
    Setting(
        "scheduler",
        {
            "none": {},
            "plateau": {"optim.scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", **PLATEAU}},
            "exponential": {"optim.scheduler": {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.5}},
            "cosine": {"schedule": "cosine"},
        },
    ),
    key("optim.ema", None, 0.9),
    key("calibration", None, "platt"),
    key("optim.sparse.name", None, "adam", "partial_rowwise_adam"),
    key("trainer.precision", None, "16-mixed"),
    key("trainer.pipeline", None, "sparse_dist"),
    Setting(
        "split",
        {
            "files": {"data.split": FILES},
            "windows": {"data.split": {"by": "time", "column": "ts", **SHARES, "window": 3600.0}},
        },
        {"validate": {"epoch"}, "trainer.early_stopping.patience": {"None"}},
    ),
]
ARRAYS = {"ranking": RANKING, "retrieval": RETRIEVAL, "cadences": CADENCES}


def complete(array: str, chosen: Chosen) -> dict[str, str]:
    """Return a combination: these values, and the defaults of all other settings."""
    settings = {s.name: s for s in ARRAYS[array]}
    assert all(value in settings[name].values for name, value in chosen.items()), chosen
    return {"array": array, **{name: chosen.get(name, s.default) for name, s in settings.items()}}


@cache
def combinations(array: str) -> list[dict[str, str]]:
    """Return combinations that hold each allowed pair of values of the array; always the same ones."""
    choices = {s.name: [(s.name, value) for value in s.values] for s in ARRAYS[array]}
    forbidden = {
        ((s.name, value), choice)
        for s in ARRAYS[array]
        for other, allowed in s.when.items()
        for value, choice in product(s.values, choices[other])
        if value != s.default and choice[1] not in allowed
    }
    forbidden |= {pair for one, other in REFUSED for pair in product(one, other)}
    forbidden |= {(b, a) for a, b in forbidden}

    def filled(row: Row, left: Mapping[Pair, None]) -> Row | None:
        """Return a row with values of all settings, each that which the most pairs are left of."""
        name = next((n for n in choices if all(n != given for given, _ in row)), None)
        if name is None:
            return row
        fit = [c for c in choices[name] if all((c, given) not in forbidden for given in row)]
        fit.sort(key=lambda c: -sum((given, c) in left or (c, given) in left for given in row))
        return next((whole for c in fit if (whole := filled((*row, c), left)) is not None), None)

    left = dict.fromkeys(pair for a, b in subsets(choices.values(), 2) for pair in product(a, b))
    rows: list[Row] = []
    while left:
        pair = next(iter(left))
        row = None if pair in forbidden else filled(pair, left)
        rows += [] if row is None else [row]
        for covered in [pair, *permutations(row or (), 2)]:
            left.pop(covered, None)
    return [complete(array, dict(row)) for row in rows]


def legal(chosen: Chosen) -> dict[str, str]:
    """Return a combination in which settings that others do not allow have their defaults."""
    found = dict(chosen)
    for s in ARRAYS[chosen["array"]]:
        if any(found[other] not in values for other, values in s.when.items()):
            found[s.name] = s.default
    return found


def keys_of(chosen: Chosen) -> dict[str, Any]:
    """Return the config keys that a combination sets."""
    keys: dict[str, Any] = {}
    for setting in ARRAYS[chosen["array"]]:
        keys |= setting.values[chosen[setting.name]]
    return keys


def name_of(chosen: Chosen) -> str:
    """Return the text of a combination, as `complete` takes it: what differs from the defaults."""
    usual = complete(chosen["array"], {})
    given = {k: v for k, v in chosen.items() if v != usual[k]}
    return f"complete({chosen['array']!r}, {given})"


def drawn(tests: int) -> set[int]:
    """Return the numbers of the tests, a hundredth of them, that are drawn by the seed."""
    return set(random.Random(SEED).sample(range(tests), tests // 100))
