"""Raw files: every oddity gives rows with their lines, rows set aside, or one clear line."""

import gzip
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.base.errors import UserError
from recsys.data.features import ResolvedData
from recsys.data.features.blocks import LINE, BadRow
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import read_sources, text
from recsys.data.raw.byte_ranges import FileRange
from recsys.online.predictor import input_files
from recsys.schema.data_schema import DataConfig, DenseConfig, LabelConfig, SparseConfig
from recsys.schema.source_schema import JoinConfig, SourceConfig


def config(
    folder: Path, *, dense: tuple[str, ...] = ("a",), derive: dict[str, str] | None = None, **source: Any
) -> DataConfig:
    return ResolvedData(
        name="t",
        root=str(folder),
        source=SourceConfig(**source),
        derive=derive or {},
        dense={n: DenseConfig() for n in dense},
        label=LabelConfig("y"),
    )


def read(folder: Path, content: bytes, name: str = "f.csv", **more: Any) -> tuple[pl.DataFrame, list[BadRow]]:
    (folder / name).write_bytes(content)
    data = config(folder, **{"files": [name], **more})
    check_data(data)
    check_raw_files(data)
    blocks = [b.as_text() if b.as_text else b for b in read_sources.read_blocks(data, folder / name)]
    frame = pl.concat([b.frame for b in blocks]) if blocks else pl.DataFrame()
    return frame, [b for block in blocks for b in block.bad]


def rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.select("y", "a", LINE).rows()


def error(folder: Path, content: bytes, name: str = "f.csv", **source: Any) -> str:
    with pytest.raises(UserError) as e:
        read(folder, content, name, **source)
    message = str(e.value)
    assert len(message.splitlines()) == 1 and message.isprintable() and len(message) < 500, message
    return message


@pytest.mark.parametrize("block_bytes", [16, 40, 100, 1 << 20])
@pytest.mark.parametrize("header", [True, False])
def test_wrong_widths_come_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, header: bool
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    lines = ["y,a"] if header else []
    wrong = {}
    for i in range(60):
        row = {0: "1", 7: "1,2,3", 8: "1,2,3,4", 30: "x"}.get(i % 31, f"{i % 2},{i}")
        if row.count(",") != 1:
            wrong[len(lines) + 1] = row
        lines.append(row)
    frame, bad = read(tmp_path, "\n".join(lines).encode(), header=header, columns=["y", "a"])
    assert {b.line: b.text for b in bad} == wrong and len(bad) == len(wrong)
    assert bad[0].reason == "1 fields, not 2"
    assert {n: f"{y},{a}" for y, a, n in rows(frame)} == {
        i: t for i, t in enumerate(lines, 1) if i not in wrong and t != "y,a"
    }


