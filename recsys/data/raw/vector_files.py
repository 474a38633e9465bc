"""Read files of pretrained vectors."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import one_line
from recsys.data.features.dense_columns import LookedUpVector
from recsys.data.features.fitted import Fitted
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import Column
from recsys.data.features.value_types import as_value
from recsys.data.features.vectors import Vectors, parse_way
from recsys.data.raw.raw_files import beside_root
from recsys.schema.data_schema import VectorsConfig

SEMANTIC_IDS = "data.semantic_ids"
FIRST_ROWS = 100  # read before the data is prepared, to see how long vectors are


def vector_files(data: ResolvedData) -> dict[str, Path]:
    """Return the path of each file by the name that the config gives it.

    Raises:
        UserError: a file is missing.
    """
    features: list[tuple[str, VectorsConfig | None]] = [(c.vectors_key, c.vectors) for c in _looked_up(data).values()]
    features += [(f"{c.key}.vectors", c.vectors) for c in data.sparse_columns.values()]
    named: list[tuple[str, str | None]] = []
    if (coded := data.semantic_ids) is not None:
        features.append((f"{SEMANTIC_IDS}.vectors", coded.vectors))
        named.append((f"{SEMANTIC_IDS}.codes", coded.codes))
    named += [(key, file) for key, vectors in features if vectors for file in (vectors.file, vectors.keys)]
    files = {}
    for key, name in named:
        if name:
            files[name] = vector_path(data, name)
            if not files[name].is_file():
                raise UserError(f"{key}: no such file: {files[name]}")
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
        key, trained = f"{c.key}.vectors", None
        vocabulary = fitted.vocabularies.get(c.table, pl.DataFrame())
        ids = c.encoder.values_of_rows(vocabulary)
        if c.encoder.vocabulary is not None:
            trained = _trained(vocabulary)
        vectors = _read(data, key, c.column, c.vectors, trained)
        known = vectors.values.alias("value").to_frame().with_row_index("place", offset=1)
        matched = ids.join(known, on="value", how="inner")
        if matched.is_empty():
            raise UserError(f"{key}: {c.vectors.file} has no vector for any value of the training rows")
        matrix = np.full((fitted.features.feature(name).cardinality, vectors.matrix.shape[1]), np.nan, np.float32)
        matrix[matched["id"].to_numpy()] = vectors.matrix[matched["place"].to_numpy()]
        tables[c.table] = matrix
    return tables


def table_widths(data: ResolvedData) -> dict[str, tuple[str, int]]:
    """Return the table and the width of the vectors from which it starts, by sparse feature; only their first rows are
    read.

    Raises:
        UserError: a file does not hold vectors, or has fewer numbers than `normalise` asks for.
    """
    widths = {}
    for name, c in data.sparse_columns.items():
        if c.vectors is not None and (width := _width(data, f"{c.key}.vectors", c.column, c.vectors)):
            widths[name] = (c.table, width)
    return widths


def check_vector_files(data: ResolvedData) -> None:
    """Read the first vectors of each dense feature that has some, for mistakes that the data need not be read for.

    Raises:
        UserError: a file does not hold vectors, or has fewer numbers than `normalise` asks for.
    """
    for c in _looked_up(data).values():
        _width(data, c.vectors_key, c.column, c.vectors)
    if data.semantic_ids is not None and data.semantic_ids.vectors is not None:
        _width(data, f"{SEMANTIC_IDS}.vectors", coded_column(data), data.semantic_ids.vectors)


def read_vectors(data: ResolvedData, training: Mapping[str, pl.Series]) -> dict[str, Vectors]:
    """Read the vectors of each dense feature that has some, and say how many values have none.

    Args:
        training: the distinct values of the training rows, as text, by raw column; columns may lack. The ways `pca` and
            `whiten` are fitted on the vectors of these values, or on all vectors if the column lacks.

    Raises:
        UserError: a file does not hold one vector of finite numbers for each value.
    """
    vectors = {}
    for name, c in _looked_up(data).items():
        key, values = c.vectors_key, training.get(c.column)
        vectors[name] = _read(data, key, c.column, c.vectors, values)
        if values is not None:
            own = vectors[name].values
            without = len(values) - int(values.is_in(own.implode()).sum())
            unseen = len(own) - (len(values) - without)
            say(
                f"{key}: {without:,} of {len(values):,} values of the training rows have no vector; "
                f"{unseen:,} of {len(own):,} vectors belong to no value of the training rows"
            )
    return vectors


def read_coded_vectors(data: ResolvedData) -> Vectors:
    """Read the vectors that semantic ids code. Raises UserError as `read_vectors` does."""
    assert data.semantic_ids is not None and data.semantic_ids.vectors is not None
    return _read(data, f"{SEMANTIC_IDS}.vectors", coded_column(data), data.semantic_ids.vectors, None)


def coded_column(data: ResolvedData) -> str:
    """Return the raw column that holds the items of data.semantic_ids."""
    name = data.item_feature
    own = data.semantic_ids.column if data.semantic_ids is not None else None
    return own or ("" if name is None else data.sparse_columns[name].column)


def training_values(fitted: Fitted) -> dict[str, pl.Series]:
    """Return the values of the training rows by raw column, of columns that a vocabulary has."""
    columns = fitted.data.sparse_columns.items()
    tables = {c.column: c.table for _, c in columns if isinstance(c.source, Column) and not c.is_list}
    return {c: _trained(fitted.vocabularies[t]) for c, t in tables.items() if t in fitted.vocabularies}


def _looked_up(data: ResolvedData) -> dict[str, LookedUpVector]:
    return {n: c for n, c in data.dense_columns.items() if isinstance(c, LookedUpVector)}


def vector_path(data: ResolvedData, file: str) -> Path:
    """Return the path of a file that the config names, under data.root."""
    return beside_root(data.root, file)


def _trained(vocabulary: pl.DataFrame) -> pl.Series:
    """Return the values of the training rows; with min_count=0, a vocabulary has others, too."""
    return vocabulary.filter(pl.col("count") > 0)["value"]


def _read(data: ResolvedData, key: str, column: str, c: VectorsConfig, training: pl.Series | None) -> Vectors:
    file = vector_path(data, c.file)
    where = f"{key}: {file}"
    values, matrix, rows = _matrix(data, c, file, column, where)
    if not len(matrix) or not matrix.shape[1]:
        raise UserError(f"{where}: holds no vectors")
    if values.is_duplicated().any():
        first = values.is_duplicated().arg_true()[0]
        second = (values == values[first]).arg_true()[1]
        raise UserError(
            f"{where}: more than one vector for {values[first]!r}, in rows {rows[first]} and {rows[second]}; remove one"
        )
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        odd = int(np.flatnonzero(~finite)[0])
        raise UserError(
            f"{where}: row {rows[odd]}: the vector of {values[odd]!r} has an infinite or missing number; remove the row"
        )
    fitted_on = None if training is None else values.is_in(training.implode()).to_numpy()
    try:
        return Vectors.from_matrix(values, matrix, [parse_way(way) for way in c.normalise], fitted_on)
    except ValueError as e:
        raise UserError(f"{key}.normalise: {e}") from e


def _width(data: ResolvedData, key: str, column: str, c: VectorsConfig) -> int:
    """Return the width of the vectors after `normalise`, 0 without vectors; only the first rows are read."""
    file = vector_path(data, c.file)
    matrix = _matrix(data, c, file, column, f"{key}: {file}", True)[1]
    width = matrix.shape[1] if len(matrix) else 0
    for name, count in map(parse_way, c.normalise):
        if count > width > 0:
            raise UserError(
                f"{key}.normalise: {{{name}: {count}}}: the vectors have {width} numbers; take {width} or fewer"
            )
        width = min(width, count) if count else width
    return width


def _matrix(
    data: ResolvedData, c: VectorsConfig, file: Path, column: str, where: str, first: bool = False
) -> tuple[pl.Series, np.ndarray, np.ndarray]:
    """Return the values, their vectors and their rows in the file, from 1.

    first: read only the first vectors, and of .npy files no values
    """
    try:
        if file.suffix == ".parquet":
            return _parquet(c, file, column, where, first)
        values, matrix = _npz(c, file, column, where) if file.suffix == ".npz" else _npy(data, c, file, where, first)
    except UserError:
        raise
    except (pl.exceptions.PolarsError, ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as e:
        raise UserError(f"{where}: not a {file.suffix} file ({one_line(e)})") from e
    return values, matrix, np.arange(1, len(matrix) + 1)


def _parquet(
    c: VectorsConfig, file: Path, column: str, where: str, first: bool
) -> tuple[pl.Series, np.ndarray, np.ndarray]:
    with file.open("rb") as f:
        frame = pl.read_parquet(f, n_rows=FIRST_ROWS if first else None)
    key = c.key or column
    for name in (key, c.column):
        if name not in frame.columns:
            raise UserError(f"{where}: has no column {name}{did_you_mean(name, frame.columns)}")
    frame = frame.select(as_value(frame.schema, key).alias("key"), pl.col(c.column).alias("vector"))
    frame = frame.with_row_index("row", 1).drop_nulls()
    dtype = frame.schema["vector"]
    if not isinstance(dtype, pl.List | pl.Array) or not dtype.inner.is_numeric():  # type: ignore[union-attr]
        raise UserError(f"{where}: column {c.column} holds {dtype}, not lists of numbers")
    lists = frame["vector"].cast(pl.List(pl.Float32))
    widths = lists.list.len()
    if (other := (widths != widths.head(1)).arg_true()).len():
        lengths = ", ".join(map(str, widths.unique().sort().head(3)))
        at, usual = other[0], widths[0]
        raise UserError(
            f"{where}: its vectors differ in length ({lengths}): row {frame['row'][at]}, of {frame['key'][at]!r}, has "
            f"{widths[at]} numbers, the first one {usual}"
        )
    flat = lists.explode(empty_as_null=False).to_numpy()
    return frame["key"], flat.reshape(len(lists), -1 if len(flat) else 0), frame["row"].to_numpy()


def _npz(c: VectorsConfig, file: Path, column: str, where: str) -> tuple[pl.Series, np.ndarray]:
    with file.open("rb") as f, np.load(f) as arrays:
        key = c.key or column
        for name in (key, c.column):
            if name not in arrays:
                raise UserError(f"{where}: has no array {name}{did_you_mean(name, list(arrays))}")
        values, matrix = pl.Series("value", arrays[key]), arrays[c.column]
    if len(values) != len(matrix):
        raise UserError(f"{where}: array {c.column} has {len(matrix)} vectors, but {key} has {len(values)} values")
    frame = values.to_frame()
    return frame.select(as_value(frame.schema, "value")).to_series(), _checked(matrix, where)


def _npy(data: ResolvedData, c: VectorsConfig, file: Path, where: str, first: bool) -> tuple[pl.Series, np.ndarray]:
    if first:
        matrix = np.load(file, mmap_mode="r")
    else:
        with file.open("rb") as f:
            matrix = np.load(f)
    matrix = _checked(matrix, where)
    if first:
        return pl.Series(dtype=pl.String), matrix
    if c.keys is None:
        return pl.int_range(len(matrix), eager=True).cast(pl.String), matrix
    lines = pl.Series(vector_path(data, c.keys).read_text(encoding="utf-8").splitlines(), dtype=pl.String)
    if len(lines) != len(matrix):
        raise UserError(f"{where}: {len(matrix)} vectors, but {c.keys} has {len(lines)} lines")
    return lines, matrix


def _checked(matrix: np.ndarray, where: str) -> np.ndarray:
    """Return the array. Raises UserError unless it is a matrix of numbers."""
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise UserError(f"{where}: holds {matrix.dtype} of shape {matrix.shape}, not numbers of shape (values, width)")
    return matrix
