"""Read JSON: one object a line, one array of objects, or one object {key: value, ...}.

Nested values are columns that are named by their path, such as user.id. Values are text, as in CSV, and lists are lists
of text: 7, 7.0 and "7" are the same value. A path through a list of objects gives a list. The columns of JSON lines are
the columns of the first lines of a file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, BadRow, Block, numbered, one_line
from recsys.data.raw.byte_ranges import ALL, UNREADABLE, FileRange, Projection, open_bytes
from recsys.data.raw.dialect import first_lines, whole_lines
from recsys.data.raw.nested import leaves
from recsys.data.raw.raw_format import RawFormat, TextFormat
from recsys.data.raw.text import read_csv
from recsys.files.json_text import parse_json
from recsys.schema.source_schema import SourceConfig

TEXT = "text"  # the column of a line's text

# None: only nulls so far; VALUE: text, a number, true or false; a list of one tree: a list; a dict: an object
VALUE, ABSENT = "value", "absent"
Tree = None | str | list[Any] | dict[str, Any]


class JsonLines(TextFormat):
    """A JSON object a line. Its values are text, but lists of text are lists."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    names_columns = explodes = True
    untyped = False

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        columns = [(name, dtype) for name, dtype, _ in leaves("", _dtype(_tree(source, file)), pl.col(TEXT))]
        return pl.DataFrame(schema=columns)

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        tree = _tree(source, file)
        if projection.columns is not None:
            for name in sorted(projection.columns & {*source.optional_columns}):
                tree = _with_path(tree, name.split("."))
            part = _projected(tree, projection.columns)
            tree = part if isinstance(part, dict) else tree
        dtype = _dtype(tree)
        columns = [x.alias(name) for name, _, x in leaves("", dtype, pl.col(TEXT))]
        for block in read_csv(whole_lines(source), file, [TEXT], file_range, ALL):
            decoded, bad = _decode(block.frame, dtype, str(file))
            block.bad += bad
            block.frame = decoded.select(*columns, LINE)
            yield block


def _tree(source: SourceConfig, file: Path) -> dict[str, Any]:
    tree: Tree = {}
    lines = first_lines(source, file)
    for line in lines:
        value = _object(line.decode())
        tree = tree if value is None else _merged(tree, _shape(value))
    if not isinstance(tree, dict) or not tree:
        array = bool(lines) and lines[0].lstrip().startswith(b"[")
        hint = (
            "if it is one array of objects, set data.source.format=json" if array else "each must be one, such as {...}"
        )
        raise UserError(f"{file}: not JSON lines: no object in its first lines; {hint}")
    return tree


def _object(line: str) -> dict[str, Any] | None:
    """Return the object of a line, None if the line is not one."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _shape(value: object) -> Tree:
    if isinstance(value, dict):
        return {k: _shape(v) for k, v in value.items()}
    if isinstance(value, list):
        element: Tree = None
        for v in value:
            element = _merged(element, _shape(v))
        return [element]
    return None if value is None else VALUE


def _merged(a: Tree, b: Tree) -> Tree:
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: _merged(a.get(k), b.get(k)) for k in dict.fromkeys([*a, *b])}
    if isinstance(a, list) and isinstance(b, list):
        return [_merged(a[0], b[0])]
    if isinstance(b, list) and a == VALUE:  # lists of one value are often written without brackets
        return b
    return b if a is None else a


def _with_path(tree: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the tree with a text at a path, unless the first lines have it: only later lines do."""
    name, *rest = path
    below = tree.get(name)
    if rest and (below is None or isinstance(below, dict)):
        return tree | {name: _with_path(below or {}, rest)}
    return tree if below is not None else tree | {name: VALUE}


def _dtype(tree: Tree) -> pl.DataType:
    if isinstance(tree, dict):
        return pl.Struct({k: _dtype(v) for k, v in tree.items()})
    return pl.List(_dtype(tree[0])) if isinstance(tree, list) else pl.String()


def _projected(tree: Tree, names: frozenset[str], path: str = "") -> Tree:
    """Return the part of the tree whose columns are in `names`."""
    if isinstance(tree, dict):
        parts = {k: _projected(v, names, f"{path}.{k}" if path else k) for k, v in tree.items()}
        return {k: v for k, v in parts.items() if v != ABSENT} or ABSENT
    if isinstance(tree, list):
        inner = _projected(tree[0], names, path)
        return [inner] if inner != ABSENT else inner
    return tree if path in names else ABSENT


class Json(RawFormat):
    """One array of objects as rows, or {key: value, ...} as the columns `key` (text) and `value` (text or lists)."""

    name = "json"
    suffixes = (".json",)
    names_columns = explodes = True

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return _read_whole(file).frame.drop(LINE).head(0)

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        yield _read_whole(file)


def _read_whole(file: Path) -> Block:
    """Read one array of objects as rows, or {key: value, ...} as the columns `key` (text) and `value` (text or lists).

    Raises:
        UserError: the file is not JSON, or holds something else.
    """
    try:
        with open_bytes(file) as raw:
            content = parse_json(raw.read())
    except (ValueError, *UNREADABLE) as e:
        raise UserError(f"{file}: not JSON ({one_line(e)})") from e
    if isinstance(content, list) and content:
        # the place in the array is the line
        tree: Tree = {}
        for value in content:
            tree = _merged(tree, _shape(value)) if isinstance(value, dict) else tree
        if not isinstance(tree, dict) or not tree:
            raise UserError(f"{file}: holds an array without objects; each element must be one, such as {{...}}")
        dtype = _dtype(tree)
        texts = pl.DataFrame({TEXT: [json.dumps(value) for value in content]})
        decoded, bad = _decode(numbered(file, texts, 1).frame, dtype, str(file))
        columns = [x.alias(name) for name, _, x in leaves("", dtype, pl.col(TEXT))]
        return Block(file, decoded.select(*columns, LINE), bad, lines=len(content))
    if not isinstance(content, dict) or any(isinstance(v, dict) for v in content.values()):
        what = "an array of objects, [{...}, ...], or one object that maps keys to values or lists"
        raise UserError(f"{file}: must be {what}")
    lists = any(isinstance(v, list) for v in content.values())
    as_list = [[str(x) for x in (v if isinstance(v, list) else [v]) if x is not None] for v in content.values()]
    values = as_list if lists else [v[0] if v else None for v in as_list]
    schema = {"key": pl.String, "value": pl.List(pl.String) if lists else pl.String}
    return numbered(file, pl.DataFrame({"key": list(content), "value": values}, schema), 1)


def _decode(frame: pl.DataFrame, dtype: pl.DataType, file: str) -> tuple[pl.DataFrame, list[BadRow]]:
    """Return the lines with TEXT decoded, and those that cannot be."""
    decode = pl.col(TEXT).str.json_decode(dtype)
    try:
        return frame.with_columns(decode), []
    except pl.exceptions.PolarsError:
        pass  # at least one line is wrong; find out which
    bad, good = [], []
    for i, (text, line) in enumerate(frame.select(TEXT, LINE).iter_rows()):
        try:
            frame[i].select(decode)
            good.append(i)
        except pl.exceptions.PolarsError:
            known = _object(text) is not None
            reason = "holds another kind of value than the first lines" if known else "not a JSON object"
            bad.append(BadRow(file, line, reason, text))
    return frame[good].with_columns(decode), bad
