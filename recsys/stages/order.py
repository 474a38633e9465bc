"""Order the scored candidates: diversity, calibration, and rules. Parts are applied one after another.

A part gets the candidates in the order of the part before, and puts the ones that it chooses first; the others follow
in their former order, so that a later part may still choose them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from pydantic import PositiveFloat

from recsys.base.errors import UserError
from recsys.base.ranges import Count, Part, Share
from recsys.stages.catalogue import unit
from recsys.stages.expressions import Condition
from recsys.stages.open_models import Resources
from recsys.stages.visitor import Visitor

Place = Count


class Draw(Protocol):
    """The distribution that the first places of a list were drawn from."""

    @property
    def places(self) -> int:
        """The number of places that were drawn."""
        ...

    def probability(self, items: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the probability that items are drawn for positions, (n,) numbers and (n,) from 0, below `places`."""
        ...


@dataclass(frozen=True)
class Ranked:
    """Candidates in the order in which they would be shown.

    items: (n,) numbers
    scores: (n,) the scores of the third stage, which need not descend any longer
    draw: the distribution that the first places were drawn from, None if nothing was drawn
    """

    items: np.ndarray
    scores: np.ndarray
    draw: Draw | None = None

    def probability(self, items: np.ndarray, positions: np.ndarray, k: int) -> np.ndarray:
        """Return the probability that the first k have items at positions, (n,) and (n,) from 0 -> (n,).

        Behind the places that were drawn, the candidates are certain. Nothing is at a position behind the list's end.
        """
        found, shown = np.zeros(len(items)), min(k, len(self.items))
        drawn = positions < min(shown, 0 if self.draw is None else self.draw.places)
        certain = ~drawn & (positions < shown)
        found[certain] = self.items[positions[certain]] == items[certain]
        if self.draw is not None:
            found[drawn] = self.draw.probability(items[drawn], positions[drawn])
        return found

    def first(self, places: np.ndarray) -> Ranked:
        """Return the candidates with some of them first, (m,) places, and the others after them."""
        rest = np.ones(len(self.items), bool)
        rest[places] = False
        order = np.concatenate([places, np.flatnonzero(rest)])
        return replace(self, items=self.items[order], scores=self.scores[order])


class Order(ABC):
    """A part of the last stage. explores: whether it draws; such a part must be the last one"""

    explores = False

    @abstractmethod
    def bind(self, resources: Resources, key: str) -> None:
        """Get ready for the items of a catalogue. key: the config key of the part, for messages"""

    @abstractmethod
    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        """Return the candidates with the k that the list shall have first.

        Args:
            ranked: the candidates in the order of the parts before.
            rng: generator of the draws, if any.
        """


class _BySimilarity(Order):
    """Chooses by scores and the similarity of items: cosines of a source's vectors, or of the shares of categories."""

    def __init__(
        self,
        relevance: Part = 0.7,
        vectors: str | None = None,
        column: str | None = None,
        separator: str | None = None,
        candidates: Place | None = 200,
    ) -> None:
        self._relevance, self._most = relevance, candidates
        self._source, self._column, self._separator = vectors, column, separator

    def bind(self, resources: Resources, key: str) -> None:
        catalogue = resources.catalogue
        if self._source is not None and self._column is not None:
            raise UserError(f"{key}: set either vectors, the name of a source, or column, a column of items")
        source = self._source if self._source is not None else next(iter(catalogue.embeddings), "null")
        self._vectors = None if self._column is not None else catalogue.vectors(source, f"{key}.vectors")
        self._categories = None
        if self._column is not None:
            self._categories = catalogue.categories(self._column, self._separator, f"{key}.column")

    def _unit_vectors(self, items: np.ndarray) -> np.ndarray:
        """Return vectors of length 1, (n,) -> (n, d), or of zeros; their products are similarities."""
        if self._vectors is not None:
            return self._vectors[items].astype(np.float64)
        assert self._categories is not None
        return unit(self._categories.shares(items))


