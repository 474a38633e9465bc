import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import recsys.evaluation.negatives
import recsys.evaluation.retrieval_counts
from recsys.batch import JaggedIds
from recsys.evaluation.negatives import sample_negatives
from recsys.evaluation.retrieval import Protocols, RankingMetrics

Found = dict[str, float]


def lists(of: list[list[int]]) -> JaggedIds:
    values = [value for one in of for value in one]
    return JaggedIds(torch.tensor(values, dtype=torch.int64), torch.tensor([len(one) for one in of], dtype=torch.int64))


def columns(queries: Tensor, first: int, stop: int) -> Tensor:
    """Scores of queries that are their own scores, (b, N)."""
    return queries[:, first:stop]


def measure(
    scores: Tensor,
    targets: list[list[int]],
    history: list[list[int]] | None = None,
    sizes: tuple[int, ...] = (1000,),
    weight: list[float] | None = None,
    popularity: np.ndarray | None = None,
    **protocols: object,
) -> Found:
    """The metrics of (B, N) scores, in batches of these sizes, the last one repeated."""
    popularity = np.ones(scores.shape[1]) if popularity is None else popularity
    metrics = RankingMetrics(Protocols(**protocols), popularity)  # type: ignore[arg-type]
    history = history or [[] for _ in targets]
    start = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        stop = min(start + size, len(targets))
        part = scores[start:stop]
        w = None if weight is None else torch.tensor(weight[start:stop])
        metrics.update(part, columns, lists(targets[start:stop]), lists(history[start:stop]), start, w)
        start = stop
        if start == len(targets):
            return metrics.compute()
    raise AssertionError


def by_sorting(scores: np.ndarray, targets: list[list[int]], history: list[list[int]], k: tuple[int, ...]) -> Found:
    """The reference: sort every row's candidates, look where the targets are."""
    found: dict[str, list[float]] = {}
    for row, (mine, seen) in enumerate(zip(targets, history, strict=True)):
        wanted = set(mine)
        ranked = [i for i in np.argsort(-scores[row]) if i and (i in wanted or i not in set(seen))]
        ranks = sorted(ranked.index(item) + 1 for item in wanted if 0 < item < scores.shape[1])
        for n in k:
            hits = [rank for rank in ranks if rank <= n]
            ideal = sum(1 / math.log2(1 + i) for i in range(1, min(len(wanted), n) + 1))
            found.setdefault(f"hr@{n}", []).append(bool(hits))
            found.setdefault(f"recall@{n}", []).append(len(hits) / len(wanted))
            found.setdefault(f"ndcg@{n}", []).append(sum(1 / math.log2(1 + rank) for rank in hits) / ideal)
            found.setdefault(f"precision@{n}", []).append(len(hits) / n)
            precisions = [sum(other <= rank for other in ranks) / rank for rank in hits]
            found.setdefault(f"map@{n}", []).append(sum(precisions) / min(len(wanted), n))
            found.setdefault(f"mrr@{n}", []).append(1 / hits[0] if hits else 0)
        found.setdefault("mrr", []).append(1 / ranks[0] if ranks else 0)
    return {name: float(np.mean(values)) for name, values in found.items()}


def same(found: Found, expected: Found) -> None:
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


@st.composite
def queries(draw: st.DrawFn) -> tuple[int, list[list[int]], list[list[int]], int]:
    """N, targets (of which some unknown, some repeated), history (that may hold targets), and a seed."""
    n = draw(st.integers(3, 40))
    rows = draw(st.integers(1, 12))
    ids = st.integers(1, n + 1)
    unknown = [[0]] if draw(st.booleans()) else []
    targets = [draw(st.lists(ids, min_size=1, max_size=5)) for _ in range(rows)] + unknown
    history = [draw(st.lists(st.integers(0, n + 1), max_size=15)) for _ in targets]
    return n, targets, history, draw(st.integers(0, 2**31))


