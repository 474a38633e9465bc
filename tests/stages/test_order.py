"""Diversity, calibration and rules, against brute force and by hand."""

from itertools import combinations

import numpy as np
import pytest
import small_stages
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.stages.order import DPP, MMR, Boost, Calibrated, Order, Ranked, Slot, greedy_map, scaled

RNG = np.random.default_rng(0)
KIND = ["a", "a", "a", "b", "b|c", "c"]
ITEMS = small_stages.catalogue(
    {"kind": KIND, "stock": [1, 1, 1, 0, 1, 0], "weight": [1.0, 1.0, None, 2.0, 1.0, 1.0]},
    np.eye(6, 4, dtype=np.float32)[[0, 0, 1, 2, 3, 3]],
)
RANKED = Ranked(np.arange(6), np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))


def applied(part: Order, k: int = 3, ranked: Ranked = RANKED, **visitor: object) -> list[int]:
    part.bind(small_stages.resources(ITEMS), "order.mine")
    found = part.apply(small_stages.visitor(**visitor), ranked, k, RNG)
    assert sorted(found.items.tolist()) == sorted(ranked.items.tolist())  # a part loses no candidate
    return found.items.tolist()


def test_mmr() -> None:
    assert applied(MMR(relevance=1.0))[:3] == [0, 1, 2]
    assert applied(MMR(relevance=0.5))[:3] == [0, 2, 3]  # 1 is a copy of 0
    assert applied(MMR(relevance=0.5, column="kind", separator="|"))[:3] == [0, 3, 5]


@given(seed=st.integers(0, 1000), relevance=st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=20, deadline=None)
def test_mmr_is_the_definition(seed: int, relevance: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(8, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.sort(rng.normal(size=8))[::-1]
    part = MMR(relevance)
    part.bind(small_stages.resources(small_stages.catalogue({"x": range(8)}, vectors)), "order.mmr")
    found = part.apply(small_stages.visitor(), Ranked(np.arange(8), scores), 5, rng).items[:5].tolist()
    chosen: list[int] = []
    same = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    for _ in range(5):
        left = [i for i in range(8) if i not in chosen]
        value = [
            relevance * scaled(scores)[i] - (1 - relevance) * max((same[i, j] for j in chosen), default=0) for i in left
        ]
        chosen.append(left[int(np.argmax(value))])
    assert found == chosen


def test_dpp_leaves_copies_to_the_end() -> None:
    assert applied(DPP(relevance=0.5), 4)[:4] == [0, 2, 3, 4]
    assert applied(DPP(relevance=0.5), 6)[:4] == [0, 2, 3, 4]


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_greedy_map_takes_the_largest_determinant_each_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(7, 7))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    quality = rng.uniform(0.5, 2, 7)
    kernel = quality[:, None] * quality * (vectors @ vectors.T)
    chosen: list[int] = []
    for _ in range(4):
        left = [i for i in range(7) if i not in chosen]
        chosen.append(max(left, key=lambda i: np.linalg.det(kernel[np.ix_([*chosen, i], [*chosen, i])])))
    assert greedy_map(quality, vectors, 4).tolist() == chosen


def test_greedy_map_of_two_is_close_to_the_best() -> None:
    vectors = np.array([[1, 0], [0.9, np.sqrt(0.19)], [0, 1.0]])
    kernel = vectors @ vectors.T
    best = max(combinations(range(3), 2), key=lambda s: np.linalg.det(kernel[np.ix_(s, s)]))
    assert set(greedy_map(np.ones(3), vectors, 2)) == set(best)


def test_calibrated() -> None:
    """The user's history is half a and half b: so is the list."""
    seen = np.array([0, 3, -1])
    assert sorted(applied(Calibrated("kind", "|", calibration=1.0), 2, seen=seen)[:2]) == [0, 3]
    found = applied(Calibrated("kind", "|", calibration=0.7), 3, seen=seen)[:3]
    assert [KIND[i] for i in found] == ["a", "b", "a"]
    assert applied(Calibrated("kind", "|", calibration=0.0), 3, seen=seen)[:3] == [0, 1, 2]
    assert applied(Calibrated("kind", "|"), 3)[:3] == [0, 1, 2]  # no history


def test_boost() -> None:
    assert applied(Boost(where="item.stock = 0", factor=2.0)) == [3, 0, 1, 5, 2, 4]
    assert applied(Boost(column="weight"))[:2] == [3, 0]
    assert applied(Boost(where="item.kind = 'c'", add=1.0))[0] == 5
    negative = Ranked(np.arange(6), np.array([-1.0, -2, -3, -4, -5, -6]))
    assert applied(Boost(where="item.stock = 0", factor=8.0), ranked=negative) == [3, 5, 0, 1, 2, 4]


def test_slot() -> None:
    assert applied(Slot(2, where="item.kind = 'c'")) == [0, 5, 1, 2, 3, 4]
    assert applied(Slot(1, item="i4")) == [4, 0, 1, 2, 3, 5]
    assert applied(Slot(3, item="i0")) == [1, 2, 0, 3, 4, 5]  # down to its place
    assert applied(Slot(2, where="item.kind = 'z'")) == [0, 1, 2, 3, 4, 5]
    assert applied(Slot(4, item="i5"), k=3) == [0, 1, 2, 3, 4, 5]  # beyond the list


PARTS = [MMR(), DPP(), Calibrated("kind"), Boost(factor=2.0), Slot(1, where="item.stock = 0")]


@pytest.mark.parametrize("part", PARTS, ids=lambda p: type(p).__name__)
def test_no_candidates(part: Order) -> None:
    assert applied(part, ranked=Ranked(np.zeros(0, np.int64), np.zeros(0))) == []


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (MMR(vectors="nosuch"), "order.mine.vectors=nosuch: is not a source whose model has item vectors"),
        (MMR(vectors="source", column="kind"), "set either vectors"),
        (Calibrated("knd"), "order.mine.column: the table of items has no column knd; did you mean kind?"),
        (Boost(column="kind"), "is String, not a number"),
        (Slot(1), "set either where, a condition, or item"),
        (Slot(1, item="i9"), "order.mine.item=i9: no source and no table has this item"),
        (Boost(where="item.stok = 1"), "did you mean stock?"),
    ],
)
def test_mistakes(part: Order, message: str) -> None:
    with pytest.raises(UserError) as caught:
        part.bind(small_stages.resources(ITEMS), "order.mine")
    assert message in str(caught.value)
