"""Read a sample of rows from the head, the middle and the tail of raw files, in bounded time."""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.raw import json_lines, slots, svmlight
from recsys.data.raw.blocks import LINE_FORMATS
from recsys.data.raw.byte_ranges import is_compressed
from recsys.data.raw.dialect import MAGIC, SPACES, UNIT
from recsys.data.raw.nested import plain
from recsys.data.raw.storage import partitions
from recsys.errors import UserError
from recsys.files.input_files import problem_of
from recsys.new import quoted, raw_bytes
from recsys.new.find_dialect import Dialect, dialect_of, encoding_of, fields, without_excel

ROWS = 200_000
CELLS = 20_000_000
LIBFM_ROWS = 50_000
MOST_FILES = 64
MOST_WHOLE = 5  # files that are read whole, or of which several pieces are read
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    BadZipFile,
    zlib.error,
    pa.ArrowException,
    pl.exceptions.PolarsError,
)
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})


def _is_workbook(_: Path, first: bytes) -> bool:
    return first.startswith(b"PK") and (b"xl/" in first or b"[Content_Types].xml" in first[:1000])


def _is_pickle(file: Path, first: bytes) -> bool:
    return first[:1] == b"\x80" and first[1:2] in (b"\2", b"\3", b"\4", b"\5") and file.suffix != ".parquet"


def _is_tfrecord(_: Path, first: bytes) -> bool:
    """Return True for a length of 8 bytes, its checksum, and a message tf.train.Example."""
    return 12 < int.from_bytes(first[:8], "little") < 1 << 24 and first[12:13] == b"\n"


FOREIGN: dict[Callable[[Path, bytes], bool], str] = {
    _is_workbook: "is an Excel workbook; save its sheet as CSV, or write Parquet: polars.read_excel(FILE)",
    _is_pickle: "is a pickle, which runs code when it is read; if you trust it: pandas.read_pickle(FILE).to_parquet()",
    _is_tfrecord: "holds TFRecords; write them as Parquet, for example from tensorflow_datasets or tf.data",
}


class OtherRows(UserError):
    """Text whose rows have to be converted before they can be read."""


@dataclass
class Layout:
    """The format of a file, and the columns that it has."""

    format: str
    columns: list[str]
    dialect: Dialect | None = None  # of text

    @property
    def typed(self) -> bool:
        """Whether the columns have types, not only text."""
        return self.format not in LINE_FORMATS

    @property
    def maps_keys(self) -> bool:
        """Whether the file is one JSON object {key: value, ...}, which can only be a side table."""
        return self.format == "json" and self.dialect is not None


@dataclass
class Sample:
    """Rows of raw files: text, or the types of the file.

    rows: the rows of all files, estimated
    """

    frame: pl.DataFrame
    rows: int


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn the errors that libraries raise about a damaged file into a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as e:
        why = (
            f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and not isinstance(e, pa.ArrowException) else ""
        )
        raise UserError(f"{file}: is damaged, or not what its first bytes say{why}; check it, or leave it out") from e


def layout_of(file: Path, header: bool | None = None) -> Layout:
    """Return the format of a file by its first bytes. Raises UserError if it is of no known format.

    header: whether the first line of text names the columns; None to look at it
    """
    if problem := problem_of(file):
        raise UserError(f"{file}: {problem}")
    with _readable(file):
        return _layout(file, header)


