"""Serving: one row at a time gives bit for bit what batches of files gave, from one folder that can be moved."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from entries import assert_same, check_entries, moved, raw_frame, together
from every_transform import CSV, PARQUET, sides, write_csv, write_parquet
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_rows import of_yaml

from recsys.base.errors import UserError
from recsys.data.features import parse_rows
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.blocks import LINE
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import read_sources
from recsys.online.predictor import Predictor, file_blocks
from recsys.online.raw_rows import RawRows
from recsys.online.row_error import RowError
from recsys.online.row_transforms import RowTransforms

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("yaml", "write"),
    [
        pytest.param(CSV, write_csv, id="csv"),
        pytest.param(PARQUET, write_parquet, id="parquet", marks=pytest.mark.slow),
    ],
)
def test_every_transform(yaml: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "raw")
    data = of_yaml(yaml)
    data = replace(data, root=str(tmp_path / "raw"), prepared=str(tmp_path / "prepared"))
    prepared = prepare(data)
    assert prepared.info["bad_rows"] == 0
    check_entries(prepared, data, moved(prepared, tmp_path), rows=500)


@pytest.mark.parametrize(("yaml", "write"), [(CSV, write_csv), (PARQUET, write_parquet)], ids=["csv", "parquet"])
def test_a_predictor_completes_frames(yaml: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    """Renamed, joined and derived columns are made from a data frame as from the files; what cannot be read is null."""
    write(tmp_path / "raw")
    data = of_yaml(yaml)
    data = replace(data, root=str(tmp_path / "raw"), prepared=str(tmp_path / "prepared"))
    data.label.kind = "binary"
    prepared = prepare(data)
    sums = SimpleNamespace(dmp=lambda batch: (None, batch.dense.tanh().mean(1, keepdim=True)))
    predictor = Predictor(sums, RawRows.load(prepared.folder))
    [file] = read_sources.find_files(data)
    raw = raw_frame(data, file).drop(LINE)
    files = pl.concat([predictor.score(rows)[0] for rows, _ in file_blocks(predictor.rows, file)])
    assert predictor.predict(raw).equals(files["probability"]) and files["probability"].n_unique() > 100
    # a joined column that the frame brings along is kept
    assert predictor.predict(raw.with_columns(pl.lit(1e6).alias("weight"))).ne(files["probability"]).any()
    with pytest.raises(UserError, match=r"the data frame has no column price; did you mean prices\?"):
        predictor.predict(raw.rename({"price": "prices"}))
    if yaml is CSV:
        wrong = raw.with_row_index().with_columns(
            pl.when(pl.col("index") == 3).then(pl.lit("dear")).otherwise(pl.col("price")).alias("price")
        )
        assert predictor.predict(wrong).is_null().to_list() == [i == 3 for i in range(raw.height)]


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> RowTransforms:
    return small(tmp_path_factory.mktemp("csv"), CSV, write_csv)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> RowTransforms:
    return small(tmp_path_factory.mktemp("parquet"), PARQUET, write_parquet)


def small(folder: Path, yaml: str, write: Callable[[Path], None]) -> RowTransforms:
    write(folder / "raw")
    data = of_yaml(yaml)
    data = replace(data, root=str(folder / "raw"), prepared=str(folder / "prepared"))
    return moved(prepare(data), folder)


@pytest.mark.slow
def test_nothing_of_training_is_imported(csv: RowTransforms, tmp_path: Path) -> None:
    csv.save(tmp_path)
    code = f"""
import sys
from recsys.online.row_transforms import RowTransforms
from recsys.online.predictor import file_blocks
from recsys.online.predictor import Predictor
from recsys.online.raw_rows import RawRows
assert "torch" not in sys.modules
pipeline, row = RowTransforms.load({str(tmp_path)!r}), {{"price": "3", "user": 7, "item": 2}}
arrays = pipeline.arrays([row])
assert arrays.rows == 1 and pipeline.arrays_of_columns({{k: [v] for k, v in row.items()}}, 1).rows == 1
assert "torch" not in sys.modules
tensors = pipeline(row)
print(tensors.dense.shape[0], [m for m in sys.modules if m.split(".")[0] in
    ("pytorch_lightning", "lightning", "hydra", "torchrec", "wandb", "fbgemm_gpu", "pyarrow")
    or m in ("recsys.data.prepare.prepared", "recsys.data.loader.parquet_loader", "recsys.distributed.launch", "recsys.config.compose")])
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert said.stdout.strip() == "1 []", said.stderr