class MMR(_BySimilarity):
    """Maximal marginal relevance (Carbonell & Goldstein, SIGIR 1998).

    Chooses one item after another, the one with the largest relevance r_i - (1 - relevance) max over chosen j of
    sim(i, j), where r_i is the score scaled to 0 ... 1 among the candidates.

    Args:
        relevance: weight of the score, from 0 to 1; 1 keeps the order.
        vectors: a source whose model has item vectors, whose cosine is the similarity; null: the first one that has.
        column: instead of vectors, a column of items with categories.
        separator: divides text of the column into several categories.
        candidates: number of the best candidates to choose from; null: all.
    """

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items[: self._most]
        relevance = self._relevance * scaled(ranked.scores[: len(items)])
        vectors = self._unit_vectors(items)
        nearest = np.zeros(len(items))  # of the first choice, only the relevance counts
        open_, chosen = np.ones(len(items), bool), list[int]()
        for _ in range(min(k, len(items))):
            value = np.where(open_, relevance - (1 - self._relevance) * nearest, -np.inf)
            best = int(value.argmax())
            similar = vectors @ vectors[best]
            nearest = np.maximum(nearest, similar) if chosen else similar
            chosen.append(best)
            open_[best] = False
        return ranked.first(np.array(chosen, np.int64))


class DPP(_BySimilarity):
    """The most likely list of a determinantal point process, found greedily (Chen, Zhang & Zhou, NeurIPS 2018).

    The kernel is diag(q) S diag(q) with the similarities S and q_i = exp(a r_i), a = relevance / (2 (1 - relevance)),
    where r_i is the score scaled to 0 ... 1 among the candidates. Items that are copies of chosen ones are left to the
    end.

    Args:
        relevance: weight of the score, from 0 to below 1.
        vectors, column, separator, candidates: as for MMR.
    """

    def __init__(
        self,
        relevance: Share = 0.7,
        vectors: str | None = None,
        column: str | None = None,
        separator: str | None = None,
        candidates: Place | None = 200,
    ) -> None:
        super().__init__(relevance, vectors, column, separator, candidates)

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items[: self._most]
        vectors = self._unit_vectors(items)
        quality = np.exp(self._relevance / (2 * (1 - self._relevance)) * scaled(ranked.scores[: len(items)]))
        return ranked.first(greedy_map(quality, vectors, k))


def greedy_map(quality: np.ndarray, vectors: np.ndarray, k: int) -> np.ndarray:
    """Return the places of at most k items that greedily maximise the determinant of the kernel.

    The kernel is quality_i quality_j (vectors_i . vectors_j); the cost is n k^2 + n k d (algorithm 1 of Chen et al.).

    Args:
        quality: (n,).
        vectors: (n, d), of length 1.
        k: number of items; fewer are returned if the kernel has a lower rank.
    """
    gain = quality**2 * (vectors**2).sum(1)
    rows = np.zeros((0, len(quality)))
    chosen: list[int] = []
    while len(chosen) < min(k, len(quality)):
        best = int(gain.argmax())
        if gain[best] < 1e-10:
            break
        kernel = quality[best] * quality * (vectors @ vectors[best])
        row = (kernel - rows[:, best] @ rows) / np.sqrt(gain[best])
        rows = np.vstack([rows, row])
        gain = gain - row**2
        gain[best] = -np.inf
        chosen.append(best)
    return np.array(chosen, np.int64)


class Calibrated(Order):
    """Calibrated recommendations (Steck, RecSys 2018): the list has the categories of the history in their shares.

    Chooses greedily the list with the largest (1 - calibration) sum of r_i - calibration KL(p, q'), where p are the
    shares of categories in the history, q those in the list, q' = 0.99 q + 0.01 p, and r_i is the score scaled to
    0 ... 1 among the candidates. Leaves a list as it is if the history has no category.

    Args:
        column: a column of items with categories.
        separator: divides text of the column into several categories.
        calibration: weight of the calibration, from 0 to 1.
        candidates: number of the best candidates to choose from; null: all.
    """

    SMOOTHING = 0.01

    def __init__(
        self, column: str, separator: str | None = None, calibration: Part = 0.5, candidates: Place | None = 200
    ) -> None:
        self._column, self._separator, self._calibration, self._most = column, separator, calibration, candidates

    def bind(self, resources: Resources, key: str) -> None:
        self._categories = resources.catalogue.categories(self._column, self._separator, f"{key}.column")

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        history = self._categories.shares(visitor.seen[visitor.seen >= 0]).sum(0)
        if not history.sum():
            return ranked
        target = history / history.sum()
        items = ranked.items[: self._most]
        shares = self._categories.shares(items)
        relevance = (1 - self._calibration) * scaled(ranked.scores[: len(items)])
        p = target[target > 0]
        total, value = np.zeros(len(target)), 0.0
        open_, chosen = np.ones(len(items), bool), list[int]()
        for _ in range(min(k, len(items))):
            # an item without categories changes no share
            sums = total + shares
            weights = sums.sum(1, keepdims=True)
            lists = np.where(weights > 0, sums / np.where(weights > 0, weights, 1), target)
            smoothed = (1 - self.SMOOTHING) * lists[:, target > 0] + self.SMOOTHING * p
            divergence = (p * np.log(p / smoothed)).sum(1)  # KL(p, smoothed q) of each list, in nats
            objective = value + relevance - self._calibration * divergence
            best = int(np.where(open_, objective, -np.inf).argmax())
            value += relevance[best]
            total = sums[best]
            chosen.append(best)
            open_[best] = False
        return ranked.first(np.array(chosen, np.int64))


