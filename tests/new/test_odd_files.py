"""Infinite numbers, missing times, very many columns, and paths that are no files."""

import json
import os
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.new.explode import explode
from recsys.new.layouts import CsvLayout, ParquetLayout
from recsys.new.propose import propose
from recsys.new.questions import Answers
from recsys.new.write_config import document

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"


def table(change: Callable[[int], dict[str, str]]) -> str:
    rows = [
        {
            "label": str(int(i % 3 == 0)),
            "user": f"u{i % 50}",
            "price": f"{i % 97 / 7:.2f}",
            "at": str(1_700_000_000 + i),
        }
        | change(i)
        for i in range(500)
    ]
    return "label,user,price,at\n" + "".join(",".join(r.values()) + "\n" for r in rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: {"label": "1e400"} if i % 2 else {},
        lambda i: {"label": "-1e400"} if i == 3 else {},
        lambda i: {"price": "1e400"} if i == 7 else {},
        lambda _: {"price": "1e400"},
        lambda i: {"price": "-inf" if i % 2 else "1e400"},
        lambda i: {"at": "1e400"} if i == 5 else {},
        lambda i: {"at": ""} if i == 5 else {},
        lambda i: {"at": "9" * 25} if i == 5 else {},
    ],
)
def test_infinite_and_missing_values(change: Callable[[int], dict[str, str]], tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(table(change))
    written = document(propose([str(file)]), "x")
    assert OmegaConf.create(written).label and "inf" not in written.replace("-inf", "").split("label", 1)[1][:40]


def test_a_label_that_is_infinite_in_json(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"label": {"1e400" if i % 2 else 0}, "n": {i % 7}}}\n' for i in range(300)))
    label = propose([str(file)], Answers("label")).label
    assert label is not None and "inf" not in str(label.settings.get("at_least"))


def test_missing_times_stay_in_their_rows(tmp_path: Path) -> None:
    """The time of each row is its own, also after a row without one."""
    file = tmp_path / "a.csv"
    file.write_text(table(lambda i: {"at": ""} if i == 5 else {}))
    proposal = propose([str(file)], Answers("label"))
    [c] = [c for c in proposal.columns if c.name == "at"]
    assert c.time is not None and c.time.moments is not None
    assert c.time.moments[5] is None and c.time.moments.dt.epoch("s")[6] == 1_700_000_006
    assert proposal.split.settings["by"] == "time"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is a named pipe; write what comes out of it to a file first"),
        (lambda p: os.symlink("gone", p), "is a link to gone, which does not exist"),
        (lambda p: p.write_bytes(LFS), "is a pointer of Git LFS, not the file itself; run: git lfs pull"),
    ],
)
@pytest.mark.parametrize("glob", ["a.csv", "*.csv"])
def test_paths_that_are_no_files(make: Callable[[Path], None], message: str, glob: str, tmp_path: Path) -> None:
    make(tmp_path / "a.csv")
    with pytest.raises(UserError) as found:
        propose([str(tmp_path / glob)])
    assert message in str(found.value) and "no such file" not in str(found.value)


def test_the_time_for_many_columns_grows_with_their_number() -> None:
    """Lists and text in 800 columns; comparing each with each took more than ten times as long."""
    width = 800
    frame = pl.DataFrame({f"c{i}": ["a b c", "a b", "a", "d e f"] for i in range(width)})
    started = time.process_time()
    explode(frame, CsvLayout(columns=frame.columns), Answers(label=None))
    lists = pl.DataFrame({f"l{i}": [[i] * (1 + (i + k) % 5) for k in range(6)] for i in range(width)})
    explode(lists, ParquetLayout(columns=lists.columns), Answers(label=None))
    assert time.process_time() - started < 15


def test_an_object_over_several_lines(tmp_path: Path) -> None:
    (tmp_path / "slice.json").write_text(json.dumps({"info": 1, "playlists": [{"pid": 1}]}, indent=2))
    with pytest.raises(UserError, match=r"slice.json: holds JSON objects over several lines; .*jq -c"):
        propose([str(tmp_path)], Answers())


def test_odd_text_files(tmp_path: Path) -> None:
    """Numbers that are equal as floats, a column with a very long name, and lines that end as on an old Mac."""
    rows = [f"{i % 50},{i % 37},{1700000000 + 60 * i},{10**30 + i % 7},{i % 3 % 2}" for i in range(400)]
    for name, ends in (("a" * 300, "\n"), ("big", "\n"), ("big", "\r")):
        file = tmp_path / "log.csv"
        file.write_text(ends.join([f"user,item,ts,{name},click", *rows]) + ends, newline="")
        if ends == "\r":
            with pytest.raises(UserError, match=r"carriage returns alone; run: tr '\\r' '\\n'"):
                propose([str(file)], Answers())
        else:
            label = propose([str(file)], Answers()).label
            assert label is not None and label.column.name == "click"


def test_decimals_of_256_bits_are_numbers(tmp_path: Path) -> None:
    prices = pa.array([Decimal(i * 7 % 500) / 100 for i in range(500)], pa.decimal256(50, 2))
    table = pa.table({"label": [int(i % 3 == 0) for i in range(500)], "user": [f"u{i % 50}" for i in range(500)]})
    pq.write_table(table.append_column("price", prices), tmp_path / "a.parquet")
    assert "dense:\n  price: {}" in document(propose([str(tmp_path / "a.parquet")]), "x")
