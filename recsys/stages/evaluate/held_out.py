"""The requests and the targets that a pipeline is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from recsys.config.schema_stages import PipelineConfig
from recsys.errors import UserError
from recsys.serving.servable import Query
from recsys.stages.filters import event_condition
from recsys.stages.tables import read_table


@dataclass(frozen=True)
class HeldOut:
    """What users wanted, and how the log looked before.

    users: (Q,) names
    targets: (Q,) names of the items that each wanted
    start: time of the test; None if the targets are no events
    contexts: by user, the columns of the first event of the test
    """

    users: Sequence[str]
    targets: Sequence[pl.Series]
    start: float | None
    contexts: dict[str, dict[str, object]]

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
    start, contexts = None, dict[str, dict[str, object]]()
    if e.targets is not None:
        frame, key = read_table(e.targets, root, "evaluate.targets", needs), "evaluate.targets"
    elif config.events is not None:
        if config.time is None:
            raise UserError("time: is missing; name the events' column of times, by which the test is split")
        frame, key = read_table(config.events, root, "events", needs), "evaluate.relevant"
        start = test_start(frame, config)
        frame = frame.filter(pl.col(config.time) >= start)
        first = frame.sort(config.time, maintain_order=True).unique(config.user, keep="first", maintain_order=True)
        there = [n for n in (config.user, config.time, *config.context) if n in frame.columns]
        contexts = {str(row[config.user]): row for row in first.select(there).iter_rows(named=True)}
    else:
        raise UserError("evaluate: set events.file, or evaluate.targets.file with the items that users wanted")
    wanted = frame.filter(pl.Series(event_condition(e.relevant, "evaluate.relevant", frame)))
    lists = wanted.group_by(config.user, maintain_order=True).agg(pl.col(config.item).unique(maintain_order=True))
    if not lists.height:
        raise UserError(f"{key}: leaves no target; {frame.height:,} rows were looked at")
    found = HeldOut(lists[config.user].to_list(), list(lists[config.item]), start, contexts)
    return found.chosen(e.users, e.seed)


def test_start(events: pl.DataFrame, config: PipelineConfig) -> float:
    """Return the time of the first event of the test: the bound that data.split by time has for the same rows."""
    if config.evaluate.start is not None:
        return config.evaluate.start
    times = events[config.time or ""].sort()
    if not times.dtype.is_numeric():
        raise UserError(f"time={config.time}: is {times.dtype}; set evaluate.start, or make the times numbers")
    place = min(len(times) - round(len(times) * config.evaluate.test), len(times) - 1)
    return float(times[place])
