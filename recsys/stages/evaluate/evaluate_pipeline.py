"""Evaluate a pipeline on held-out requests: evaluation.json and a page that says which stage loses what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.table import Table

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.files.atomic import finite, write_json, write_text
from recsys.online.predictor import input_files
from recsys.online.servable import Query
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.assemble import load, tables_root
from recsys.stages.evaluate.funnel_page import page
from recsys.stages.evaluate.measure_stages import calibration, collect, exposure, interval, latency, measured
from recsys.stages.evaluate.off_policy import Logged, check_log, effective_size, estimates
from recsys.stages.filters import event_condition
from recsys.stages.lists_for_requests import in_batches, read_requests
from recsys.stages.read_tables import read_table
from recsys.stages.staged import StagedRecommender

MIN_EVENTS = 3  # events of a user whose last ones are held out, as data.split has it
JSON, HTML = "evaluation.json", "evaluation.html"


@dataclass(frozen=True)
class HeldOut:
    """Targets of users, and the events before them.

    users: (Q,) names
    targets: (Q,) names of the items that each wanted
    contexts: by user, the columns of the first event of the split
    past: the events before, or None if the targets are not events
    """

    users: Sequence[str]
    targets: Sequence[pl.Series]
    contexts: dict[str, dict[str, object]]
    past: pl.DataFrame | None = None

    def chosen(self, users: int | None, seed: int) -> HeldOut:
        """Return at most some of the users, drawn at random."""
        if users is None or users >= len(self.users):
            return self
        kept = np.sort(np.random.default_rng(seed).choice(len(self.users), users, replace=False)).tolist()
        return replace(self, users=[self.users[i] for i in kept], targets=[self.targets[i] for i in kept])

    def queries(self, config: PipelineConfig, requests: pl.DataFrame | None, k: int) -> list[Query]:
        """Return the request of each user: a row of `requests`, or the context of the first event of the test.

        Raises UserError for a user that `requests` lacks.
        """
        rows = self.contexts
        if requests is not None:
            rows = {str(row[config.user]): row for row in requests.iter_rows(named=True)}
            if missing := next((u for u in self.users if u not in rows), None):
                raise UserError(f"input: has no row for {config.user} {missing}, who has targets")
        return [Query([], k=k, context=rows.get(u, {config.user: u})) for u in self.users]


def held_out(config: PipelineConfig, root: Path) -> HeldOut:
    """Return the targets of `evaluate.targets`, or the events of the test.

    Raises UserError if there is no target, or neither a table of targets nor one of events.
    """
    e, needs = config.evaluate, (config.user, config.item)
    past, contexts = None, dict[str, dict[str, object]]()
    if e.targets is not None:
        frame, key = read_table(e.targets, root, "evaluate.targets", needs), "evaluate.targets"
    elif config.events is not None:
        frame, key = read_table(config.events, root, "events", needs), "evaluate.relevant"
        past, frame = _divided(frame, config)
        first = frame.unique(config.user, keep="first", maintain_order=True)
        columns = [n for n in (config.user, config.time, *config.context) if n is not None and n in frame.columns]
        contexts = {str(row[config.user]): row for row in first.select(columns).iter_rows(named=True)}
    else:
        raise UserError("evaluate: set events.file, or evaluate.targets.file with the items that users wanted")
    wanted = frame.filter(pl.Series(event_condition(e.relevant, "evaluate.relevant", frame)))
    lists = wanted.group_by(config.user, maintain_order=True).agg(pl.col(config.item).unique(maintain_order=True))
    if not lists.height:
        raise UserError(f"{key}: leaves no target; {frame.height:,} rows were looked at")
    targets = HeldOut(lists[config.user].to_list(), list(lists[config.item]), contexts, past)
    return targets.chosen(e.users, e.seed)


def _divided(events: pl.DataFrame, config: PipelineConfig) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the events before the split, and the events of the split, both in the order of time.

    Raises UserError for a split that cannot be made.
    """
    e = config.evaluate
    if config.time is not None:
        events = events.sort(config.time, maintain_order=True)
    if e.by == "time":
        if config.time is None:
            raise UserError("time: is missing; name the events' column of times, or set evaluate.by=leave_one_out")
        times = events[config.time]
        if not times.dtype.is_numeric():
            raise UserError(f"time={config.time}: is {times.dtype}, and must be a number, such as seconds since 1970")
        # for the same rows, data.split by time with the same shares has the same times
        n = len(times)
        first, second = (float(times[min(n - round(n * share), n - 1)]) for share in (e.validation + e.test, e.test))
        start, stop = (first, second) if e.split == "validation" else (second, math.inf)
        start, stop = (start if e.start is None else e.start), (stop if e.stop is None else e.stop)
        time = pl.col(config.time)
        return events.filter(time < start), events.filter(time.is_between(start, stop, closed="left"))
    from_end = pl.col(config.item).cum_count(reverse=True).over(config.user) - 1
    size = pl.len().over(config.user)
    place = 0 if e.split == "test" else 1
    return (
        events.filter((from_end > place) | (size < MIN_EVENTS)),
        events.filter((from_end == place) & (size >= MIN_EVENTS)),
    )