def parquet(frame: pl.DataFrame | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(frame if isinstance(frame, pa.Table) else frame.to_arrow(), sink)
    return bytes(sink.getvalue())


def test_what_is_no_csv(tmp_path: Path) -> None:
    plain = parquet(pl.DataFrame({"y": [1, 0] * 100, "a": [1.0, 2.0] * 100}))
    assert "set data.source.format=parquet" in error(tmp_path, plain)
    assert "set data.source.format=parquet" in error(tmp_path, plain, header=False, columns=["y", "a"])
    assert "rename it to .gz" in error(tmp_path, gzip.compress(b"y,a\n1,2\n"))
    assert "UTF-8" in error(tmp_path, "y,a\n1,2\n".encode("utf-16"))
    for seed in range(40):
        noise = random.Random(seed).randbytes(4000)
        assert "f.csv" in error(tmp_path, noise)
        assert "f.csv" in error(tmp_path, noise, header=False, columns=["y", "a"])
    assert "empty" in error(tmp_path, b"")
    assert "has no header, only empty lines" in error(tmp_path, b"\n \n\n")
    assert "two columns are named a" in error(tmp_path, b"y,a,a\n1,2,3\n")
    why = "columns 2, 4 have no name; list the names of all columns in data.source.columns"
    assert why in error(tmp_path, b"y,,a,,b\n1,2,3,4,5\n")
    assert "reserved" in error(tmp_path, b"y,a,__line__\n1,2,3\n")
    assert "not csv but JSON; set data.source.format=jsonl" in error(tmp_path, b'{"y": 1, "a": 2}\n')


def test_broken_parquet(tmp_path: Path) -> None:
    whole = parquet(pl.DataFrame({"y": [1, 0] * 1000, "a": [float(i) for i in range(2000)]}))
    assert "not a Parquet file" in error(tmp_path, b"y,a\n1,2\n", "f.parquet", format="parquet")
    assert "not a Parquet file" in error(tmp_path, whole[:-300], "f.parquet", format="parquet")
    garbled = whole[:10] + b"\xee" * 200 + whole[210:]
    assert "f.parquet" in error(tmp_path, garbled, "f.parquet", format="parquet")


def test_parquet_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "y": pa.array([1, 0, 1]),
            "a": pa.array([1.5, float("nan"), None]),
            "words": pa.array(["u", None, "v"]).dictionary_encode(),
            "codes": pa.array([7, 8, 7]).dictionary_encode(),
            "bytes": pa.array([b"p", b"q", None]),
            "tags": pa.array([["x", "y"], [], None]),
        }
    )
    columns = {"dense": ("a", "words", "codes", "bytes", "tags")}  # no others are read
    frame, bad = read(tmp_path, parquet(table), "f.parquet", format="parquet", **columns)
    assert not bad and frame[LINE].to_list() == [1, 2, 3]
    assert frame["words"].to_list() == ["u", None, "v"] and frame.schema["words"] == pl.String
    assert frame["codes"].to_list() == [7, 8, 7]
    assert frame["bytes"].to_list() == ["p", "q", None]
    assert frame["tags"].to_list() == [["x", "y"], [], None]
    not_text = pa.table({"y": [1], "a": pa.array([b"\xff"])})
    assert "a: bytes that are not UTF-8" in error(tmp_path, parquet(not_text), "f.parquet", format="parquet")


def test_libfm(tmp_path: Path) -> None:
    content = b"1 3:1 4:1\r\n-1 5:1 6:1 \n0 3:1\n0 x y\n\n1 3:1 4:1 5:1\n1 3:0.5 4:1"
    frame, bad = read(tmp_path, content, "f.libfm", format="libfm", columns=["y", "a", "b"])
    assert frame.select("y", "a", "b", LINE).rows() == [("1", "3", "4", 1), ("-1", "5", "6", 2), ("1", "3", "4", 7)]
    assert [(b.line, b.reason) for b in bad] == [
        (3, "2 fields, not 3"),
        (4, "a field is not index:value"),
        (6, "4 fields, not 3"),
    ]


def join(**more: Any) -> JoinConfig:
    return JoinConfig(**{"file": "side.csv", "key": "item", "columns": {"price": "cost"}, **more})


MAIN = b"y,item\n1,7\n0,8\n1,\n"


def test_join(tmp_path: Path) -> None:
    (tmp_path / "side.csv").write_bytes(b"item,cost\n7,1.5\n9,2\n")
    frame, bad = read(tmp_path, MAIN, dense=("price",), joins=[join()])
    assert frame.select("item", "price", LINE).rows() == [("7", "1.5", 2), ("8", None, 3), (None, None, 4)] and not bad


@pytest.mark.parametrize(
    ("side", "more", "expected"),
    [
        (b"item,cost\n7,1\n7,2\n", {}, "more than one row"),
        (b"item,cost\n7,1\n8\n", {}, "1 of 2 rows cannot be read, more than data.max_bad_rows=0.01: 1 row: 1 fields"),
        (b"item,cost\n", {}, "no rows"),
        (b"item,cots\n7,1\n", {}, "no column cost; did you mean cots?"),
        (b"item,cost\n7,1\n", {"key": "itme"}, "no column itme; did you mean item?"),
        (b"item,cost\n7,1\n", {"columns": {"y": "cost"}}, "column y exists already"),
        (b"item,cost\n7,1\n", {"file": "none.csv"}, "no such file"),
    ],
)
def test_join_mistakes(tmp_path: Path, side: bytes, more: dict[str, Any], expected: str) -> None:
    (tmp_path / "side.csv").write_bytes(side)
    assert expected in error(tmp_path, MAIN, dense=("price",), joins=[join(**more)])


