"""Comparison of plans: their differences, the best one, and both on the terminal."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from recsys.base.console import results, say
from recsys.base.errors import DoesNotFit
from recsys.base.memory import GIB
from recsys.sharding.estimate.clock import HOST
from recsys.sharding.estimate.report import PlanReport, TableReport

COLUMNS = (
    "sharding",
    "fits",
    "HBM GiB",
    "DDR GiB",
    "ms per step",
    "compute",
    "links",
    "bound by",
    "imbalance",
    "sent MB",
    "devices ms",
    "whole step ms",
    "reason",
)
SHOWN = 16  # number of devices shown; plan.json has all
LEFT = ("table", "part", "type", "kernel", "devices", "sharding", "fits", "bound by", "reason")


@dataclass
class PlanAttempt:
    """A choice of `sharding`, with its plan or the error that says why there is none."""

    name: str
    plan: PlanReport | None = None
    error: DoesNotFit | None = None

    def to_json(self) -> dict[str, Any]:
        if self.plan is not None:
            return {"sharding": self.name, "fits": True} | self.plan.to_json()
        assert self.error is not None
        m = self.error.infeasible
        tables = [vars(t) for t in m.tables]
        sums = {"bytes_over": m.bytes_over, "needed": m.needed, "room": m.room, "over": m.over, "memory": m.kind}
        return {"sharding": self.name, "fits": False, "error": str(self.error), **sums, "tables": tables}


def best_first(attempts: list[PlanAttempt]) -> list[PlanAttempt]:
    """Sort plans by the time of a whole step, then by the devices' part of it, then by memory; infeasible ones last.

    Times are equal if their first two digits are. Where no whole step is predicted, plans are sorted by the time in the
    embeddings. Infeasible choices are sorted by the bytes that are missing.
    """
    return sorted(attempts, key=_rank)


def _rank(t: PlanAttempt) -> tuple[bool, float, float, int]:
    if t.plan is None:
        assert t.error is not None
        return True, t.error.infeasible.bytes_over, 0, 0
    step_ms, device_ms = (float(f"{ms:.2g}") for ms in (t.plan.compared_ms, t.plan.device_ms))
    return False, step_ms, device_ms, _memory(t.plan)


def _memory(plan: PlanReport) -> int:
    """Return the bytes of the fullest device."""
    return max(d.hbm + d.ddr for d in plan.devices)


def cells(t: PlanAttempt) -> list[str]:
    """Return one row under COLUMNS."""
    if t.plan is None:
        assert t.error is not None
        return [t.name, "no", *[""] * (len(COLUMNS) - 3), why_not(t)]
    p = t.plan
    slowest = max(p.devices, key=lambda d: d.step_ms)
    memory = (max(d.hbm for d in p.devices), max(d.ddr for d in p.devices))
    times = (p.step_ms, slowest.compute_ms, slowest.links_ms)
    sent = max(d.sent_bytes for d in p.devices) / 1e6
    return [
        t.name,
        "yes",
        *(f"{n / GIB:,.1f}" for n in memory),
        *(f"{n:.3g}" for n in times),
        p.bound,
        f"{p.imbalance:.2f}",
        f"{sent:,.1f}",
        *(["", ""] if p.clock is None else [f"{ms:.3g}" for ms in (p.clock.device_ms, p.clock.step_ms)]),
        "",
    ]


def why_not(t: PlanAttempt) -> str:
    """Return the reason why a choice does not fit, in a few words."""
    from recsys.sharding.infeasible import gib

    assert t.error is not None
    m = t.error.infeasible
    if not m.bytes_over:
        return "no layout has the allowed types and kernels"
    return f"{gib(m.bytes_over)} GiB over {m.where}; largest: {m.tables[0].table} {gib(m.tables[0].needed)}"


def verdict(attempts: list[PlanAttempt]) -> str:
    """Return a sentence that names the best choice."""
    order = [(t.name, t.plan) for t in best_first(attempts) if t.plan is not None]
    if not order:
        return "no choice fits"
    clocks = [plan.clock for _, plan in order if plan.clock is not None]
    of_host = len(order) == len(clocks) > 1 and all(c.bound == HOST for c in clocks)
    what = "step in the embeddings" if order[0][1].clock is None else "step of the devices" if of_host else "whole step"
    times = [plan.device_ms if of_host else plan.compared_ms for _, plan in order]
    text = f"best: sharding={order[0][0]}, {times[0]:.3g} ms per {what}"
    if len(order) == 1:
        return text + (", the only one that fits" if len(attempts) > 1 else "")
    gain = times[1] / times[0] if times[0] else 1.0
    (_, first), (name, second) = order[:2]
    if gain < 1.005:
        text += f", as fast as {name}" + (" with less memory" if _memory(first) < _memory(second) else "")
    else:
        text += f", {gain:.2f} times as fast as {name}, the second best"
    if not of_host:
        return text
    enough = min(c.least_rows for c in clocks)
    return (
        f"{text}. Batches of {first.batch_size:,} rows are too small to compare whole steps: with every plan the host "
        f"takes longer, {clocks[0].host_ms:.3g} ms; plans differ from about trainer.batch_size={enough} on"
    )


def show(plan: PlanReport) -> None:
    """Print the tables and the devices of a plan, and the predicted time of a step, or why there is no prediction."""
    tables = _table(
        f"plan for {plan.cluster}: {plan.world_size} device{'s' if plan.world_size > 1 else ''}",
        ("table", "rows", "dim", "GiB", "optimizer GiB", "type", "kernel", "devices", "group"),
    )
    for t in sorted(plan.tables, key=lambda t: -t.bytes):
        sizes = (f"{t.bytes / GIB:.3f}", f"{t.optimizer / GIB:.3f}")
        kernel = t.kernel + (f" {t.cache_load_factor:.0%}" if t.cache_load_factor else "")
        where = where_of(t, plan.world_size)
        tables.add_row(t.table, f"{t.rows:,}", str(t.dim), *sizes, t.type, kernel, where, str(t.group))
    results.print(tables)
    results.print(_devices(plan))
    size = sum(t.bytes for t in plan.tables) / GIB
    calls = max(d.groups for d in plan.devices)
    by_planner = f"{plan.planner_ms:.3g} ms by TorchRec's planner, which chose among the types"
    source = "TorchRec's estimate" if plan.planner_ms == plan.step_ms else f"predicted; {by_planner}"
    say(
        f"{size:,.1f} GiB of weights; a step of {plan.batch_size:,} rows: {plan.step_ms:.3g} ms in the embeddings "
        f"({source}), bound by {plan.bound}; imbalance {plan.imbalance:.2f}; "
        f"{calls} lookup kernel{'s' if calls > 1 else ''} per device (tables of one group share one)"
    )
    if plan.skewed is not None:
        say(plan.skewed)
    clock = plan.clock
    if clock is None:
        say(f"a whole step is not predicted: {plan.no_clock}")
        return
    parts = _table("a step of the slowest device, predicted", ("part", "ms", "share"))
    for part, ms in clock.parts.items():
        parts.add_row(part, f"{ms:.2f}", f"{ms / clock.device_ms:.0%}")
    results.print(parts)
    host = ", ".join(f"{part} {ms:.2f}" for part, ms in clock.host.items())
    say(
        f"a whole step: {clock.step_ms:.3g} ms, {clock.rows_per_second:,.0f} rows/s, bound by {clock.bound}; beside it "
        f"run {clock.host_ms:.2f} ms of the host ({host}) and {clock.copies_ms:.2f} ms of copies and ids. Predicted "
        "from the peaks of cluster=, fixed shares of them, and times of one host (docs/explanation/step_time.md), not "
        "measured"
    )


def _devices(plan: PlanReport) -> Table:
    names = (
        "device",
        "tables",
        "groups",
        "HBM GiB",
        "free",
        "DDR GiB",
        "free",
        "ids per step",
        "read MB",
        "sent MB",
        "ms per step",
    )
    shown, title = plan.devices, "devices"
    if len(shown) > SHOWN:
        shown = sorted(shown, key=lambda d: (-d.step_ms, -d.hbm))[:SHOWN]
        title = f"the {SHOWN} slowest of {plan.world_size} devices"
    devices = _table(title, names)
    for d in shown:
        numbers = (d.hbm / GIB, d.hbm_free / GIB, d.ddr / GIB, d.ddr_free / GIB)
        devices.add_row(
            str(d.rank),
            str(d.tables),
            str(d.groups),
            *(f"{n:,.1f}" for n in numbers),
            f"{d.ids:,.0f}",
            f"{d.lookup_bytes / 1e6:,.1f}",
            f"{d.sent_bytes / 1e6:,.1f}",
            f"{d.step_ms:.3g}",
        )
    return devices


def show_side_by_side(attempts: list[PlanAttempt]) -> None:
    """Print one row per choice, the best first."""
    table = _table("plans side by side, the best first", (COLUMNS[0], *COLUMNS[2:-1]))
    for column in table.columns:
        column.no_wrap = column.header in ("sharding", "imbalance")
    for t in best_first(attempts):
        name, _, *numbers, _ = cells(t)
        table.add_row(name, *numbers, style=None if t.plan is not None else "dim")
    results.print(table)
    for t in attempts:
        if t.plan is None:
            results.print(f"{t.name} does not fit: {why_not(t)}", markup=False)
    say(verdict(attempts))


def where_of(t: TableReport, world: int) -> str:
    """Return the devices of a table: all, a range, or a list."""
    ranks = sorted(set(t.ranks))
    if len(ranks) == world > 1:
        return "all"
    if len(ranks) > 3 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} others" if len(ranks) > 6 else "")


def _table(title: str, names: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right")
    return table
