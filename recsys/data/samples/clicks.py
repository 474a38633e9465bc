"""The built-in sample for ranking: rows in Criteo's raw format, labelled by a known teacher.

The teacher. A row has thirteen integers I1..I13 and 26 categoricals C1..C26, all drawn independently;
the categoricals are Zipf-distributed over vocabularies of Criteo's sizes (3 to 1,000,000 values), and
"missing" is one more value of a column that has it. The label is Bernoulli(p), where

    logit(p) = bias + dense + ids + pairs + gate

    dense = sum_j a_j z_j                 z_j = standardised ln(x_j - min_j + 1); a missing x_j counts as 0
    ids   = sum_c w_c[v_c]                effects of single values, in every column, of standard
                                          deviation vocabulary_c ** -FADE: rare ids matter little
    pairs = <sum_u P_u[v_u], sum_i Q_i[v_i]>   u in USER, i in ITEM: LATENT numbers for each value, so
                                          each USER column interacts with each ITEM column
    gate  = z_GATE_INT * g[v_GATE_CAT]    an integer whose slope depends on a categorical

P, Q and g have mean zero under their columns' distributions, so no part of `pairs` and `gate` can be expressed
by a sum of single effects, which is all that logistic regression can learn. Only the HEAD most frequent values
of a column (and "missing") have effects, so that a finite sample suffices to learn all of them.
Each term is scaled to its standard deviation in SPREAD, and the bias to CLICK_RATE.

p depends only on the row, so no model can have a better expected AUC or log loss than p itself.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from recsys.data.samples.draws import Floats, Ints, Progress, sigmoid

Bools = NDArray[np.bool_]

BLOCK = 50_000  # rows drawn at a time, always whole blocks, so that a larger sample begins with the smaller one
CLICK_RATE = 0.25
HEAD = 30
ZIPF = 1.4
FADE = 0.4
LATENT = 2
SPREAD = {"dense": 1.0, "ids": 0.75, "pairs": 0.6, "gate": 0.3}

# Integers: x = floor(exp(median, in logs + spread * normal)) + minimum; and how often each is missing.
INT_LOG_MEDIAN = np.array([0.9, 1.6, 2.0, 1.7, 7.5, 3.5, 1.6, 2.0, 4.0, 0.3, 1.0, 0.4, 1.8])
INT_LOG_SPREAD = np.array([1.2, 1.5, 1.3, 0.9, 1.8, 1.4, 1.3, 0.9, 1.2, 0.5, 0.8, 0.8, 0.9])
INT_MIN = np.array([0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
INT_MAX = 9_999_999
INT_MISSING = np.array([0.45, 0, 0.21, 0.21, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.76, 0.21])

# Categoricals: values possible (fewer than 2**20), and how often each column is missing.
VOCABULARY = (
    *(1_460, 583, 1_000_000, 500_000, 305, 24, 12_500, 633, 3, 90_000, 5_700, 800_000, 3_200),
    *(27, 15_000, 600_000, 10, 5_600, 2_000, 4, 700_000, 18, 15, 280_000, 105, 140_000),
)
CAT_MISSING = np.zeros(26)
CAT_MISSING[[2, 3, 11, 15, 20, 23]] = 0.03
CAT_MISSING[[5, 18, 19, 24, 25]] = [0.12, 0.44, 0.44, 0.1, 0.44]
CAT_MISSING[21] = 0.5
USER = (13, 21, 22)  # C14, C22, C23
ITEM = (8, 16)  # C9, C17
GATE_INT, GATE_CAT = 4, 8  # I5, C9

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype="<u2")


class ClickRows(NamedTuple):
    """The features of n rows: integers (0 if missing), and the categoricals' ranks by frequency (-1 if missing)."""

    ints: Ints  # (n, 13)
    int_missing: Bools  # (n, 13)
    ids: Ints  # (26, n)


def draw(rng: np.random.Generator, n: int) -> ClickRows:
    """Draw the features of n rows. A column's value of rank k = 0, 1, .. has a share of about (k + 1) ** -ZIPF."""
    missing = rng.random((n, 13)) < INT_MISSING
    drawn = np.exp(INT_LOG_MEDIAN + INT_LOG_SPREAD * rng.standard_normal((n, 13)))
    ints = np.minimum(drawn, INT_MAX).astype(np.int64) + INT_MIN
    ints[missing] = 0
    ids = np.empty((26, n), dtype=np.int64)
    for c, size in enumerate(VOCABULARY):
        drawn = (1 + rng.random(n) * ((size + 1) ** (1 - ZIPF) - 1)) ** (1 / (1 - ZIPF))
        ids[c] = np.minimum(drawn.astype(np.int64) - 1, size - 1)
        ids[c, rng.random(n) < CAT_MISSING[c]] = -1
    return ClickRows(ints, missing, ids)


def _look_up(effects: Floats, ids: Ints) -> Floats:
    return effects[np.minimum(ids, len(effects) - 2)]  # -1, missing, is the last entry