def test_rename(tmp_path: Path) -> None:
    frame, _ = read(tmp_path, b"y:float,b\n1,2\n", rename={"a": "b", "y": "y:float"})
    assert rows(frame) == [("1", "2", 2)]
    frame, _ = read(tmp_path, b"a,y\n1,2\n", rename={"a": "y", "y": "a"})
    assert rows(frame) == [("1", "2", 2)]
    assert "no column bb; did you mean b?" in error(tmp_path, b"y,b\n1,2\n", rename={"a": "bb"})
    assert "a column a already" in error(tmp_path, b"y,a,b\n1,2,3\n", rename={"a": "b"})
    assert "data.dense.b" in error(tmp_path, b"y,b\n1,2\n", rename={"a": "b"}, dense=("b",))


def test_derive(tmp_path: Path) -> None:
    frame, _ = read(tmp_path, b"y,x\n1,20\n0,\n", derive={"z": "CAST(x AS BIGINT) % 7", "a": "z + 1"})
    assert rows(frame) == [(("1"), 7, 2), ("0", None, 3)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CAST(x AS", "unable to parse"),
        ("xx + 1", "xx"),
        ("nosuch(x)", "nosuch"),
        ("SUM(CAST(x AS INT))", "one row at a time"),
        ("CAST(x AS INT)", "TRY_CAST"),
        ("", "data.derive.a"),
        ("*", "data.derive.a"),
    ],
)
def test_derive_mistakes(tmp_path: Path, sql: str, expected: str) -> None:
    message = error(tmp_path, b"y,x\n1,2\n0,foo\n", derive={"a": sql})
    assert message.startswith("data.derive.a") and expected in message


def test_a_missing_column_is_told_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(read_sources, "read_blocks", never)
    assert "data.dense.price: f.csv has no column price; did you mean prices?" in error(
        tmp_path, b"y,prices\n1,2\n", dense=("price",)
    )
    assert "data.label" in error(tmp_path, b"Y,a\n1,2\n")


def test_files(tmp_path: Path) -> None:
    data = config(tmp_path / "none")
    with pytest.raises(UserError, match="no such folder"):
        read_sources.find_files(data)
    with pytest.raises(UserError, match="no file matches"):
        read_sources.find_files(config(tmp_path))
    for name in ("b.csv", "a.csv", ".hidden", "_metadata"):
        (tmp_path / name).write_text("x")
    (tmp_path / "_SUCCESS").write_text("")
    assert [p.name for p in read_sources.find_files(config(tmp_path))] == ["a.csv", "b.csv"]
    assert [p.name for p in read_sources.find_files(config(tmp_path, files=["_m*", "a*"]))] == ["_metadata", "a.csv"]
    assert read_sources.find_files(config(tmp_path / "b.csv")) == [tmp_path / "b.csv"]
    for glob in ("/abs/*", ""):
        with pytest.raises(UserError, match=r"data\.source\.files"):
            read_sources.find_files(config(tmp_path, files=[glob]))
    (tmp_path / "c.csv").write_text("")
    with pytest.raises(UserError, match=r"c\.csv: the file is empty"):
        read_sources.find_files(config(tmp_path))


def test_a_file_of_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 10)
    monkeypatch.setattr(text, "LINE_BYTES", 100)
    assert "a line of more than" in error(tmp_path, b"y,a\n1,2\n" + b"x" * 500)


