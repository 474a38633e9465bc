"""Check the parts of a training config that the config alone shows to be wrong, before the slow imports.

PyTorch, TorchRec and FBGEMM take seconds to import. Classes of recsys's own models and losses are therefore read from
their source, not imported. Classes of users are checked later, by `check` and by the task.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys.cli.console import say
from recsys.config.kinds import (
    NO_LOSS,
    check_ranking_keys,
    check_rows,
    fitted_without_loss,
    together_needed,
    wrong_loss,
)
from recsys.config.targets import moved
from recsys.data.raw.vector_files import table_widths
from recsys.data.transforms.resolved_data import ResolvedData, is_bag
from recsys.errors import UserError, did_you_mean
from recsys.features import CALIBRATIONS

PACKAGE = Path(__file__).parents[1]
PROTOCOLS = {  # the kinds of models by the protocol that they subclass
    "FittedRankingModel": "fitted_ranking",
    "RetrievalModel": "retrieval",
    "ClosedFormModel": "closed_form",
}
RANKING = ("ranking", "fitted_ranking")  # the kinds that predict labels of rows
TABLES = ("PooledEmbeddings", "SequenceEmbeddings", "Items")  # classes whose second argument is the width of tables


def check_early(cfg: DictConfig, data: ResolvedData) -> None:
    """Raise UserError if the model, the loss, the metrics and the data of a config do not fit each other."""
    kind = _model_kind(cfg)
    if kind is not None:
        check_rows(
            cfg,
            "ranking" if kind in RANKING else "retrieval",
            has_labels=bool(data.label_configs),
            has_items=data.item_feature is not None,
        )
        if kind == "retrieval" and cfg.loss is None:
            raise UserError(NO_LOSS)
        if kind != "ranking":
            check_ranking_keys(cfg)
        if kind in ("closed_form", "fitted_ranking") and cfg.loss is not None:
            raise fitted_without_loss(cfg)
    within_groups = _check_loss(cfg, kind, data)
    check_metrics(cfg, data)
    check_calibration(cfg, data)
    if cfg.calibration != "none" and within_groups and not cfg.loss.get("pointwise"):
        say(
            f"calibration={cfg.calibration}: a loss within groups does not learn the level of predictions; "
            "set loss.pointwise=0.3, the share of the loss of single rows"
        )


def check_vector_widths(cfg: DictConfig, data: ResolvedData) -> None:
    """Raise UserError if pretrained vectors have another width than the tables of one of recsys's own models."""
    if (widths := _model_widths(cfg)) is None:
        return
    for name, (_, width) in table_widths(data).items():
        if width not in widths:
            raise UserError(
                f"data.sparse.{name}.vectors: the vectors have {width} numbers, but the model's table has "
                f"{cfg.model.dim}; set model.dim={width}"
            )


def check_metrics(cfg: DictConfig, data: ResolvedData) -> None:
    """Raise UserError if a metric needs a feature that the data lacks, or a table is frozen and decays."""
    m = cfg.metrics
    sparse = data.sparse_columns
    dense = [n for n, c in data.dense_columns.items() if c.vectors is None and c.row_vector is None]
    hint = "; to use a column for metrics only, add it to data.sparse with model=false"
    if m.gauc is not None and m.gauc not in sparse:
        raise UserError(f"metrics.gauc={m.gauc}: no sparse feature{did_you_mean(m.gauc, sparse)}{hint}")
    if m.gauc is not None and is_bag(sparse[m.gauc]):
        hint = "the feature has several values per row; name a single-valued feature"
        raise UserError(f"metrics.gauc={m.gauc}: {hint}")
    if any(k < 1 for k in m.k):
        raise UserError(f"metrics.k={list(m.k)}: must be numbers of at least 1")
    decay = cfg.optim.sparse.weight_decay
    if decay and (frozen := sorted(data.frozen_tables)):
        why = f"would shrink the table {frozen[0]}, whose vectors.trainable is false; set it to 0"
        raise UserError(f"optim.sparse.weight_decay={decay}: {why}")
    for name in m.slices:
        if name not in [*sparse, *dense]:
            raise UserError(f"metrics.slices: no feature {name}{did_you_mean(name, [*sparse, *dense])}{hint}")


def check_calibration(cfg: DictConfig, data: ResolvedData) -> None:
    """Raise UserError if there is no such calibration, or nothing that it could be fitted to."""
    methods = ("none", *CALIBRATIONS)
    if cfg.calibration not in methods:
        raise UserError(f"calibration={cfg.calibration}: unknown{did_you_mean(cfg.calibration, methods)}")
    if cfg.calibration == "none":
        return
    if all(label.kind == "classes" for label in data.label_configs.values()):
        why = "calibrates binary labels and numbers, and this data has neither"
        raise UserError(f"calibration={cfg.calibration}: {why}")
    if not data.split.validation and not data.split.validation_files:
        raise UserError(f"calibration={cfg.calibration}: needs validation rows; set data.split.validation")


# --- losses ----------------------------------------------------------------------------------------------


