"""What can be said of a data config, and of the files it names, before a row is read."""

from pathlib import Path

import polars as pl

from recsys.config.schema_data import DataConfig, SparseConfig
from recsys.data.check_groups import check_groups
from recsys.data.prepare.item_table import check_items_table, of_items
from recsys.data.prepare.split import SPLITS, check_split
from recsys.data.raw import sources
from recsys.data.raw.blocks import LINE, one_line
from recsys.data.raw.vector_files import vector_files
from recsys.data.samples import clicks as synthetic
from recsys.data.samples import sequences as synthetic_sequences
from recsys.data.transforms import (
    GROUP,
    KEY,
    LABEL,
    ORDER,
    PLACE,
    ROW,
    SPLIT,
    TIME,
    dense_columns,
    item_feature,
    items_config,
    label_column,
    raw_columns,
    sparse_columns,
)
from recsys.data.transforms.hashing import MOST_BUCKETS
from recsys.errors import UserError, did_you_mean

RESERVED = ("label", LABEL, TIME, KEY, GROUP, ORDER, SPLIT, PLACE, ROW, LINE)
FORMATS = ("csv", "parquet", "libfm", "lists", "npy")
SPECIFIED = ("split_binary", "split_csv")  # by data.spec
SAMPLES = {"clicks": synthetic.write_sample, "sequences": synthetic_sequences.write_sample}
ENCODINGS = ("vocabulary", "hash", "id")
MOST_ROWS = 2**31 - 1  # ids are Int32
ID_NEVER = {
    "cross": "several values are no row",
    "lag": "a group's first rows have no earlier value",
    "difference": "it is no row",
}
MOST_QUANTILES = 100_000  # a tenth of the rows that they are taken from, where there are many


def check_data(data: DataConfig) -> None:
    """Raises UserError for what is wrong in the config itself."""
    if data.source.format in SPECIFIED and not data.source.parts:
        raise UserError("data.spec: set it to the path of a feature_spec.yaml")
    if data.source.format not in (*FORMATS, *SPECIFIED):
        raise UserError(f"data.source.format={data.source.format}: unknown{did_you_mean(data.source.format, FORMATS)}")
    if data.sample is not None and data.sample.kind not in SAMPLES:
        told = f"must be {' or '.join(SAMPLES)}{did_you_mean(data.sample.kind, list(SAMPLES))}"
        raise UserError(f"data.sample.kind={data.sample.kind}: {told}")
    for what, one in (("separator", data.source.separator), ("quote", data.source.quote)):
        if one is not None and len(one) != 1:
            raise UserError(f'data.source.{what}={one!r}: must be one character (a TAB is written "\\t")')
    for join in data.source.joins:
        if len(join.separator) != 1 or (join.quote is not None and len(join.quote) != 1):
            raise UserError(f"data.source.joins: {join.file}: separator and quote must be one character")
    dense = dense_columns(data)  # which raises what is wrong with them
    if twice := sorted(set(data.dense).union(dense) & set(data.sparse)):
        hint = f"rename one (column: {twice[0]})"
        raise UserError(f"data: {twice[0]} is named twice, under dense and under sparse; {hint}")
    if not data.dense and not data.sparse:
        raise UserError("data: no feature is named, neither under dense nor under sparse")
    if names := [c for c in data.source.columns if data.source.columns.count(c) > 1]:
        raise UserError(f"data.source.columns: {names[0]} is named twice")
    tables = {s.table for s in data.sparse.values() if s and s.table}
    for name in [*data.dense, *dense, *data.sparse, *tables]:
        if name in RESERVED or not name or set(name) & set("./\\"):
            raise UserError(f"data: no feature or table can be named {name!r}; give it another name and column: {name}")
    for who, column in raw_columns(data):
        if column == label_column(data):
            raise UserError(f"{who}: reads the label's column {column}")
    for name, s in sparse_columns(data).items():
        _check_values(name, s, data.sparse[name] or SparseConfig())
        if s.pooling not in ("sum", "mean"):
            raise UserError(f"data.sparse.{name}.pooling={s.pooling}: must be sum or mean")
        if s.model is False and name == item_feature(data):
            raise UserError(f"data.sparse.{name}.model=false: its values are what is retrieved, which models must see")
        if (s.min_count or 0) < 0 or (s.max_length is not None and s.max_length < 1):
            raise UserError(f"data.sparse.{name}: min_count must not be negative, max_length at least 1")
        if s.mean_length is not None and s.mean_length <= 0:
            raise UserError(f"data.sparse.{name}.mean_length={s.mean_length}: must be above 0")
    _check_encodings(data)
    check_groups(data)
    if (about := items_config(data)) is not None:
        with of_items():
            check_data(about)
    if not 0 <= data.max_bad_rows <= 1:
        raise UserError(f"data.max_bad_rows={data.max_bad_rows}: must be a share between 0 and 1")
    check_split(data.split)