def evaluate(config: PipelineConfig, output: Path) -> dict[str, Any]:
    """Measure the pipeline of a config, write two files to a folder, and return what evaluation.json holds."""
    if output.is_file() or (output / JSON).exists():
        raise UserError(f"output={output}: already has an {JSON}; name another folder")
    root = tables_root(config)
    wanted = held_out(config, root)
    pipeline = load(config, past=wanted.past)
    if config.features.definition is not None:
        say("features: all requests get the values that the store has now, which may come from after the split")
    figures = _evaluated(pipeline, config, wanted, requests_of(config))
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / HTML, page(figures))
    write_json(output / JSON, finite(figures))
    k = figures["k"]
    names = [f"{m}@{k}" for m in ("ndcg", "hr", "recall", "mrr")]
    table = Table("lists", *names, title="the best lists of each stage", title_justify="left")
    for name in ("popularity", "retriever", "merged", "ranker", "final", "ranker_all_items", "best_possible"):
        if name in figures:
            table.add_row(name, *(f"{figures[name][n]:.4f}" for n in names))
    results.print(table)
    for name in ("popularity", "retriever", "ranker_all_items"):
        if difference := figures["final_minus"].get(name):
            low, high = difference["low"], difference["high"]
            verdict = "better" if low > 0 else "worse" if high < 0 else "not different beyond chance"
            gain = f"{difference['mean']:+.4f} ({low:+.4f} to {high:+.4f})"
            say(f"NDCG@{k} of the final lists minus that of {name}: {gain}: {verdict}")
    say(f"{len(wanted.users):,} users; {output / JSON} has all figures, {output / HTML} shows where targets are lost")
    return figures


def requests_of(config: PipelineConfig) -> pl.DataFrame | None:
    """Return the requests of `input`, None without any."""
    return read_requests(input_files(config.input), config.user) if config.input else None


