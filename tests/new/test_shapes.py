"""The YAML that recsys.new writes for a file of any shape trains without an edit; what it does not tell is asked."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from data_configs import data_from
from file_shapes import SHAPES, Shape, shown
from omegaconf import DictConfig, OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.new.propose import propose
from recsys.new.questions import Answers
from recsys.new.write_config import document, new_data
from recsys.training.run import train

EVERY_DAY = ("csv", "jsonl", "log of items")
LIMITS = ["debug=fast", "trainer.batch_size=64", "trainer.max_epochs=1"]


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder raw/ of the working directory."""
    (tmp_path / "raw").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "raw"


def shapes(*names: str) -> list[Any]:
    return [pytest.param(SHAPES[name], id=name) for name in names]


@pytest.mark.parametrize("shape", shapes(*SHAPES))
def test_files_are_understood(shape: Shape, raw: Path) -> None:
    shape.write(raw)
    if shape.refused:
        with pytest.raises(UserError, match=shape.refused):
            propose([shape.files], Answers(**shape.answers))
        return
    proposal = propose([shape.files], Answers(**shape.answers))
    assert [q.key for q in proposal.questions] == shape.asked.split(), proposal.questions
    text = document(proposal, "mine")
    written, data = OmegaConf.create(text), data_from(text)
    check_data(data)
    check_raw_files(data)
    for word in shlex.split(shape.expected):
        key, _, value = word.partition("=")
        assert shown(written, key) == value or (value == "present" and shown(written, key) != "absent"), key


def written(shape: Shape, raw: Path) -> DictConfig:
    """Return the config of data=mine, which recsys.new writes for the shape."""
    shape.write(raw)
    new_data("mine", [shape.files], Answers(**shape.answers))
    return compose("train", ["data=mine", f"model={shape.model}", *LIMITS])


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", shapes(*EVERY_DAY))
def test_trains(shape: Shape, raw: Path) -> None:
    assert train(written(shape, raw))


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes(*sorted(n for n in {*SHAPES} - {*EVERY_DAY} if not SHAPES[n].refused)))
def test_every_shape_trains(shape: Shape, raw: Path) -> None:
    assert train(written(shape, raw))