def test_a_batch_for_a_model(csv: RowTransforms) -> None:
    batch = csv([{"tags": "a b"}, {"tags": ["b", "a", "c"]}]).batch()
    assert batch.dense.shape == (2, len(csv.features.dense)) and batch.rows == 2
    assert batch.sparse.keys() == [f.name for f in csv.features.sparse]
    assert batch.sparse["tags"].lengths().tolist() == [2, 3]
    assert batch.sparse["tags"].values().tolist()[:2] == batch.sparse["tags"].values().tolist()[3:1:-1]


def test_what_a_row_lacks_is_missing_and_what_is_not_read_is_ignored(
    csv: RowTransforms, parquet: RowTransforms
) -> None:
    for pipeline in (csv, parquet):
        nulls = dict.fromkeys([k for c in pipeline._frames.columns for k in c.keys])
        assert_same(pipeline({}), pipeline(nulls))
        assert_same(pipeline({"no such": object(), LINE: "x", "y": "no label"}), pipeline({}))
        assert pipeline([]).dense.shape == (0, len(pipeline.features.dense))
        assert all(len(v) == 0 for v in pipeline([]).values.values())


def test_numbers_and_text_are_one(csv: RowTransforms, parquet: RowTransforms) -> None:
    for pipeline in (csv, parquet):
        for a, b in (("7.5", 7.5), ("7", 7), ("", None), (None, float("nan"))):
            assert_same(pipeline({"price": a}), pipeline({"price": b}))
        for c, d in (("-1e20", -1e20), ("7", 7.0)):  # as values, "7" and "7.0" are two in text
            assert torch.equal(pipeline({"price": c}).dense, pipeline({"price": d}).dense)
        assert_same(pipeline({"user": "12", "item": "3"}), pipeline({"user": 12, "item": 3}))


def test_nan_and_empty_text_are_missing_in_columns_of_any_type(parquet: RowTransforms) -> None:
    for column in ("price", "item", "small", "flag", "born", "when"):
        for value in (None, float("nan"), ""):
            assert_same(parquet({column: value}), parquet({}))


def test_names_of_the_file_and_of_the_yaml(csv: RowTransforms) -> None:
    assert_same(csv({"the user": "3"}), csv({"user": "3"}))
    assert csv({"user": "3"}).values["user"].item() > 0
    assert_same(csv({"the user": "3", "user": "4"}), csv({"user": "3"}))


def test_side_columns_come_from_the_row_where_it_gives_them(csv: RowTransforms) -> None:
    sides = [csv({"item": i}).values["colour"].item() for i in range(12)]
    assert len(set(sides)) > 2
    own = csv([{"item": 1, "colour": "c2"}, {"item": 1}, {"colour": "c2"}, {"item": 1, "colour": None}])
    known, missing = csv({"item": 2}).values["colour"].item(), csv({}).values["colour"].item()
    assert own.values["colour"].tolist() == [known, sides[1], known, missing]


def test_threads_share_a_pipeline(csv: RowTransforms) -> None:
    rows = [{"price": i, "user": i % 9, "item": i % 12, "tags": "a b"} for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert_same(together(list(pool.map(csv, rows))), csv(rows))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"price": "oops"}, "column price: 'oops' is not a number"),
        ({"price": float("-inf")}, "column price: -inf is not a number"),
        ({"price": 10**400}, "is out of the range of "),
        ({"small": 128}, "column small: 128 is not between -128 and 127"),
        ({"small": 1.5}, "column small: 1.5 is not a whole number"),
        ({"small": "1_0"}, "column small: '1_0' is not a number"),
        ({"flag": "maybe"}, "column flag: 'maybe' is neither true nor false"),
        ({"when": 3}, "column when: 3 is not a time"),
        ({"labels": "a"}, "column labels: 'a' is not a list"),
        ({"labels": [1, "b"]}, "column labels: [1, 'b'] is not a whole number"),
        ({"user": b"\xff"}, "column user: b'\\xff' is not UTF-8 text"),
    ],
)
def test_mistakes_in_parquet(parquet: RowTransforms, row: dict[str, Any], told: str) -> None:
    mistaken(parquet, row, told)


