"""The YAML that recsys.new writes for each real data set, and for the built-in samples, trains without an edit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recsys.config.compose import compose
from recsys.data.samples import clicks, sequences
from recsys.new.questions import Answers
from recsys.new.write_config import new_data
from recsys.training.run import train

SETS: dict[str, tuple[str, dict[str, Any]]] = {  # folder: model, and what the YAML says
    "criteo_kaggle": ("dlrm", {"label.column": "column_1", "source.files": ["train.tsv"]}),
    "avazu": ("dlrm", {"label.column": "click", "split.by": "time"}),
    "ml-100k": ("dlrm", {"label.at_least": 4, "split.column": "timestamp", "source.rename.user_id": "user_id:token"}),
    "frappe": ("dlrm", {"label.at_least": 1, "split.by": "files"}),
    "census_income": ("dlrm", {"label.positive": ["50000+."], "split.by": "files", "source.strip": True}),
    "ml-1m": ("sasrec", {"group.by": "user", "split.by": "leave_one_out"}),
    "amazon_beauty_bert4rec": ("sasrec", {"group.by": "user"}),
    "gowalla": ("sasrec", {"split.by": "files"}),
    "tiger_beauty": ("sasrec", {"group.by": "user"}),
    "amazon_beauty_s3rec": ("sasrec", {"group.by": "user", "source.format": "lists"}),
}
EVERY_DAY = ("avazu",)
ASKS = ("census_income",)  # which of its columns without names is the label


def check_that_it_trains(
    files: Path, model: str, expected: dict[str, Any], folder: Path, *, asks: bool = False
) -> None:
    """Write conf/data/mine.yaml in the working directory, and train a few steps with it. asks: with a question"""
    assert new_data("mine", [str(files)], Answers()) is not asks
    limits = ["debug=fast", "trainer.batch_size=256", f"data.prepared={folder / 'prepared'}"]
    cfg = compose("train", ["data=mine", f"model={model}", *limits])
    for key, value in expected.items():
        node: Any = cfg.data
        for part in key.split("."):
            node = node[part]
        assert node == value, key
    assert train(cfg)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else pytest.mark.slow) for n in SETS])
def test_real_set(name: str, real_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = real_data(name).resolve()
    monkeypatch.chdir(tmp_path)
    check_that_it_trains(files, *SETS[name], tmp_path, asks=name in ASKS)


@pytest.mark.slow
def test_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write, model, expected in (
        (clicks.write_sample, "dlrm", {"label.column": "column_1", "source.header": False}),
        (sequences.write_sample, "sasrec", {"group.order": "time", "source.files": ["log.csv"]}),
    ):
        folder = tmp_path / model
        folder.mkdir()
        write(folder, rows=5000, seed=0)
        check_that_it_trains(Path(model), model, expected, folder)
        (tmp_path / "conf" / "data" / "mine.yaml").unlink()
