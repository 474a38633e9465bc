"""The facts that checks need before PyTorch is imported are those of the classes."""

import inspect

import pytest
import torch
import yaml

from recsys import losses
from recsys.config.build import build_model
from recsys.config.compose import compose, conf_dir
from recsys.config.run_config import RunConfig
from recsys.config.targets import locate
from recsys.errors import UserError
from recsys.features import FeatureSpec, Label, SparseFeature
from recsys.losses import tasks
from recsys.models.protocols import model_kind
from recsys.schema import class_facts
from recsys.sharding.tables import tables

CHOICES = sorted(f.stem for f in (conf_dir() / "model").glob("*.yaml"))


def targets(group: str) -> set[str]:
    """Return the classes that the files of a group name; composing each would take half a second."""
    return {str(yaml.safe_load(f.read_text())["_target_"]) for f in (conf_dir() / group).glob("*.yaml")}


def test_every_model_has_its_kind() -> None:
    listed = {f"recsys.models.{name}" for names in class_facts.MODELS.values() for name in names}
    assert listed == targets("model")
    for target in targets("model"):
        [own, kind] = class_facts.own_model(target) or pytest.fail(target)
        assert target.endswith(own) and kind == model_kind(locate(target, "model"))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CHOICES)
def test_tables_are_as_wide_as_dim_unless_they_are_listed(name: str) -> None:
    cfg = compose("train", [f"model={name}"])
    own, kind = class_facts.own_model(cfg.model["_target_"]) or pytest.fail(name)
    if cfg.model.get("dim") is None or kind not in ("ranking", "retrieval") or own in class_facts.WIDER:
        return
    user, item = SparseFeature("user", 9, "user"), SparseFeature("item", 9, "item")
    history = SparseFeature("items", 9, "item", multi_valued=True, sequence=True)
    rows = FeatureSpec((), (user, item, history), (Label("click"), Label("buy")))
    lists = FeatureSpec((), (SparseFeature("item", 9, "item", multi_valued=True, sequence=True),), (), item="item")
    try:
        model = build_model(RunConfig.of(cfg), rows if kind == "ranking" else lists, torch.device("meta"))
    except UserError:
        pytest.skip("needs other features")
    widths = {t.dim for t in tables(model).values() if not t.name.startswith(("wide_", "time_"))}
    assert widths == {cfg.model.dim}


def test_facts_of_losses() -> None:
    classes = {n: c for n in losses.__all__ if inspect.isclass(c := getattr(losses, n))}
    for name, cls in classes.items():
        bases = inspect.getmro(cls)
        facts = class_facts.LOSSES.get(name)
        if facts is None:
            assert not {losses.RankingLoss, losses.RetrievalLoss} & set(bases[1:])
        elif facts.protocol == "RankingLoss":
            assert losses.RankingLoss in bases
            assert (facts.kinds, facts.within_groups) == (cls.kinds, cls.within_groups)
        elif facts.protocol == "RetrievalLoss":
            assert losses.RetrievalLoss in bases
    assert {n: c.__name__ for n, c in tasks.LOSSES.items()} == class_facts.LOSS_OF_NAME
    assert {n: c.__name__ for n, c in tasks.DEFAULTS.items()} == class_facts.LOSS_OF_KIND


def test_the_configs_of_losses_name_listed_classes() -> None:
    for target in targets("loss"):
        assert class_facts.own_loss(target) is not None
