"""Find the raw files of a data config and read their rows, with columns renamed, joined and derived."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PosixPath

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import EMPTY_LINE, Block
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import Number, RowNumber, Text
from recsys.data.raw.byte_ranges import WHOLE, FileRange, Projection
from recsys.data.raw.csv_files import drop_missing_labels
from recsys.data.raw.derive import (
    FeatureInputs,
    add_derived_column,
    clean,
    complete_rows,
    filter_rows,
    join_side_table,
    key_of,
    steps,
)
from recsys.data.raw.formats import FORMATS, SIDE_FORMATS, column_names, empty_frame, format_of, read, unexploded_frame
from recsys.data.raw.nested import check_explode
from recsys.data.raw.raw_files import Outputs, beside_root, is_output, is_remote, natural_sort, partitions, resolve_path
from recsys.data.raw.raw_format import repeated
from recsys.data.raw.reasons import Reasons, judge
from recsys.data.raw.row_sql import parse_sql
from recsys.files.data_files import matching
from recsys.files.user_files import problem_of
from recsys.schema.data_schema import LabelConfig, SplitConfig
from recsys.schema.source_schema import JoinConfig, SourceConfig, text_options

_TYPES: dict[str, dict[str, pl.DataType]] = {}  # of each source in this process


def find_files(data: ResolvedData, globs: list[str] | None = None) -> list[Path]:
    """Return the raw files under data.root, or data.root itself if it is a file. day_2 sorts before day_10."""
    if data.source.parts:  # data.spec names them one by one
        return [Path(f) for f in data.source.parts if globs is None or f in globs]
    assert data.root is not None
    root = resolve_path(data.root, "data.root")
    if not root.is_dir():
        files = [root]
    else:
        globs = globs or list(data.source.files)
        try:
            matched = {p for g in globs for p in matching(root, g)}
        except (ValueError, NotImplementedError) as e:
            raise UserError(f"data.source.files: {', '.join(globs)}: must be globs relative to data.root ({e})") from e
        paths = matched
        if not is_remote(data.root):  # leave out what commands have written: the folders of runs and of prepared data
            if is_output(root):
                raise UserError(
                    f"data.root={data.root}: is the folder of a run or of prepared data; name that of the raw files"
                )
            outputs = Outputs(root, data.prepared)
            paths = {f for f in matched if not outputs.contains(f)}
        files = natural_sort(paths)
        if not files:
            names = sorted(p.name for p in root.iterdir())[:8]
            raise UserError(
                f"data.root={data.root}: no file matches {', '.join(globs)} "
                f"(the folder holds {', '.join(names) or 'nothing'}); set data.source.files"
                + ("; files of runs and of data.prepared are not data" if matched else "")
            )
    for path in files:
        if isinstance(path, PosixPath) and (problem := problem_of(path)):  # not of another host
            raise UserError(f"{path}: {problem}")
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    return files


def raw_frame(data: ResolvedData, file: Path) -> pl.DataFrame:
    """Return a frame without rows that has the columns of `file` and of its partition folders."""
    return _with_optional(_with_partitions(empty_frame(data.source, file), data, file), data)


def _with_optional(frame: pl.DataFrame, data: ResolvedData) -> pl.DataFrame:
    """Add the columns of data.source.optional_columns that the file lacks, without values."""
    lacking = [n for n in data.source.optional_columns if n not in frame.columns]
    if not lacking:
        return frame
    source = data.source
    if FORMATS[source.format].untyped:
        return frame.with_columns(pl.lit(None, pl.String()).alias(n) for n in lacking)
    key = json.dumps([data.root, source.format, source.explode, source.optional_columns, source.files])
    if key not in _TYPES:  # those of the first files that have them
        wanted, types = set(source.optional_columns), dict[str, pl.DataType]()
        try:
            every = list(data.split.train_files) if data.split.by == "files" else None
            for file in find_files(data, every):
                if wanted <= set(types):
                    break
                types = {n: t for n, t in empty_frame(source, file).schema.items() if n in wanted} | types
        except UserError:
            pass  # rows to predict, on a machine without the raw files
        _TYPES[key] = types
    return frame.with_columns(pl.lit(None, _TYPES[key].get(n, pl.String())).alias(n) for n in lacking)


def _with_partitions(frame: pl.DataFrame, data: ResolvedData, file: Path) -> pl.DataFrame:
    """Add the columns of the partition folders that the file itself does not have."""
    new = partitions(file, data.root)
    return frame.with_columns(pl.lit(v, pl.String).alias(n) for n, v in new.items() if n not in frame.columns)


def check_columns(
    data: ResolvedData,
    file: Path,
    sides: Mapping[int, pl.DataFrame] | None = None,
    types: Mapping[str, pl.DataType] | None = None,
) -> None:
    """Check that `file` and its joins have all columns that the config names. Raises UserError if one is missing.

    Args:
        sides: for a file of rows to predict, which may lack the columns of label and split: the side tables that
            features need, by the index of their join. By default they lie under data.root.
        types: the types to which columns of such rows are converted.
    """
    if data.source.explode is not None:
        optional = [] if sides is None else _unlabelled_columns(data)
        check_explode(data.source, file, unexploded_frame(data.source, file), optional)
    frame = raw_frame(data, file)
    for name, raw_name in data.source.rename.items():
        if raw_name not in frame.columns:
            near = did_you_mean(raw_name, frame.columns)
            raise UserError(f"data.source.rename.{name}: {file.name} has no column {raw_name}{near}")
    frame = rename_columns(data.source, file, frame)
    frame = frame.with_columns(pl.Series(n, [], t) for n, t in (types or {}).items() if n in frame.columns)
    for name in data.source.column_null_values:
        _check_column("data.source.column_null_values", name, file, frame.columns)
    derive = data.derive if sides is None else FeatureInputs.from_config(data).derive
    for step in steps(data.source.joins, data.derive):
        if isinstance(step, str):
            frame = add_derived_column(step, derive[step], frame) if step in derive else frame
        elif sides is None or step in sides:
            join = data.source.joins[step]
            _check_column("data.source.joins", join.key, file, frame.columns)
            side = check_side_columns(data, join, "data.source.joins") if sides is None else sides[step].clear()
            if taken := next((n for n in side.columns if n != join.key and n in frame.columns), None):
                ways = f"list the columns that you need: columns: {{my_{taken}: {taken}, ...}}"
                hint = "give it another name" if join.columns else ways
                raise UserError(f"data.source.joins: {join.file}: column {taken} exists already; {hint}")
            frame = join_side_table(frame, join, side)
    if data.where is not None and (sides is None or data.item_feature is not None):
        filter_rows(data.where, frame)
    names = frame.columns
    for key, column in [*data.raw_columns, *_group_columns(data), *(_split_columns(data) if sides is None else [])]:
        may_lack = sides is None and FORMATS[data.source.format].names_columns
        hint = "; if only some files lack it, name it in data.source.optional_columns"
        _check_column(key, column, file, names, hint if may_lack else "")


def read_blocks(
    data: ResolvedData,
    file: Path,
    file_range: FileRange = WHOLE,
    *,
    unlabelled: bool = False,
    complete: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
) -> Iterator[Block]:
    """Read the raw rows of a range of `file`, joined with the side tables and with derived columns.

    Args:
        unlabelled: the rows are to be predicted. The file may lack the label column (without a header it then has one
            column less), and data.where does not apply.
        complete: adds joined and derived columns and filters rows. By default as the config says, with the side tables
            under data.root.
    """
    source = data.source
    names = column_names(source, file)
    if unlabelled and not source.header and FORMATS[source.format].has_header:
        names = drop_missing_labels(source, _unlabelled_columns(data), file, names)
    if complete is None:
        sides = [(join, side_table(data, join)) for join in source.joins]
        complete = partial(complete_rows, sides=sides, derive=data.derive, where=None if unlabelled else data.where)

    def completed(block: Block) -> Block:
        frame = _with_optional(_with_partitions(block.frame, data, file), data)
        block.frame = complete(clean(source, rename_columns(source, file, frame)))
        if (as_text := block.as_text) is not None:
            block.as_text = lambda: completed(as_text())
        return block

    for block in read(source, file, names, file_range, _projection(data, labelled=not unlabelled)):
        yield completed(block)


def _check_column(key: str, column: str, file: Path, names: list[str], hint: str = "") -> None:
    if column not in names:
        raise UserError(f"{key}: {file.name} has no column {column}{did_you_mean(column, names)}{hint}")


def _projection(data: ResolvedData, *, labelled: bool) -> Projection:
    """Return the raw columns that features, label, split, joins and SQL read."""
    reads = data.column_reads
    expressions = {key_of(name): sql for name, sql in data.derive.items()}
    if data.where is not None and (labelled or data.item_feature is not None):  # it filters histories, too
        expressions["data.where"] = data.where
    for key, sql in expressions.items():
        for column in parse_sql(sql, key)[1]:
            reads.setdefault(column, set()).add(Text)
    for column in [*(c for _, c in _group_columns(data)), *(join.key for join in data.source.joins)]:
        reads.setdefault(column, set()).add(Text)
    if labelled:
        text_labels = {c.column for c in data.label_kinds.values() if c.is_text}
        as_numbers = set(_unlabelled_columns(data)) - text_labels
        for _, column in _split_columns(data):
            reads.setdefault(column, set()).add(Number if column in as_numbers else Text)
    raw_names = {column: data.source.rename.get(column, column) for column in reads}
    text = data.source.column_null_values
    numbers = frozenset(raw_names[c] for c, types in reads.items() if types <= {Number, RowNumber} and c not in text)
    return Projection(frozenset(raw_names.values()), numbers)


def _group_columns(data: ResolvedData) -> list[tuple[str, str]]:
    """Return (config key, raw column) of the columns that group and order rows."""
    if data.group is None:
        return []
    order = [] if data.group.order is None else [("data.group.order", data.group.order)]
    return [("data.group.by", data.group.by), *order]


def _split_columns(data: ResolvedData) -> list[tuple[str, str]]:
    """Return (config key, raw column) of the label and the split; rows to be predicted may lack these columns."""
    label = [(data.label_key(name), c.column or "") for name, c in data.label_configs.items()]
    label += [("data.weight", data.weight_column)] if data.weight_column else []
    label += [("data.position", data.position_column)] if data.position_column else []
    by_column = data.split.column and data.split.by in ("time", "hash", "kfold")
    label += [("data.split.rows", data.split.rows)] if data.split.rows else []
    return label + ([("data.split", data.split.column or "")] if by_column else [])


def _unlabelled_columns(data: ResolvedData) -> list[str]:
    """Return the raw columns that rows to be predicted may lack."""
    return [*data.label_columns, *filter(None, [data.weight_column, data.position_column])]


def rename_columns(source: SourceConfig, file: Path, frame: pl.DataFrame) -> pl.DataFrame:
    names = {raw_name: name for name, raw_name in source.rename.items() if raw_name in frame.columns}
    renamed = [names.get(n, n) for n in frame.columns]
    if twice := repeated(renamed):
        raise UserError(f"data.source.rename.{twice[0]}: {file.name} has a column {twice[0]} already; use another name")
    return frame.rename(names)


def join_source(join: JoinConfig) -> SourceConfig:
    kind = join.format or SIDE_FORMATS.get(Path(join.file).suffix, "csv")
    return SourceConfig(**text_options(join), format=kind, header=not join.names, columns=join.names)


def side_file(data: ResolvedData, join: JoinConfig, key: str = "data.source.joins") -> Path:
    """Return the path of a side table. key: its config key, for messages."""
    path = beside_root(data.root, join.file)
    if not path.is_file():
        problem = problem_of(path) if isinstance(path, PosixPath) else "no such file"
        raise UserError(f"{key}: {problem}: {path}")
    return path


def side_columns(join: JoinConfig, side: list[str]) -> dict[str, str]:
    """Return name in the config -> name in the side file, the key first. side: all columns of the file"""
    return {join.key: join.key} | (dict(join.columns) or {name: name for name in side})


def _select_columns(join: JoinConfig, side: pl.DataFrame) -> pl.DataFrame:
    return side.select(pl.col(file_name).alias(name) for name, file_name in side_columns(join, side.columns).items())


def check_side_columns(data: ResolvedData, join: JoinConfig, key: str) -> pl.DataFrame:
    """Return the side table without rows. Raises UserError if it lacks a column."""
    side = empty_frame(join_source(join), side_file(data, join, key))
    for name in side_columns(join, side.columns).values():
        if name not in side.columns:
            raise UserError(f"{key}: {join.file} has no column {name}{did_you_mean(name, side.columns)}")
    return _select_columns(join, side)


def side_table(
    data: ResolvedData, join: JoinConfig, key: str = "data.source.joins", report: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """Read a side table without its bad rows.

    Args:
        key: its config key, for messages.
        report: called with a line about bad rows, if there are any.

    Raises:
        UserError: too many rows cannot be read, the table has no rows, or two rows have the same key.
    """
    source = join_source(join)
    file = side_file(data, join, key)
    blocks = list(read(source, file, column_names(source, file)))
    bad = [b for block in blocks for b in block.bad if b.reason != EMPTY_LINE]
    reasons = Reasons(bad, lambda b: f"{join.file} line {b.line}")
    good = sum(block.frame.height for block in blocks)
    if (line := judge(f"{key}: {join.file}", data, good + len(bad), len(bad), reasons)) is not None and report:
        report(line)
    if not good:
        raise UserError(f"{key}: {join.file} has no rows")
    side = clean(join, _select_columns(join, pl.concat([b.frame for b in blocks])))
    side = side.filter(pl.col(join.key).is_not_null())
    if twice := side[join.key].filter(side[join.key].is_duplicated()).head(1).to_list():
        raise UserError(f"{key}: {join.file} has more than one row for {join.key} {twice[0]!r}; keep one")
    return side


def prediction_source(data: ResolvedData, file: Path) -> ResolvedData:
    """Return the config with a source that reads `file`, which may have another format than the files of the run.

    Text is CSV with a header, JSON lines or JSON, unless the files of the run are text of a kind that it may be, too.
    A file that is named .csv or .tsv is no JSON.
    """
    given, format_ = format_of(file), data.source.format
    lines = [name for name, f in FORMATS.items() if f.untyped and not f.needs_spec]
    json = () if {".csv", ".tsv"} & {*file.suffixes} else ("jsonl", "json")
    may_be = {"csv": (*lines, *json), "jsonl": ("json",)}  # by the format that the first bytes say
    if given in (None, format_) or format_ in may_be.get(given, ()):
        return data
    separator = "\t" if file.suffix == ".tsv" else ","
    other = replace(
        data.source, format=given, columns=[], header=True, separator=separator, comment=None, arrays={}, parts={}
    )
    return replace(data, source=other)


def history_config(data: ResolvedData) -> ResolvedData:
    """Return the config for past rows of groups: no label, no row held out; data.where still applies."""
    return replace(data, label=LabelConfig(column=None), split=SplitConfig(by="order"))


def raw_types(data: ResolvedData, names: set[str]) -> pl.DataFrame:
    """Return a frame without rows of the raw columns `names` (as in the YAML), with the types of the first file."""
    if FORMATS[data.source.format].untyped:
        return pl.DataFrame(schema=dict.fromkeys(sorted(names), pl.String))
    file = find_files(data, list(data.split.train_files) if data.split.by == "files" else None)[0]
    return rename_columns(data.source, file, raw_frame(data, file)).select(sorted(names))
