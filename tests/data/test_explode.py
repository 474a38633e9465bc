"""data.source.explode: one row for each element of a list, whatever the format, in chunks of any size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from data_configs import small_config

from recsys.base.errors import UserError
from recsys.data.features import ResolvedData
from recsys.data.features.blocks import ELEMENT, LINE
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import arrow_files, formats, nested, read_sources, text
from recsys.data.raw.raw_format import RawFormat
from recsys.online.predictor import file_blocks
from recsys.online.raw_rows import RawRows
from recsys.schema.data_schema import DenseConfig, GroupConfig, LabelConfig, SparseConfig, SplitConfig
from recsys.schema.source_schema import SourceConfig

SESSIONS = [
    {
        "session": s,
        "events": [{"aid": s * 10 + i, "ts": 100 * s + i, "type": "buy" if i % 2 else "view"} for i in range(s % 4)],
    }
    for s in range(40)
]
EXPLODED = [(s["session"], e["aid"], e["type"], n + 1) for s in SESSIONS for n, e in enumerate(s["events"])]


def sessions(folder: Path, kind: str) -> ResolvedData:
    """Write the sessions to two files."""
    raw = folder / kind
    raw.mkdir()
    for i, part in enumerate((SESSIONS[:25], SESSIONS[25:])):
        frame = pl.DataFrame(part)
        lists = frame.select(
            "session", **{f: pl.col("events").list.eval(pl.element().struct.field(f)) for f in ("aid", "ts", "type")}
        )
        texts = lists.with_columns(pl.col("aid", "ts").cast(pl.List(pl.String))).with_columns(
            pl.col("aid", "ts", "type").list.join(" ")
        )
        file = raw / f"part_{i}.{kind}"
        if kind == "jsonl":
            file.write_text("".join(json.dumps(s) + "\n" for s in part))
        elif kind == "parquet":
            frame.write_parquet(file, row_group_size=7)
        elif kind == "arrow":
            lists.write_ipc(file, compression="uncompressed")
        else:
            texts.write_csv(file)
    explode: Any = {"jsonl": "events", "parquet": ["events"], "arrow": ["aid", "ts", "type"]}.get(kind)
    prefix = "events." if kind in ("jsonl", "parquet") else ""
    return small_config(
        folder,
        root=str(raw),
        source=SourceConfig(format=kind, explode=explode or dict.fromkeys(("aid", "ts", "type"), " ")),
        label=LabelConfig(f"{prefix}type", positive=["buy"]),
        dense={"ts": DenseConfig(column=f"{prefix}ts", transform=[])},
        sparse={"item": SparseConfig(column=f"{prefix}aid"), "session": SparseConfig()},
        split=SplitConfig(by="hash", column="session", validation=0.2, test=0.2),
    )


def exploded(data: ResolvedData) -> list[tuple[Any, ...]]:
    check_data(data)
    check_raw_files(data)
    names = [data.sparse_columns[n].column or n for n in ("session", "item")] + [data.label.column or ""]
    found = []
    for file in read_sources.find_files(data):
        for r in formats.FORMATS[data.source.format].ranges(data.source, file):
            for block in read_sources.read_blocks(data, file, r):
                found += block.frame.select(*(pl.col(n).cast(pl.String) for n in names), ELEMENT).rows()
    return found


KINDS = ("jsonl", "parquet", "arrow", "csv")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_elements_in_every_format_and_chunk_size(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sessions(tmp_path, kind)
    rows = [(str(s), str(a), t, n) for s, a, t, n in EXPLODED]
    assert exploded(data) == rows
    monkeypatch.setattr(nested, "MAX_ELEMENTS", 4)
    monkeypatch.setattr(RawFormat, "range_bytes", 200)
    monkeypatch.setattr(RawFormat, "range_rows", 7)
    monkeypatch.setattr(arrow_files, "BLOCK_ROWS", 48)
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    assert exploded(data) == rows


def test_bad_rows_have_the_line_of_the_raw_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of unequal length, and an element that cannot be read, in the second of two chunks."""
    raw = tmp_path / "raw"
    raw.mkdir()
    lines = [f"{i},{i} {i + 1},{i % 2} 1" for i in range(200)]
    lines[150] = "150,1 2 3,0 1"
    lines[180] = "180,1 2,0 maybe"
    (raw / "a.csv").write_text("user,items,clicks\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(RawFormat, "range_bytes", 1000)
    data = small_config(
        tmp_path,
        source=SourceConfig(explode={"items": " ", "clicks": " "}),
        label=LabelConfig("clicks"),
        sparse={"items": SparseConfig(), "user": SparseConfig()},
        group=GroupConfig(by="list"),
        max_bad_rows=0.1,
    )
    prepared = prepare(data)
    bad = pl.read_csv(f"{prepared.folder}.bad_rows.csv")
    assert bad.select("line", "reason").rows() == [
        (152, "data.source.explode: items and clicks differ in their number of elements"),
        (182, "label clicks is neither 0 nor 1"),
    ]
    assert sum(prepared.info["rows"].values()) == 2 * 200 - 2 - 1


def test_text_of_lists_without_rows_or_order(tmp_path: Path) -> None:
    """Brackets, quotes, and empty lists; an element of several parallel lists keeps its place."""
    (tmp_path / "a.csv").write_text("y,a,b\n1,\"['x', 'y']\",\n0,[],\n1,z,\n")
    source, sparse = SourceConfig(explode={"a": ","}), {"a": SparseConfig()}
    data = ResolvedData(name="t", root=str(tmp_path), source=source, label=LabelConfig("y"), sparse=dict(sparse))
    [block] = read_sources.read_blocks(data, tmp_path / "a.csv")
    assert block.frame.select("a", "y", LINE).rows() == [("x", "1", 2), ("y", "1", 2), ("z", "1", 4)]
    (tmp_path / "a.csv").write_text("y,a,b\n1,1||3,a|b|c\n")
    data = replace(data, source=SourceConfig(explode={"a": "|", "b": "|"}), sparse={n: SparseConfig() for n in "ab"})
    [block] = read_sources.read_blocks(data, tmp_path / "a.csv")
    assert block.frame.select("a", "b").rows() == [("1", "a"), (None, "b"), ("3", "c")]


def test_lists_within_elements_stay_lists(tmp_path: Path) -> None:
    rows = [{"y": 1, "o": {"lines": [{"sku": "a", "tags": ["x", "z"]}, {"sku": "b", "tags": []}]}}, {"y": 0, "o": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    for kind in ("jsonl", "json", "parquet"):
        data = ResolvedData(
            name="t",
            root=str(tmp_path),
            source=SourceConfig(format=kind, files=[f"a.{kind}"], explode="o.lines", rename={"sku": "o.lines.sku"}),
            label=LabelConfig("y"),
            sparse={"sku": SparseConfig(), "tags": SparseConfig(column="o.lines.tags", split=" ")},
        )
        check_raw_files(data)
        [block] = read_sources.read_blocks(data, tmp_path / f"a.{kind}")
        assert block.frame.select("sku", "o.lines.tags", LINE).rows() == [("a", ["x", "z"], 1), ("b", [], 1)]


def test_rows_to_predict_are_exploded_too_without_the_label(tmp_path: Path) -> None:
    """A row that cannot be read keeps its place in its line."""
    data = sessions(tmp_path, "csv")
    rows = RawRows.load(prepare(data).folder)
    file = tmp_path / "new.csv"
    file.write_text("session,aid,ts\n7,1 2 3,5 nonsense 6\n8,,\n9,4,8\n")
    read_sources.check_columns(read_sources.prediction_source(data, file), file, rows.raw.sides)
    [(frame, bad)] = file_blocks(rows, file)
    assert frame.select(LINE, ELEMENT, "ts").rows() == [(2, 1, 5.0), (2, 3, 6.0), (4, 1, 8.0)]
    assert [(b.line, b.element) for b in bad] == [(2, 2)]


@pytest.mark.parametrize(
    ("kind", "explode", "message"),
    [
        ("csv", ["aid"], 'explode=aid: its columns are text; name the separator of the elements: {aid: " "}'),
        ("csv", {"aids": " "}, "explode: part_0.csv has no column aids; did you mean aid?"),
        ("arrow", {"aid": ","}, "explode: part_0.arrow: column aid is List(Int64); a list needs no separator"),
        ("parquet", ["session"], "explode: part_0.parquet: column session is Int64; a list needs no separator"),
        (
            "jsonl",
            ["session"],
            "column session is String; a list needs no separator (explode: [session]), and text needs one",
        ),
        ("jsonl", 7, "explode=7: write a column"),
        ("libfm", "a", "explode: does not apply to format libfm"),
    ],
)
def test_errors(tmp_path: Path, kind: str, explode: Any, message: str) -> None:
    data = sessions(tmp_path, "csv" if kind == "libfm" else kind)
    data = replace(data, source=replace(data.source, format=kind, explode=explode))
    with pytest.raises(UserError) as e:
        exploded(data)
    assert message in str(e.value)
    assert "\n" not in str(e.value)
