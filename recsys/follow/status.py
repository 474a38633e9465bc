"""Print where continuous training is, and why."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from recsys.base.console import results
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.follow_state import span
from recsys.follow.model_registry import stored_as

MOST_CYCLES, MOST_REASONS = 20, 5  # of the cycles that are listed, and of those whose reasons are


def show(file: Path) -> None:
    """Print the cycles, the partitions that were refused, and the roles of versions."""
    follower = ContinuousTraining(load_settings(file))
    stored = {v["version"]: stored_as(v) for v in follower.registry.summaries()}
    names = ("cycle", "trained on", "rows", "judged on", "outcome", "version", "stored")
    cycles = Table(*names, title="cycles")
    for c in follower.state.cycles[-MOST_CYCLES:]:
        kind = " (full)" if c.full else ""
        outcome = c.outcome.replace("_", " ") or f"at step {c.step}"
        version = c.version or ""
        given = (f"{c.number}{kind}", span(c.train), f"{c.rows:,}", ", ".join(c.window), outcome)
        cycles.add_row(*given, version, stored.get(version, ""))
    results.print(cycles)
    for c in follower.state.cycles[-MOST_REASONS:]:
        if c.why:
            results.print(f"cycle {c.number}: {c.why}", markup=False)
    if refused := follower.state.refused:
        partitions = Table("partition", "status", "why", title="partitions that no champion has trained on")
        for name, partition in refused.items():
            partitions.add_row(name, partition.status, partition.why)
        results.print(partitions)
    if (fresh := follower.freshness()) is not None:
        results.print(fresh)
    roles = ", ".join(f"{role} {version}" for role, version in follower.registry.aliases().items())
    results.print(f"registry: {roles or 'no version yet'}")
    for line in follower.registry.missing():
        results.print(line)
    results.print(follower.what_waits())
