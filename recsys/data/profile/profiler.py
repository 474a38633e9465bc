"""Profile parsed rows of all splits in one pass. Memory grows with the number of distinct values, not of rows."""

import numpy as np
import polars as pl

from recsys.data.features import LABEL, Fitted
from recsys.data.features.encodings import PARTS, Cyclic
from recsys.data.features.label_kinds import BinaryLabelColumn
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.training_statistics import Moments
from recsys.data.features.value_types import Number, RowNumber, Text, Time
from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import DataProfile
from recsys.data.profile.summary import summarise
from recsys.data.profile.tallies import ByValue, Distinct, RowSample, each_number, tally

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