class Boost(Order):
    """Multiplies the scores of some items, or adds to them, and sorts again.

    Args:
        where: a condition in SQL over item., user. and context. columns; null: all items.
        factor: the scores are multiplied by it. Negative scores are divided, so that a factor above 1 always helps.
        add: is added to the scores.
        column: a column of items whose values, such as weights of a campaign, multiply the factor; null counts as 1.
    """

    def __init__(
        self,
        where: str | None = None,
        factor: PositiveFloat = 1.0,
        add: float = 0.0,
        column: str | None = None,
    ) -> None:
        self._where, self._factor, self._add, self._column = where, factor, add, column

    def bind(self, resources: Resources, key: str) -> None:
        self._condition = Condition(self._where, f"{key}.where", resources) if self._where else None
        self._weights: np.ndarray | None = None
        if self._column is not None:
            column = resources.catalogue.column(self._column, f"{key}.column")
            if not column.dtype.is_numeric():
                raise UserError(f"{key}.column={self._column}: is {column.dtype}, not a number")
            self._weights = column.cast(float).fill_null(1.0).to_numpy()
            if (least := self._weights.min()) <= 0:
                raise UserError(f"{key}.column={self._column}: has a weight of {least:g}; must be above 0")

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items
        applies = np.ones(len(items), bool) if self._condition is None else self._condition(visitor, items)
        factor = np.full(len(items), self._factor) if self._weights is None else self._factor * self._weights[items]
        boosted = np.where(ranked.scores >= 0, ranked.scores * factor, ranked.scores / factor) + self._add
        scores = np.where(applies, boosted, ranked.scores)
        order = np.argsort(-scores, kind="stable")
        return replace(ranked, items=items[order], scores=scores[order])


class Slot(Order):
    """Puts the best candidate of a kind at a place of the list, such as an advertisement at the third.

    Args:
        position: the place, from 1.
        where: a condition in SQL over item., user. and context. columns.
        item: instead of a condition, the name of an item, which is put there if it is a candidate.
    """

    def __init__(self, position: Place, where: str | None = None, item: str | int | None = None) -> None:
        self._position, self._where, self._item = position, where, item

    def bind(self, resources: Resources, key: str) -> None:
        if (self._where is None) == (self._item is None):
            raise UserError(f"{key}: set either where, a condition, or item, the name of an item")
        self._condition = Condition(self._where, f"{key}.where", resources) if self._where else None
        self._number = -1
        if self._item is not None:
            [self._number] = resources.catalogue.numbers([str(self._item)])
            if self._number < 0:
                raise UserError(f"{key}.item={self._item}: no source and no table has this item")

    def apply(self, visitor: Visitor, ranked: Ranked, k: int, rng: np.random.Generator) -> Ranked:
        items = ranked.items
        fits = items == self._number if self._condition is None else self._condition(visitor, items)
        found = np.flatnonzero(fits)
        if not len(found) or self._position > min(k, len(items)):
            return ranked
        later = found[found >= self._position - 1]
        best = int(later[0]) if len(later) else int(found[-1])
        others = np.delete(np.arange(len(items)), best)
        return ranked.first(np.insert(others, self._position - 1, best))


def scaled(scores: np.ndarray) -> np.ndarray:
    """Return scores (n,) scaled to 0 ... 1; all 1 if they are equal. -inf counts as the lowest of the others."""
    finite = np.isfinite(scores)
    if not finite.any():
        return np.ones(len(scores))
    low, high = scores[finite].min(), scores[finite].max()
    found: np.ndarray = (np.maximum(scores, low) - low) / (high - low) if high > low else np.ones(len(scores))
    return found
