"""Measure the stages of a pipeline on held-out targets: metrics of lists, user by user, and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from recsys.base.console import bar
from recsys.evaluation.list_metrics import ListMetrics, similarities
from recsys.evaluation.metrics_table import LISTS
from recsys.evaluation.retrieval_metrics import MISSED, query_metrics
from recsys.interface.batch import JaggedIds
from recsys.online.servable import Query
from recsys.stages.catalogue import Categories
from recsys.stages.lists_for_requests import BATCH
from recsys.stages.merge import Retrieved
from recsys.stages.staged import PipelineAnswer, StagedRecommender

ACCURACY = ("ndcg", "hr", "recall", "mrr")
Lists = Sequence[np.ndarray]  # for each user, items (m,) as numbers, best first
TIMED = 200  # requests that are answered one at a time
STEPS = ("retrieve", "merge", "filter", "score", "order")


def by_user(lists: Lists, targets: Lists, k: int) -> dict[str, np.ndarray]:
    """Return (Q,) values of ndcg@k, hr@k, recall@k and mrr@k (see `query_metrics`).

    targets: for each of the Q users, at least one item
    """
    owner = np.repeat(np.arange(len(targets)), [len(t) for t in targets])
    ranks = []  # the number of items before each wanted one, MISSED for one that is not there
    for found, wanted in zip(lists, targets, strict=True):
        place = {int(item): rank for rank, item in enumerate(found[:k])}
        ranks.append(np.array([place.get(int(item), MISSED) for item in wanted], np.int64))
    greater = np.concatenate(ranks) if ranks else np.zeros(0, np.int64)
    values = query_metrics(owner, greater, np.zeros_like(greater), (k,))
    return {f"{name}@{k}": values[f"{name}@{k}"] for name in ACCURACY}


def recall(lists: Lists, targets: Lists) -> np.ndarray:
    """Return the share of each user's targets that a list has, (Q,)."""
    pairs = zip(lists, targets, strict=True)
    return np.array([np.isin(wanted, found).mean() for found, wanted in pairs])


def of_lists(
    lists: Lists, histories: Lists, counts: np.ndarray, vectors: np.ndarray | None, k: int
) -> dict[str, float]:
    """Return coverage, Gini, novelty, diversity and popularity lift of lists (see `ListMetrics`).

    counts: (n,) how often each item of the catalogue was chosen before
    vectors: (n, d) vectors of the items, for the diversity within lists; None leaves it out
    """
    others = ("unexpectedness", "serendipity", *(["diversity"] if vectors is None else []))
    names = tuple(n for n in LISTS if n not in others)
    metrics = ListMetrics(names, (k,), np.append(0, counts))
    padded = np.full((len(lists), k), -1, np.int64)
    for row, items in zip(padded, lists, strict=True):
        row[: len(items[:k])] = items[:k] + 1  # candidates are numbered from 1
    known = [h[h >= 0] + 1 for h in histories]
    history = JaggedIds(torch.from_numpy(np.concatenate(known)), torch.tensor([len(h) for h in known]))
    table = torch.from_numpy(padded)
    same = None
    if vectors is not None and k > 1:
        with_unknown = torch.from_numpy(np.vstack([np.zeros((1, vectors.shape[1]), np.float32), vectors]))
        same = similarities(table, with_unknown, (k,), len(counts) + 1)
    metrics.update(table, history, same)
    return metrics.compute()


def interval(values: np.ndarray, resamples: int, seed: int) -> dict[str, float]:
    """Return the mean of (Q,) values and its 95 % interval: percentiles of resamples of the users (bootstrap).

    For differences of paired values the interval is that of the paired difference.
    """
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {name: float(v.mean()) for name, v in values.items()}


