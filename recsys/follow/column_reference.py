"""The distributions of a model's training rows, to compare new rows with: one small JSON file.

A number is counted in cells between quantiles of the training rows, any other value in a cell for each of the most
frequent ones and one for all others; missing values have a cell of their own. Rows come in batches, and at most
SAMPLE_ROWS of them, a sample that is the same in every run, are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.value_index import mix
from recsys.data.profile.data_profile import TOP, drift
from recsys.files import manifest
from recsys.files.atomic import write_json

SAMPLE_ROWS = 100_000
BATCH = 50_000
FINE, COARSE = 50, 10  # cells of numbers: for KS, and for PSI
HASH = "__hash__"  # hash of the row number
KS_95 = 1.358  # 95 % quantile of the Kolmogorov distribution

Frame = pl.DataFrame | pl.LazyFrame | Iterable[pl.DataFrame]
Vocabularies = Mapping[str, pl.Series]  # column -> the values that the model knows
_DTYPES: dict[str, Any] = {"number": pl.Float64, "time": pl.Datetime, "text": pl.String, "boolean": pl.Boolean}
_DTYPES["null"] = pl.Null


class RowSample:
    """A sample of `limit` rows: those whose row numbers have the smallest hashes, so every run samples the same."""

    def __init__(self, limit: int) -> None:
        self.limit, self.seen, self._size = limit, 0, 0
        self._frames: list[pl.DataFrame] = []
        self._highest = np.uint64(2**64 - 1)

    def add(self, frame: pl.DataFrame) -> None:
        places = mix(np.arange(self.seen, self.seen + frame.height, dtype=np.uint64))
        self.seen += frame.height
        kept = frame.with_columns(pl.Series(HASH, places)).filter(pl.col(HASH) <= pl.lit(int(self._highest), pl.UInt64))
        self._frames.append(kept)
        self._size += kept.height
        if self._size > self.limit * 5 // 4:
            self._cut()

    def result(self) -> pl.DataFrame:
        """Return the sampled rows."""
        if self._size > self.limit:
            self._cut()
        return pl.concat(self._frames).drop(HASH)

    def _cut(self) -> None:
        kept = pl.concat(self._frames).bottom_k(self.limit, by=HASH)
        self._frames, self._size = [kept], kept.height
        self._highest = kept[HASH].to_numpy().max()


@dataclass(frozen=True)
class ColumnReference:
    """A column of the training rows.

    family: number | time | text | boolean | list of one of them
    bounds: upper bounds of the cells of numbers and times, ascending; the last cell, above all training rows, has none
    values: the values of the cells, otherwise
    counts: rows (or elements of lists) of each cell; the last but one is all others, or above the last bound; the last
        is missing values
    unknown: share of the values given that are not in the vocabulary; None without a vocabulary
    """

    family: str
    bounds: tuple[float, ...]
    values: tuple[str, ...]
    counts: tuple[int, ...]
    unknown: float | None = None

    @property
    def missing(self) -> float:
        return self.counts[-1] / max(sum(self.counts), 1)

    def cells(self, values: pl.Series) -> np.ndarray:
        """Count a batch: (cells,). Its family must be the same."""
        if self.family.endswith(("number", "time")):
            numbers = _numbers(values)
            cells = np.searchsorted(np.asarray(self.bounds), numbers, side="left")
            return np.bincount(np.where(np.isnan(numbers), len(self.bounds) + 1, cells), minlength=len(self.counts))
        text = _texts(values)
        schema = {"value": pl.String, "cell": pl.Int64}
        places = pl.DataFrame({"value": self.values, "cell": range(len(self.values))}, schema=schema)
        counts = pl.DataFrame({"value": text}).group_by("value").len().join(places, on="value", how="left")
        cells = counts["cell"].fill_null(len(self.values)).to_numpy()
        missing = counts["value"].is_null().to_numpy()
        cells = np.where(missing, len(self.values) + 1, cells)
        return np.bincount(cells, counts["len"].to_numpy(), len(self.counts)).astype(np.int64)


@dataclass(frozen=True)
class LabelFigures:
    """Labels of rows, and how the champion predicts them; figures of predictions are None without predictions.

    calibration: the sum of the predictions over that of the labels
    """

    rows: int
    mean: float
    std: float
    prediction: float | None = None
    auc: float | None = None

    @property
    def calibration(self) -> float | None:
        return None if self.prediction is None or not self.mean else self.prediction / self.mean


@dataclass(frozen=True)
class Reference:
    """The training rows of a model.

    columns: by name, also the label's and the prediction's
    label, prediction: names of these columns, None if rows have none
    figures: of all rows under "", and of the rows of a slice under COLUMN=VALUE
    slices: names of the columns that have slices
    """

    rows: int
    columns: dict[str, ColumnReference]
    label: str | None = None
    prediction: str | None = None
    slices: tuple[str, ...] = ()
    figures: dict[str, LabelFigures] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        frame: Frame,
        *,
        label: str | None = None,
        prediction: str | None = None,
        slices: Sequence[str] = (),
        vocabularies: Vocabularies | None = None,
    ) -> Reference:
        """Count the training rows. Raises UserError if there are none, or a column that is named is missing.

        prediction: the column of the champion's predictions for rows that it was not trained on
        slices: columns whose most frequent values get figures of their own
        """
        sample = RowSample(SAMPLE_ROWS)
        for batch in batches(frame):
            sample.add(batch)
        if not sample.seen:
            raise UserError("the training rows: there are none, so new rows cannot be compared with them")
        rows = sample.result()
        for name in (label, prediction, *slices):
            if name is not None and name not in rows.columns:
                raise UserError(f"{name}: is not a column of the training rows{did_you_mean(name, rows.columns)}")
        known = vocabularies or {}
        columns = {name: _column(rows[name], known.get(name)) for name in rows.columns}
        figures = figures_of(rows, label, prediction, slices)
        return cls(sample.seen, columns, label, prediction, tuple(slices), figures)

    def save(self, path: Path) -> None:
        """Write the reference as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read a file that `save` wrote. Raises DamagedFile."""
        value = manifest.read_json(path, "rows", "columns", "label", "prediction", "slices", "figures")
        try:
            lists = ("bounds", "values", "counts")
            read = {n: c | {k: tuple(c[k]) for k in lists} for n, c in value["columns"].items()}
            columns = {n: ColumnReference(**c) for n, c in read.items()}
            figures = {n: LabelFigures(**f) for n, f in value["figures"].items()}
            return cls(**value | {"columns": columns, "figures": figures, "slices": tuple(value["slices"])})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise manifest.DamagedFile(path, f"{manifest.UNREADABLE}; fit the reference again") from None


@dataclass(frozen=True)
class ColumnDrift:
    """How far new rows of a column are from the training rows.

    problem: why the column cannot be compared; then there are no figures
    psi, psi_chance: population stability index, and its 95 % quantile without drift
    ks, ks_chance: largest difference of the distribution functions of numbers over the cells, and its 95 % quantile
    missing: shares of missing values before and now
    unknown: shares of values outside the vocabulary before and now; None without a vocabulary
    """

    name: str
    problem: str | None = None
    psi: float = 0.0
    psi_chance: float = 0.0
    ks: float | None = None
    ks_chance: float | None = None
    missing: tuple[float, float] = (0.0, 0.0)
    unknown: tuple[float, float] | None = None


@dataclass(frozen=True)
class Compared:
    """New rows against a reference: their number, a drift of each column, columns without one, and label figures."""

    rows: int
    drifts: list[ColumnDrift]
    extra: list[str]
    figures: dict[str, LabelFigures]


def compare(reference: Reference, frame: Frame, vocabularies: Vocabularies | None = None) -> list[ColumnDrift]:
    """Return the drift of each column of the reference. frame: the new rows; see `Reference.fit`"""
    return compare_rows(reference, frame, vocabularies).drifts


def compare_rows(reference: Reference, frame: Frame, vocabularies: Vocabularies | None = None) -> Compared:
    """Compare new rows with the training rows, in one pass over them."""
    known, sample = vocabularies or {}, RowSample(SAMPLE_ROWS)
    counts = {n: np.zeros(len(c.counts), np.int64) for n, c in reference.columns.items()}
    outside = {n: np.zeros(2, np.int64) for n in known}  # values outside the vocabulary, values
    problems: dict[str, str] = {}
    extra: dict[str, None] = {}
    for batch in batches(frame):
        kept = [n for n in (reference.label, reference.prediction, *reference.slices) if n in batch.columns]
        sample.add(batch.select(kept or [pl.first().is_null().alias("_")]))
        extra |= dict.fromkeys(n for n in batch.columns if n not in reference.columns)
        for name, column in reference.columns.items():
            if name not in batch.columns:
                problems[name] = "is missing"
            elif (family := family_of(batch.schema[name])) != column.family and batch.schema[name] != pl.Null:
                problems[name] = f"is of type {family} and was of type {column.family} in training"
            else:
                values = batch[name].cast(_DTYPES[column.family]) if family == "null" else batch[name]
                counts[name] += column.cells(values)
                if name in known:
                    outside[name] += _outside(batch[name], known[name])
    drifts = [
        ColumnDrift(name, problems[name]) if name in problems else _drift(name, c, counts[name], outside.get(name))
        for name, c in reference.columns.items()
    ]
    rows = sample.result() if sample.seen else pl.DataFrame()
    figures, prediction = {}, reference.prediction
    if reference.label in rows.columns and reference.label not in problems:
        prediction = prediction if prediction in rows.columns and prediction not in problems else None
        figures = figures_of(rows, reference.label, prediction, [s for s in reference.slices if s in rows.columns])
    return Compared(sample.seen, drifts, list(extra), figures)


def batches(frame: Frame) -> Iterator[pl.DataFrame]:
    """Yield the rows of a frame, at most about BATCH at a time."""
    if isinstance(frame, pl.LazyFrame):
        yield from frame.collect_batches(chunk_size=BATCH)
    elif isinstance(frame, pl.DataFrame):
        yield from frame.iter_slices(BATCH)
    else:
        for part in frame:
            yield from part.iter_slices(BATCH)


def family_of(dtype: pl.DataType) -> str:
    """Return the family of a type: columns of one family can be compared."""
    if isinstance(dtype, pl.List | pl.Array):
        return f"list of {family_of(dtype.inner)}"  # type: ignore[arg-type]
    if dtype.is_numeric():
        return "number"
    if dtype.is_temporal():
        return "time"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "text"
    return str(dtype).lower()


_DTYPES |= {f"list of {family}": pl.List(dtype) for family, dtype in list(_DTYPES.items())}


def _elements(values: pl.Series) -> pl.Series:
    """Return the elements of lists; an empty list, as a missing one, is a missing value."""
    return values.explode(empty_as_null=True) if isinstance(values.dtype, pl.List | pl.Array) else values


def _numbers(values: pl.Series) -> np.ndarray:
    """Return numbers, or times in seconds, as (elements,) float64; NaN where they are missing."""
    values = _elements(values)
    if values.dtype.is_temporal():
        values = values.cast(pl.Int64) if values.dtype in (pl.Time, pl.Duration) else values.dt.epoch("us")
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _texts(values: pl.Series) -> pl.Series:
    text = _elements(values).cast(pl.String)
    return text.set(text == "", None)


def _column(values: pl.Series, vocabulary: pl.Series | None) -> ColumnReference:
    family = family_of(values.dtype)
    bounds: tuple[float, ...] = ()
    top: tuple[str, ...] = ()
    if family.endswith(("number", "time")):
        numbers = _numbers(values)
        given = numbers[np.isfinite(numbers)]
        if len(given):
            quantiles = np.unique(np.quantile(given, np.arange(1, FINE + 1) / FINE, method="inverted_cdf"))
            bounds = tuple(quantiles.tolist())
        cells = len(bounds) + 2
    else:
        counts = _texts(values).drop_nulls().alias("value").value_counts()
        top = tuple(counts.sort(["count", "value"], descending=[True, False]).head(TOP)["value"])
        cells = len(top) + 2
    column = ColumnReference(family, bounds, top, (0,) * cells)
    unknown = None
    if vocabulary is not None:
        outside, total = _outside(values, vocabulary)
        unknown = float(outside / max(total, 1))
    return ColumnReference(family, bounds, top, tuple(column.cells(values).tolist()), unknown)


def _outside(values: pl.Series, vocabulary: pl.Series) -> np.ndarray:
    """Return the numbers of values that are not in the vocabulary, and of values: (2,)."""
    given = _texts(values).drop_nulls()
    known = given.is_in(vocabulary.cast(pl.String).implode())
    return np.array([len(given) - int(known.sum()), len(given)])


def _drift(name: str, column: ColumnReference, counts: np.ndarray, outside: np.ndarray | None) -> ColumnDrift:
    before = np.asarray(column.counts)
    merged = np.arange(len(before))
    if bounds := len(column.bounds):  # COARSE cells at most, then the missing values
        cells = np.arange(bounds + 1)
        coarse = cells * COARSE // (bounds + 1) if bounds + 1 > COARSE else cells
        merged = np.append(np.unique(coarse, return_index=True)[1], bounds + 1)
    found = drift(np.add.reduceat(before, merged), np.add.reduceat(counts, merged))
    if found is None:
        return ColumnDrift(name, "has no rows to compare")
    ks = chance = None
    if column.bounds and (n := before[:-1].sum()) and (m := counts[:-1].sum()):
        ks = float(np.abs(np.cumsum(before[:-1]) / n - np.cumsum(counts[:-1]) / m).max())
        chance = KS_95 * sqrt(1 / n + 1 / m)
    missing = column.missing, float(counts[-1] / max(counts.sum(), 1))
    unknown = None
    if outside is not None and column.unknown is not None:
        unknown = column.unknown, float(outside[0] / max(outside[1], 1))
    return ColumnDrift(name, None, found.psi, found.chance, ks, chance, missing, unknown)


def figures_of(
    rows: pl.DataFrame, label: str | None, prediction: str | None, slices: Sequence[str]
) -> dict[str, LabelFigures]:
    """Return the figures of all rows under "", and of the most frequent values of columns under COLUMN=VALUE."""
    if label is None:
        return {}
    rows = rows.filter(pl.col(label).is_not_null())
    figures = {"": _figures(rows, label, prediction)}
    for column in slices:
        values = rows[column].cast(pl.String)
        for value in values.drop_nulls().alias("value").value_counts(sort=True).head(TOP)["value"]:
            figures[f"{column}={value}"] = _figures(rows.filter(values == value), label, prediction)
    return figures


def _figures(rows: pl.DataFrame, label: str, prediction: str | None) -> LabelFigures:
    from recsys.evaluation.binary import binary_metrics  # torch: settings are checked without it

    y = rows[label].cast(pl.Float64).to_numpy()
    if not len(y):
        return LabelFigures(0, 0.0, 0.0)
    figures = len(y), float(y.mean()), float(y.std())
    if prediction is None:
        return LabelFigures(*figures)
    p = rows[prediction].cast(pl.Float64).fill_null(0.0).fill_nan(0.0).to_numpy()
    auc = binary_metrics(p, y)["auc"] if np.isin(y, (0, 1)).all() else float("nan")
    return LabelFigures(*figures, float(p.mean()), None if np.isnan(auc) else auc)