class ClickTeacher:
    """The teacher of one seed; the module's docstring has the formula."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self._dense = rng.choice([-1.0, 1.0], 13) * rng.uniform(0.5, 1.0, 13)
        self._ids = [self._effects(rng, c, 1) * size**-FADE for c, size in enumerate(VOCABULARY)]
        self._latent = {c: self._effects(rng, c, LATENT) for c in USER + ITEM}
        self._gate = self._effects(rng, GATE_CAT, 1)
        self._mean, self._std = np.zeros(13), np.ones(13)
        self._scale = dict.fromkeys(SPREAD, 1.0)
        self._bias = 0.0
        pilot = draw(rng, BLOCK)  # for the scales and the bias; these rows are not in the sample
        logs = np.log(pilot.ints - INT_MIN + 1.0)
        self._mean, self._std = logs.mean(0), logs.std(0)
        self._scale = {name: SPREAD[name] / term.std() for name, term in self.terms(pilot).items()}
        logit = np.sum(list(self.terms(pilot).values()), axis=0)
        for _ in range(50):  # a fixed point: the pilot's mean probability is CLICK_RATE
            rate = sigmoid(logit + self._bias).mean()
            self._bias += np.log(CLICK_RATE / (1 - CLICK_RATE)) - np.log(rate / (1 - rate))

    @staticmethod
    def _effects(rng: np.random.Generator, c: int, dim: int) -> Floats:
        """Draw effects (entries, dim): of the head's values, then a row of zeros for all others, then of missing."""
        size, head = VOCABULARY[c], min(VOCABULARY[c], HEAD)
        edges = (np.arange(1, head + 2) ** (1 - ZIPF) - 1) / ((size + 1) ** (1 - ZIPF) - 1)
        mass = np.append(np.diff(edges) * (1 - CAT_MISSING[c]), CAT_MISSING[c])
        values = rng.standard_normal((head + 1, dim))
        values -= mass @ values / mass.sum()
        return np.concatenate([values[:head], np.zeros((1, dim)), values[head:]])

    def terms(self, rows: ClickRows) -> dict[str, Floats]:
        """Return the scaled terms of the logit by their names in SPREAD, (n,) each."""
        z = (np.log(rows.ints - INT_MIN + 1.0) - self._mean) / self._std
        latent = {c: _look_up(table, rows.ids[c]) for c, table in self._latent.items()}
        terms = {
            "dense": z @ self._dense,
            "ids": np.sum([_look_up(self._ids[c], rows.ids[c])[:, 0] for c in range(26)], axis=0),
            "pairs": sum((latent[u] * latent[i]).sum(1) for u in USER for i in ITEM),
            "gate": z[:, GATE_INT] * _look_up(self._gate, rows.ids[GATE_CAT])[:, 0],
        }
        return {name: term * self._scale[name] for name, term in terms.items()}

    def probability(self, rows: ClickRows) -> Floats:
        """Return P(label = 1) of each row: (n,)."""
        return sigmoid(np.sum(list(self.terms(rows).values()), axis=0) + self._bias)


def _hex(c: int, ids: Ints) -> pl.Series:
    """Return eight hex digits for each value of column c, unique in the whole data set; null if missing."""
    keys = ((c << 20) | (ids & 0xFFFFF)).astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):  # MurmurHash3's mixer: one to one
        keys = (keys ^ (keys >> np.uint32(shift))) * np.uint32(factor)
    digits = _HEX[keys.astype(">u4").view(np.uint8)]
    ends = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int64)
    buffers = [pa.py_buffer(x) for x in (np.packbits(ids >= 0, bitorder="little"), ends, digits)]
    return pl.Series(f"C{c + 1}", pa.Array.from_buffers(pa.large_string(), len(ids), buffers))


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write `train.tsv` (raw Criteo) and `teacher.parquet` (`probability`, in the same order) to `folder`.

    The same seed gives the same bytes, and a larger sample begins with the smaller one. Memory grows by eight bytes a
    row, for its probability. `progress` is called with the number of rows written so far.
    """
    teacher = ClickTeacher(seed)
    probabilities: list[Floats] = []
    with (folder / "train.tsv").open("wb") as out:
        for block, start in enumerate(range(0, rows, BLOCK)):
            drawn = draw(rng := np.random.default_rng([seed, 1, block]), BLOCK)
            p = teacher.probability(drawn)
            columns = [pl.Series("label", (rng.random(BLOCK) < p).astype(np.int8))]
            for j, missing in enumerate(drawn.int_missing.T):
                columns.append(pl.Series(f"I{j + 1}", drawn.ints[:, j]).set(pl.Series(missing), None))
            columns += [_hex(c, drawn.ids[c]) for c in range(26)]
            count = min(BLOCK, rows - start)
            pl.DataFrame(columns).head(count).write_csv(
                out, include_header=False, separator="\t", line_terminator="\n", quote_style="never"
            )
            probabilities.append(p[:count])
            progress(start + count)
    pl.DataFrame({"probability": np.concatenate([np.empty(0), *probabilities])}).write_parquet(
        folder / "teacher.parquet"
    )