@settings(max_examples=examples(60), deadline=None)
@given(queries(), st.booleans(), st.integers(1, 5), st.sampled_from([1, 60, 2**20]))
def test_every_metric_equals_that_of_sorted_lists(query, filtered: bool, size: int, block: int) -> None:  # type: ignore[no-untyped-def]
    n, targets, history, seed = query
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (len(targets), 1)), axis=1)  # no ties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", block)
        patch.setattr(recsys.evaluation.retrieval_counts, "CHUNK", block)
        patch.setattr(recsys.evaluation.retrieval_counts, "TILE", max(1, block // 7))
        found = measure(
            torch.from_numpy(order).float(), targets, history, (size,), k=(1, 3, 10), filter_history=filtered
        )
    same(found, by_sorting(order, targets, history if filtered else [[] for _ in targets], (1, 3, 10)))
    assert found["rows"] == len(targets)
    assert found["candidates"] == n - 1
    assert found["targets"] == sum(len(set(mine)) for mine in targets)
    assert found["cold_targets"] == sum(not 0 < item < n for mine in targets for item in set(mine))


@settings(max_examples=examples(60), deadline=None)
@given(queries(), st.booleans())
def test_ties_are_the_mean_over_random_orders(query, filtered: bool) -> None:  # type: ignore[no-untyped-def]
    """Recall, precision, NDCG and MAP with any targets; all metrics with one."""
    n, targets, history, seed = query
    rng = np.random.default_rng(seed)
    if seed % 2:
        targets = [mine[:1] for mine in targets]
    scores = rng.integers(0, 4, (len(targets), n)).astype(np.float64)
    found = measure(torch.from_numpy(scores), targets, history, k=(2, 5), filter_history=filtered)
    seen = history if filtered else [[] for _ in targets]
    orders = [by_sorting(scores + rng.random(scores.shape) / 2, targets, seen, (2, 5)) for _ in range(300)]
    exact = list(orders[0])
    if not seed % 2:
        exact = [f"{name}@{k}" for name in ("recall", "precision", "ndcg", "map") for k in (2, 5)]
    for name in exact:
        values = [one[name] for one in orders]
        assert found[name] == pytest.approx(np.mean(values), abs=6 * np.std(values) / 300**0.5 + 0.03), name


def test_ties_are_the_mean_over_all_orders_of_a_tiny_case() -> None:
    scores = torch.tensor([[9.0, 1, 2, 2, 2, 0]])
    for targets in ([[2]], [[1, 4]], [[5, 1]]):
        found = measure(scores, targets, k=(1, 2, 3))
        orders = [
            by_sorting(scores.numpy() + np.array([[0, *p]]) / 10, targets, [[]], (1, 2, 3))
            for p in itertools.permutations(range(5))
        ]
        same(found, {name: float(np.mean([one[name] for one in orders])) for name in orders[0]})


def test_map_of_several_tied_targets_is_the_mean_over_all_orders() -> None:
    """Targets within one tie, and targets above and below it."""
    scores = torch.tensor([[9.0, 3, 2, 2, 2, 2, 1, 1]])
    names = [f"{name}@{k}" for name in ("map", "precision", "recall", "ndcg") for k in (1, 2, 3, 5, 7)]
    for targets in ([[2, 3]], [[1, 2, 3, 4]], [[3, 6, 7, 9]], [[2, 3, 4, 5, 6, 7]]):
        found = measure(scores, targets, k=(1, 2, 3, 5, 7))
        orders = [
            by_sorting(scores.numpy() + np.array([[0, *p]]) / 100, targets, [[]], (1, 2, 3, 5, 7))
            for p in itertools.permutations(range(7))
        ]
        same(found, {name: float(np.mean([one[name] for one in orders])) for name in names})


@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_mrr_and_precision_equal_those_of_torchmetrics(k: int) -> None:
    from torchmetrics.functional.retrieval import retrieval_precision, retrieval_reciprocal_rank

    rng = np.random.default_rng(k)
    scores, wanted = torch.from_numpy(rng.random((20, 41))), torch.from_numpy(rng.random((20, 41)) < 0.1)
    wanted[:, 0], wanted[:, 5] = False, True  # 0 is no candidate; each query has a target
    found = measure(scores, [row.nonzero()[:, 0].tolist() for row in wanted], k=(k,))
    rows = list(zip(scores[:, 1:], wanted[:, 1:], strict=True))
    mrr = [float(retrieval_reciprocal_rank(s, w, top_k=k)) for s, w in rows]
    precision = [float(retrieval_precision(s, w, top_k=k)) for s, w in rows]
    assert found[f"mrr@{k}"] == pytest.approx(np.mean(mrr), abs=1e-6)
    assert found[f"precision@{k}"] == pytest.approx(np.mean(precision), abs=1e-6)


def test_map_divides_by_the_smaller_of_k_and_the_number_of_targets() -> None:
    found = measure(torch.tensor([[0.0, 5, 4, 3, 2, 1]]), [[1, 3, 5]], k=(1, 2, 3, 5))
    assert found["map@1"] == 1
    assert found["map@2"] == 1 / 2
    assert found["map@3"] == pytest.approx((1 + 2 / 3) / 3)
    assert found["map@5"] == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert (found["precision@5"], found["precision@2"], found["mrr@1"]) == (3 / 5, 1 / 2, 1)


def test_hr_and_mrr_of_two_tied_targets_are_those_of_the_best_one() -> None:
    found = measure(torch.tensor([[9.0, 1, 1, 1]]), [[1, 2]], k=(1,))  # in truth 2/3
    assert found["hr@1"] == pytest.approx(1 / 3)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found["recall@1"] == pytest.approx(1 / 3)


def chance(n: int, k: int) -> Found:
    gains = sum(1 / math.log2(1 + rank) for rank in range(1, min(k, n) + 1))
    return {f"hr@{k}": min(k / n, 1), f"recall@{k}": min(k / n, 1), f"ndcg@{k}": gains / n}


@pytest.mark.parametrize("n", [7, 64, 101, 3417])
@pytest.mark.parametrize("by_product", [False, True])
def test_a_constant_scorer_gets_chance_exactly(n: int, by_product: bool) -> None:
    rows = 37
    scores = torch.full((rows, 64), 0.5) @ torch.full((n, 64), 0.25).T if by_product else torch.zeros(rows, n)
    targets = [[1 + i % (n - 1)] for i in range(rows)]
    found = measure(scores, targets, k=(1, 5, 10), protocols=("full", "uniform"), negatives=5)
    for k in (1, 5, 10):
        same(found, chance(n - 1, k))
        same(found, {f"{name}_uniform": value for name, value in chance(6, k).items()})
    assert found["mrr"] == pytest.approx(sum(1 / r for r in range(1, n)) / (n - 1), abs=1e-12)


@pytest.mark.parametrize("n", [7, 101, 1001])
def test_a_constant_scorer_that_rounds_gets_chance_over_all_targets(n: int) -> None:
    """Products of the same vectors may differ in the last bit by their place in the matrix: then the order is not
    random, but it knows nothing of the targets."""
    scores = (torch.full((1, 64), 0.1) @ torch.full((n, 64), 0.3).T).expand(n - 1, n)
    found = measure(scores, [[i] for i in range(1, n)], k=(1, 5))
    same(found, chance(n - 1, 1) | chance(n - 1, 5))


def test_history_leaves_the_list_but_a_target_in_it_stays() -> None:
    scores = torch.tensor([[9.0, 8, 7, 6, 5]])
    history = [[1, 1, 3, 2]]
    assert measure(scores, [[3]], history)["mrr"] == 1
    assert measure(scores, [[3]], history, filter_history=False)["mrr"] == pytest.approx(1 / 3)
    assert measure(scores, [[3, 1]], history, k=(2,))["recall@2"] == 1
    assert measure(scores, [[4]], history)["mrr"] == 1


def test_other_targets_stay_in_the_list_and_repeated_ones_count_once() -> None:
    found = measure(torch.tensor([[0.0, 4, 3, 2, 1]]), [[1, 2, 2, 4]], k=(2, 3))
    assert found["targets"] == 3
    assert found["recall@2"] == pytest.approx(2 / 3)
    assert found["ndcg@2"] == 1
    assert found["ndcg@3"] < 1


def test_sampled_targets_are_ranked_one_by_one() -> None:
    scores = torch.tensor([[0.0, 9, 8, 1, 1, 1]])
    found = measure(scores, [[1, 2]], protocols=("uniform",), k=(1,), negatives=3)
    assert found["ndcg@1_uniform"] == found["recall@1_uniform"] == found["map@1_uniform"] == 1
    assert found["precision@1_uniform"] == found["mrr@1_uniform"] == 1
    found = measure(torch.tensor([[0.0, 9, 1, 2, 2]]), [[1, 2]], protocols=("uniform",), k=(1, 2, 4), negatives=2)
    assert [found[f"precision@{k}_uniform"] for k in (1, 2, 4)] == [1 / 2, 1 / 4, 1 / 4]
    assert [found[f"map@{k}_uniform"] for k in (1, 2, 4)] == pytest.approx([1 / 2, 1 / 2, (1 + 1 / 3) / 2])


def test_cold_targets_are_missed_and_counted() -> None:
    found = measure(torch.tensor([[9.0, 1, 2], [9, 1, 2]]), [[0, 0, 2], [3]], protocols=("full", "uniform"), k=(5,))
    assert (found["cold_targets"], found["targets"], found["rows"]) == (3, 4, 2)
    assert found["recall@5"] == found["recall@5_uniform"] == pytest.approx(1 / 6)
    assert found["hr@5"] == found["mrr"] == found["mrr_uniform"] == 0.5


def test_rows_of_weight_0_do_not_count() -> None:
    rng = np.random.default_rng(0)
    scores, protocols = torch.from_numpy(rng.random((6, 30))), ("full", "uniform")
    targets, history = [[i + 1] for i in range(6)], [[i + 7, 3] for i in range(6)]
    full = measure(scores[:4], targets[:4], history[:4], protocols=protocols, negatives=7)
    padded = measure(
        scores,
        [*targets[:4], [], []],
        history,
        weight=[1, 0.5, 1, 1, 0, 0],
        protocols=protocols,
        negatives=7,
    )
    assert padded == full
    within = measure(scores, targets, history, weight=[0, 1, 0, 1, 1, 0], sizes=(4, 2))
    sampled = {"weight": [0, 1, 0, 1, 1, 0], "protocols": ("uniform",), "negatives": 7}
    same(measure(scores, targets, history, (6,), **sampled), measure(scores, targets, history, (1,), **sampled))  # type: ignore[arg-type]
    keep = [1, 3, 4]
    assert within == measure(scores[keep], [targets[i] for i in keep], [history[i] for i in keep])


@pytest.mark.parametrize("protocol", ["full", "uniform"])
def test_nan_gains_nothing(protocol: str) -> None:
    def mrr(scores: list[float], target: int) -> float:
        found = measure(torch.tensor([[math.nan, *scores]]), [[target]], protocols=(protocol,))
        return found["mrr" if protocol == "full" else "mrr_uniform"]

    nan = math.nan
    assert mrr([nan, 1, 2, 3], 1) == pytest.approx(1 / 4)
    assert mrr([nan, nan, nan, nan], 1) == pytest.approx(1 / 4)
    assert mrr([nan, -math.inf, nan, 3], 2) == pytest.approx(1 / 2)
    assert measure(torch.tensor([[0, nan, 1, 2]]), [[1]], [[2]])["mrr"] == pytest.approx(1 / 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_of_any_type_are_compared_as_they_are(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0, 1, 1 + 2**-30, 1 - 2**-30, 0]], dtype=torch.float64).to(dtype)
    expected = 1 / 2 if dtype == torch.float64 else (1 + 1 / 2 + 1 / 3) / 3
    assert measure(scores, [[1]])["mrr"] == pytest.approx(expected)


@pytest.mark.parametrize("tile", [1000, 12])
def test_blocks_hold_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", 100)
    monkeypatch.setattr(recsys.evaluation.retrieval_counts, "TILE", tile)
    calls: list[tuple[int, int, int]] = []

    def score(queries: Tensor, first: int, stop: int) -> Tensor:
        calls.append((len(queries), first, stop))
        return columns(queries, first, stop)

    metrics = RankingMetrics(Protocols(), np.ones(31))
    for _ in range(2):
        metrics.update(torch.rand(10, 31), score, lists([[1]] * 10), lists([[]] * 10), 0)
    whole = [(3, 0, 31)] * 3 + [(1, 0, 31)]
    tiled = [(rows, *part) for rows in (8, 2) for part in ((0, 12), (12, 24), (24, 31))]
    assert calls == (whole if tile == 1000 else tiled) * 2
    assert metrics.compute()["rows"] == 20
    assert metrics.compute()["rows"] == 0


def test_without_rows_metrics_are_nan() -> None:
    found = RankingMetrics(Protocols(k=(10,), protocols=("full", "uniform")), np.zeros(1)).compute()
    assert math.isnan(found["ndcg@10"])
    assert math.isnan(found["mrr_uniform"])
    assert found["rows"] == found["targets"] == found["candidates"] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": ()}, r"k=\[\]: must be one or more"),
        ({"k": (5, 0)}, r"k=\[5, 0\]: must be one or more"),
        ({"protocols": ()}, "one or more of full, uniform, popularity"),
        ({"protocols": ("ful",)}, "ful is not a protocol; must be one of full, uniform, popularity"),
        ({"negatives": 0}, "negatives=0: must be at least 1"),
        ({"lists": ("coverge",)}, "lists: coverge is not a metric of lists; must be any of coverage, gini, novelty"),
    ],
)
def test_wrong_protocols_are_told(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Protocols(**wrong)  # type: ignore[arg-type]


def test_popularity_needs_counts_and_scores_their_width() -> None:
    with pytest.raises(ValueError, match="popularity needs"):
        RankingMetrics(Protocols(protocols=("popularity",)), np.array([5, 0, 0]))
    with pytest.raises(ValueError, match=r"score\(\) returned shape \(1, 3\); expected \(1, 4\)"):
        measure(torch.rand(1, 3), [[1]], popularity=np.array([0, 1, 1, 1]))


# Negatives


def drawn(rows: list[int], excluded: list[list[int]], cumulative: np.ndarray, count: int, seed: int = 0) -> list:
    found = sample_negatives(np.array(rows, dtype=np.int64), lists(excluded), cumulative, count, seed)
    return [one.tolist() for one in found.values.split(found.lengths.tolist())]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_negatives_are_new_eligible_and_of_their_row_alone(data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.sampled_from([0, 1, 1, 5, 10**6]), min_size=2, max_size=300)))
    weights[0], weights[1] = 0, 1
    n, count, seed = len(weights), data.draw(st.integers(1, 40)), data.draw(st.integers(-1, 2**40))
    excluded = data.draw(st.lists(st.lists(st.integers(0, n + 3), max_size=30), min_size=1, max_size=8))
    rows = data.draw(st.lists(st.integers(0, 10**9), min_size=len(excluded), max_size=len(excluded)))
    found = drawn(rows, excluded, np.cumsum(weights), count, seed)
    for mine, out in zip(found, excluded, strict=True):
        eligible = set(np.flatnonzero(weights).tolist()) - set(out)
        assert len(mine) == len(set(mine)) == min(count, len(eligible))
        assert set(mine) <= eligible
    one_by_one = [
        drawn([row], [out], np.cumsum(weights), count, seed)[0] for row, out in zip(rows, excluded, strict=True)
    ]
    assert found == one_by_one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.negatives, "DRAWS", 2000)
        assert found == drawn(rows, excluded, np.cumsum(weights), count, seed)


