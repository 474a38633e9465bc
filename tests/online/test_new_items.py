"""New items of a trained run: a copy of an item gets its scores, and nothing else changes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.base.errors import UserError
from recsys.export.__main__ import write
from recsys.online.new_items import run_with_items
from recsys.online.recommender import Recommender
from recsys.schema.command_schemas import ExportConfig

CONFIG = """
name: log
source: {format: parquet, files: [log.parquet]}
group: {by: user, order: at}
sequences: {max_length: 5}
split: {by: leave_one_out}
sparse: {item: {}}
items: {file: items.csv, key: item, ids: false, dense: {price: {transform: [standardise]}}, sparse: {kind: {}}}
"""
VECTORS = CONFIG[: CONFIG.index("items:")] + (
    "items: {ids: false, vectors: {text: {file: vectors.parquet, normalise: [{pca: 2}]}}}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    at = tmp_path_factory.mktemp("new_items")
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 60, 900), rng.integers(0, 20, 900)
    pl.DataFrame({"user": users, "item": items, "at": np.arange(900)}).write_parquet(at / "log.parquet")
    about = pl.DataFrame({"item": range(20), "kind": [f"k{i % 4}" for i in range(20)], "price": rng.random(20)})
    about.write_csv(at / "items.csv")
    pl.DataFrame({"item": range(20), "vector": rng.random((20, 4)).tolist()}).write_parquet(at / "vectors.parquet")
    (at / "conf/data").mkdir(parents=True)
    (at / "conf/data/log.yaml").write_text(CONFIG)
    (at / "conf/data/vec.yaml").write_text(VECTORS.replace("name: log", "name: vec"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(at)
        small = [f"data.root={at}", "model=sasrec", "model.dim=8", "model.max_length=5", "trainer.max_epochs=1"]
        for name in ("log", "vec"):
            recsys.train([f"data={name}", *small, "trainer.threads=1", f"run_dir={name}"])
        recsys.train(["data=log", *small[:1], "model=item_knn", "run_dir=knn"])
        yield at


def today(folder: Path, name: str) -> str:
    """Write a copy of items 3 and 5 as 103 and 105; return the name of the file."""
    file = "items.csv" if name == "log" else "vectors.parquet"
    read = pl.read_csv if name == "log" else pl.read_parquet
    new = read(folder / file).filter(pl.col("item").is_in([3, 5])).with_columns(item=pl.col("item") + 100)
    target = folder / f"today_{file}"
    new.write_csv(target) if name == "log" else new.write_parquet(target)
    return str(target)


@pytest.mark.parametrize("name", ["log", "vec"])
def test_a_copy_has_the_scores_of_its_item(folder: Path, name: str) -> None:
    histories = pl.read_parquet(folder / "log.parquet").head(200)
    before = Recommender.load(name).recommend(histories, 20, filter_history=False)
    with run_with_items(name, today(folder, name)) as run:
        after = Recommender.load(run).recommend(histories, 22, filter_history=False)
    for (_, items, scores), (_, more, others) in zip(before.iter_rows(), after.iter_rows(), strict=True):
        known, found = dict(zip(items, scores, strict=True)), dict(zip(more, others, strict=True))
        assert found == known | {103: known[3], 105: known[5]}
    assert not [*folder.glob(".recsys-items-*")]


def test_new_items_at_every_door(folder: Path) -> None:
    file = today(folder, "log")
    assert 3 in recsys.similar("log", 103, 3, items=file)["item"]
    user = pl.read_parquet(folder / "log.parquet")["user"][0]
    assert {103, 105} & {*recsys.recommend("log", user, 22, items=file)["item"]}


@pytest.mark.slow
def test_new_items_are_exported(folder: Path) -> None:
    file = today(folder, "log")
    write(ExportConfig(run="log", output="artefact", items=file))
    assert pl.read_parquet("artefact/pipeline/items/items.parquet").height == 23  # and the unknown one


def test_what_cannot_be_added_is_said(folder: Path) -> None:
    for run, file, why in (
        ("log", "items.csv", "all of its 20 items are candidates"),
        ("log", "none.csv", "no such file"),
        ("knn", today(folder, "log"), "by their ids alone"),
    ):
        with pytest.raises(UserError, match=why), run_with_items(run, file):
            pass
