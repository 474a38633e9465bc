"""Runs whose loss compares the rows of a group, and a table that keeps its pretrained vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forks import ok, run_forked

from recsys.config.compose import compose
from recsys.job.check_config import monitor_of
from recsys.job.run_config import RunConfig
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.run_dir import choose_checkpoint

YAML = """
name: shown
root: raw
source: {files: ["*.csv"]}
label: {column: click}
group: {by: display, together: true}
split: {by: hash, column: display, validation: 0.2, test: 0.2}
dense_defaults: {transform: []}
dense: {x: {}}
sparse: {s: {vectors: {file: vectors.parquet, key: s, trainable: false}}, t: {}}
"""
DISPLAYS, SHOWN = 500, 8
TRAIN = ["data=shown", "model=dlrm", "model.dim=4", "model.bottom_mlp=[16,4]", "model.top_mlp=[16]"]
TRAIN += ["trainer.batch_size=256", "trainer.max_epochs=6", "trainer.threads=1", "optim.dense.lr=0.02"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Within a display, small x are clicked; but displays of large x have more clicks than others."""
    path = tmp_path_factory.mktemp("groups")
    (path / "conf" / "data").mkdir(parents=True)
    (path / "conf" / "data" / "shown.yaml").write_text(YAML)
    (path / "raw").mkdir()
    rng, n = np.random.default_rng(0), DISPLAYS * SHOWN
    display = np.repeat(np.arange(DISPLAYS), SHOWN)
    level = rng.normal(size=DISPLAYS)[display]
    own = rng.normal(size=n)
    click = rng.random(n) < 1 / (1 + np.exp(-(4 * level - 2 * own)))
    frame = pl.DataFrame(
        {
            "click": click.astype(int),
            "display": [f"d{i}" for i in display],
            "x": np.round(3 * level + own, 3),
            "s": rng.choice(list("abc"), n),
            "t": rng.choice(list("de"), n),
        }
    )
    frame.sample(fraction=1, shuffle=True, seed=1).write_csv(path / "raw" / "log.csv")
    vectors = pl.DataFrame({"s": ["a", "b", "c"], "vector": [[float(i)] * 4 for i in (1, 2, 3)]})
    vectors.write_parquet(path / "raw" / "vectors.parquet")
    frame.select("display", "x", "s", "t").head(99).reverse().write_csv(path / "new.csv")
    return path


def metrics(run: Path) -> dict[str, Any]:
    content = json.loads((run / "metrics.json").read_text())
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="module")
def rows(home: Path) -> dict[str, Any]:
    """The test metrics of a run whose loss takes rows one by one."""
    ok(run_forked("recsys.train", *TRAIN, "run_dir=rows", cwd=home))
    test: dict[str, Any] = metrics(home / "rows")["test"]
    return test


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_pairs_of_a_group_show_what_single_rows_hide(home: Path, rows: dict[str, Any], processes: int) -> None:
    """Over all rows, large x mean clicks; only a loss within groups finds that it is the other way round in a group."""
    more = (f"trainer.devices={processes}", "sharding=rowwise") if processes > 1 else ()
    ok(run_forked("recsys.train", *TRAIN, *more, "loss=pairwise", f"run_dir=pairs{processes}", cwd=home))
    pairs = metrics(home / f"pairs{processes}")["test"]
    assert pairs["gndcg@10"] > 0.8 > rows["gndcg@10"] and rows["auc"] > 0.75
    assert pairs["gauc"] > 0.75 and rows["gauc"] < 0.5
    assert pairs["groups"] <= DISPLAYS * 0.3
    stored = pl.read_parquet(home / "rows" / "test_predictions.parquet")
    assert stored["group"].n_unique() >= rows["groups"]


@pytest.mark.parametrize(("loss", "expected"), [("pairwise", "gndcg@10"), ("focal", "auc")])
def test_the_metric_that_selects_checkpoints(loss: str, expected: str) -> None:
    cfg = compose("train", ["data=criteo", "data.group.by=cat_1", "data.group.together=true", f"loss={loss}"])
    assert monitor_of(RunConfig.of(cfg), None) == f"validation/{expected}"


def test_a_frozen_table_keeps_its_vectors(home: Path, rows: dict[str, Any]) -> None:
    stored = StoredCheckpoint(choose_checkpoint(home / "rows", "last"))
    vocabulary = pl.read_parquet(home / "rows" / "vocabularies" / "s.parquet")
    place = dict(zip(vocabulary["value"], vocabulary["id"], strict=True))
    [key] = [key for key in stored.tensors if key.endswith("t_s.weight")]
    table = stored.read(key)
    for value, number in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        assert table[place[value]].tolist() == [number] * 4
    assert json.loads((home / "rows" / "features.json").read_text())["sparse"][0]["frozen"]


def test_rows_are_predicted_in_their_order(home: Path, rows: dict[str, Any]) -> None:
    ok(run_forked("recsys.predict", "run=rows", "input=new.csv", "output=p.parquet", cwd=home))
    p, x = pl.read_parquet(home / "p.parquet"), pl.read_csv(home / "new.csv")["x"]
    assert p["line"].to_list() == [*range(2, 101)] and np.corrcoef(p["probability"], x)[0, 1] > 0.7
