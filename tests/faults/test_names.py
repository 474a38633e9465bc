"""Names are names: none leads out of a folder, and none is too long or too odd for a file."""

import re
from pathlib import Path

import pytest
from data_configs import data_config

from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose
from recsys.data.prepare.check_data import check_data
from recsys.preprocess import preprocess
from recsys.schema.data_schema import DataConfig, DenseConfig, GroupConfig, ItemsConfig, SparseConfig

ODD = ["", " ", ".", "..", "../../x", "/tmp/x", "a/b", "a\\b", "*", "cat_?", "[a]", "a\0b", "a\nb", "\u202e", "x" * 300]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "x" * 300, "*"], ids=lambda n: n[:8])
def test_a_data_set_writes_below_its_folder_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setattr("sys.argv", ["recsys.preprocess", f"data.name='{name}'", "data.sample.rows=200"])
    assert command_line.status("preprocess", lambda cfg: preprocess(cfg) and None) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: data.name=") and line.endswith("; choose a plain name, such as my_data")
    assert len(line) < 150
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == []
    assert not Path("/tmp/x").exists()


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
@pytest.mark.parametrize("name", ["price", "Preis in €", "价格", "a-b_c:d", "2nd", "x" * 150])
def test_plain_names(name: str) -> None:
    check_data(mine(name=name))
    check_data(mine(dense={name: None}, sparse={f"s{name[:100]}": None}))
    check_data(mine(name="criteo_v1.2"))
    check_data(data_config(compose("train")))
