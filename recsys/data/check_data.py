"""Check a data config, and the files that it names, before a row is read."""

from dataclasses import replace
from pathlib import Path

import polars as pl

from recsys.data.check_groups import check_groups
from recsys.data.check_source import check_source
from recsys.data.prepare.bad_rows import MOST_BAD, check_first_rows
from recsys.data.prepare.item_table import check_items_table
from recsys.data.prepare.split import SPLITS, check_split
from recsys.data.raw import read_sources
from recsys.data.raw.blocks import ELEMENT, LINE, one_line
from recsys.data.raw.complete_config import completed
from recsys.data.raw.databases import TABLE_FORMATS, check_packages
from recsys.data.raw.storage import check_remote, is_remote
from recsys.data.raw.vector_files import check_vector_files, vector_files
from recsys.data.samples import clicks, drifting, graded_queries, interactions, sales, sequences
from recsys.data.semantic_ids.fit_semantic_ids import other_joins
from recsys.data.transforms import (
    GROUP,
    KEY,
    LABEL,
    ORDER,
    PLACE,
    ROW,
    SPLIT,
    TIME,
)
from recsys.data.transforms.labels import check_labels
from recsys.data.transforms.resolved_data import ResolvedData, check_vectors, resolve
from recsys.errors import UserError, did_you_mean
from recsys.files.names import check_name, name_problem, shown_name
from recsys.ranges import check_values
from recsys.schema.data_schema import DataConfig, SparseConfig

SplitFiles = list[tuple[Path, int | None]]  # raw files, each with its split if data.split.by=files, else None
RESERVED = ("label", LABEL, TIME, KEY, GROUP, ORDER, SPLIT, PLACE, ROW, LINE, ELEMENT)
SAMPLES = {
    "clicks": clicks.write_sample,
    "sequences": sequences.write_sample,
    "interactions": interactions.write_sample,
    "drifting": drifting.write_sample,
    "sales": sales.write_sample,
    "queries": graded_queries.write_sample,
}
ENCODINGS = ("vocabulary", "hash", "id")
ID_EXCLUDES = {  # keys that cannot be used with encode=id, and the reason
    "cross": "several values cannot be one row of a table",
    "lag": "the first rows of a group have no earlier value",
    "difference": "a difference is not a row of a table",
}


def check_data(data: DataConfig) -> None:
    """Check the config itself.

    Args:
        data: the data config, or that of its item table.

    Raises:
        UserError: the config has a mistake.
    """
    data = resolve(data)
    key = data.key
    check_values(data, DataConfig, key, finite=False)
    if data.sample is not None and data.sample.kind not in SAMPLES:
        hint = f"must be {' or '.join(SAMPLES)}{did_you_mean(data.sample.kind, list(SAMPLES))}"
        raise UserError(f"{key}.sample.kind={data.sample.kind}: {hint}")
    if data.verify not in ("stat", "content"):
        raise UserError(f"{key}.verify={data.verify}: must be stat or content")
    check_source(data)
    check_labels(data)
    dense = data.dense_columns
    if twice := sorted(set(data.dense).union(dense) & set(data.sparse)):
        hint = f"give one of them another name and set its column: {twice[0]}"
        raise UserError(f"{key}: {twice[0]} is both a dense and a sparse feature; {hint}")
    if not data.dense and not data.sparse:
        raise UserError(f"{key}: no feature is named, neither under dense nor under sparse")
    tables = {s.table for s in data.sparse.values() if s and s.table}
    check_name(data.name, "data.name", "my_data")
    for name in [*data.dense, *dense, *data.sparse, *tables, *data.labels]:
        problem = "is a reserved word" if name in RESERVED else "contains ." if "." in name else name_problem(name)
        if problem:
            hint = f"choose another name and set column: {shown_name(name)}"
            raise UserError(
                f"{key}: {shown_name(name)} is not a valid name of a feature, table or label: it {problem}; {hint}"
            )
    for where, column in data.raw_columns:
        if column in data.label_columns:
            raise UserError(f"{where}: reads {column}, the column of the label; choose another column")
    for name, s in data.sparse_columns.items():
        where = f"{key}.sparse.{name}"
        _check_values(where, s, data.sparse[name] or SparseConfig())
        if s.pooling not in ("sum", "mean"):
            raise UserError(f"{where}.pooling={s.pooling}: must be sum or mean")
        if s.model is False and name == data.item_feature:
            raise UserError(f"{where}.model=false: models must see the feature whose values are retrieved; remove it")
    _check_semantic_ids(data)
    _check_encodings(data)
    check_groups(data)
    if (items := data.item_table) is not None:
        check_data(items)
    check_split(data.split)