def test_the_first_draws_are_known_to_the_id() -> None:
    """So that a change of the hash, which changes every sampled metric ever reported, cannot go unseen."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    golden, seed = 0x9E3779B97F4A7C15, 3
    for row in (0, 12345):
        state = mix((mix((seed + golden) % 2**64) + row * golden) % 2**64)
        draws = [1 + (mix((state + (i + 1) * golden) % 2**64) >> 11) * 999 // 2**53 for i in range(8)]
        assert drawn([row], [[]], np.arange(1000), 5, seed)[0] == list(dict.fromkeys(draws))[:5]


def chi_square(ids: np.ndarray, weights: np.ndarray) -> float:
    """Of observed against expected counts of candidates, in deviations of its own distribution."""
    possible = weights > 0
    expected = weights[possible] / weights.sum() * len(ids)
    seen = np.bincount(ids, minlength=len(weights))
    assert seen[~possible].sum() == 0
    freedom = possible.sum() - 1
    return float((((seen[possible] - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("count", [1, 20])
def test_uniform_negatives_are_uniform(count: int) -> None:
    rows, n = 20_000, 51
    found = np.array(drawn(list(range(rows)), [[7]] * rows, np.arange(n), count, 5))
    weights = np.ones(n)
    weights[[0, 7]] = 0
    assert found.shape == (rows, count)
    for place in (0, count - 1):
        assert abs(chi_square(found[:, place], weights)) < 5
    for i in (1, 2):  # neighbours in rows are independent
        moved = (found[i:, 0] - found[:-i, 0]) % n
        assert len(np.unique(moved)) == n
    if count == 1:
        assert np.corrcoef(found[1:, 0], found[:-1, 0])[0, 1] == pytest.approx(0, abs=0.03)


def test_popular_negatives_are_in_proportion_to_counts() -> None:
    weights = np.floor(5000 / np.arange(1, 202) ** 1.2).astype(np.int64)
    weights[[0, 17]] = 0
    rows = 30_000
    found = np.array(drawn(list(range(rows)), [[]] * rows, np.cumsum(weights), 2, 1))
    assert abs(chi_square(found[:, 0], weights)) < 5
    share = weights / weights.sum()
    second = share * ((share / (1 - share)).sum() - share / (1 - share))  # without replacement, of the second draw
    assert abs(chi_square(found[:, 1], second)) < 5


def test_rows_that_draw_the_rest_by_keys_have_the_same_distribution() -> None:
    """One candidate weighs nearly all: the second and the third draw are of the others, in proportion."""
    weights = np.concatenate([[0, 10**9], np.arange(1, 120)])
    rows = 20_000
    found = np.array(drawn(list(range(rows)), [[]] * rows, np.cumsum(weights), 2, 9))
    assert (found == 1).any(axis=1).all()
    other = found[found != 1]
    weights[1] = 0
    assert len(other) == rows
    assert abs(chi_square(other, weights)) < 5


def test_sampled_metrics_depend_on_the_row_in_the_split_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    rows, n = 50, 400
    scores = torch.from_numpy(rng.random((rows, n)))
    targets = rng.integers(1, n, (rows, 2)).tolist()
    history = rng.integers(1, n, (rows, 30)).tolist()
    popularity = rng.integers(0, 50, n)
    run: Callable[..., Found] = lambda *sizes: measure(  # noqa: E731
        scores, targets, history, sizes, popularity=popularity, protocols=("uniform", "popularity"), negatives=20
    )
    whole = run(1000)
    for sizes in ((7,), (1,), (20, 3, 27)):
        same(run(*sizes), whole)
    monkeypatch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", 1500)
    same(run(50), whole)


def test_sampled_metrics_equal_those_of_the_sampled_lists() -> None:
    rng = np.random.default_rng(6)
    rows, n = 30, 200
    scores = rng.random((rows, n))
    targets, history = rng.integers(1, n, (rows, 1)).tolist(), rng.integers(1, n, (rows, 20)).tolist()
    found = measure(
        torch.from_numpy(scores), targets, history, (11,), protocols=("uniform",), negatives=30, seed=8, k=(3,)
    )
    negatives = drawn(list(range(rows)), [a + b for a, b in zip(targets, history, strict=True)], np.arange(n), 30, 8)
    others = [list(set(range(n)) - set(mine)) for mine in negatives]
    expected = by_sorting(scores, targets, others, (3,))
    same(found, {f"{name}_uniform": value for name, value in expected.items()})
