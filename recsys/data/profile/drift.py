"""How far two distributions over the same cells lie apart, and what chance alone would make of it."""

from dataclasses import dataclass
from math import sqrt

import numpy as np

FLOOR = 1e-4  # a smaller share counts as this one: an empty cell would be infinitely far
SOME, LARGE = 0.1, 0.25


def psi(p: np.ndarray, q: np.ndarray) -> float:
    """Population stability index: sum (p - q) ln(p / q) of shares, of rows by cell (Siddiqi 2006, Credit Risk
    Scorecards). It is Jeffreys' divergence; between positive and negative rows it is the information value.
    """
    p, q = (np.maximum(n / n.sum(), FLOOR) for n in (p, q))
    return float(((p - q) * np.log(p / q)).sum())


@dataclass(frozen=True)
class Drift:
    """From the training split to another."""

    psi: float
    chance: float  # what 95 % of draws of as many rows from one distribution stay below

    @property
    def reading(self) -> str:
        """stable below 0.1, some below 0.25, else large; stable where chance explains it."""
        if self.psi < SOME or self.psi <= self.chance:
            return "stable"
        return "some" if self.psi < LARGE else "large"


def drift(p: np.ndarray, q: np.ndarray) -> Drift | None:
    """Of rows by cell; None where one of the splits has none.

    Without drift the index of n and m rows is about (1/n + 1/m) times a chi-square variable of one degree of freedom
    less than there are cells (Yurdakul 2018, Statistical Properties of Population Stability Index).
    """
    n, m = int(p.sum()), int(q.sum())
    if not n or not m:
        return None
    freedom = max(int(((p + q) > 0).sum()) - 1, 0)
    return Drift(psi(p, q), (1 / n + 1 / m) * _chi_square(freedom))


def _chi_square(freedom: int) -> float:
    """The 95 % point, to 1 % (Wilson and Hilferty 1931)."""
    share = 2 / (9 * freedom) if freedom else 0.0
    return freedom * (1 - share + 1.645 * sqrt(share)) ** 3


def wilson(positives: float, rows: float) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not rows:
        return 0.0, 1.0
    z, share = 1.96, positives / rows
    middle, half = share + z * z / (2 * rows), z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    return max((middle - half) / (1 + z * z / rows), 0.0), min((middle + half) / (1 + z * z / rows), 1.0)