def test_lists_and_a_side_table_of_json(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("u1 a b c\nu2 a\n\nu3\n  u4  c   d \nu5 x\n")
    (tmp_path / "side.json").write_text('{"a": [1, "two"], "b": [], "c": null, "x": 3}')
    data = config(
        tmp_path,
        dense=("at",),
        format="lists",
        files=["f.txt"],
        separator=" ",
        columns=["user", "item"],
        joins=[JoinConfig(file="side.json", key="item", columns={"item": "key", "tags": "value"})],
    )
    data = replace(
        data, label=LabelConfig(None), dense={}, sparse={"item": SparseConfig(), "tags": SparseConfig(split=" ")}
    )
    check_data(data)
    check_raw_files(data)
    [block] = read_sources.read_blocks(data, tmp_path / "f.txt")
    read = block.frame.select(pl.col("user") + " " + pl.col("item") + " " + pl.col(LINE).cast(pl.String), "tags").rows()
    tags = {"a": ["1", "two"], "d": None, "x": ["3"]}
    assert read == [
        (r, tags.get(r[3], [])) for r in ("u1 a 1", "u1 b 1", "u1 c 1", "u2 a 2", "u4 c 5", "u4 d 5", "u5 x 6")
    ]
    assert block.frame["list"].n_unique() == 4
    assert [(b.line, b.reason) for b in block.bad] == [(4, "1 fields, not 2 or more")]
    for content, told in (
        ("[1]", "holds an array without objects"),
        ('{"a": ', "not JSON"),
        ('{"a": {}}', "must be an array of objects"),
    ):
        (tmp_path / "side.json").write_text(content)
        with pytest.raises(UserError, match=told):
            check_raw_files(data)


def test_lists_cut_anywhere(tmp_path: Path) -> None:
    lines = [f"u{i} " + " ".join(f"i{k}" for k in range(1 + i % 5)) for i in range(50)]
    (tmp_path / "f.txt").write_text("\n".join(lines) + "\n")
    data = config(tmp_path, format="lists", files=["f.txt"], separator=" ", columns=["y", "a"])
    size = (tmp_path / "f.txt").stat().st_size
    for step in (1, 7, 100, size):
        ranges = [FileRange(at, min(at + step, size)) for at in range(0, size, step)]
        blocks = [b for r in ranges for b in read_sources.read_blocks(data, tmp_path / "f.txt", r)]
        frame = pl.concat([b.frame for b in blocks])
        assert frame.select("y", "a").rows() == [(w[0], x) for w in map(str.split, lines) for x in w[1:]]
        assert frame["list"].n_unique() == 50 and not any(b.bad for b in blocks)


def test_what_is_no_file(tmp_path: Path) -> None:
    """A named pipe, a link to nothing, and a pointer of Git LFS are said; none is waited for, left out or parsed."""
    os.mkfifo(tmp_path / "pipe.csv")
    os.symlink("/none/of/this", tmp_path / "link.csv")
    (tmp_path / "lfs.csv").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n")
    for name, why in (("pipe", "is a named pipe"), ("link", "is a link to /none/of/this"), ("lfs", "git lfs pull")):
        with pytest.raises(UserError, match=rf"{name}.csv: .*{why}"):
            read_sources.find_files(config(tmp_path, files=[f"*{name[1:]}.csv"]))
    with pytest.raises(UserError, match=r"pipe.csv: is a named pipe"):
        read_sources.find_files(replace(config(tmp_path), root=str(tmp_path / "pipe.csv")))


def test_hidden_files_of_a_folder_are_not_scored(tmp_path: Path) -> None:
    """As training leaves them out: what Spark and macOS write beside the rows."""
    for name in ("part-1.csv", "part-0.csv", "_SUCCESS", "_tmp.csv", ".part-0.csv.crc", "._part-1.csv"):
        (tmp_path / name).write_text("" if name == "_SUCCESS" else "a\n1\n")
    parts = [tmp_path / "part-0.csv", tmp_path / "part-1.csv"]
    assert input_files([str(tmp_path)]) == input_files([str(tmp_path / "*")]) == parts
    assert (
        input_files([str(tmp_path / "_*.csv")]) == input_files([str(tmp_path / "_tmp.csv")]) == [tmp_path / "_tmp.csv"]
    )


def test_brackets_in_names_are_no_globs(tmp_path: Path) -> None:
    """log[1].csv is that file, not log1.csv; in any folder."""
    home = tmp_path / "a[1]"
    home.mkdir()
    (tmp_path / "a1").mkdir()
    for folder in (home, tmp_path / "a1"):
        (folder / "log[1].csv").write_text("y,a\n" + "1,7\n0,8\n" * 50)
        (folder / "log1.csv").write_text("y,a\n" + "1,1\n0,2\n" * 90)
    data = replace(config(home, files=["log[1].csv"]), prepared=str(tmp_path / "p[1]"))
    prepared = prepare(data)
    assert sum(prepared.info["rows"].values()) == 100 and Path(prepared.folder).is_relative_to(tmp_path / "p[1]")
    assert input_files([str(home / "log[1].csv")]) == [home / "log[1].csv"]
