"""Measure the stages of a pipeline on held-out targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from recsys.base.console import bar
from recsys.online.servable import Query
from recsys.stages.evaluate.user_metrics import Lists, by_user, interval, means, of_lists, recall
from recsys.stages.lists_for_requests import BATCH
from recsys.stages.retrieved import Retrieved
from recsys.stages.staged import PipelineAnswer, StagedRecommender

TIMED = 200  # requests that are answered one at a time
STEPS = ("retrieve", "merge", "filter", "score", "order")


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
    pipeline: StagedRecommender, queries: Sequence[Query], targets: Lists, counts: np.ndarray, k: int,
    group: str | None = None,
) -> Collected:  # fmt: skip
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
    c: Collected, pipeline: StagedRecommender, query: Query, answer: PipelineAnswer, wanted: np.ndarray,
    popular: np.ndarray, k: int, group: str | None,
) -> None:  # fmt: skip
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
    c: Collected, counts: np.ndarray, vectors: np.ndarray | None, best: Lists | None, *, k: int, resamples: int,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
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
