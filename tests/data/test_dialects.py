"""Text files as they are in the world: separators, headers, comments, encodings, missing values, compression."""

import bz2
import csv
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sources import config, error, read, rows

from recsys.data.features import ResolvedData, parse_rows
from recsys.data.features.blocks import LINE
from recsys.data.features.resolved_data import resolve
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import read_sources, text
from recsys.data.raw.byte_ranges import FileRange
from recsys.data.raw.dialect import read_head
from recsys.schema.data_schema import DataConfig, DenseConfig, LabelConfig, SparseConfig
from recsys.schema.source_schema import JoinConfig, SourceConfig

FEW = settings(max_examples=examples(60), deadline=None)
TWO, ONE = [("1", "2", 2), ("0", "3", 3)], [("1", "2", 2)]
ODD_BYTES = "y,a\n1,é\n".encode() + b"0,\xff\xfe\n1,3\n1,\xe9,4\n" + "0,ü\n".encode() * 9
READ: list[tuple[bytes, dict[str, Any], list[Any], list[tuple[int, str]]]] = [
    # a file, its source, the rows y, a and line, the bad lines and why
    (b"y,a\n1,2\n0,3\n", {}, TWO, []),
    (b"y,a\n1,2\n0,3", {}, TWO, []),
    (b"y,a\r\n1,2\r\n0,3\r\n", {}, TWO, []),
    (b"\xef\xbb\xbfy,a\n1,2\n0,3\n", {}, TWO, []),
    (b'\xef\xbb\xbf"y","a"\n1,2\n0,3\n', {}, TWO, []),
    (b"y,a\n1,2", {}, ONE, []),
    (b"y,a", {}, [], []),
    (b'y,a\n1,"2,5"\n0,"p ""q"""\n', {}, [("1", "2,5", 2), ("0", 'p "q"', 3)], []),
    (b"y,a\n1,\n", {}, [("1", None, 2)], []),
    (b'y,a\n1,"2"\n0,"x\n1,"3"\n', {}, [("1", "2", 2), ("1", "3", 4)], [(3, "a quote is not closed")]),
    (b"y::a\n1::2\n0::3\n", {"separator": "::"}, TWO, []),
    (b'y::a\n"1"::2\n0::3\n', {"separator": "::"}, TWO, []),
    (b'y::a\n1::"x::y"\n0::2::3\n', {"separator": "::"}, [("1", "x::y", 2)], [(3, "3 fields, not 2")]),
    (b" y , a\n1,2\n0,3\n", {}, TWO, []),
    (b"y   a\n1 \t 2\n  0 3  \n", {"separator": "\\s+"}, TWO, []),
    (b'y a\n"1"  2\n0 3\n', {"separator": "\\s+"}, TWO, []),
    (b"y,a,\n1,2,\n0,3,\n", {}, TWO, []),
    (b"y,a,\n1,2\n0,3\n", {}, TWO, []),
    (b"y,a\n1,2,\n0,3,\n", {}, TWO, []),
    (b"y,a\n 1, 2 \n0 ,3\n", {"strip": True}, TWO, []),
    ("y,a\n1,2\n0,3\n".encode("utf-16"), {"encoding": "utf-16"}, TWO, []),
    (b"b,c\n1,2\n0,3\n", {"columns": ["y", "a"]}, TWO, []),
    (b"\xef\xbb\xbf1\t2", {"header": False, "columns": ["y", "a"], "separator": "\t"}, [("1", "2", 1)], []),
    (b"\ny,a\n1,2\n  \n0,3\n\n1\n\n", {}, [("1", "2", 3), ("0", "3", 5)], [(7, "1 fields, not 2")]),
    (
        b"# made\n\ny,a\n1,2\n#0,9\n \ny,a\n0,3\nx\n",
        {"comment": "#"},
        [("1", "2", 4), ("0", "3", 8)],
        [(9, "1 fields, not 2")],
    ),
    (b"\xef\xbb\xbfsep=;\r\ny;a\r\n1;2\r\n\r\n0;3\r\n", {"separator": ";"}, [("1", "2", 3), ("0", "3", 5)], []),
    (b"sep=;\ny;a\n1;2\n0;3\n", {"separator": ";"}, [("1", "2", 3), ("0", "3", 4)], []),
    (
        b'y,a\n1,2\n0,"x\n1,3\n0,y"\n1\n1,4\n',
        {},
        [("1", "2", 2), ("1", "3", 4), ("1", "4", 7)],
        [(3, "a quote is not closed"), (5, "a quote is not closed"), (6, "1 fields, not 2")],
    ),
    (
        ODD_BYTES,
        {},
        [("1", "é", 2), ("1", "3", 4), *[("0", "ü", i) for i in range(6, 15)]],
        [(3, "not UTF-8 text"), (5, "3 fields, not 2")],
    ),
]