@dataclass
class Collected:
    """Lists of Q users, as numbers of items, best first."""

    targets: list[np.ndarray] = field(default_factory=list)
    histories: list[np.ndarray] = field(default_factory=list)
    sources: dict[str, list[np.ndarray]] = field(default_factory=dict)
    merged: list[np.ndarray] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    scored: list[np.ndarray] = field(default_factory=list)
    final: list[np.ndarray] = field(default_factory=list)
    retriever: list[np.ndarray] = field(default_factory=list)  # the first source, filtered
    popular: list[np.ndarray] = field(default_factory=list)  # the most popular items, filtered
    everything: list[np.ndarray] = field(default_factory=list)  # the ranker over all items, filtered
    removed: dict[str, list[int]] = field(default_factory=dict)
    lost: dict[str, list[int]] = field(default_factory=dict)  # targets among them
    predictions: list[dict[str, np.ndarray]] = field(default_factory=list)  # of the final lists
    rounds: list[int] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)


def collect(
    pipeline: StagedRecommender,
    queries: Sequence[Query],
    targets: Lists,
    counts: np.ndarray,
    k: int,
    group: str | None = None,
) -> Collected:
    """Return the lists of each stage for each request, and how many items each filter removes.

    targets: numbers of the items that each request's user wanted
    counts: (n,) how often each item was chosen before the test
    group: a column of users that divides them
    """
    popular = np.argsort(-counts, kind="stable")
    c = Collected(targets=list(targets))
    with bar("evaluating", len(queries), unit="users") as shown:
        for start in range(0, len(queries), BATCH):
            some = queries[start : start + BATCH]
            for query, answer, wanted in zip(some, pipeline.answers(some), targets[start:], strict=False):
                _add(c, pipeline, query, answer, wanted, popular, k, group)
            shown.advance(len(some))
    return c


def _add(
    c: Collected,
    pipeline: StagedRecommender,
    query: Query,
    answer: PipelineAnswer,
    wanted: np.ndarray,
    popular: np.ndarray,
    k: int,
    group: str | None,
) -> None:
    trace = answer.trace
    visitor = pipeline.visitor(query)
    c.histories.append(visitor.seen)
    for name, items in trace.found.items():
        c.sources.setdefault(name, []).append(items)
    c.merged.append(trace.merged)
    c.kept.append(trace.kept)
    c.scored.append(trace.scored.items)
    c.final.append(answer.items)
    c.rounds.append(trace.rounds)
    for name, removed in trace.removed.items():
        c.removed.setdefault(name, []).append(len(removed))
        c.lost.setdefault(name, []).append(int(np.isin(removed, wanted).sum()))
    place = {int(item): i for i, item in enumerate(trace.scored.items)}
    rows = [place[int(item)] for item in answer.items]
    c.predictions.append({n: values[rows] for n, values in trace.predictions.items()})
    c.groups.append(visitor.user.get(group) if group is not None else None)
    first = next(iter(trace.found))
    c.retriever.append(pipeline.kept(visitor, trace.found[first])[:k])
    every = pipeline.kept(visitor, popular)
    c.popular.append(every[:k])
    if pipeline.score is not None:
        retrieved = {n: s.retrieve([visitor], len(every))[0] for n, s in pipeline.sources.items()}
        scores, _ = pipeline.score.scores(visitor, every, Retrieved(retrieved, every))
        c.everything.append(every[np.argsort(-scores, kind="stable")][:k])


