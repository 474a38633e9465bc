"""Exploration: draw parts of a list, and say with which probability each item was put at its place.

Logged with the lists, these propensities make off-policy evaluation possible (`recsys.pipeline evaluate`). Each is the
probability of an item at a position whatever the other items of the list are, which the item-position model needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat

from recsys.base.errors import UserError
from recsys.base.ranges import Part
from recsys.stages.open_models import Resources
from recsys.stages.order import Order, Place, Ranked
from recsys.stages.visitor import Visitor

Draws = Annotated[int, Field(ge=0, le=10_000)]


@dataclass(frozen=True)
class _EpsilonDraw:
    """items: (n,) best first; probabilities: (k, n) that each is at each position"""

    items: np.ndarray
    probabilities: np.ndarray

    @property
    def places(self) -> int:
        return len(self.probabilities)

    def probability(self, items: np.ndarray, positions: np.ndarray) -> np.ndarray:
        order = np.argsort(self.items)
        ranks = order[np.minimum(np.searchsorted(self.items, items, sorter=order), len(self.items) - 1)]
        return np.where(self.items[ranks] == items, self.probabilities[positions, ranks], 0.0)


@dataclass(frozen=True)
class _Sampled:
    """lists: (1 + draws, k) items of the list that is shown, and of further draws; a probability is a share of them"""

    lists: np.ndarray

    @property
    def places(self) -> int:
        return self.lists.shape[1]

    def probability(self, items: np.ndarray, positions: np.ndarray) -> np.ndarray:
        shares: np.ndarray = (self.lists[:, positions] == items).mean(0)
        return shares


class Epsilon(Order):
    """At each place, draws from the candidates that are left with probability epsilon, else takes the best of them.

    Args:
        epsilon: probability of a draw.
        candidates: number of the best candidates to draw from; null: all.
    """

    explores = True

    def __init__(self, epsilon: Part = 0.05, candidates: Place | None = 100) -> None:
        self._epsilon, self._most = epsilon, candidates

    def bind(self, resources: Resources, key: str) -> None:
        """Do nothing: any items will do."""

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items[: self._most]
        n = len(items)
        if not n:
            return ranked
        left = list(range(n))
        chosen = [
            left.pop(int(rng.integers(len(left))) if rng.random() < self._epsilon else 0) for _ in range(min(k, n))
        ]
        draw = _EpsilonDraw(items, epsilon_probabilities(self._epsilon, n, min(k, n)))
        return replace(ranked.first(np.array(chosen, np.int64)), draw=draw)


@lru_cache(maxsize=256)
def epsilon_probabilities(epsilon: float, n: int, k: int) -> np.ndarray:
    """Return the probability (k, n) that the item of rank i, from 0, is at place t, exactly.

    After t places, the best item that is left has a rank b, so that all ranks below b are gone; the t - b other items
    that are gone are equally likely any of the n - 1 - b that rank behind it.
    """
    probabilities = np.zeros((k, n))
    states = np.zeros(k + 1)  # P(b) after t places
    states[0] = 1.0
    ranks = np.arange(n)
    for t in range(k):
        after = np.zeros(k + 1)
        left = n - t
        best = 1 - epsilon + epsilon / left
        for b in np.flatnonzero(states[: t + 1]):
            gone, behind = t - b, n - 1 - b
            probabilities[t, b] += states[b] * best
            if left > 1:
                probabilities[t, ranks > b] += states[b] * (epsilon / left) * (1 - gone / behind)
                after[b] += states[b] * (1 - best)
            run = 1.0  # probability that the next `skipped` ranks behind b are gone
            for skipped in range(gone + 1):
                stays = 1.0 if behind == skipped else 1 - (gone - skipped) / (behind - skipped)
                if b + 1 + skipped <= k:
                    after[b + 1 + skipped] += states[b] * best * run * stays
                run *= 1 - stays
        states = after
    probabilities.flags.writeable = False
    return probabilities


class Thompson(Order):
    """Thompson sampling: sorts candidates by a draw from what is known of their probability of success.

    The prior of an item is Beta(a, b) with the ranker's score as mean and `strength` as a + b; successes and failures
    that are counted in columns of items are added (Chapelle & Li, NeurIPS 2011). Propensities are shares of the list
    and of further draws.

    Args:
        strength: number of observations that the ranker's score is worth.
        successes, trials: columns of items with counts; null: the score alone.
        candidates: number of the best candidates to draw from; null: all.
        draws: number of draws that propensities are estimated from; 0: none are.
    """

    explores = True

    def __init__(
        self,
        strength: PositiveFloat = 50.0,
        successes: str | None = None,
        trials: str | None = None,
        candidates: Place | None = 100,
        draws: Draws = 200,
    ) -> None:
        self._strength, self._columns, self._most, self._draws = strength, (successes, trials), candidates, draws

    def bind(self, resources: Resources, key: str) -> None:
        successes, trials = self._columns
        if (successes is None) != (trials is None):
            raise UserError(f"{key}: set both successes and trials, or none of them")
        self._counts = np.zeros((2, len(resources.catalogue)))
        if successes is not None and trials is not None:
            for row, (name, what) in enumerate(((successes, "successes"), (trials, "trials"))):
                column = resources.catalogue.column(name, f"{key}.{what}")
                if not column.dtype.is_numeric():
                    raise UserError(f"{key}.{what}={name}: is {column.dtype}, not a number")
                self._counts[row] = column.cast(float).fill_null(0.0).to_numpy()
            if (self._counts[0] > self._counts[1]).any() or (self._counts < 0).any():
                raise UserError(f"{key}: an item has more {successes} than {trials}, or a negative count")

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items[: self._most]
        mean = ranked.scores[: len(items)]
        if len(items) and not ((mean >= 0) & (mean <= 1)).all():
            raise UserError("order: Thompson sampling needs scores that are probabilities; leave score.formula out")
        successes, trials = self._counts[:, items]
        a = self._strength * np.clip(mean, 1e-6, 1 - 1e-6) + successes
        b = self._strength * np.clip(1 - mean, 1e-6, 1 - 1e-6) + trials - successes
        chosen = np.argsort(-rng.beta(a, b))[:k]
        found = ranked.first(chosen)
        if not self._draws or not len(chosen):
            return found
        others = np.argsort(-rng.beta(a, b, (self._draws, len(items))), axis=1)[:, : len(chosen)]
        return replace(found, draw=_Sampled(items[np.vstack([chosen, others])]))