@pytest.mark.parametrize(("content", "source", "expected", "aside"), READ)
@pytest.mark.parametrize("block_bytes", [24, 1 << 20])
def test_dialects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    source: dict[str, Any],
    expected: Any,
    aside: Any,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    frame, bad = read(tmp_path, content, **source)
    assert rows(frame) == expected and [(b.line, b.reason) for b in bad] == aside


def test_encodings(tmp_path: Path) -> None:
    content = "y,a\n1,Käse\n0,Müsli\n"
    for encoding in ("latin-1", "cp1252", "utf-16-le", "utf-8-sig"):
        frame, bad = read(tmp_path, content.encode(encoding), encoding=encoding)
        assert rows(frame) == [("1", "Käse", 2), ("0", "Müsli", 3)] and not bad
    _, bad = read(tmp_path, content.encode("latin-1"))
    assert [b.reason for b in bad] == ["not UTF-8 text"] * 2
    assert "set data.source.encoding, such as latin-1" in error(tmp_path, "y,ä\n1,2\n".encode("latin-1"))
    assert "use a name that Python knows" in error(tmp_path, b"y,a\n1,2\n", encoding="utf-9")
    frame, bad = read(tmp_path, "y,a\n1,日本\n0,語\n".encode("shift_jis"), encoding="shift_jis")
    assert rows(frame) == [("1", "日本", 2), ("0", "語", 3)] and not bad


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "zip"])
def test_compression(tmp_path: Path, suffix: str) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
    pack["zip"] = lambda content: zipped(inner=content)
    content = b"y,a\n" + b"".join(b"%d,%d\n" % (i % 2, i) for i in range(50_000))
    frame, bad = read(tmp_path, pack[suffix](content), f"f.csv.{suffix}")
    assert frame.height == 50_000 and not bad and frame["a"][-1] == "49999"
    broken = pack[suffix](content)
    assert "f.csv" in error(tmp_path, broken[: len(broken) // 2], f"f.csv.{suffix}")
    assert "f.csv" in error(tmp_path, content, f"f.csv.{suffix}")
    assert "rename it to" in error(tmp_path, broken, "f.csv")


def parsed(folder: Path, content: bytes, **more: Any) -> pl.DataFrame:
    (folder / "f.csv").write_bytes(content)
    data = ResolvedData(
        name="t",
        root=str(folder),
        source=SourceConfig(files=["f.csv"], **more),
        label=LabelConfig("y"),
        dense={"a": DenseConfig(fill=-1)},
        sparse={"s": SparseConfig()},
    )
    check_raw_files(data)
    parts = [parse_rows(data, block) for block in read_sources.read_blocks(data, folder / "f.csv")]
    assert not [bad for _, rows in parts for bad in rows], [bad for _, rows in parts for bad in rows]
    return pl.concat(frame for frame, _ in parts)


def test_null_values(tmp_path: Path) -> None:
    content = b"y,a,s\n1, ?,x\n0,7,?\n1,NA,none\n0, 8 , x\n"
    frame = parsed(tmp_path, content, null_values=["?", "NA"], column_null_values={"s": ["none"]})
    assert frame["a"].to_list() == [None, 7.0, None, 8.0]
    assert frame["s"].to_list() == ["x", None, None, " x"]
    frame = parsed(tmp_path, content, null_values=["?", "NA"], strip=True)
    assert frame["s"].to_list() == ["x", None, "none", "x"]
    content = b"y,a,s\n1,?,x\n0,7,?\n"  # the fast path, in which numbers are never text
    assert parsed(tmp_path, content, null_values=["?"])["a"].to_list() == [None, 7.0]


def test_decimal_and_thousands_marks(tmp_path: Path) -> None:
    content = b'y;a;s\n1;"1.234,5";x\n0;-7;x\n1;0,25;x\n'
    frame = parsed(tmp_path, content, separator=";", decimal=",", thousands=".")
    assert frame["a"].to_list() == [1234.5, -7.0, 0.25]
    frame = parsed(tmp_path, b'y,a,s\n1,"1,234.5",x\n0,7,x\n', thousands=",")
    assert frame["a"].to_list() == [1234.5, 7.0]
    assert "is the decimal mark, too" in error(tmp_path, content, separator=";", decimal=",", thousands=",")


def test_columns_in_another_order_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("y,a,s\n" + "1,2,x\n0,3,y\n" * 40)
    (tmp_path / "2.csv").write_text("s,y,more,a\n" + "x,1,-,2\ny,0,-,3\n" * 40)
    data = ResolvedData(
        name="t",
        root=str(tmp_path),
        prepared=str(tmp_path / "prepared"),
        source=SourceConfig(files=["*.csv"]),
        label=LabelConfig("y"),
        dense={"a": DenseConfig(transform=[])},
        sparse={"s": SparseConfig()},
    )
    prepared = prepare(data)
    assert prepared.info["bad_rows"] == 0
    frame = pl.concat(pl.read_parquet(f) for split in ("train", "validation", "test") for f in prepared.files(split))
    assert frame.unique().sort("a").rows() == [(1.0, 2.0, 1), (0.0, 3.0, 2)]


def test_joins_without_columns_bring_all(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("y,item,user\n" + "1,7,a\n0,8,b\n" * 50)
    (tmp_path / "users.json").write_text('{"user": "a", "age": 30}\n{"user": "b", "age": 40}\n')
    (tmp_path / "items.dat").write_bytes("7::käse::1,5\n8::brot::2\n".encode("latin-1"))
    join = JoinConfig(file="items.dat", key="item", names=["item", "name", "price"], separator="::", encoding="latin-1")
    users = JoinConfig(file="users.json", key="user", format="jsonl")
    data = DataConfig(
        name="t",
        root=str(tmp_path),
        prepared=str(tmp_path / "prepared"),
        source=SourceConfig(files=["log.csv"], joins=[join, users], decimal=","),
        label=LabelConfig("y"),
        derive={"day": "DATE('2026-01-05')"},
        dense={"price": DenseConfig(transform=[]), "age": DenseConfig(transform=[])},
        sparse={"name": SparseConfig()},
    )
    check_data(data)
    check_raw_files(resolve(data))
    prepared = prepare(data)
    assert prepared.fitted.data.source.joins[0].columns == {"item": "item", "name": "name", "price": "price"}
    assert prepared.fitted.vocabularies["name"]["value"].to_list() == ["brot", "käse"]
    train = pl.concat(pl.read_parquet(f) for f in prepared.files("train"))
    assert sorted(train.select("price", "age").unique().rows()) == [(1.5, 30.0), (2.0, 40.0)]
    join.names = ["item", "y", "price"]
    with pytest.raises(Exception, match="column y exists already; list the columns that you need"):
        prepare(data)


FIELD = st.text(st.sampled_from("ab:#;|. \té"), max_size=4)


@FEW
@given(
    st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=12),
    st.sampled_from(["::", ";", "|", ", ", "#|"]),
    st.sampled_from(["utf-8", "latin-1", "utf-16"]),
    st.integers(1, 40),
)
def test_any_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, fields: list[tuple[str, str]], separator: str, encoding: str, cut: int
) -> None:
    """Rows written with any separator and encoding are read as they were, whatever the file's ranges."""
    fields = [(a, b) for a, b in fields if separator not in f"{a}{separator}{b}".replace(separator, "", 1)]
    lines = [f"1{separator}{a}{separator}{b}" for a, b in fields if not a.endswith(separator[0])]
    lines = [line for line in lines if line.count(separator) == 2 and line.split(separator)[2] != ""]
    kept = [line.split(separator)[1:] for line in lines]
    folder = tmp_path_factory.mktemp("any")
    (folder / "f.csv").write_bytes("\n".join(lines).encode(encoding) or b"\n")
    source = {"separator": separator, "encoding": encoding, "quote": None, "header": False, "columns": ["y", "a", "b"]}
    data = config(folder, **source)
    size = (folder / "f.csv").stat().st_size
    ranges = [FileRange(0, cut), FileRange(cut, size)] if encoding != "utf-16" and cut < size else [FileRange()]
    blocks = [b for r in ranges for b in read_sources.read_blocks(data, folder / "f.csv", r)]
    frames = [(b.as_text() if b.as_text else b).frame for b in blocks]
    got = pl.concat(f.drop(LINE) for f in frames).rows() if frames else []
    assert [(a or "", b or "") for _, a, b in got] == [(a, b) for a, b in kept]


BREAKS = b'y,a,text\n1,1,"two\nlines"\n0,2,plain\n\n1,3,"a ""quote""\r\n\r\n# and more"\n0,4,5" pipe\n1,x\n0,6,"open\n1,7,z\n'


@pytest.mark.parametrize("size", [1, 7, 16 << 20])
def test_line_breaks_within_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Blocks of any size; blank lines within values stay; a quote that is not closed takes no other row with it."""
    monkeypatch.setattr(text, "BLOCK_BYTES", size)
    frame, bad = read(tmp_path, BREAKS, line_breaks_in_quotes=True, comment="#")
    assert frame.select("y", "a", "text", LINE).rows() == [
        ("1", "1", "two\nlines", 2),
        ("0", "2", "plain", 4),
        ("1", "3", 'a "quote"\n\n# and more', 6),
        ("0", "4", '5" pipe', 9),
        ("1", "7", "z", 12),
    ]
    assert [(b.line, b.reason) for b in bad] == [(10, "2 fields, not 3"), (11, "a quote is not closed")]


def test_backslashes_before_quotes(tmp_path: Path) -> None:
    content = b'y,a,text\n1,1,"say \\"hi, you\\""\n0,2,"a \\\\ b"\n1,3,"x ""y"", \\"\n\\""\n'
    frame, bad = read(tmp_path, content, escape="\\", line_breaks_in_quotes=True)
    assert not bad
    assert frame["text"].to_list() == ['say "hi, you"', "a \\ b", 'x "y", "\n"']
    many = b"y,a,text\n" + b'1,1,"say \\"hi, you\\""\n' * 30
    why = error(tmp_path, many)
    assert "with a backslash before a quote" in why
    assert "data.source.escape='\\' reads \\\" as a quote" in why
    many = b"y,a,text\n" + b'1,1,"two\nlines"\n' * 30
    assert "data.source.line_breaks_in_quotes=true" in error(tmp_path, many)


@FEW
@given(
    st.lists(st.lists(st.text('ab,"\n#\\ 1', max_size=7), min_size=2, max_size=2), min_size=1, max_size=9),
    st.sampled_from([(",", False), (";", True), ("\t", False)]),
    st.sampled_from([1, 5, 1 << 20]),
)
def test_quoted_values_are_those_that_python_wrote(
    tmp_path_factory: pytest.TempPathFactory, values: list[list[str]], dialect: tuple[str, bool], size: int
) -> None:
    """Line breaks, separators, quotes and comment marks within quotes; each row has the line that it begins in."""
    separator, escaped = dialect
    written, folder = io.StringIO(), tmp_path_factory.mktemp("quoted")
    style: dict[str, Any] = {"doublequote": not escaped, "escapechar": "\\" if escaped else None}
    writer = csv.writer(written, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\n", **style)
    writer.writerows([["y", "a", "b"], *(["1", *row] for row in values)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", size)
        more = {"separator": separator, "escape": style["escapechar"], "line_breaks_in_quotes": True, "comment": "#"}
        frame, bad = read(folder, written.getvalue().encode(), **more)
    assert not bad
    lines = [2 + sum(v.count("\n") for row in values[:i] for v in row) + i for i in range(len(values))]
    expected = [(*(v or None for v in row), line) for row, line in zip(values, lines, strict=True)]
    found = [(*(v or None for v in row[:2]), row[2]) for row in frame.select("a", "b", LINE).rows()]
    assert found == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n"])
@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
def test_a_carriage_return_within_a_line_is_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, block_bytes: int
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    lines = [b"y,a", b"1,x\ry", b'0,"u\rv"', b"1,w", b"\r0,z"]
    frame, bad = read(tmp_path, end.join([*lines, b""]))
    assert rows(frame) == [("1", "x y", 2), ("0", "u v", 3), ("1", "w", 4), (" 0", "z", 5)] and not bad
    (tmp_path / "h.csv").write_bytes(end.join([b"y,a\rb", b"1,2", b""]))
    assert read_head(SourceConfig(), tmp_path / "h.csv").names == ["y", "a b"]
    _, [wrong] = read(tmp_path, end.join([b"y,a", b"1,x\ry,3", b"0,1"]))
    assert wrong.line == 2 and wrong.text == "1,x y,3"
    assert "lines end in carriage returns alone; run: tr" in error(tmp_path, b"y,a\r1,2\r")


@pytest.mark.parametrize(
    ("content", "of_run", "read_as"),
    [
        (b"y,a\n1,2\n", "csv", "csv"),
        (b"y,a\n1,2\n", "parquet", "csv"),
        (b"y,a\n1,2\n", "npy", "csv"),
        (b"y,a\n1,2\n", "split_csv", "csv"),
        (b"no object\n", "jsonl", "jsonl"),
        (b'\xef\xbb\xbf{"y": 1}\n', "jsonl", "jsonl"),
        (b'{"y": 1}\n', "parquet", "jsonl"),
        (b'{"y": 1}\n', "json", "json"),  # one object {key: value}
        (b' [ {"y": 1}]', "csv", "json"),
        (b"[a],[b]\n", "csv", "csv"),
        (b"PAR1...", "csv", "parquet"),
        (b"ARROW1..", "parquet", "arrow"),
        (b"\x93NUMPY\x01\0", "npy", "npy"),
        ("y,a\n".encode("utf-16"), "csv", "csv"),
    ],
)
def test_rows_to_predict_are_read_by_their_first_bytes(
    tmp_path: Path, content: bytes, of_run: str, read_as: str
) -> None:
    (tmp_path / "rows").write_bytes(content)
    data = config(tmp_path, format=of_run)
    assert read_sources.prediction_source(data, tmp_path / "rows").source.format == read_as
