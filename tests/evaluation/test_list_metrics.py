"""Metrics of the lists of the best candidates: closed forms, a reference that sorts, and the order of equal scores."""

import itertools
import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ranking import Found, lists
from torch import Tensor

import recsys.evaluation.list_metrics
import recsys.evaluation.retrieval_counts
from recsys.data.features import Fitted
from recsys.evaluation.by_value import exposure
from recsys.evaluation.list_metrics import gini
from recsys.evaluation.metrics_table import LISTS
from recsys.evaluation.retrieval_counts import best_keys, merged, merged_over_processes
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.online.recommender import top_k
from recsys.schema.run_schema import ProtocolConfig


def measure(
    scores: Tensor,
    history: list[list[int]] | None = None,
    popularity: list[int] | None = None,
    vectors: Tensor | None = None,
    size: int = 1000,
    **protocols: object,
) -> Found:
    """The metrics of lists of (B, N) scores, in batches of `size`; every query's target is candidate 1."""
    rows, n = scores.shape
    names = LISTS if vectors is not None else tuple(name for name in LISTS if name != "diversity")
    metrics = RetrievalMetrics(
        Protocols(**{"lists": names} | protocols),  # type: ignore[arg-type]
        np.ones(n) if popularity is None else np.array(popularity),
    )
    history = history or [[]] * rows
    for start in range(0, rows, size):
        part = scores[start : start + size]
        score, wanted = lambda q, first, stop: q[:, first:stop], lists([[1]] * len(part))
        metrics.update(part, score, wanted, lists(history[start : start + size]), start, vectors=vectors)
    found = metrics.compute()
    return {name: value for name, value in found.items() if name.startswith(LISTS)}


def by_sorting(
    scores: np.ndarray, history: list[list[int]], popularity: np.ndarray, vectors: np.ndarray, ks: tuple[int, ...]
) -> Found:
    """The reference: sort every row's candidates, equal scores by id, and count one by one."""
    n = scores.shape[1]
    share = np.maximum(popularity, 1) / popularity[1:].sum()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Found = {}
    for k in ks:
        listed, novelty, diversity, lift, unexpected, useful = np.zeros(n), [], [], [], [], []
        popular = sorted(range(1, n), key=lambda i: (-popularity[i], i))
        for row, seen in enumerate(history):
            order = np.lexsort((np.arange(n), -scores[row]))
            best = [i for i in order if i and i not in seen and scores[row, i] > -np.inf][:k]
            listed[best] += 1
            expected = [i for i in popular if i not in seen][:k]
            if surprising := [i for i in best if i not in expected]:
                useful.append(np.mean([i == 1 for i in surprising]))
            if best:
                unexpected.append(len(surprising) / len(best))
                novelty.append(np.mean([-np.log2(share[i]) for i in best]))
            pairs = [unit[i] @ unit[j] for i, j in itertools.combinations(best, 2)]
            diversity += [1 - np.mean(pairs)] if pairs else []
            past = [popularity[i] for i in set(seen) if 0 < i < n]
            lift += [(popularity[best].mean(), np.mean(past))] if past and best else []
        found[f"coverage@{k}"] = np.mean(listed[1:] > 0) if listed.any() else math.nan
        counts = listed[1:]
        differences = np.abs(counts[:, None] - counts[None]).sum()
        found[f"gini@{k}"] = differences / (2 * (n - 1) * counts.sum()) if listed.any() else math.nan
        found[f"novelty@{k}"] = np.mean(novelty) if novelty else math.nan
        if k > 1:
            found[f"diversity@{k}"] = np.mean(diversity) if diversity else math.nan
        after, before = np.mean(lift, 0) if lift else (math.nan, math.nan)
        found[f"popularity_lift@{k}"] = after / before - 1 if before else math.nan
        head, total = [], 0.0
        while total < 0.8 * popularity[1:].sum():
            head.append(popular[len(head)])
            total += popularity[head[-1]]
        tail = sum(listed[i] for i in range(1, n) if i not in head)
        found[f"average_popularity@{k}"] = listed[1:] @ popularity[1:] / counts.sum() if listed.any() else math.nan
        found[f"long_tail@{k}"] = tail / counts.sum() if listed.any() else math.nan
        found[f"unexpectedness@{k}"] = np.mean(unexpected) if unexpected else math.nan
        found[f"serendipity@{k}"] = np.mean(useful) if useful else math.nan
    return found


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_every_metric_equals_that_of_sorted_lists(data: st.DataObject) -> None:
    n, rows, seed = data.draw(st.integers(3, 60)), data.draw(st.integers(1, 9)), data.draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, data.draw(st.sampled_from([0, 3, 10**6])) + 1, (rows, n)).astype(np.float64)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    history = [rng.integers(0, n + 2, rng.integers(0, n)).tolist() for _ in range(rows)]
    popularity, vectors = rng.integers(0, 9, n), rng.normal(size=(n, 4))
    popularity[1] = 5
    ks = tuple(data.draw(st.lists(st.sampled_from([1, 2, 5, 20]), min_size=1, max_size=3, unique=True)))
    with pytest.MonkeyPatch.context() as patch:
        for module, name, values in (
            (recsys.evaluation.retrieval_counts, "TILE", [2**22, 4, 17]),
            (recsys.evaluation.retrieval_counts, "BLOCK", [2**25, 50]),
            (recsys.evaluation.retrieval_counts, "GROUP", [64, 1, 3]),
            (recsys.evaluation.retrieval_counts, "SCORES_SEARCHED", [2**22, 100]),
            (recsys.evaluation.list_metrics, "VALUES", [2**22, 10]),
        ):
            patch.setattr(module, name, data.draw(st.sampled_from(values)))
        before = torch.from_numpy(scores).clone()
        found = measure(
            before, history, popularity.tolist(), torch.from_numpy(vectors), data.draw(st.integers(1, rows)), k=ks
        )
    assert np.array_equal(before.numpy(), scores)  # changed back
    expected = by_sorting(scores, history, popularity, vectors, ks)
    assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 400), st.sampled_from([1, 2, 16]))
