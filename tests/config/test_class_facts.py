"""The facts that checks need before PyTorch is imported are those of the classes."""

import inspect
import re
from importlib import import_module
from typing import Any

import pytest
import torch
import yaml

from recsys import losses
from recsys.base.errors import UserError
from recsys.config.compose import compose, conf_dir
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.job.build import build_model, locate
from recsys.job.run_config import RunConfig
from recsys.losses import tasks
from recsys.models.protocols import model_kind
from recsys.schema import class_facts, signatures
from recsys.sharding.tables import tables

CHOICES = sorted(f.stem for f in (conf_dir() / "model").glob("*.yaml"))


def targets(group: str) -> set[str]:
    """Return the classes that the files of a group name; composing each would take half a second."""
    return {str(yaml.safe_load(f.read_text())["_target_"]) for f in (conf_dir() / group).glob("*.yaml")}


def test_every_model_has_its_kind() -> None:
    for target in targets("model"):
        facts = class_facts.own_model(target) or pytest.fail(target)
        assert facts.model_kind == model_kind(locate(target, "model"))
    assert {t for t in targets("model") if class_facts.own_model(t).constants.get("generates")} == {  # type: ignore[union-attr]
        "recsys.models.tiger.TIGER"
    }


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CHOICES)
def test_tables_are_as_wide_as_dim_unless_they_are_listed(name: str) -> None:
    cfg = compose("train", [f"model={name}"])
    facts = class_facts.own_model(cfg.model["_target_"]) or pytest.fail(name)
    kind = facts.model_kind
    if cfg.model.get("dim") is None or kind not in ("ranking", "retrieval") or facts.constants.get("wider_than_dim"):
        return
    user, item = SparseFeature("user", 9, "user"), SparseFeature("item", 9, "item")
    history = SparseFeature("items", 9, "item", multi_valued=True, sequence=True)
    rows = FeatureSpec((), (user, item, history), (BinaryLabel("click"), BinaryLabel("buy")))
    lists = FeatureSpec((), (SparseFeature("item", 9, "item", multi_valued=True, sequence=True),), (), item="item")
    try:
        model = build_model(RunConfig.of(cfg), rows if kind == "ranking" else lists, torch.device("meta"))
    except UserError:
        pytest.skip("needs other features")
    widths = {t.dim for t in tables(model).values() if not t.name.startswith(("wide_", "time_"))}
    assert widths == {cfg.model.dim}


def test_facts_of_losses() -> None:
    """Of the classes that recsys.losses offers, and of those that the configs name."""
    offered = {f"recsys.losses.{n}" for n in losses.__all__ if inspect.isclass(getattr(losses, n))}
    for target in offered | targets("loss"):
        module, _, name = target.rpartition(".")
        cls = getattr(import_module(module), name)
        facts = class_facts.own_loss(target)
        protocols = [p for p in (losses.RankingLoss, losses.RetrievalLoss, losses.Tasks) if p in inspect.getmro(cls)]
        assert (None if facts is None else facts.protocol) == (protocols[0].__name__ if protocols else None), target
        if losses.RankingLoss in protocols:
            assert facts == class_facts.LossFacts("RankingLoss", cls.kinds, cls.within_groups)
    assert {n: (f.kinds, f.within_groups) for n, f in class_facts.losses_by_name().items()} == {
        n: (c.kinds, c.within_groups) for n, c in tasks.LOSSES.items()
    }
    assert not any(default.within_groups for default in tasks.DEFAULTS.values())  # as check_config assumes


def test_others_have_no_facts() -> None:
    for target in ("recsys.models.none.None", "recsys.models.dlrm.None", "shop.models.Own", "dlrm", "", "recsys."):
        assert class_facts.own_model(target) is None and class_facts.own_loss(target) is None


def test_parameters_of_every_choice() -> None:
    """Of recsys's own classes, of which all hints are found, and of PyTorch's optimizers and schedules."""
    groups = ("model", "loss", "numeric", "optim", "schedule")
    nodes = [yaml.safe_load(f.read_text()) for g in groups for f in (conf_dir() / g).glob("*.yaml")]
    named = {
        str(v["_target_"]) for node in nodes for v in (node, *node.values()) if isinstance(v, dict) and "_target_" in v
    }
    for target in named | {"torch.optim.AdamW", "torch.optim.SGD", "torch.optim.lr_scheduler.OneCycleLR"}:
        module, _, name = target.rpartition(".")
        made = inspect.signature(getattr(import_module(module), name)).parameters.values()
        parameters = signatures.source_parameters(target)
        assert parameters is not None, target
        expected = {p.name: p.default is p.empty for p in made if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        assert {name: p.is_required for name, p in parameters.items()} == expected, target
        if target.startswith("recsys."):
            assert not [n for n, p in parameters.items() if p.hint is Any and n != "device"], target


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("torch.optim.AdamW", {"lr": -1.0}),  # in Adam, its base
        ("torch.optim.Adam", {"betas": [0.9, 1.5]}),
        ("torch.optim.SGD", {"momentum": -0.5}),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", {"factor": 2.0}),
        ("recsys.models.session_knn.SessionKNN", {"k": 10, "sample_size": 5}),
        ("recsys.models.masknet.MaskNet", {"blocks": []}),
    ],
)
def test_values_that_a_constructor_refuses(target: str, values: dict[str, Any]) -> None:
    """The source of the constructor says the same as a call of it, and nothing of the defaults."""
    module, _, name = target.rpartition(".")
    cls, weight = getattr(import_module(module), name), torch.zeros(1, requires_grad=True)
    first = torch.optim.SGD([weight]) if "scheduler" in target else [weight]
    given = ("params", "optimizer", "features")
    signatures.check_against_source({"_target_": target}, "part", given)
    with pytest.raises(UserError) as said:
        signatures.check_against_source({"_target_": target, **values}, "part", given)
    if target.startswith("torch."):
        with pytest.raises(ValueError, match=f"^{re.escape(str(said.value).removeprefix('part: '))}$"):
            cls(first, **values)