def _check_values(name: str, s: SparseConfig, own: SparseConfig) -> None:
    """What says which values a feature has: `split`, `pattern`, `cross` and `quantiles` are each for themselves."""
    where = f"data.sparse.{name}"
    said = [k for k in ("split", "pattern", "cross", "quantiles") if getattr(s, k) is not None]
    if len(said) > 1:
        raise UserError(f"{where}: {said[0]} and {said[1]} do not go together; leave one of them out")
    if s.cross is not None and (len(set(s.cross)) < 2 or len(set(s.cross)) < len(s.cross)):
        raise UserError(f"{where}.cross={s.cross}: needs two or more different columns")
    if s.cross is not None and own.column is not None:
        raise UserError(f"{where}.column={own.column}: is not heeded beside cross; leave one of them out")
    if s.pattern is not None:
        try:
            pl.Series([""]).str.extract_all(s.pattern)
        except pl.exceptions.PolarsError as e:
            reason = [line for line in str(e).splitlines() if line.startswith("error: ")] or [one_line(e)]
            told = reason[0].removeprefix("error: ")
            raise UserError(f"{where}.pattern={s.pattern!r}: not a regular expression: {told}") from e
    if s.quantiles is not None:
        if not 2 <= s.quantiles <= MOST_QUANTILES:
            raise UserError(f"{where}.quantiles={s.quantiles}: must be 2 to {MOST_QUANTILES}")
        if others := [k for k in ("encode", "buckets", "min_count") if getattr(own, k) is not None]:
            raise UserError(f"{where}.{others[0]}={getattr(own, others[0])}: is not heeded beside quantiles")


def _check_encodings(data: DataConfig) -> None:
    """What a feature says itself must count; a default that is of the other encoding's is passed over."""
    columns = sparse_columns(data)
    tables: dict[str, tuple[str, str, int | None]] = {}
    for name, s in columns.items():
        where, own, encode = f"data.sparse.{name}", data.sparse[name] or SparseConfig(), s.encode or ENCODINGS[0]
        if encode not in ENCODINGS and s.quantiles is None:
            raise UserError(f"{where}.encode={encode}: unknown{did_you_mean(encode, ENCODINGS)}")
        if encode == "hash":
            if s.buckets is None or not 1 <= s.buckets <= MOST_BUCKETS:
                told = "encode=hash needs it" if s.buckets is None else f"must be 1 to {MOST_BUCKETS}"
                raise UserError(f"{where}.buckets={s.buckets}: {told}")
            if own.min_count is not None:
                raise UserError(f"{where}.min_count={own.min_count}: encode=hash counts nothing; leave one of them out")
        elif own.buckets is not None:
            raise UserError(f"{where}.buckets={own.buckets}: is of encode=hash, not of {encode}")
        if encode == "id":
            _check_id(where, s, own)
        buckets = {"hash": s.buckets, "quantiles": s.quantiles, "id": s.rows}.get(encode)
        size = "rows" if encode == "id" else "buckets"
        first, *as_first = tables.setdefault(s.table or name, (name, encode, buckets))
        if as_first != [encode, buckets]:
            raise UserError(f"{where}: shares its table with {first}; encode and {size} must be equal")
    single = [f"sparse_defaults.{k}" for k in ("cross", "quantiles") if getattr(data.sparse_defaults, k) is not None]
    if single or data.dense_defaults.cyclic is not None:
        raise UserError(f"data.{(single or ['dense_defaults.cyclic'])[0]}: is for a feature, not for all")
    if data.sparse_defaults.buckets is not None and not any(s.encode == "hash" for s in columns.values()):
        raise UserError(f"data.sparse_defaults.buckets={data.sparse_defaults.buckets}: no feature has encode=hash")


def _check_id(where: str, s: SparseConfig, own: SparseConfig) -> None:
    """Of encode: id."""
    if s.rows is None or not 1 <= s.rows <= MOST_ROWS:
        told = "encode=id needs it: every value is from 0 to rows - 1"
        raise UserError(f"{where}.rows={s.rows}: " + (told if s.rows is None else f"must be 1 to {MOST_ROWS}"))
    if own.min_count is not None:
        raise UserError(f"{where}.min_count={own.min_count}: encode=id counts nothing; leave one of them out")
    for key, why in ID_NEVER.items():
        if getattr(s, key) is not None:
            raise UserError(f"{where}.{key}={getattr(s, key)}: encode=id cannot stand for it: {why}")


def raw_files(data: DataConfig) -> list[tuple[Path, int | None]]:
    """The raw files in reading order, each with its split where whole files are assigned."""
    split = data.split
    if split.by != "files":
        return [(f, None) for f in sources.files_of(data)]
    groups = (split.train_files, split.validation_files, split.test_files)
    found: list[tuple[Path, int | None]] = [
        (f, i) for i, globs in enumerate(groups) if globs for f in sources.files_of(data, list(globs))
    ]
    for path, i in found:
        if others := [j for q, j in found if q == path and j != i]:
            raise UserError(f"data.split: {path.name} is in {SPLITS[i or 0]} and in {SPLITS[others[0] or 0]}")
    return found


def check_files(data: DataConfig) -> list[tuple[Path, int | None]]:
    """Raises UserError where files are missing, empty or lack a column that the config names."""
    found = raw_files(data)
    for path, _ in found:
        sources.check_columns(data, path)
    vector_files(data)
    check_items_table(data)
    return found
