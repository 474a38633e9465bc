"""The requests and the targets that a pipeline is measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.online.servable import Query
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.filters import event_condition
from recsys.stages.read_tables import read_table

SHORTEST = 3  # events of a user whose last ones are held out, as data.split has it


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
        events.filter((from_end > place) | (size < SHORTEST)),
        events.filter((from_end == place) & (size >= SHORTEST)),
    )
