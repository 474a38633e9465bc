"""Plans beside each other: what differs between them, and which is best."""

from dataclasses import dataclass
from typing import Any

from recsys.errors import DoesNotFit
from recsys.memory import GIB
from recsys.sharding.estimate.report import PlanReport

COLUMNS = (
    "sharding", "fits", "HBM GiB most", "DDR GiB most", "ms a step", "compute", "links", "bound by", "imbalance",
    "sent MB most", "why not",
)  # fmt: skip


@dataclass
class PlanAttempt:
    """A choice of sharding, and its plan or why there is none. error: of the last, the whole message."""

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


def best_first(tried: list[PlanAttempt]) -> list[PlanAttempt]:
    """Those that fit by the time of a step, to a hundredth of a millisecond, then by memory; then by bytes over."""
    return sorted(tried, key=_rank)


def _rank(t: PlanAttempt) -> tuple[bool, float, int]:
    if t.plan is None:
        assert t.error is not None
        return True, t.error.infeasible.bytes_over, 0
    return False, round(t.plan.step_ms, 2), max(d.hbm + d.ddr for d in t.plan.devices)


def cells(t: PlanAttempt) -> list[str]:
    """One row under COLUMNS."""
    if t.plan is None:
        assert t.error is not None
        return [t.name, "no", *[""] * (len(COLUMNS) - 3), why_not(t)]
    p = t.plan
    slowest = max(p.devices, key=lambda d: d.step_ms)
    memory = (max(d.hbm for d in p.devices), max(d.ddr for d in p.devices))
    times = (p.step_ms, slowest.compute_ms, slowest.links_ms)
    sent = max(d.sent_bytes for d in p.devices) / 1e6
    return [
        t.name, "yes", *(f"{n / GIB:,.1f}" for n in memory), *(f"{n:.3g}" for n in times), p.bound,
        f"{p.imbalance:.2f}", f"{sent:,.1f}", "",
    ]  # fmt: skip


def why_not(t: PlanAttempt) -> str:
    from recsys.sharding.infeasible import gib

    assert t.error is not None
    m = t.error.infeasible
    if not m.bytes_over:
        return "no layout of the allowed types"
    return f"{gib(m.bytes_over)} GiB over {m.where}; largest: {m.tables[0].table} {gib(m.tables[0].needed)}"


def verdict(tried: list[PlanAttempt]) -> str:
    """Which is best, in a sentence."""
    first, *others = best_first(tried)
    if first.plan is None:
        return "none of them fits"
    text = f"best: sharding={first.name}, {first.plan.step_ms:.3g} ms a step"
    second = next((o for o in others if o.plan is not None), None)
    if second is None or second.plan is None:
        return text + (", the only one that fits" if others else "")
    gain = second.plan.step_ms / first.plan.step_ms if first.plan.step_ms else 1.0
    if gain < 1.005:
        return text + f", as fast as {second.name}" + (" and in less memory" if _rank(first) < _rank(second) else "")
    return text + f", {gain:.2f} times as fast as {second.name}, the next"
