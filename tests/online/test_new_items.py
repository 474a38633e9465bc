"""New items of a trained run: a copy of an item gets its scores, and nothing else changes."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.base.errors import UserError
from recsys.export.__main__ import write
from recsys.online.new_items import run_with_items, say_grown_items
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
CODES = CONFIG[: CONFIG.index("items:")] + (
    "items: {ids: false}\nsemantic_ids: {vectors: {file: vectors.parquet}, levels: 2, size: 8, unique: false}\n"
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
    (at / "conf/data/cod.yaml").write_text(CODES.replace("name: log", "name: cod"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(at)
        small = [f"data.root={at}", "model=sasrec", "model.dim=8", "model.max_length=5", "trainer.max_epochs=1"]
        for name in ("log", "vec", "cod"):
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


@pytest.mark.parametrize("name", ["log", "vec", "cod"])
def test_a_copy_has_the_scores_of_its_item(folder: Path, name: str) -> None:
    histories = pl.read_parquet(folder / "log.parquet").head(200)
    before = Recommender.load(name).recommend(histories, 20, filter_history=False)
    with run_with_items(name, today(folder, name)) as run:
        after = Recommender.load(run).recommend(histories, 22, filter_history=False)
    for (_, items, scores), (_, more, others) in zip(before.iter_rows(), after.iter_rows(), strict=True):
        known, found = dict(zip(items, scores, strict=True)), dict(zip(more, others, strict=True))
        assert found == known | {103: known[3], 105: known[5]}
    assert not [*folder.glob(".recsys-items-*")]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["codes", "vectors"])
def test_a_model_of_semantic_ids_lists_new_items(folder: Path, given: str) -> None:
    codes = {str(i): [i % 4, i // 4] for i in range(20)}
    (folder / "codes.json").write_text(json.dumps(codes))
    small = ["model=tiger", "model.dim=16", "model.heads=2", "trainer.max_epochs=1", "trainer.threads=1"]
    own = ["data=cod", f"data.root={folder}", "data.semantic_ids.unique=true", f"run_dir=tiger_{given}"]
    if given == "codes":
        own += ["data.semantic_ids.vectors=null", "data.semantic_ids.codes=codes.json"]
    recsys.train([*small, *own])
    new = today(folder, "vec")
    if given == "codes":
        new = str(folder / "new.json")
        Path(new).write_text(json.dumps({"103": codes["3"], "105": codes["5"]}))
    histories = pl.read_parquet(folder / "log.parquet").head(200)
    with run_with_items(f"tiger_{given}", new) as run:
        lists = Recommender.load(run).recommend(histories, 22, filter_history=False)["items"]
    assert {103, 105} <= {*lists.explode()}


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


def test_a_grown_file_of_items_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(name: str) -> str:
        say_grown_items(name)
        return capsys.readouterr().err

    for name, file, read in (("log", "items.csv", pl.read_csv), ("vec", "vectors.parquet", pl.read_parquet)):
        assert not said(name)
        old, grown = (folder / file).read_bytes(), pl.concat([read(folder / file), read(today(folder, name))])
        grown.write_csv(folder / file) if name == "log" else grown.write_parquet(folder / file)
        assert f"{file}: has 2 items that {name} does not know" in said(name)
        assert not said("knn")
        (folder / file).write_bytes(old)
        assert not said(name)
