"""Names are names: none leads out of a folder, and none is too long or too odd for a file."""

import re

import pytest
from data_configs import data_config

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.prepare.check_data import check_data
from recsys.schema.data_schema import DataConfig, DenseConfig, GroupConfig, ItemsConfig, SparseConfig

ODD = ["", " ", ".", "..", "../../x", "/tmp/x", "a/b", "a\\b", "*", "cat_?", "[a]", "a\0b", "a\nb", "\u202e", "x" * 300]


def mine(**changes: object) -> DataConfig:
    base = {"name": "mine", "dense": {"price": None}, "sparse": {"user": None}}
    return DataConfig(**base | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_odd_names(name: str) -> None:
    items = ItemsConfig(feature="user", file="items.csv", key="id", dense={name: None})
    for config in (
        mine(name=name),
        mine(dense={name: None}),
        mine(sparse={name: None}),
        mine(sparse={"user": SparseConfig(table=name or "a.b")}),
        mine(dense={f"{name}*": DenseConfig(cyclic=["hour"], column="t")}),
        mine(items=items, group=GroupConfig(by="visitor")),
    ):
        with pytest.raises(UserError) as raised:
            check_data(config)
        assert "name" in str(raised.value) and re.fullmatch(r"[ -~]{20,330}", str(raised.value)), str(raised.value)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["Preis in €", "价格", "a-b_c:d", "x" * 150])
def test_plain_names(name: str) -> None:
    check_data(mine(name=name))
    check_data(mine(dense={name: None}, sparse={f"s{name[:100]}": None}))
    check_data(mine(name="criteo_v1.2"))
    check_data(data_config(compose("train")))