def check_installed(data: DataConfig) -> None:
    """Raise UserError if the package that reads the raw data is not installed."""
    if data.root is not None:
        check_remote(data.root, "data.root")
        check_packages(data.source, data.root)


def _check_values(where: str, s: SparseConfig, own: SparseConfig) -> None:
    """Check the keys that define a feature's values: `split`, `pattern`, `cross`, `quantiles`; only one may be set."""
    set_keys = [k for k in ("split", "pattern", "cross", "quantiles") if getattr(s, k) is not None]
    if len(set_keys) > 1:
        raise UserError(f"{where}: {set_keys[0]} and {set_keys[1]} cannot be combined; remove one of them")
    if s.cross is not None and (len(set(s.cross)) < 2 or len(set(s.cross)) < len(s.cross)):
        raise UserError(f"{where}.cross={s.cross}: needs two or more different columns")
    if s.cross is not None and own.column is not None:
        raise UserError(f"{where}.column={own.column}: is ignored with cross; remove one of them")
    if s.pattern is not None:
        try:
            pl.Series([""]).str.extract_all(s.pattern)
        except pl.exceptions.PolarsError as e:
            lines = [line for line in str(e).splitlines() if line.startswith("error: ")] or [one_line(e)]
            problem = lines[0].removeprefix("error: ")
            raise UserError(f"{where}.pattern={s.pattern!r}: not a regular expression: {problem}") from e
    others = [k for k in ("encode", "buckets", "min_count") if getattr(own, k) is not None]
    if s.quantiles is not None and others:
        name, value = others[0], getattr(own, others[0])
        raise UserError(f"{where}.{name}={value}: is ignored with quantiles; remove one of them")


METHODS = ("kmeans", "rqvae")  # of data.semantic_ids


def _check_semantic_ids(data: ResolvedData) -> None:
    """Check `semantic_ids`. Raises UserError if it has a mistake."""
    c, key = data.semantic_ids, f"{data.key}.semantic_ids"
    if c is None:
        return
    if c.vectors is not None and c.codes is not None:
        raise UserError(f"{key}: names vectors and codes; remove one of them")
    if c.vectors is not None:
        check_vectors(c.vectors, f"{key}.vectors")
    if c.method not in METHODS:
        raise UserError(f"{key}.method={c.method}: unknown{did_you_mean(c.method, METHODS)}")
    if data.item_feature is None and not c.column:
        raise UserError(f"{key}.column: missing; name the raw column that holds the items")
    if data.item_feature is not None and c.column:
        raise UserError(
            f"{key}.column={c.column}: applies to rows; the items of retrieval have codes already, remove it"
        )


def without_codes(data: ResolvedData) -> ResolvedData:
    """Return the config without the features whose columns come from semantic ids, not from the raw files."""
    if data.semantic_ids is None or data.item_feature is not None:
        return data
    sparse = {n: c for n, c in data.sparse.items() if n not in data.semantic_features}
    source = replace(data.source, joins=other_joins(data))
    return replace(data, sparse=sparse, source=source, semantic_ids=None)


