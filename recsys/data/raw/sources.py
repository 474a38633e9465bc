"""What a data config makes of its raw files: which files, their columns renamed, joined and derived."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from recsys.config.schema_data import (
    DataConfig,
    JoinConfig,
    LabelConfig,
    SourceConfig,
    SplitConfig,
)
from recsys.data.raw.blocks import LINE, Block
from recsys.data.raw.derive import chosen, derived, joined, of_sql
from recsys.data.raw.formats import column_names, no_rows, read, without_label
from recsys.data.raw.ranges import WHOLE, FileRange, Projection
from recsys.data.raw.storage import in_order, place
from recsys.data.transforms import column_reads, label_column, raw_columns
from recsys.errors import UserError, did_you_mean


def files_of(data: DataConfig, globs: list[str] | None = None) -> list[Path]:
    """The raw files under data.root, sorted by name, day_2 before day_10; a root that is a file stands for itself."""
    if data.source.parts:  # data.spec names them one by one
        return [Path(f) for f in data.source.parts if globs is None or f in globs]
    assert data.root is not None
    root = place(data.root, "data.root")
    if root.is_file():
        found = [root]
    else:
        globs = globs or list(data.source.files)
        try:
            found = in_order({p for g in globs for p in root.glob(g) if p.is_file() and not _hidden(p, g)})
        except (ValueError, NotImplementedError) as e:
            raise UserError(f"data.source.files: {', '.join(globs)}: not globs under data.root ({e})") from e
        if not found:
            there = sorted(p.name for p in root.iterdir())[:8]
            raise UserError(
                f"data.root={data.root}: no file matches {', '.join(globs)} "
                f"(there: {', '.join(there) or 'nothing'}); set data.source.files"
            )
    for path in found:
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    return found


def _hidden(path: Path, glob: str) -> bool:
    """.name and _name (_SUCCESS, _metadata) are no data, unless a glob names them."""
    return path.name.startswith(".") or (path.name.startswith("_") and not Path(glob).name.startswith("_"))


def check_columns(data: DataConfig, file: Path, *, labelled: bool = True) -> None:
    """Raises UserError where the config names a column that `file` (with its joins) lacks."""
    have = no_rows(data.source, file)
    for here, there in data.source.rename.items():
        if there not in have.columns:
            near = did_you_mean(there, have.columns)
            raise UserError(f"data.source.rename.{here}: {file.name} has no column {there}{near}")
    have = _renamed(data.source, file, have)
    for join in data.source.joins:
        _check_column("data.source.joins", join.key, file, have)
        side = check_side_columns(data, join, "data.source.joins")
        for here in join.columns:
            if here != join.key and here in have.columns:
                raise UserError(f"data.source.joins: {join.file}'s column {here} is there already; name it otherwise")
        have = joined(have, join, side)
    for column, sql in data.derive.items():
        have = derived(column, sql, have)
    if data.where is not None:
        chosen(data.where, have)
    wanted = raw_columns(data)
    wanted += group_columns(data) + (split_columns(data) if labelled else [])
    for who, column in wanted:
        _check_column(who, column, file, have)


def read_blocks(data: DataConfig, file: Path, piece: FileRange = WHOLE, *, unlabelled: bool = False) -> Iterator[Block]:
    """The raw rows of a piece of `file`, joined with the side tables and with derived columns.

    unlabelled: rows to be predicted: the file may lack the label column (a header-less file then has one column less),
    and data.where chooses none of them.
    """
    source = data.source
    names = column_names(source, file)
    if unlabelled and not source.header and source.format == "csv":
        names = without_label(source, label_column(data) or "", file, names)
    sides = [(join, side_table(data, join)) for join in source.joins]

    def whole(block: Block) -> Block:
        block.frame = _completed(data, _renamed(source, file, block.frame), sides, where=not unlabelled)
        if (as_text := block.as_text) is not None:
            block.as_text = lambda: whole(as_text())
        return block

    for block in read(source, file, names, piece, wanted(data, labelled=not unlabelled)):
        yield whole(block)


def _completed(
    data: DataConfig, frame: pl.DataFrame, sides: list[tuple[JoinConfig, pl.DataFrame]], *, where: bool
) -> pl.DataFrame:
    for join, side in sides:
        frame = joined(frame, join, side)
    for column, sql in data.derive.items():
        frame = derived(column, sql, frame)
    return chosen(data.where, frame) if where and data.where is not None else frame


def of_frame(data: DataConfig, frame: pl.DataFrame) -> Block:
    """Raw rows that are in memory, as `read_blocks` gives those of a file; joined columns may be there already.

    Raises UserError where a column is missing.
    """
    file = Path("the frame")
    frame = _renamed(data.source, file, frame.with_row_index(LINE, 1).cast({LINE: pl.Int64}))
    joins = [j for j in data.source.joins if not set(j.columns) <= set(frame.columns)]
    for who, column in [("data.source.joins", j.key) for j in joins]:
        _check_column(who, column, file, frame)
    frame = _completed(data, frame, [(join, side_table(data, join)) for join in joins], where=True)
    for who, column in raw_columns(data) + group_columns(data):
        _check_column(who, column, file, frame)
    return Block(file, frame, lines=frame.height)


def _check_column(who: str, column: str, file: Path, have: pl.DataFrame) -> None:
    if column not in have.columns:
        raise UserError(f"{who}: {file.name} has no column {column}{did_you_mean(column, have.columns)}")


def wanted(data: DataConfig, *, labelled: bool) -> Projection:
    """Which raw columns features, label, split, joins and SQL read."""
    reads = column_reads(data)
    for sql in [*data.derive.values(), *([data.where] if labelled and data.where else [])]:
        for column in of_sql(sql)[1]:
            reads.setdefault(column, set()).add("value")
    for _, column in group_columns(data):
        reads.setdefault(column, set()).add("value")
    for join in data.source.joins:
        reads.setdefault(join.key, set()).add("value")
    if labelled:
        for _, column in split_columns(data):
            reads.setdefault(column, set()).add("number" if column == label_column(data) else "value")
    there = {column: data.source.rename.get(column, column) for column in reads}
    numbers = frozenset(there[column] for column, kinds in reads.items() if kinds == {"number"})
    return Projection(frozenset(there.values()), numbers)


def group_columns(data: DataConfig) -> list[tuple[str, str]]:
    """(who, raw column) of what groups rows."""
    if data.group is None:
        return []
    order = [] if data.group.order is None else [("data.group.order", data.group.order)]
    return [("data.group.by", data.group.by), *order]


def split_columns(data: DataConfig) -> list[tuple[str, str]]:
    """(who, raw column) of the label and of what splits rows, which rows to predict may lack."""
    named = label_column(data)
    label = [] if named is None else [("data.label", named)]
    by_column = data.split.column and data.split.by in ("time", "hash", "kfold")
    return label + ([("data.split", data.split.column or "")] if by_column else [])


def _renamed(source: SourceConfig, file: Path, frame: pl.DataFrame) -> pl.DataFrame:
    names = {there: here for here, there in source.rename.items() if there in frame.columns}
    after = [names.get(n, n) for n in frame.columns]
    if twice := [n for n in after if after.count(n) > 1]:
        raise UserError(f"data.source.rename.{twice[0]}: {file.name} has a column {twice[0]} already")
    return frame.rename(names)


def _join_source(join: JoinConfig) -> SourceConfig:
    kind = {".parquet": "parquet", ".json": "json"}.get(Path(join.file).suffix, "csv")
    return SourceConfig(format=kind, separator=join.separator, quote=join.quote)


def side_file(data: DataConfig, join: JoinConfig, where: str = "data.source.joins") -> Path:
    root = place(data.root or ".", "data.root")
    path = (root.parent if root.is_file() else root) / join.file
    if not path.is_file():
        raise UserError(f"{where}: no such file: {path}")
    return path


def _side_columns(join: JoinConfig) -> dict[str, str]:
    """Name here -> name in the side file, the key first."""
    return {join.key: join.key} | dict(join.columns)


def _side_selected(join: JoinConfig, side: pl.DataFrame) -> pl.DataFrame:
    return side.select(pl.col(there).alias(here) for here, there in _side_columns(join).items())


def check_side_columns(data: DataConfig, join: JoinConfig, where: str) -> pl.DataFrame:
    """No rows of the side table. Raises UserError where it lacks a column."""
    side = no_rows(_join_source(join), side_file(data, join, where))
    for there in _side_columns(join).values():
        if there not in side.columns:
            raise UserError(f"{where}: {join.file} has no column {there}{did_you_mean(there, side.columns)}")
    return _side_selected(join, side)


def side_table(data: DataConfig, join: JoinConfig, where: str = "data.source.joins") -> pl.DataFrame:
    source = _join_source(join)
    file = side_file(data, join, where)
    blocks = list(read(source, file, column_names(source, file)))
    for wrong in (b for block in blocks for b in block.bad if b.reason != "an empty line"):
        raise UserError(f"{where}: {join.file} line {wrong.line}: {wrong.reason}")
    if not any(block.frame.height for block in blocks):
        raise UserError(f"{where}: {join.file} has no rows")
    side = _side_selected(join, pl.concat([b.frame for b in blocks])).filter(pl.col(join.key).is_not_null())
    if twice := side[join.key].filter(side[join.key].is_duplicated()).head(1).to_list():
        raise UserError(f"{where}: {join.file} has more than one row for {join.key} {twice[0]!r}; one is wanted")
    return side


def rows_to_predict(data: DataConfig, file: Path) -> DataConfig:
    """With a source that reads `file`: what lay in several files comes as one, CSV with a header or Parquet."""
    format_ = data.source.format
    if format_ not in ("npy", "split_binary", "split_csv") or file.suffix == ".npy":
        return data
    return replace(data, source=SourceConfig(format="parquet" if file.suffix == ".parquet" else "csv"))


def rows_so_far(data: DataConfig) -> DataConfig:
    """Of what groups did until now: data.where chooses among its rows, none has a label or is held out."""
    return replace(data, label=LabelConfig(column=None), split=SplitConfig(by="order"))


def raw_types(data: DataConfig, names: set[str]) -> pl.DataFrame:
    """No rows of the raw columns `names`, as the YAML names them, with their types: those of the first file."""
    if data.source.format != "parquet":
        return pl.DataFrame(schema=dict.fromkeys(sorted(names), pl.String))
    file = files_of(data, list(data.split.train_files) if data.split.by == "files" else None)[0]
    return _renamed(data.source, file, no_rows(data.source, file)).select(sorted(names))
