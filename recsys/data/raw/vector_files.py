"""Read files of pretrained vectors."""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.raw.blocks import one_line
from recsys.data.raw.storage import resolve_path
from recsys.data.transforms.fitted import Fitted
from recsys.data.transforms.resolved_data import ResolvedData
from recsys.data.transforms.vectors import Vectors
from recsys.errors import UserError, did_you_mean
from recsys.schema.data_schema import VectorsConfig

FIRST_ROWS = 100  # read before the data is prepared, to see how long vectors are


def vector_files(data: ResolvedData) -> dict[str, Path]:
    """Return the path of each file by the name that the config gives it.

    Args:
        data: the data config.

    Raises:
        UserError: a file is missing.
    """
    files = {}
    features = [("dense", n, c.vectors) for n, c in data.dense_columns.items()]
    features += [("sparse", n, c.vectors) for n, c in data.sparse_columns.items()]
    for kind, name, vectors in features:
        for file in [f for f in (vectors.file, vectors.keys) if f] if vectors else []:
            files[file] = _path(data, file)
            if not files[file].is_file():
                raise UserError(f"{data.key}.{kind}.{name}.vectors: no such file: {files[file]}")
    return files


def read_initial_tables(fitted: Fitted) -> dict[str, np.ndarray]:
    """Read the vectors from which tables start: (rows, width) by table, NaN for rows that have none.

    Raises:
        UserError: a file does not hold one vector of finite numbers for each value, or has none for any value.
    """
    data, tables = fitted.data, {}
    for name, c in data.sparse_columns.items():
        if c.vectors is None:
            continue
        where, table = f"{data.key}.sparse.{name}", c.table or name
        vectors = _read(data, where, c.column or name, c.vectors)
        if c.encode == "id":
            ids = pl.DataFrame({"value": [str(i) for i in range(c.rows or 0)], "id": range(c.rows or 0)})
        else:
            ids = fitted.vocabularies[table].select("value", "id")
        known = vectors.values.alias("value").to_frame().with_row_index("place", offset=1)
        matched = ids.join(known, on="value", how="inner")
        if matched.is_empty():
            raise UserError(f"{where}.vectors: {c.vectors.file} has no vector for any value of the training rows")
        matrix = np.full((fitted.features.feature(name).cardinality, vectors.matrix.shape[1]), np.nan, np.float32)
        matrix[matched["id"].to_numpy()] = vectors.matrix[matched["place"].to_numpy()]
        tables[table] = matrix
    return tables


def table_widths(data: ResolvedData) -> dict[str, tuple[str, int]]:
    """Return the table and the width of the vectors from which it starts, by sparse feature; only their first rows are
    read.

    Raises:
        UserError: a file does not hold vectors.
    """
    widths = {}
    for name, c in data.sparse_columns.items():
        if c.vectors is not None:
            file = _path(data, c.vectors.file)
            matrix = _matrix(
                data, c.vectors, file, c.column or name, f"{data.key}.sparse.{name}.vectors: {file}", True
            )[1]
            if len(matrix):
                widths[name] = (c.table or name, matrix.shape[1])
    return widths


def read_vectors(data: ResolvedData) -> dict[str, Vectors]:
    """Read the vectors of each dense feature that has some.

    Raises:
        UserError: a file does not hold one vector of finite numbers for each value.
    """
    columns = data.dense_columns.items()
    return {n: _read(data, f"{data.key}.dense.{n}", c.column, c.vectors) for n, c in columns if c.vectors is not None}


def _path(data: ResolvedData, file: str) -> Path:
    root = resolve_path(data.root or ".", "data.root")
    return (root.parent if root.is_file() else root) / file


def _read(data: ResolvedData, feature: str, column: str, c: VectorsConfig) -> Vectors:
    file = _path(data, c.file)
    where = f"{feature}.vectors: {file}"
    values, matrix = _matrix(data, c, file, column, where)
    if not len(matrix) or not matrix.shape[1]:
        raise UserError(f"{where}: holds no vectors")
    if twice := values.filter(values.is_duplicated()).head(1).to_list():
        raise UserError(f"{where}: more than one vector for {twice[0]!r}")
    if not np.isfinite(matrix).all():
        odd = values[int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])]
        raise UserError(f"{where}: the vector of {odd!r} has an infinite or missing number")
    return Vectors.from_matrix(values, matrix, list(c.normalise))


def _matrix(
    data: ResolvedData, c: VectorsConfig, file: Path, column: str, where: str, first: bool = False
) -> tuple[pl.Series, np.ndarray]:
    """Return the values and their vectors. first: read only the first vectors, and of .npy files no values"""
    return _npy(data, c, file, where, first) if file.suffix == ".npy" else _parquet(c, file, column, where, first)


def _parquet(c: VectorsConfig, file: Path, column: str, where: str, first: bool) -> tuple[pl.Series, np.ndarray]:
    try:
        with file.open("rb") as f:
            frame = pl.read_parquet(f, n_rows=FIRST_ROWS if first else None)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise UserError(f"{where}: not a Parquet file ({one_line(e)})") from e
    key = c.key or column
    for name in (key, c.column):
        if name not in frame.columns:
            raise UserError(f"{where}: has no column {name}{did_you_mean(name, frame.columns)}")
    frame = frame.select(pl.col(key).cast(pl.String).alias("key"), pl.col(c.column).alias("vector")).drop_nulls()
    dtype = frame.schema["vector"]
    if not isinstance(dtype, pl.List | pl.Array) or not dtype.inner.is_numeric():  # type: ignore[union-attr]
        raise UserError(f"{where}: column {c.column} holds {dtype}, not lists of numbers")
    lists = frame["vector"].cast(pl.List(pl.Float32))
    widths = lists.list.len().unique()
    if len(widths) > 1:
        raise UserError(f"{where}: its vectors differ in length ({', '.join(map(str, widths.sort().head(3)))})")
    flat = lists.explode(empty_as_null=False).to_numpy()
    return frame["key"], flat.reshape(len(lists), -1 if len(flat) else 0)


def _npy(data: ResolvedData, c: VectorsConfig, file: Path, where: str, first: bool) -> tuple[pl.Series, np.ndarray]:
    try:
        if first:
            matrix = np.load(file, mmap_mode="r")
        else:
            with file.open("rb") as f:
                matrix = np.load(f)
    except (ValueError, OSError, EOFError) as e:
        raise UserError(f"{where}: not a .npy file ({one_line(e)})") from e
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise UserError(f"{where}: holds {matrix.dtype} of shape {matrix.shape}, not numbers of shape (values, width)")
    if first:
        return pl.Series(dtype=pl.String), matrix
    if c.keys is None:
        return pl.int_range(len(matrix), eager=True).cast(pl.String), matrix
    lines = pl.Series(_path(data, c.keys).read_text().splitlines(), dtype=pl.String)
    if len(lines) != len(matrix):
        raise UserError(f"{where}: {len(matrix)} vectors, but {c.keys} has {len(lines)} lines")
    return lines, matrix