def _check_encodings(data: ResolvedData) -> None:
    """Check `encode` and its options.

    An option that is set on a feature must apply to its encoding; options that it gets from sparse_defaults are ignored
    if they do not apply.
    """
    columns = data.sparse_columns
    tables: dict[str, tuple[str, str, int | None]] = {}
    for name, s in columns.items():
        where, settings, encode = (
            f"{data.key}.sparse.{name}",
            data.sparse[name] or SparseConfig(),
            s.encode or ENCODINGS[0],
        )
        if encode not in ENCODINGS and s.quantiles is None:
            raise UserError(f"{where}.encode={encode}: unknown{did_you_mean(encode, ENCODINGS)}")
        if encode == "hash":
            if s.buckets is None:
                raise UserError(f"{where}.buckets={s.buckets}: encode=hash needs it")
            if settings.min_count is not None:
                raise UserError(
                    f"{where}.min_count={settings.min_count}: does not apply to encode=hash; remove one of them"
                )
        elif settings.buckets is not None:
            hint = f"applies only to encode=hash; this feature has encode={encode}"
            raise UserError(f"{where}.buckets={settings.buckets}: {hint}")
        if encode == "id":
            _check_id(where, s, settings)
        buckets = {"hash": s.buckets, "quantiles": s.quantiles, "id": s.rows}.get(encode)
        size = "rows" if encode == "id" else "buckets"
        _check_table_vectors(data, name, s)
        first, *as_first = tables.setdefault(s.table or name, (name, encode, buckets))
        if as_first != [encode, buckets]:
            raise UserError(f"{where}: shares its table with {first}; both must have the same encode and {size}")
    key = data.key
    single = [f"sparse_defaults.{k}" for k in ("cross", "quantiles") if getattr(data.sparse_defaults, k) is not None]
    if single or data.dense_defaults.cyclic is not None:
        raise UserError(f"{key}.{(single or ['dense_defaults.cyclic'])[0]}: cannot be a default; set it per feature")
    if data.sparse_defaults.buckets is not None and not any(s.encode == "hash" for s in columns.values()):
        raise UserError(f"{key}.sparse_defaults.buckets={data.sparse_defaults.buckets}: no feature has encode=hash")


def _check_table_vectors(data: ResolvedData, name: str, s: SparseConfig) -> None:
    """Check the vectors that a feature's table starts from."""
    where = f"{data.key}.sparse.{name}.vectors"
    if s.vectors is None:
        return
    if data.key != "data":
        raise UserError(f"{where}: does not apply to features of items; set it on a feature of data.sparse")
    if s.encode not in ("vocabulary", "id"):
        raise UserError(f"{where}: needs encode=vocabulary or id, because hashed values share rows of the table")
    check_vectors(s.vectors, where)
    others = [
        n for n, o in data.sparse_columns.items() if n != name and o.vectors and (o.table or n) == (s.table or name)
    ]
    if others:
        raise UserError(f"{where}: {others[0]} shares the table and has vectors, too; remove one of them")


def _check_id(where: str, s: SparseConfig, own: SparseConfig) -> None:
    """Check the options of encode=id."""
    if s.rows is None:
        raise UserError(f"{where}.rows={s.rows}: encode=id needs it; values are from 0 to rows - 1")
    if own.min_count is not None:
        raise UserError(f"{where}.min_count={own.min_count}: does not apply to encode=id; remove one of them")
    for name, reason in ID_EXCLUDES.items():
        if getattr(s, name) is not None:
            raise UserError(f"{where}.{name}={getattr(s, name)}: cannot be combined with encode=id: {reason}")


def check_root(data: DataConfig) -> None:
    """Raise UserError if the config names neither raw files nor a built-in sample."""
    if data.root is None and data.sample is None and not data.source.parts:
        raise UserError(f"data={data.name}: set data.root=DIR, the folder of its raw files")


def names_files(data: DataConfig) -> bool:
    """Return whether the config names raw files: neither the built-in sample, nor a table or the rows of a query."""
    return data.root is not None and data.source.format not in TABLE_FORMATS


def _raw_files(data: ResolvedData) -> SplitFiles:
    """Return the raw files in reading order, each with its split if data.split.by=files, else None."""
    split = data.split
    if split.by != "files":
        return [(f, None) for f in read_sources.find_files(data)]
    groups = (split.train_files, split.validation_files, split.test_files)
    files: list[tuple[Path, int | None]] = [
        (f, i) for i, globs in enumerate(groups) if globs for f in read_sources.find_files(data, list(globs))
    ]
    for path, i in files:
        if others := [j for q, j in files if q == path and j != i]:
            raise UserError(f"data.split: {path.name} is both in {SPLITS[i or 0]} and in {SPLITS[others[0] or 0]}")
    return files


def check_files(data: ResolvedData) -> SplitFiles:
    """Check all files that the config names, and return what `_raw_files` returns.

    Raises:
        UserError: a file is missing, empty, or lacks a column that the config names, or its first rows cannot be read.
    """
    files = _raw_files(data)
    for path, _ in files:
        read_sources.check_columns(without_codes(data), path)
    vector_files(data)
    check_vector_files(data)
    check_items_table(data)
    if files and data.max_bad_rows < MOST_BAD and not is_remote(str(files[0][0])):
        check_first_rows(without_codes(completed(data, files[0][0])), files[0][0])
    return files