def _check_loss(cfg: DictConfig, model: str | None, data: ResolvedData) -> bool:
    """Raise UserError if one of recsys's own losses fits neither the kind of the model nor the labels.

    Returns:
        Whether the loss, or that of a label, compares the rows of a group.
    """
    package, _, name = _target(cfg.loss).rpartition(".")
    if not f"{package}.".startswith("recsys.losses.") or name not in _classes("losses"):
        return False
    protocols = set(_bases("losses", name))
    if model == "retrieval" and "RetrievalLoss" not in protocols:
        raise wrong_loss(cfg, "RetrievalLoss")
    if model == "ranking" and name != "Tasks" and "RankingLoss" not in protocols:
        raise wrong_loss(cfg, "RankingLoss")
    if model != "ranking":
        return False
    labels = {label: c.kind for label, c in data.label_configs.items()}
    if name == "Tasks":
        within = [_attribute(loss, "within_groups") for loss in _losses_of_tasks(cfg.loss, labels)]
    else:
        kinds = _attribute(name, "kinds")
        if not set(kinds) & set(labels.values()):
            own = ", ".join(dict.fromkeys(labels.values()))
            why = f"is a loss of {' and '.join(kinds)} labels; those of this data are of kind {own}"
            raise UserError(f"loss={_target(cfg.loss)}: {why}")
        within = [_attribute(name, "within_groups")]
    if any(within) and not data.together:
        raise together_needed(cfg)
    return any(within)


def _losses_of_tasks(node: DictConfig, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the class of each label's loss. Raises UserError if a name is wrong, or a loss does not fit its label."""
    known, defaults = _names("LOSSES"), _names("DEFAULTS")
    given, weights = ({} if node.get(key) is None else node[key] for key in ("losses", "weights"))
    if not OmegaConf.is_dict(given) or not (OmegaConf.is_dict(weights) or weights == {}):
        return  # `check` reports the type
    for key, values in (("losses", given), ("weights", weights)):
        for label in values:
            if label not in labels:
                raise UserError(f"loss.{key}.{label}: the data has no label {label}{did_you_mean(str(label), labels)}")
    for label, kind in labels.items():
        name = given.get(label)
        if name is not None and name not in known:
            raise UserError(f"loss.losses.{label}={name}: no such loss{did_you_mean(str(name), known)}")
        loss = defaults[kind] if name is None else known[name]
        if kind not in (kinds := _attribute(loss, "kinds")):
            why = f"is a loss of {' and '.join(kinds)} labels; this one is {kind}"
            raise UserError(f"loss.losses.{label}={name}: {why}")
        yield loss


# --- classes, read from their source ---------------------------------------------------------------------


def _target(node: Any) -> str:
    return moved(str(node.get("_target_") or "")) if OmegaConf.is_dict(node) else ""


def _model_class(cfg: DictConfig) -> ast.ClassDef | None:
    """Return the source of the model's class; None if it is a user's."""
    package, _, name = _target(cfg.model).rpartition(".")
    file = PACKAGE / "models" / f"{package.removeprefix('recsys.models.')}.py"
    if not package.startswith("recsys.models.") or not file.is_file():
        return None
    return _parsed(file).get(name)


def _model_kind(cfg: DictConfig) -> str | None:
    """Return the kind of one of recsys's own models (models/protocols.py); None if it is unknown."""
    if (own := _model_class(cfg)) is None:
        return None
    bases = {ast.unparse(base).rpartition(".")[2] for base in own.bases}
    if not bases <= {"Module", *PROTOCOLS}:
        return None
    return next((kind for protocol, kind in PROTOCOLS.items() if protocol in bases), "ranking")


def _model_widths(cfg: DictConfig) -> set[int] | None:
    """Return the widths of the tables of one of recsys's own models; None if they are not model.dim or a number."""
    own, dim = _model_class(cfg), cfg.model.get("dim") if OmegaConf.is_dict(cfg.model) else None
    if own is None or not isinstance(dim, int):
        return None
    calls = [n for n in ast.walk(own) if isinstance(n, ast.Call) and ast.unparse(n.func) in TABLES]
    widths = [call.args[1] if len(call.args) > 1 else None for call in calls]
    values = [dim if isinstance(w, ast.Name) and w.id == "dim" else getattr(w, "value", None) for w in widths]
    numbers = {v for v in values if isinstance(v, int)}
    return numbers if numbers and None not in values else None


@cache
def _parsed(file: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)}


@cache
def _classes(room: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a package of recsys by name."""
    return {name: node for file in sorted((PACKAGE / room).glob("*.py")) for name, node in _parsed(file).items()}


def _bases(room: str, name: str) -> Iterator[str]:
    """Yield the names of a class and of its bases in the same package, nearest first."""
    if (node := _classes(room).get(name)) is not None:
        yield name
        for base in node.bases:
            yield from _bases(room, ast.unparse(base))


def _attribute(loss: str, attribute: str) -> Any:
    """Return a class attribute of one of recsys's own losses."""
    for name in _bases("losses", loss):
        for node in _classes("losses")[name].body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == attribute for t in targets):
                return ast.literal_eval(node.value)  # type: ignore[attr-defined]
    raise AttributeError(f"{loss} has no class attribute {attribute}")


@cache
def _names(table: str) -> dict[str, str]:
    """Return a table of recsys/losses/tasks.py: the class of each loss by its name, or of the default of each kind."""
    for node in ast.parse((PACKAGE / "losses" / "tasks.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table and isinstance(node.value, ast.Dict):
            items = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): ast.unparse(value) for key, value in items if key is not None}
    raise LookupError(table)