def _evaluated(
    pipeline: StagedRecommender, config: PipelineConfig, wanted: HeldOut, requests: pl.DataFrame | None
) -> dict[str, Any]:
    """Return all figures of a pipeline. requests: their contexts; None takes those of the held-out events"""
    e, k = config.evaluate, config.evaluate.k
    queries = wanted.queries(config, requests, k)
    catalogue = pipeline.catalogue
    targets = [catalogue.numbers(t) for t in wanted.targets]
    unknown = sum(int((t < 0).sum()) for t in targets)
    counts = np.zeros(len(catalogue))
    if pipeline.events is not None:
        seen = catalogue.numbers(pipeline.events.frame[config.item])
        chosen = event_condition(e.relevant, "evaluate.relevant", pipeline.events.frame)
        counts = np.bincount(seen[(seen >= 0) & chosen], minlength=len(catalogue)).astype(np.float64)
    vectors = next(iter(catalogue.embeddings.values()), None)
    collected = collect(pipeline, queries, targets, counts, k, e.group)
    best = None  # the items with the largest expected gains for each user, of those that the filters leave
    if e.best is not None:
        frame = read_table(e.best, tables_root(config), "evaluate.best", (config.user, config.item))
        if "expected" not in frame.columns:
            raise UserError("evaluate.best: has no column expected, the gain that an item is expected to have")
        top = frame.sort("expected", descending=True).group_by(config.user, maintain_order=True)
        lists = top.agg(pl.col(config.item))
        items_of = dict(zip(lists[config.user].to_list(), lists[config.item], strict=True))
        nothing = pl.Series([], dtype=pl.String)
        best = [
            pipeline.kept(pipeline.visitor(query), catalogue.numbers(items_of.get(user, nothing)))[:k]
            for query, user in zip(queries, wanted.users, strict=True)
        ]
    figures = measured(collected, counts, vectors, best, k=k, resamples=e.resamples, seed=e.seed)
    figures["latency_ms"] = latency(pipeline, queries)
    figures["calibration"] = calibration(collected) if e.group is not None else []
    columns = {n: catalogue.categories(n, e.separator, "evaluate.exposure") for n in e.exposure}
    figures["exposure"] = {n: exposure(collected, categories, counts) for n, categories in columns.items()}
    figures["counts"] = {
        "users": len(queries),
        "items": len(catalogue),
        "targets": sum(map(len, targets)),
        "targets_no_item": unknown,
    }
    figures["k"], figures["name"] = k, config.name
    if e.log is not None:
        figures["off_policy"] = _off_policy(pipeline, config)
    return figures


def _off_policy(pipeline: StagedRecommender, config: PipelineConfig) -> dict[str, Any]:
    """Return estimates of the reward that the pipeline would have earned for the requests of a log."""
    e = config.evaluate
    assert e.log is not None
    frame = read_table(e.log, tables_root(config), "evaluate.log", (config.user, config.item))
    check_log(frame, config.user)
    frame = frame.with_columns(pl.col("request").rank("dense").cast(pl.Int64) - 1).sort("request", "position")
    requests = frame.unique("request", keep="first", maintain_order=True)
    position = frame["position"].cast(pl.Int64).to_numpy() - 1
    k = int(position.max()) + 1
    items = pipeline.catalogue.numbers(frame[config.item])
    request = frame["request"].to_numpy()
    starts = np.searchsorted(request, np.arange(requests.height + 1))
    target, expected = np.zeros(len(items)), np.full(len(items), np.nan)
    shown = np.full((requests.height, k), np.nan)
    context = [n for n in (config.user, config.time, *config.context) if n in frame.columns]
    number = 0
    for rows, answers in in_batches(pipeline, requests.select(context)):
        for _, answer in zip(rows.iter_rows(), answers, strict=True):
            mine = slice(starts[number], starts[number + 1])
            target[mine] = answer.probability(items[mine], position[mine])
            rewards = _rewards(answer.trace.predictions, answer.trace.scored.items, e.reward)
            if rewards is not None:
                places = answer.ranked.items[: min(k, len(answer.items))]
                shown[number, : len(places)] = [rewards.get(int(i), 0.0) for i in places]
                expected[mine] = [rewards.get(int(i), 0.0) for i in items[mine]]
            number += 1
    logged = Logged(
        request,
        position,
        frame["propensity"].to_numpy().astype(np.float64),
        frame["reward"].to_numpy().astype(np.float64),
        target,
        expected,
        shown,
    )
    parts = estimates(logged)
    figures: dict[str, Any] = {name: interval(x, e.resamples, e.seed) for name, x in parts.items()}
    return figures | {"requests": requests.height, "items": len(items), "effective_items": effective_size(logged)}


def _rewards(predictions: dict[str, np.ndarray], items: np.ndarray, name: str | None) -> dict[int, float] | None:
    """Return the model's reward of each scored item; None without a ranker."""
    if not predictions:
        return None
    values = predictions.get(name or next(iter(predictions)))
    if values is None:
        raise UserError(f"evaluate.reward={name}: the ranker predicts {', '.join(predictions)}")
    return dict(zip(items.tolist(), values.tolist(), strict=True))
