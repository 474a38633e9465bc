"""Comparison of plans: their differences, and the best one."""

from dataclasses import dataclass
from typing import Any

from recsys.base.errors import DoesNotFit
from recsys.base.memory import GIB
from recsys.sharding.estimate.report import PlanReport

COLUMNS = (
    "sharding", "fits", "max HBM GiB", "max DDR GiB", "ms per step", "compute", "links", "bound by", "imbalance",
    "max sent MB", "whole step ms", "reason",
)  # fmt: skip


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

    Times are compared to a hundredth of a millisecond. Where no whole step is predicted, plans are sorted by the time
    in the embeddings.

    Infeasible choices are sorted by the bytes that are missing.
    """
    return sorted(attempts, key=_rank)


def _rank(t: PlanAttempt) -> tuple[bool, float, float, int]:
    if t.plan is None:
        assert t.error is not None
        return True, t.error.infeasible.bytes_over, 0, 0
    device_ms = 0.0 if t.plan.clock is None else t.plan.clock.device_ms
    return False, round(t.plan.compared_ms, 2), round(device_ms, 2), _memory(t.plan)


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
        t.name, "yes", *(f"{n / GIB:,.1f}" for n in memory), *(f"{n:.3g}" for n in times), p.bound,
        f"{p.imbalance:.2f}", f"{sent:,.1f}", "" if p.clock is None else f"{p.clock.step_ms:.3g}", "",
    ]  # fmt: skip


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
    first, *others = best_first(attempts)
    if first.plan is None:
        return "no choice fits"
    what = "step in the embeddings" if first.plan.clock is None else "whole step"
    text = f"best: sharding={first.name}, {first.plan.compared_ms:.3g} ms per {what}"
    second = next((o for o in others if o.plan is not None), None)
    if second is None or second.plan is None:
        return text + (", the only one that fits" if others else "")
    gain = second.plan.compared_ms / first.plan.compared_ms if first.plan.compared_ms else 1.0
    if gain < 1.005:
        less = " with less memory" if _memory(first.plan) < _memory(second.plan) else ""
        return f"{text}, as fast as {second.name}{less}"
    return text + f", {gain:.2f} times as fast as {second.name}, the second best"
