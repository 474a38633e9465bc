"""What tests compose with remembered_configs.py is what Hydra composes without it."""

from pathlib import Path

import pytest
from forks import fork
from omegaconf import OmegaConf
from remembered_configs import loaded, remembered

from recsys.config.compose import compose

COMMANDS = [
    ("train", ["model=dcnv2", "data=frappe", "trainer.max_epochs=3", "+optim.dense.betas=[0.9,0.98]"]),
    ("train", ["experiment=movielens_100k", "trainer.threads=1"]),
    ("evaluate", ["run=a"]),
]


def write(folder: Path) -> None:
    """Write all configs, one a file, and their types."""
    for i, (command, overrides) in enumerate(COMMANDS):
        cfg = compose(command, overrides)
        text = OmegaConf.to_yaml(cfg)
        (folder / str(i)).write_text(f"{OmegaConf.get_type(cfg)} {OmegaConf.is_struct(cfg)}\n{text}")


def texts(folder: Path) -> list[str]:
    return [f.read_text() for f in sorted(folder.iterdir())]


def test_they_are_those_of_hydra(tmp_path: Path) -> None:
    for name in ("hydra", "first", "again"):
        (tmp_path / name).mkdir()
    assert fork(write, tmp_path / "hydra").wait() == 0
    write(tmp_path / "first")
    before = len(loaded)
    write(tmp_path / "again")
    assert len(loaded) == before > 0
    assert texts(tmp_path / "again") == texts(tmp_path / "first") == texts(tmp_path / "hydra")


def test_a_copy_is_returned_of_what_was_computed_once() -> None:
    calls: list[int | None] = []

    def once(key: int | None) -> list[int | None]:
        calls.append(key)
        return [key]

    function = remembered(once, lambda key: key)
    function(1).append(2)
    assert function(1) == [1]
    assert function(None) == function(None) == [None]
    assert calls == [1, None, None]


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "data" / "mine.yaml"
    file.parent.mkdir(parents=True)
    for name in ("a", "b"):
        file.write_text(f"name: {name}\nsparse: {{c: {{}}}}\n")
        assert compose("train", ["data=mine"]).data.name == name