def test_the_lists_are_in_the_order_of_predictions(seed: int, k: int, n: int, group: int) -> None:
    """recsys.predict writes the same items in the same order, whatever the number of ties."""
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(-2, rng.choice([0, 2, 40, 10**4]), (5, max(n, k)))).float() * 0.37
    scores[rng.random(scores.shape) < 0.3] *= 0.0  # some are -0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.retrieval_counts, "GROUP", group)
        keys = best_keys(scores, 7, lists([[]] * 5), k)
    assert torch.equal(merged_over_processes(merged([keys], k)), top_k(scores, k)[0] + 7)


def test_known_values() -> None:
    """Two users get [1, 2], one gets [1, 3], of 4 candidates; shares of the training rows 1/2, 1/4, 1/8, 1/8."""
    scores = torch.tensor([[9.0, 5, 4, 1, 0], [9, 5, 4, 1, 0], [9, 5, 0, 4, 1]])
    vectors = torch.tensor([[1.0, 1], [2, 0], [0, 3], [-1, 0], [1, 1]])
    found = measure(scores, [[4], [4], [2, 4, 4]], [99, 8, 4, 2, 2], vectors, k=(1, 2))
    one = {"coverage": 1 / 4, "gini": 3 / 4, "novelty": 1}  # everything is one candidate
    one |= {"popularity_lift": 8 / ((2 + 2 + 3) / 3) - 1}
    two = {"coverage": 3 / 4, "gini": (-3 * 0 - 1 * 1 + 1 * 2 + 3 * 3) / (4 * 6)}
    two |= {"novelty": (2 * (1 + 2) / 2 + (1 + 3) / 2) / 3, "diversity": (1 + 1 + 2) / 3}  # right angles, and opposite
    two |= {"popularity_lift": ((6 + 6 + 5) / 3) / ((2 + 2 + 3) / 3) - 1}
    both = {"unexpectedness": 0, "serendipity": math.nan}  # all lists are the most popular candidates left
    one |= {"average_popularity": 8, "long_tail": 0}
    two |= {"average_popularity": (3 * 8 + 2 * 4 + 2) / 6, "long_tail": 0}  # of 16 rows, the short head has 14
    wanted = {f"{n}@{k}": x for k, names in ((1, one | both), (2, two | both)) for n, x in names.items()}
    assert found == pytest.approx(wanted, nan_ok=True)
    found = measure(scores.flip(1), [[4], [4], []], [99, 8, 4, 2, 2], k=(2,))  # [3, 2], [3, 2] and [4, 3] of 1, 2, 3, 4
    assert found["unexpectedness@2"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3) and found["serendipity@2"] == 0


def test_a_model_that_lists_all_candidates_equally_often_has_no_gini() -> None:
    scores = torch.eye(6).roll(1, 1)[:5]  # row i lists candidate i + 1 first
    found = measure(scores, k=(1, 5))
    assert found["coverage@1"] == found["coverage@5"] == 1
    assert found["gini@1"] == found["gini@5"] == pytest.approx(0)
    assert gini(np.array([0, 0, 7])) == pytest.approx(2 / 3)
    assert gini(np.array([3, 1, 2])) == pytest.approx(2 / 9)