def latency(pipeline: StagedRecommender, queries: Sequence[Query]) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of each stage, in milliseconds, for requests that are answered one at a time."""
    pipeline.answers(queries[:5])  # the first ones fill caches
    found: dict[str, list[float]] = {name: [] for name in (*STEPS, "total")}
    for query in queries[:TIMED]:
        started = perf_counter()
        [answer] = pipeline.answers([query])
        found["total"].append(perf_counter() - started)
        for name in STEPS:
            found[name].append(answer.trace.seconds.get(name, 0.0))
    return {
        name: {f"p{p}": round(float(np.percentile(x, p)) * 1e3, 3) for p in (50, 99)} for name, x in found.items() if x
    }


def measured(
    c: Collected,
    counts: np.ndarray,
    vectors: np.ndarray | None,
    best: Lists | None,
    *,
    k: int,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Return all metrics of the lists.

    counts: (n,) how often each item was chosen before the test
    vectors: (n, d) vectors of items, for diversity
    best: for each user, the items of the best possible list
    """
    lists: dict[str, Lists] = {"popularity": c.popular, "retriever": c.retriever}
    lists |= {"merged": c.kept, "ranker": c.scored, "final": c.final}
    lists |= {"ranker_all_items": c.everything} if c.everything else {}
    lists |= {"best_possible": best} if best is not None else {}
    values = {name: by_user(items, c.targets, k) for name, items in lists.items()}
    main = f"ndcg@{k}"
    result: dict[str, Any] = {name: means(v) for name, v in values.items()}
    for name in ("popularity", "retriever", "final"):
        result[name] |= of_lists(lists[name], c.histories, counts, vectors, k)
    result["intervals"] = {name: interval(v[main], resamples, seed) for name, v in values.items()}
    result["final_minus"] = {
        name: interval(values["final"][main] - values[name][main], resamples, seed)
        for name in ("popularity", "retriever", "merged", "ranker", "ranker_all_items")
        if name in values
    }
    union = [np.unique(np.concatenate(items)) for items in zip(*c.sources.values(), strict=True)]
    result["funnel"] = {
        "sources": {name: _step(items, c.targets) for name, items in c.sources.items()},
        "retrieved": _step(union, c.targets),
        "merged": _step(c.merged, c.targets),
        "filtered": _step(c.kept, c.targets),
        "ranked": _step([x[:k] for x in c.scored], c.targets),
        "final": _step(c.final, c.targets),
        # a list of k items cannot have more
        "possible": {"items": k, "recall": _mean([min(k, len(t)) / len(t) for t in c.targets])},
        "filters": {
            name: {"removed": _mean(c.removed[name]), "targets_removed": _mean(c.lost[name])} for name in c.removed
        },
        "asked_for_more": _mean([r > 1 for r in c.rounds]),
    }
    return result


def exposure(c: Collected, categories: Categories, counts: np.ndarray) -> list[dict[str, Any]]:
    """Return how often lists show items of each category; see `by_value.exposure`. counts: as for `measured`"""
    lists = {"retriever": c.retriever, "final": c.final}
    owners = np.repeat(np.arange(len(counts)), np.diff(categories.starts))

    def shares(of_items: np.ndarray) -> np.ndarray:
        of_values = np.bincount(categories.values, of_items[owners], len(categories.names))
        shown: np.ndarray = of_values / max(float(of_items.sum()), 1.0)
        return shown

    listed = {name: np.bincount(np.concatenate(x), minlength=len(counts)).astype(float) for name, x in lists.items()}
    columns = {"chosen": shares(counts)} | {name: shares(x) for name, x in listed.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        columns["lift"] = columns["final"] / columns["chosen"]
    items = np.bincount(categories.values, minlength=len(categories.names))
    return [
        {"value": str(categories.names[int(i)]), "items": int(items[i])} | {n: float(x[i]) for n, x in columns.items()}
        for i in np.argsort(-items, kind="stable")
    ]


def calibration(c: Collected) -> list[dict[str, Any]]:
    """Return, for each group of users and each prediction, its mean over listed items and the share of targets."""
    found = []
    names = list(c.predictions[0]) if c.predictions else []
    for group in sorted({str(g) for g in c.groups}):
        users = [i for i, g in enumerate(c.groups) if str(g) == group]
        hits = np.concatenate([np.isin(c.final[i], c.targets[i]) for i in users])
        row: dict[str, Any] = {"group": group, "users": len(users), "items": len(hits), "targets": float(hits.mean())}
        for name in names:
            row[name] = float(np.concatenate([c.predictions[i][name] for i in users]).mean())
        found.append(row)
    return found


def _step(lists: Lists, targets: Lists) -> dict[str, float]:
    return {"items": _mean([len(x) for x in lists]), "recall": float(recall(lists, targets).mean())}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
