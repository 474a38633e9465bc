"""Measure how far two distributions over the same cells differ, compared with chance."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

FLOOR = 1e-4  # smaller shares count as this one: an empty cell would make the index infinite
SOME, LARGE = 0.1, 0.25


def psi(p: np.ndarray, q: np.ndarray) -> float:
    """Return the population stability index of rows by cell: (cells,), (cells,) -> sum (p - q) ln(p / q) of shares.

    See Siddiqi 2006, Credit Risk Scorecards. It is Jeffreys' divergence; between positive and negative rows it is the
    information value.
    """
    p, q = (np.maximum(n / n.sum(), FLOOR) for n in (p, q))
    return float(((p - q) * np.log(p / q)).sum())


@dataclass(frozen=True)
class Drift:
    """The drift from the training split to another one."""

    psi: float
    chance: float  # the 95 % quantile of psi without drift, for the same numbers of rows

    @property
    def reading(self) -> str:
        """Interpretation of psi: "stable" below 0.1 or not above `chance`, "some" below 0.25, otherwise "large"."""
        if self.psi < SOME or self.psi <= self.chance:
            return "stable"
        return "some" if self.psi < LARGE else "large"


def drift(p: np.ndarray, q: np.ndarray) -> Drift | None:
    """Return the drift between the rows by cell of two splits: (cells,), (cells,); None if one split has no rows.

    Without drift, the index of n and m rows is about (1/n + 1/m) times a chi-square variable with cells - 1 degrees of
    freedom (Yurdakul 2018, Statistical Properties of Population Stability Index).
    """
    n, m = int(p.sum()), int(q.sum())
    if not n or not m:
        return None
    freedom = max(int(((p + q) > 0).sum()) - 1, 0)
    # the 95 % quantile of chi-square, accurate to 1 % (Wilson and Hilferty 1931)
    share = 2 / (9 * freedom) if freedom else 0.0
    quantile = freedom * (1 - share + 1.645 * sqrt(share)) ** 3
    return Drift(psi(p, q), (1 / n + 1 / m) * quantile)


def wilson(positives: float, rows: float) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    if not rows:
        return 0.0, 1.0
    z, share = 1.96, positives / rows
    middle, half = share + z * z / (2 * rows), z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    return max((middle - half) / (1 + z * z / rows), 0.0), min((middle + half) / (1 + z * z / rows), 1.0)