def test_novelty_of_popular_items_is_low_and_their_lift_high() -> None:
    """With shares of 2^-1 ... 2^-8, -log2 is the item's id."""
    popularity = [0, 128, 64, 32, 16, 8, 4, 2, 2]
    ascending = torch.arange(9.0).expand(4, 9)  # expanded: rows share memory
    rare, popular = (measure(x, [[4]] * 4, popularity, k=(2,)) for x in (ascending, -ascending))
    assert (rare["novelty@2"], popular["novelty@2"]) == pytest.approx((7, 1.5))
    assert (rare["popularity_lift@2"], popular["popularity_lift@2"]) == pytest.approx((2 / 16 - 1, 96 / 16 - 1))


def test_identical_vectors_have_no_diversity_and_vectors_of_zeros_count_as_different() -> None:
    scores = torch.tensor([[0.0, 3, 2, 1]])
    assert measure(scores, vectors=torch.ones(4, 2, 2), k=(3,))["diversity@3"] == pytest.approx(0)
    assert measure(scores, vectors=torch.zeros(4, 2), k=(3,))["diversity@3"] == 1
    assert "diversity@1" not in measure(scores, vectors=torch.ones(4, 2), k=(1,))


def test_lists_leave_out_the_whole_history_and_its_targets() -> None:
    """As in predictions, though targets in the history are ranked."""
    scores, popularity = torch.tensor([[0.0, 5, 4, 3]]), [0, 1, 2, 5]
    found = measure(scores, [[1, 3]], popularity, k=(1,))
    assert found["popularity_lift@1"] == pytest.approx(2 / 3 - 1)
    unfiltered = measure(scores, [[1, 3]], popularity, k=(1,), filter_history=False)
    assert unfiltered["popularity_lift@1"] == pytest.approx(1 / 3 - 1)


def test_lists_belong_to_the_full_protocol_and_do_not_change_ranks() -> None:
    rng = np.random.default_rng(0)
    scores, history = torch.from_numpy(rng.integers(0, 5, (30, 40))).float(), lists([[3, 1, 7]] * 30)
    targets = lists([[1, 9]] * 30)

    def run(**protocols: object) -> Found:
        metrics = RetrievalMetrics(Protocols(**protocols), np.ones(40))  # type: ignore[arg-type]
        metrics.update(scores, lambda q, first, stop: q[:, first:stop], targets, history, 0)
        return metrics.compute()

    assert run(protocols=("uniform",), lists=("coverage",)) == run(protocols=("uniform",))
    both = run(protocols=("full", "uniform"), lists=("coverage", "gini"))
    listed = {f"{name}@{k}" for name in ("coverage", "gini") for k in (5, 10, 20)}
    assert {n: v for n, v in both.items() if n not in listed} == run(protocols=("full", "uniform"))
    assert listed < both.keys()


def test_without_rows_or_candidates_metrics_are_nan() -> None:
    found = RetrievalMetrics(Protocols(k=(5,), lists=LISTS), np.zeros(1)).compute()
    assert all(math.isnan(found[f"{name}@5"]) for name in LISTS)


def test_the_default_config_measures_all_but_what_compares_with_popularity() -> None:
    assert {*LISTS} - {*ProtocolConfig().lists} == {"average_popularity", "long_tail", "unexpectedness", "serendipity"}


def test_exposure_counts_the_places_of_items_with_each_value() -> None:
    rng, n, rows, ks = np.random.default_rng(0), 40, 30, (2, 5)
    scores, popularity = rng.random((rows, n)), rng.integers(0, 9, n)
    kinds = [sorted(set(rng.integers(1, 4, rng.integers(0, 3)).tolist())) for _ in range(n)]
    metrics = RetrievalMetrics(Protocols(ks, exposure=("kind",)), popularity)
    for start in range(0, rows, 7):
        part = torch.from_numpy(scores[start : start + 7])
        wanted, none = lists([[1]] * len(part)), lists([[]] * len(part))
        metrics.update(part, lambda q, first, stop: q[:, first:stop], wanted, none, start)
    assert not {name for name in metrics.compute() if name.startswith(LISTS)}
    data = SimpleNamespace(sparse={"kind"}, sparse_columns={"kind": SimpleNamespace(table=None)})
    own = SimpleNamespace(data=data, vocabularies={})
    column = pl.Series("kind", kinds, dtype=pl.List(pl.Int64))
    items = SimpleNamespace(fitted=own, rows=pl.DataFrame([column]))
    [table] = exposure(metrics, cast(Fitted, SimpleNamespace(items=items)), 20).values()
    assert {p["value"] for p in table} == {"1", "2", "3"}
    best = 1 + np.argsort(-scores[:, 1:], axis=1)
    for p in table:
        has = np.array([int(p["value"]) in k for k in kinds])
        training = popularity[1:][has[1:]].sum() / popularity[1:].sum()
        assert (p["candidates"], p["training"]) == (has[1:].sum(), pytest.approx(training))
        for k in ks:
            assert p[f"share@{k}"] == pytest.approx(has[best[:, :k]].mean())
            assert p[f"lift@{k}"] == pytest.approx(has[best[:, :k]].mean() / training)
