"""Compute quantiles, histograms and cells of numbers and times from a sample of rows."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl

from recsys.data.features import LABEL
from recsys.data.prepare.split import SPLITS
from recsys.data.profile.data_profile import Histogram
from recsys.pages.elements import number, seconds

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
BINS = 48
CELLS = 10
MAX_SINGLE_NUMBERS = 12  # with at most this many distinct numbers, each number is a cell
SKEWED = 2.0  # above this skewness, the axis is logarithmic


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Return the quantiles by their names, such as 5%."""
    return {f"{q:.0%}": float(x) for q, x in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}


def histogram(samples: list[np.ndarray], *, time: bool) -> Histogram | None:
    """Return a histogram of each split's numbers over their common range.

    Each bin of whole numbers contains at least one of them.

    Args:
        samples: the numbers of each split.
        time: whether the numbers are times in seconds since 1970.
    """
    whole = np.concatenate(samples)
    if not len(whole):
        return None
    unit = 0.0 if time else _unit(whole)
    low, high = (float(_to_axis(np.array(x), unit)) for x in (whole.min(), whole.max()))
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):  # too close for bins between them
        half = max(0.01 * abs(low), 0.5)
        low, high = low - half, high + half
    edges = np.linspace(low, high, BINS + 1)
    if not time and _are_whole(whole):
        inner = np.round(from_axis(edges[1:-1], unit)) + 0.5
        inner = inner[(inner > whole.min()) & (inner < whole.max())]
        edges = _to_axis(np.unique([whole.min() - 0.5, *inner, whole.max() + 0.5]), unit)
    counts = np.stack([np.histogram(_to_axis(s, unit), edges)[0] for s in samples])
    return Histogram(edges, counts, unit)


def _unit(values: np.ndarray) -> float:
    """Return the unit of the axis: 0 unless skewed, 1 for whole numbers, else about the smallest magnitude."""
    scale = np.abs(values).max()
    centred = values / scale - (values / scale).mean() if scale else values
    std = centred.std()
    if std == 0 or abs((centred**3).mean() / std**3) < SKEWED:
        return 0.0
    if _are_whole(values):
        return 1.0
    return float(10.0 ** np.floor(np.log10(max(np.quantile(np.abs(values[values != 0]), 0.05), 1e-30))))


def _are_whole(x: np.ndarray) -> bool:
    """Return True if all numbers are whole, and small enough for floats to represent the halves between them."""
    return bool((np.abs(x) < 2**50).all() and (x == np.floor(x)).all())


def _to_axis(x: np.ndarray, unit: float) -> np.ndarray:
    """Return axis coordinates of numbers; see Histogram.unit."""
    return np.sign(x) * np.log1p(np.abs(x) / unit) if unit else x.astype(np.float64)


def from_axis(x: np.ndarray, unit: float) -> np.ndarray:
    """Return the numbers at axis coordinates: the inverse of `_to_axis`."""
    return np.sign(x) * np.expm1(np.abs(x)) * unit if unit else x


def cells(sample: dict[str, pl.DataFrame], name: str, *, time: bool) -> pl.DataFrame:
    """Return cells: tenths of the training split's numbers, or single numbers if they are few; and missing values."""
    train, to_text = sample["train"][name].drop_nulls().to_numpy(), seconds if time else number
    few, whole = np.unique(train), _are_whole(train)
    if len(few) <= MAX_SINGLE_NUMBERS:
        bounds, labels = few[:-1], [to_text(float(x)) for x in few] or ["any"]
    else:
        bounds = np.quantile(train, np.arange(1, CELLS) / CELLS)
        bounds = np.unique(np.floor(bounds) if whole else bounds)
        labels = _labels(bounds, to_text, whole and not time)
    at = {}  # the cell of each number: how many bounds are below it; len(bounds) + 1 if it is missing
    for split, f in sample.items():
        cell = np.searchsorted(bounds, f[name].fill_null(0.0).to_numpy(), side="left")
        at[split] = np.where(f[name].is_not_null().to_numpy(), cell, len(bounds) + 1).astype(np.int64)
    counts = {s: np.bincount(at[s], minlength=len(bounds) + 2) for s in SPLITS}
    counts["positives"] = np.bincount(at["train"], sample["train"][LABEL].to_numpy() > 0.5, len(bounds) + 2)
    special = [False] * len(labels) + [True]
    frame = pl.DataFrame({"label": [*labels, ""], "special": special, **counts})
    frame = frame.with_columns(pl.col("positives").cast(pl.Int64))
    return frame.filter(pl.sum_horizontal(SPLITS) > 0)


def _labels(bounds: np.ndarray, to_text: Callable[[float], str], whole: bool) -> list[str]:
    """Return the labels of the cells between bounds; a cell includes its upper bound."""
    shown = [to_text(float(b)) for b in bounds]
    if not whole:
        between = [f"{a} – {b}" for a, b in pairwise(shown)]
        return [f"≤ {shown[0]}", *between, f"> {shown[-1]}"]
    ends = pairwise(bounds)
    between = [to_text(float(b)) if a + 1 == b else f"{to_text(float(a + 1))} – {to_text(float(b))}" for a, b in ends]
    return [f"≤ {shown[0]}", *between, f"≥ {to_text(float(bounds[-1] + 1))}"]
