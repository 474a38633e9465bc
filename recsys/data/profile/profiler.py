"""Profile parsed rows of all splits in one pass. Memory grows with the number of distinct values, not of rows."""

import numpy as np
import polars as pl

from recsys.data.features import LABEL, Fitted
from recsys.data.features.dense_columns import PARTS, WAVES, Count, Cyclic, Target
from recsys.data.features.encoders import Vocabulary
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import Age, Cross
from recsys.data.features.sparse_columns import SparseColumn
from recsys.data.features.steps import FillMean
from recsys.data.features.training_statistics import Moments
from recsys.data.features.value_types import Number, RowNumber, Text, Time
from recsys.data.prepare.split import SPLITS
from recsys.data.profile import distributions, tallies
from recsys.data.profile.data_profile import DataProfile, Drift, FeatureProfile, Numbers, Table, drift, psi
from recsys.data.profile.tallies import TALLY, ByValue, Distinct, RowSample, each_number, tally

SAMPLE_ROWS = 1 << 18  # sampled rows of a split: 95 % of the time a quantile's rank is within 0.2 % of all rows
SAMPLE_NUMBERS = 1 << 24  # sampled numbers of a split, over all columns: 128 MiB


class Profiler:
    """Collects statistics of the frames that `parse_rows` returns.

    Every value is counted. Moments of numbers are exact; quantiles, histograms and cells of numbers are computed from a
    sample, which is all rows if a split has at most SAMPLE_ROWS.
    """

    def __init__(self, data: ResolvedData) -> None:
        self.data = data
        # whether rates of positives mean something: of the first label
        self.has_rates = isinstance(next(iter(data.label_kinds.values()), None), BinaryLabelColumn)
        dense, sparse = data.dense_columns, data.sparse_columns
        parsed = data.parsed_columns
        self.times = [n for n, (_, value_type, _) in parsed.items() if isinstance(value_type, Time)]
        self.numbers = [n for n, (_, value_type, _) in parsed.items() if isinstance(value_type, Number)] + self.times
        values = (n for n, (_, value_type, _) in parsed.items() if isinstance(value_type, Text | RowNumber))
        self.values = {n: ByValue() for n in values}
        self.absent = {n: parsed[n][0].absent for n in self.values}
        self.lengths = {n: ByValue() for n, c in sparse.items() if c.is_list}
        cyclic = {(c.parsed, s.part) for c in dense.values() for s in c.steps if isinstance(s, Cyclic)}
        self.parts = {key: ByValue() for key in sorted(cyclic)}
        self.rows, self.positives = np.zeros(3, np.int64), np.zeros(3, np.int64)
        self.missing = {n: np.zeros(3, np.int64) for n in [*self.numbers, *self.values]}
        self.moments = {n: [Moments() for _ in SPLITS] for n in self.numbers}
        self.distinct = {n: Distinct() for n in self.numbers}
        width = sum((sparse[n].longest or 1) if n in sparse else 1 for n in self.numbers)  # numbers of a row, at most
        limit = max(min(SAMPLE_ROWS, SAMPLE_NUMBERS // max(width, 1)), 1)
        self.samples = [RowSample(limit) for _ in SPLITS]

    def add(self, frame: pl.DataFrame, which: np.ndarray) -> None:
        """Add parsed rows. which: the split of each row, (rows,): 0 train, 1 validation, 2 test."""
        if frame.is_empty():
            return
        none = pl.zeros(frame.height, pl.Float32, eager=True)
        labels = frame[LABEL].fill_null(0.0) if self.has_rates and LABEL in frame.columns else none
        self.rows += np.bincount(which, minlength=3)
        self.positives += np.bincount(which[labels.to_numpy() > 0.5], minlength=3)
        rows = tally(labels, which)
        for name, seen in self.values.items():
            as_text = pl.List(pl.String) if frame[name].dtype == pl.List else pl.String
            text = frame[name].cast(as_text)  # ids (encode=id) are integers
            seen.add(text, rows)
            self.missing[name] += np.bincount(which[_missing(text, self.absent[name])], minlength=3)
        for name, seen in self.lengths.items():
            seen.add(frame[name].list.len().fill_null(0).cast(pl.Int64), rows)
        for (name, part), seen in self.parts.items():
            seen.add(frame.select(PARTS[part][1](pl.col(name)).cast(pl.Int64)).to_series(), rows)
        columns = [
            frame[n].dt.epoch("us").cast(pl.Float64) / 1e6 if n in self.times else frame[n] for n in self.numbers
        ]
        numbers = pl.DataFrame([*columns, labels.alias(LABEL)])
        for split, sample in enumerate(self.samples):
            mine = which == split
            drawn = numbers if mine.all() else numbers.filter(mine)
            sample.add(drawn)
            for n in self.numbers:
                given, x = drawn[n], each_number(drawn, n)[n]
                self.missing[n][split] += int(_missing(given, "").sum()) if n in self.lengths else x.null_count()
                self.moments[n][split].add(x, drawn)
                if split == 0:
                    self.distinct[n].add(x)

    def result(self, fitted: Fitted) -> DataProfile:
        """Return the profile. fitted: the transforms fitted on the same data, with vocabularies and table sizes."""
        return summarise(self, fitted)


def _missing(values: pl.Series, absent: str) -> np.ndarray:
    """Return (rows,) True for missing values and empty bags."""
    if values.dtype == pl.List:
        return (values.list.len().fill_null(0) == 0).to_numpy()
    return (values.fill_null("") == absent).to_numpy()


def summarise(profiler: Profiler, fitted: Fitted) -> DataProfile:
    """Return the profile of the rows added so far. fitted: the transforms fitted on the same data."""
    counts = {n: seen.result() for n, seen in profiler.values.items()}
    samples = {s: sample.result() for s, sample in zip(SPLITS, profiler.samples, strict=True) if sample.seen}
    empty = next(iter(samples.values())).clear()
    samples = {s: samples.get(s, empty) for s in SPLITS}
    features = [_number(profiler, n, samples) for n in profiler.numbers]
    features += [_value(profiler, fitted, n, c) for n, c in counts.items()]
    order = {
        n: i for i, n in enumerate([*(c.parsed for c in profiler.data.dense_columns.values()), *profiler.data.sparse])
    }
    features.sort(key=lambda f: order[f.name])
    rows, positives = (tuple(int(n) for n in x) for x in (profiler.rows, profiler.positives))
    columns, tables = fitted.data.sparse_columns, []
    for name, own in fitted.features.tables.items():
        encoder = columns[own[0].name].encoder
        names = tuple(f.name for f in own)
        if encoder.ranges is not None:
            tables.append(Table(name, names, own[0].cardinality, encoder, 1, encoder.ranges, 0))
            continue
        whole = counts[names[0]]
        if len(names) > 1:
            whole = pl.concat(counts[n] for n in names).group_by("value").sum()
        seen = whole.filter(pl.col("train") > 0)["value"]
        used = None
        if encoder.vocabulary is None and isinstance(encoder.value_type, Text):  # values may share rows
            used = encoder.look_up(seen, fitted.encoders.get(names[0], [])).n_unique()
        elif encoder.vocabulary is not None:
            encoder = Vocabulary.strictest(columns[n].encoder for n in names)
        tables.append(tallies.table(name, names, own[0].cardinality, encoder, whole, used))
    return DataProfile(rows, positives, features, tables, profiler.has_rates)


def _number(profiler: Profiler, name: str, samples: dict[str, pl.DataFrame]) -> FeatureProfile:
    time, sparse = name in profiler.times, profiler.data.sparse_columns
    seen = {s: each_number(f, name) for s, f in samples.items()}
    values = {s: f[name].drop_nulls().to_numpy() for s, f in seen.items()}
    spans: list[dict[str, float] | None] = []
    for s, m in zip(SPLITS, profiler.moments[name], strict=True):
        spans.append({**m.params(), **distributions.quantiles(values[s])} if m.n else None)
    shown = Numbers(
        spans,
        distributions.histogram(list(values.values()), time=time),
        samples["train"].height,
        profiler.samples[0].seen,
    )
    cells = distributions.cells(seen, name, time=time)
    parts = {part: _ordered(s.result()) for (n, part), s in profiler.parts.items() if n == name}
    drifts = [_drifts(p) for p in parts.values()] or [_drifts(cells)]  # a model sees the parts, not the time
    c = sparse.get(name)
    return FeatureProfile(
        name=name,
        kind="time" if time else "quantiles" if c else "dense",
        reads=profiler.data.parsed_columns[name][0].column,
        encoding=_encoding(c) if c else _steps(profiler, name),
        table=c.table if c else None,
        missing=_shares(profiler.missing[name], profiler.rows),
        distinct=profiler.distinct[name].count,
        exact=profiler.distinct[name].exact,
        oov=None,
        cells=cells,
        drift=(_largest([d[0] for d in drifts]), _largest([d[1] for d in drifts])),
        iv=max(_information_value(x) for x in ([*parts.values()] or [cells])),
        numbers=shown,
        lengths=_ordered(profiler.lengths[name].result()) if name in profiler.lengths else None,
        parts=parts,
        is_time=time,
    )


def _value(profiler: Profiler, fitted: Fitted, name: str, counts: pl.DataFrame) -> FeatureProfile:
    c = profiler.data.sparse_columns.get(name)
    cells = tallies.cells(counts, profiler.absent[name])
    known = counts.filter(pl.col("train") > 0)
    if c is not None and c.encoder.vocabulary is not None:
        known = counts.join(fitted.vocabularies[c.table].select("value"), on="value", how="semi")
    if c is None:
        steps = profiler.data.dense_columns[name].steps
        kind = "count" if isinstance(steps[0], Count) else "target" if isinstance(steps[0], Target) else "dense"
    else:
        kind = "cross" if isinstance(c.source, Cross) else "bag" if c.is_list else "sparse"
        kind += c.encoder.suffix
    return FeatureProfile(
        name=name,
        kind=kind,
        reads=" × ".join(profiler.data.parsed_columns[name][0].columns),
        encoding=_encoding(c) if c else _steps(profiler, name),
        table=c.table if c else None,
        missing=_shares(profiler.missing[name], profiler.rows),
        distinct=int((counts["train"] > 0).sum()),
        exact=True,
        oov=None if c and c.encoder.vocabulary is None else tallies.unknown_share(counts, known),
        cells=cells,
        drift=_drifts(cells),
        iv=_information_value(cells),
        lengths=_ordered(profiler.lengths[name].result()) if name in profiler.lengths else None,
    )


def _ordered(counts: pl.DataFrame) -> pl.DataFrame:
    """Return cells of small whole numbers in order (lengths of bags, parts of times), by powers of two if many."""
    label = pl.col("value").cast(pl.String)
    if counts.height > 2 * tallies.TOP:
        least = 2 ** pl.col("value").clip(1).log(2).floor().cast(pl.Int64)
        counts = counts.with_columns(least.alias("value")).group_by("value").sum()
        label = pl.when(pl.col("value") > 1).then(pl.format("{} – {}", "value", pl.col("value") * 2 - 1))
        label = label.otherwise(pl.lit("0 – 1"))
    return counts.sort("value", nulls_last=True).select(
        label.fill_null("").alias("label"), pl.col("value").is_null().alias("special"), *TALLY
    )


def _drifts(cells: pl.DataFrame) -> tuple[Drift | None, Drift | None]:
    train, validation, test = (cells[s].to_numpy() for s in SPLITS)
    return drift(train, validation), drift(train, test)


def _largest(drifts: list[Drift | None]) -> Drift | None:
    return max((d for d in drifts if d is not None), key=lambda d: d.psi, default=None)


def _information_value(cells: pl.DataFrame) -> float:
    positives = cells["positives"].to_numpy()
    negatives = cells["train"].to_numpy() - positives
    return psi(positives, negatives) if positives.sum() and negatives.sum() else 0.0


def _shares(part: np.ndarray, whole: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(p / w) if w else None for p, w in zip(part, whole, strict=True))


def _steps(profiler: Profiler, parsed: str) -> str:
    """Return the steps of a dense column as text, such as: fill 0, log, standardise."""
    mine = [c for c in profiler.data.dense_columns.values() if c.parsed == parsed]
    if isinstance(mine[0].steps[0] if mine[0].steps else None, Cyclic):
        parts = dict.fromkeys(s.part for c in mine for s in c.steps if isinstance(s, Cyclic))
        return f"{', '.join(WAVES)} of {', '.join(parts)}"
    steps = [] if mine[0].fill is None else [f"fill {mine[0].fill:g}"]
    for s in mine[0].steps:
        options = (
            ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in vars(s).items() if v is not None)
            if not isinstance(s, FillMean)
            else ""
        )
        name = f"fill {s.by}" if isinstance(s, FillMean) else type(s).__name__.lower()
        steps.append(f"{name} ({options})" if options else name)
    return ", ".join(steps)


def _encoding(c: SparseColumn) -> str:
    """Return how a sparse feature becomes ids, as text, such as: min_count 15, mean."""
    how = c.encoder.describe()
    if c.encoder.ranges is not None and c.is_list:
        how = how.replace("rows", "lookups")
        how = f"ages of earlier rows, in {how}" if isinstance(c.look_back, Age) else how
    return f"{how}, {c.pooling}" if c.is_list else how