def _layout(file: Path, header: bool | None) -> Layout:
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return Layout("npz", list(arrays.files))
    first = raw_bytes.head(file, 1 << 20)
    if first.startswith(b"PAR1"):
        return Layout("parquet", pq.read_schema(file).names)
    if first.startswith(b"ARROW1"):
        with file.open("rb") as f:  # not by its name, in which brackets are globs for polars
            return Layout("arrow", list(pl.read_ipc_schema(f)))
    if first.startswith(b"\x93NUMPY"):
        return Layout("npy", [file.stem])
    for known, hint in FOREIGN.items():
        if known(file, first):
            raise UserError(f"{file}: {hint}")
    for magic, kind in MAGIC.items():
        if first.startswith(magic):
            raise UserError(f"{file}: holds {kind}")
    encoding, why = encoding_of(first)
    control = len(first) - len(first.translate(None, CONTROL))
    if not encoding.startswith("utf-16") and control > len(first) // 100:
        raise UserError(f"{file}: is neither text nor Parquet, Arrow or NumPy; convert it to one of them")
    text = first.decode(encoding, errors="replace").removeprefix("\ufeff")
    if "\r" in text and "\n" not in text:
        raise UserError(f"{file}: its lines end in carriage returns alone; run: tr '\\r' '\\n' < {file} > NEW")
    escape, broken_by = _quoting(text)
    text = quoted.plain(text, broken_by or ",", escape=escape, line_breaks=broken_by is not None)
    lines = text.splitlines() if "\n" not in text else [line.rstrip("\r") for line in text.split("\n")]
    if first[:1] == b"[" and text[1:].lstrip()[:1] == "[":
        raise UserError(f"{file}: is one JSON array of arrays; write one object a line (JSON lines)")
    if first[:1] == b"[" and text[1:].lstrip()[:1] == "{":
        return Layout("json", _json_array(file).columns)
    if lines[0].strip() == "{":
        rows = re.search(r'"([\w-]+)":\s*\[\s*\{', text)
        hint = f"write each row on a line, such as jq -c '.{rows[1] if rows else 'ROWS'}[]' FILE > rows.jsonl"
        raise OtherRows(f"{file}: holds JSON objects over several lines; {hint}")
    d = dialect_of(lines[:-1] if len(first) == 1 << 20 else lines, encoding, header)
    if why:
        d.reasons["encoding"] = why
    if d.format == "csv" and d.quote == '"':
        d.escape, d.line_breaks = escape, d.separator == broken_by
    if d.format in ("svmlight", "lists") and _are_counted(lines[:200]):
        hint = f"remove it: cut -d ' ' -f 2- {file} > NEW"
        raise OtherRows(f"{file}: each line begins with the number of the values that follow; {hint}")
    if d.title:
        raise OtherRows(f"{file}: {d.title}")
    if d.format == "jsonl" and not _parses(lines[0]):
        if not _is_json(lines[0]) and (what := json_lines.python_objects(lines[0], file)) is not None:
            raise OtherRows(f"{file}: {what}")
        return Layout("json", ["key", "value"], d)
    if d.format == "jsonl":
        return Layout("jsonl", list(_json_frame(lines[:200]).columns), d)
    if d.format == "svmlight":
        return Layout("svmlight", list(_svmlight_frame(lines[:200]).columns), d)
    if d.format == "slots":
        return Layout("slots", list(_slots_frame(lines[:200], d).columns), d)
    if d.format == "csv" and d.width < 2:
        return Layout("text", [], d)
    return Layout(d.format, list(d.columns), d)


def _are_counted(lines: Sequence[str]) -> bool:
    """Return True if the first number of each line is the number of values after it."""
    parts = [line.split() for line in lines if line.strip()]
    return len(parts) > 1 and all(p[0] == str(len(p) - 1) for p in parts) and len({len(p) for p in parts}) > 1