def mistaken(pipeline: RowTransforms, row: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as alone:
        pipeline(row)
    assert told in str(alone.value) and "\n" not in str(alone.value)
    with pytest.raises(UserError) as second:
        pipeline([{}, row])
    if isinstance(alone.value, RowError):
        assert str(second.value) == f"rows[1]: {alone.value}"


def test_what_is_no_row(csv: RowTransforms) -> None:
    with pytest.raises(UserError, match=r"rows\[1\]: a row is a dict of columns and values, not list"):
        csv([{}, ["a"]])  # type: ignore[list-item]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no raw\.parquet; name a folder"):
        RowTransforms.load(tmp_path)


FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COLUMNS = ("price", "user", "item", "other", "text", "tags", "when")
words = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp"), blacklist_characters=',"'), max_size=8)
numbers = st.one_of(st.integers(), st.floats(), st.integers(-(10**50), 10**50)).map(str)
texts = st.one_of(st.sampled_from(["", "nan", "inf", "1", " 7", "2024-01-31", "a b  c", "#x#x", "1e5"]), words, numbers)


@FEW
@given(st.lists(st.dictionaries(st.sampled_from(COLUMNS), texts), min_size=1, max_size=8))
def test_any_text_is_as_in_a_file(csv: RowTransforms, tmp_path: Path, rows: list[dict[str, str]]) -> None:
    """Written to a file and read in batch: the same tensors, and the same rows that cannot be read."""
    data = csv.fitted.data
    names = ["y", "clock", *(data.source.rename.get(c, c) for c in COLUMNS)]
    rows = [{data.source.rename.get(c, c): v for c, v in row.items()} for row in rows]
    lines = [names, *(["1", "24010103", *(row.get(n, "") for n in names[2:])] for row in rows)]
    folder = tmp_path / "raw"
    if not folder.exists():
        sides(folder)
    (folder / "f.csv").write_text("\n".join(map(",".join, lines)) + "\n", encoding="utf-8")
    here = replace(data, root=str(folder))
    complete = partial(csv._rows.complete_file, file=folder / "f.csv", bad=[])
    [block] = read_sources.read_blocks(here, folder / "f.csv", complete=complete)
    frame, bad = parse_rows(here, block, labelled=False)
    wrong = {b.line - 2: b.reason for b in bad}
    asked = [row | {"clock": 24010103} for row in rows]
    good = [row for i, row in enumerate(asked) if i not in wrong]
    expected = RowTensors.from_frame(csv.fitted.apply(frame), csv.features)
    assert_same(csv(good), expected)
    if good:
        assert_same(together([csv(row) for row in good]), expected)
    for i, reason in wrong.items():
        with pytest.raises(RowError) as e:
            csv(asked[i])
        assert f"column {e.value.column}: {e.value.value!r} {reason.removeprefix(e.value.column + ' ')}" == str(e.value)


numbers = st.one_of(st.integers(), st.floats(), st.decimals(), st.integers(-(10**400), 10**400))
others = st.one_of(st.none(), st.booleans(), st.text(max_size=5), st.binary(max_size=3), st.datetimes(), st.dates())
odd = st.recursive(numbers | others, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
TYPED = (*COLUMNS, "small", "flag", "kind", "born", "labels", "floats", "clock")


@settings(FEW, max_examples=examples(150))
@given(st.dictionaries(st.sampled_from(TYPED), odd))
def test_any_value_is_read_or_told_in_a_line(csv: RowTransforms, parquet: RowTransforms, row: dict[str, Any]) -> None:
    for pipeline in (csv, parquet):
        try:
            tensors = pipeline(row)
        except UserError as e:
            told = str(e)
        else:
            told = ""
        assert "\n" not in told and len(told) < 400
        if told:
            continue
        assert tensors.dense.isfinite().all() and tensors.rows == 1
        for f in pipeline.features.sparse:
            ids = tensors.values[f.name]
            assert len(ids) == tensors.lengths[f.name].sum() and ((ids >= 0) & (ids < f.cardinality)).all()
            assert f.multi_valued or len(ids) == 1
        twice = pipeline([row, row])
        assert torch.equal(twice.dense, tensors.dense.repeat(2, 1))
        assert all(torch.equal(twice.values[n], tensors.values[n].repeat(2)) for n in twice.values)
