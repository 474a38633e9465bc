"""Whatever a file holds, recsys.new proposes a config or raises a UserError of one line."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.new.propose import propose
from recsys.new.write_config import document, table

CELLS = st.sampled_from(
    [
        "",
        *[
            "0",
            "1",
            "2",
            "-1",
            "1.5",
            "1,5",
            "1e3",
            "nan",
            "NA",
            "?",
            "a",
            "a|b",
            "x;y",
            "2024-01-01",
            "1700000000",
            "20240101",
            "12:30",
            "01/02/2024",
            "true",
            "No",
            "ü",
        ],
    ]
    + ["b c", '"', "'", "[1, 2]", "007", "99999999999999999999", "inf", " a ", "#", "{}", "\\N"]
)
NAMES = ["label", "user_id", "item", "ts", "price", "a b", "x.y", "7", "", "rating"]
VALUES: dict[Any, Any] = {
    pl.Int64: st.integers(-(2**40), 2**40),
    pl.Float32: st.floats(width=32),
    pl.Boolean: st.booleans(),
    pl.Date: st.dates(),
    pl.Datetime("us", "UTC"): st.datetimes(),
    pl.Time: st.times(),
    pl.String: st.text(max_size=6),
    pl.Binary: st.binary(max_size=4),
    pl.List(pl.Float64): st.lists(st.floats(), max_size=3),
    pl.List(pl.String): st.lists(st.text(max_size=3), max_size=3),
    pl.Categorical(): st.sampled_from(["a", "b"]),
}


def understood(file: Path) -> None:
    """Propose a config for the file, and read what is written, or see an error of one line."""
    try:
        p = propose([str(file)])
    except UserError as e:
        error = str(e)
    else:
        error = ""
    assert "\n" not in error
    if error:
        return
    read = OmegaConf.create(document(p, "mine"))
    assert read.source.format and (read.get("dense") or read.get("sparse"))
    assert table(p, 60).row_count == len(p.columns)


@settings(deadline=None, max_examples=examples(90))
@given(
    st.lists(st.lists(CELLS, min_size=1, max_size=6), min_size=1, max_size=30),
    st.sampled_from([",", "\t", ";", " ", "::", ", "]),
    st.integers(1, 20),
)
@example([["a1", "b2"], ["c3", "d4", "e5"], ["", ""]], ";", 3)  # a line of separators alone
def test_any_text(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], separator: str, times: int) -> None:
    file = tmp_path_factory.mktemp("text") / "a.csv"
    file.write_text("\n".join(separator.join(r) for r in rows * times) + "\n")
    understood(file)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.lists(CELLS, min_size=30, max_size=30), min_size=2, max_size=6),
    st.lists(st.sampled_from(NAMES), min_size=6, max_size=6),
)
def test_any_table(tmp_path_factory: pytest.TempPathFactory, columns: list[list[str]], names: list[str]) -> None:
    file = tmp_path_factory.mktemp("table") / "a.csv"
    rows = [",".join(names[: len(columns)]), *(",".join(r) for r in zip(*columns, strict=True))]
    file.write_text("\n".join(rows * 2) + "\n")
    understood(file)


@settings(deadline=None, max_examples=examples(90))
@given(st.data())
def test_any_types(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    height = data.draw(st.integers(1, 20))
    series = {
        f"c{i}": pl.Series(
            data.draw(st.lists(st.none() | VALUES[kind], min_size=height, max_size=height)), dtype=kind, strict=False
        )
        for i, kind in enumerate(data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5)))
    }
    file = tmp_path_factory.mktemp("types") / "a.parquet"
    pl.concat([pl.DataFrame(series)] * 10).write_parquet(file)
    understood(file)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.binary(min_size=1, max_size=200), st.sampled_from(["a.csv", "a.parquet", "a.gz", "a.npz", "a.jsonl", "a.zip"])
)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    file = tmp_path_factory.mktemp("bytes") / name
    for start in (b"", b"\x1f\x8b\x08", b"PK\x03\x04", b"PAR1", b"ARROW1", b"BZh9", b"{"):
        file.write_bytes(start + content)
        understood(file)