def _quoting(text: str) -> tuple[bool, str | None]:
    """Return whether backslashes escape quotes within values, and the separator of values that hold line breaks."""
    if '"' not in text or text.lstrip()[:1] in ("{", "["):
        return False, None
    escape = quoted.escapes(text)
    return escape, quoted.broken_by(quoted.plain(text, ",", escape=escape, line_breaks=False))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parses(line: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and not (len(value) > 100 and all(isinstance(v, list) for v in value.values()))


def read_sample(files: Sequence[Path], layout: Layout, layouts: Mapping[Path, Layout] | None = None) -> Sample:
    """Read rows of some of the files, evenly. layouts: of files whose columns differ"""
    some = chosen(files, MOST_WHOLE if layout.format in ("json", "npz", "npy", "arrow") else MOST_FILES)
    n = len(files)
    readers = {"parquet": _parquet, "arrow": _arrow, "npz": _npz, "npy": _npz}
    if layout.dialect is None:  # an array of objects; {key: value, ...} has a dialect
        readers["json"] = _json
    share = min(MOST_WHOLE / len(some), 1)
    most = max(min(ROWS, CELLS // max(len(layout.columns), 1)) // len(some), 100)
    parts = []
    for f in some:
        with _readable(f):
            part = readers.get(layout.format, _text)(f, (layouts or {}).get(f, layout), most, share)
        folders = partitions(f, None).items()
        part.frame = part.frame.with_columns(
            pl.lit(v, pl.String).alias(name) for name, v in folders if name not in part.frame.columns
        )
        parts.append(part)
    frame = plain(_hexadecimal(pl.concat([p.frame for p in parts], how="diagonal_relaxed")), files[0])
    return Sample(frame, round(sum(p.rows for p in parts) * n / len(some)))


def _hexadecimal(frame: pl.DataFrame) -> pl.DataFrame:
    """Return bytes that are not text, such as UUIDs, as hexadecimal digits."""
    odd = [n for n, dtype in frame.schema.items() if dtype == pl.Binary and not _are_texts(frame[n])]
    return frame.with_columns(pl.col(odd).bin.encode("hex")) if odd else frame


def _are_texts(values: pl.Series) -> bool:
    try:
        values.cast(pl.String)
    except pl.exceptions.PolarsError:
        return False
    return True


def rows_of(files: Sequence[Path], layout: Layout) -> int:
    """Return about how many rows files of one layout hold, by the first one's."""
    file, size = files[0], sum(f.stat().st_size for f in files)
    if layout.format == "parquet":
        return round(pq.read_metadata(file).num_rows * size / file.stat().st_size)
    if layout.dialect is None or layout.dialect.encoding.startswith("utf-16"):
        return size // 100
    head = raw_bytes.head(file, 1 << 16)
    packed = raw_bytes.PACKED if is_compressed(file) else 1
    return round(packed * size * head.count(b"\n") / max(len(head), 1))


def chosen(files: Sequence[Path], most: int) -> list[Path]:
    """Return at most so many files: the first, the last, and one of each of as many equal parts of those between.

    The place within a part is random, so that no period of the files, such as 24 files a day, can hide values.
    """
    if len(files) <= most:
        return list(files)
    bounds = np.linspace(1, len(files) - 1, most - 1).astype(int)
    places = np.random.default_rng(0).integers(bounds[:-1], bounds[1:])
    return [files[0], *(files[i] for i in places), files[-1]]


def thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows: three runs, at the head, in the middle and at the tail, and nothing between."""
    if frame.height <= most:
        return frame
    run = most // 4
    starts = [round(i * (frame.height - run) / 3) for i in range(4)]
    return pl.concat([frame.slice(s, run) for s in starts])


def _text(file: Path, layout: Layout, most: int, share: float) -> Sample:
    d = layout.dialect
    assert d is not None
    most = min(most, LIBFM_ROWS) if d.format in ("libfm", "svmlight") else most
    wide = d.encoding.startswith("utf-16")  # cannot be cut at line feeds
    pieces, size = raw_bytes.pieces(file, share=share) if not wide else ([raw_bytes.head(file)], file.stat().st_size)
    read = sum(map(len, pieces))
    lines: list[str] = []
    for piece in pieces:
        text = piece.decode(d.encoding, errors="replace").removeprefix("\ufeff")
        text = quoted.plain(text, d.separator, escape=d.escape, line_breaks=d.line_breaks)
        lines += [line.rstrip("\r") for line in text.split("\n")]
    lines = without_excel(lines)
    rows = round(len(lines) * max(size, read) / max(read, 1))
    lines = [line for line in lines if line.strip() and not (d.comment and line.startswith(d.comment))]
    if d.header and d.format == "csv":
        header = lines[0]
        lines = [line for line in lines if line != header]  # also those repeated where files were joined
    if d.line_breaks:  # a piece may begin within a value
        lines = [line for line in lines if len(fields(line, d)) == d.width + d.trailing]
    if not lines:
        raise UserError(f"{file}: has no rows, only a header or comments")
    if len(lines) > most:
        lines = thinned(pl.DataFrame({"x": lines}), most)["x"].to_list()
    frame = _parse(lines, layout)
    if d.format == "lists":  # a line has several rows
        rows = round(rows * frame.height / len(lines))
    return Sample(frame, rows)


def _parse(lines: list[str], layout: Layout) -> pl.DataFrame:
    d = layout.dialect
    assert d is not None
    if d.format == "jsonl":
        return _json_frame(lines)
    if d.format == "libfm":
        return _libfm_frame(lines)
    if d.format == "svmlight":
        return _svmlight_frame(lines)
    if d.format == "slots":
        return _slots_frame(lines, d)
    if d.format == "lists":
        return _lists_frame(lines, d)
    if d.separator == SPACES:
        lines = [UNIT.join(line.split()) for line in lines]
    elif d.quote is None or not any(d.quote in line for line in lines):
        lines = [line.replace(d.separator, UNIT) for line in lines]
    separated = d.separator if d.quote and UNIT not in lines[0] and d.width > 1 else UNIT
    if separated != UNIT and d.strip:
        lines = [re.sub(rf"{re.escape(separated)} +(?={d.quote})", separated, line) for line in lines]
    names = [*d.columns, "__trailing__"] if d.trailing else d.columns
    frame = pl.read_csv(
        "\n".join(lines).encode(),
        schema=dict.fromkeys(names, pl.String),
        separator=separated,
        quote_char=None if separated == UNIT else d.quote,
        has_header=False,
        truncate_ragged_lines=True,
        ignore_errors=True,
    )
    frame = frame.select(d.columns)
    if d.strip:
        frame = frame.with_columns(pl.all().str.strip_chars())
    return frame.with_columns(pl.when(pl.all() == "").then(None).otherwise(pl.all()).name.keep())


def _json_frame(lines: Sequence[str]) -> pl.DataFrame:
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # a damaged line, or one that was cut
            continue
        rows.append(row)
    return _rows_frame(rows)


def _rows_frame(rows: Sequence[Any]) -> pl.DataFrame:
    flat = [_flat(row) for row in rows if isinstance(row, dict)]
    return pl.DataFrame(flat, infer_schema_length=None, strict=False) if flat else pl.DataFrame()


def _json_array(file: Path) -> pl.DataFrame:
    with raw_bytes.opened(file) as raw:
        rows = json.load(raw)
    return plain(_rows_frame(rows), file)


def _json(file: Path, _: Layout, most: int, _share: float) -> Sample:
    frame = _json_array(file)
    return Sample(thinned(frame, most), frame.height)


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields under their paths: {"user": {"id": 7}} is {"user.id": 7}."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _libfm_frame(lines: Sequence[str]) -> pl.DataFrame:
    rows = [line.split() for line in lines]
    width = max({len(r) for r in rows}, key=lambda n: sum(len(r) == n for r in rows))
    same = [[r[0], *(x.partition(":")[0] for x in r[1:])] for r in rows if len(r) == width]
    names = ["label", *(f"field_{i}" for i in range(1, width))]
    return pl.DataFrame(same, schema=dict.fromkeys(names, pl.String), orient="row")


def _svmlight_frame(lines: Sequence[str]) -> pl.DataFrame:
    rows = []
    for label, *others in filter(None, map(svmlight.parts, lines)):
        pairs = (x.partition(":") for x in others)
        rows.append({svmlight.LABEL: label} | {svmlight.column(key): value for key, _, value in pairs})
    frame = pl.DataFrame(rows, infer_schema_length=None)
    numbers = [c for c in frame.columns if c[1:].isdigit()]
    names = [c for c in frame.columns if not c[1:].isdigit()]
    return frame.select(*names, pl.col(sorted(numbers, key=lambda c: int(c[1:]))).fill_null("0"))


def _slots_frame(lines: Sequence[str], d: Dialect) -> pl.DataFrame:
    _, names = slots.slots(list(lines), d.separator)
    rows = []
    for line in lines:
        fields = slots.parts(line, d.separator)
        row = dict(zip(d.columns, fields, strict=False))
        for field in fields[len(d.columns) :]:
            name, _, value = field.partition(":")
            row[name] = f"{row[name]}{d.separator}{value}" if name in row else value
        rows.append(row)
    schema = dict.fromkeys([*d.columns, *names], pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.rename({n: svmlight.column(n) for n in names})


def _lists_frame(lines: Sequence[str], d: Dialect) -> pl.DataFrame:
    parts = [[p for p in line.split(d.separator) if p] for line in lines]
    if d.columns == ["user", "item"]:
        rows = [(r[0], item) for r in parts for item in r[1:]]
    else:
        rows = [(str(i), item) for i, r in enumerate(parts) for item in r]
    names = ["user" if d.columns == ["user", "item"] else "list", "item"]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def _parquet(file: Path, _: Layout, most: int, share: float) -> Sample:
    with pq.ParquetFile(file) as parquet:
        groups, total = parquet.num_row_groups, parquet.metadata.num_rows
        some = sorted({0, groups // 2, groups - 1} & set(range(groups)))[: 3 if share == 1 else 1]
        parts = []
        for group in some:
            for batch in parquet.iter_batches(batch_size=max(most // len(some), 1), row_groups=[group]):
                parts.append(pl.from_arrow(pa.Table.from_batches([batch])))
                break
    if not parts:
        raise UserError(f"{file}: has no rows")
    frame = pl.concat([p for p in parts if isinstance(p, pl.DataFrame)], how="diagonal_relaxed")
    return Sample(frame, total)


def _arrow(file: Path, _: Layout, most: int, _share: float) -> Sample:
    with file.open("rb") as f:
        frame = pl.read_ipc(f)
    return Sample(thinned(frame, most), frame.height)


def _npz(file: Path, _: Layout, most: int, _share: float) -> Sample:
    loaded = np.load(file, allow_pickle=False, mmap_mode="r" if file.suffix == ".npy" else None)
    arrays = {file.stem: loaded} if isinstance(loaded, np.ndarray) else {n: loaded[n] for n in loaded.files}
    total = max((len(a) for a in arrays.values() if a.ndim), default=0)
    frame = pl.DataFrame({n: a[:most] for n, a in arrays.items() if a.ndim in (1, 2) and len(a) == total})
    return Sample(frame, total)
