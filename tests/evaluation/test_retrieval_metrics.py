import itertools
import math

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ranking import Found, by_sorting, columns, lists, measure, same
from torch import Tensor

import recsys.evaluation.retrieval_counts
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols


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
@given(queries(), st.booleans(), st.booleans(), st.integers(1, 5), st.sampled_from([1, 60, 2**20]))
def test_every_metric_equals_that_of_sorted_lists(  # type: ignore[no-untyped-def]
    query, filtered: bool, rank_repeats: bool, size: int, block: int
) -> None:
    n, targets, history, seed = query
    protocol = {"k": (1, 3, 10), "filter_history": filtered, "rank_repeats": rank_repeats}
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (len(targets), 1)), axis=1)  # no ties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", block)
        patch.setattr(recsys.evaluation.retrieval_counts, "SCORES_COMPARED", block)
        patch.setattr(recsys.evaluation.retrieval_counts, "TILE", max(1, block // 7))
        found = measure(torch.from_numpy(order).float(), targets, history, (size,), **protocol)
    left_out = history if filtered else [[] for _ in targets]
    same(found, by_sorting(order, targets, left_out, (1, 3, 10), rank_repeats))
    assert found["rows"] == len(targets)
    assert found["candidates"] == n - 1
    assert found["targets"] == sum(len(set(mine)) for mine in targets)
    assert found["repeat_targets"] == sum(
        0 < item < n and item in seen for mine, seen in zip(targets, history, strict=True) for item in set(mine)
    )
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


@pytest.mark.slow
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


def test_a_target_in_the_history_is_missed_as_in_the_lists() -> None:
    scores = torch.tensor([[9.0, 8, 7, 6, 5]])
    history = [[1, 1, 3, 2]]
    assert measure(scores, [[3]], history)["mrr"] == 0
    assert measure(scores, [[3]], history, rank_repeats=True)["mrr"] == 1
    assert measure(scores, [[3]], history, filter_history=False)["mrr"] == pytest.approx(1 / 3)
    assert measure(scores, [[3, 1]], history, k=(2,), rank_repeats=True)["recall@2"] == 1
    assert measure(scores, [[3, 4]], history, k=(1,))["recall@1"] == 0.5
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
        scores, [*targets[:4], [], []], history, weight=[1, 0.5, 1, 1, 0, 0], protocols=protocols, negatives=7
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

    metrics = RetrievalMetrics(Protocols(), np.ones(31))
    for _ in range(2):
        metrics.update(torch.rand(10, 31), score, lists([[1]] * 10), lists([[]] * 10), 0)
    whole = [(3, 0, 31)] * 3 + [(1, 0, 31)]
    tiled = [(rows, *part) for rows in (8, 2) for part in ((0, 12), (12, 24), (24, 31))]
    assert calls == (whole if tile == 1000 else tiled) * 2
    assert metrics.compute()["rows"] == 20
    assert metrics.compute()["rows"] == 0


def test_without_rows_metrics_are_nan() -> None:
    found = RetrievalMetrics(Protocols(k=(10,), protocols=("full", "uniform")), np.zeros(1)).compute()
    assert math.isnan(found["ndcg@10"])
    assert math.isnan(found["mrr_uniform"])
    assert found["rows"] == found["targets"] == found["candidates"] == 0


def test_an_unknown_metric_of_lists_is_told() -> None:
    message = "lists: coverge is not a metric of lists; must be any of coverage, gini, novelty"
    with pytest.raises(ValueError, match=message):
        Protocols(lists=("coverge",))


def test_popularity_needs_counts_and_scores_their_width() -> None:
    with pytest.raises(ValueError, match="popularity needs"):
        RetrievalMetrics(Protocols(protocols=("popularity",)), np.array([5, 0, 0]))
    with pytest.raises(ValueError, match=r"score\(\) returned shape \(1, 3\); expected \(1, 4\)"):
        measure(torch.rand(1, 3), [[1]], popularity=np.array([0, 1, 1, 1]))
