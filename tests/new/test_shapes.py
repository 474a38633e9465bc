"""The YAML that recsys.new writes for a file of any shape trains without an edit."""

from pathlib import Path
from typing import Any

import pytest
from data_configs import data_from
from file_shapes import SHAPES, Shape
from omegaconf import DictConfig, OmegaConf

from recsys.config.compose import compose
from recsys.data.prepare.check_data import check_data, check_files
from recsys.new.propose import propose
from recsys.new.questions import Answers
from recsys.new.write_config import document, new_data
from recsys.training.run import train

EVERY_DAY = ("csv", "jsonl", "log of items", "side tables")
LIMITS = ["debug=fast", "trainer.batch_size=64", "trainer.max_epochs=1"]


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder raw/ of the working directory."""
    (tmp_path / "raw").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "raw"


def shapes(*names: str) -> list[Any]:
    return [pytest.param(SHAPES[name], id=name) for name in names]


def rest() -> list[Any]:
    """The shapes that are not trained on every day."""
    return shapes(*sorted(set(SHAPES) - set(EVERY_DAY)))


def asked(shape: Shape) -> Answers:
    return Answers(None if shape.asked == "null" else shape.asked)


@pytest.mark.few(20)
@pytest.mark.parametrize("shape", shapes(*SHAPES))
def test_files_are_understood(shape: Shape, raw: Path) -> None:
    shape.write(raw)
    proposal = propose([shape.files], asked(shape))
    assert [q.text for q in proposal.questions] == [] or shape.questions, proposal.questions
    text = document(proposal, "mine")
    written, data = OmegaConf.create(text), data_from(text)
    check_data(data)
    check_files(data)
    for key, value in shape.expected.items():
        node: Any = written
        for part in key.split("."):
            node = node.get(part)
        if value not in ("absent", "present"):
            assert (OmegaConf.to_container(node) if OmegaConf.is_config(node) else node) == value, key
        assert (node is None) == (value == "absent" or value is None), key


def written(shape: Shape, raw: Path) -> DictConfig:
    """Return the config of data=mine, which recsys.new writes for the shape."""
    shape.write(raw)
    new_data("mine", [shape.files], asked(shape))
    return compose("train", ["data=mine", f"model={shape.model}", *LIMITS])


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", shapes(*EVERY_DAY))
def test_trains(shape: Shape, raw: Path) -> None:
    assert train(written(shape, raw))


@pytest.mark.slow
@pytest.mark.parametrize("shape", rest())
def test_every_shape_trains(shape: Shape, raw: Path) -> None:
    assert train(written(shape, raw))
