"""One plan, or a comparison of several, as a self-contained HTML page."""

from collections.abc import Sequence
from typing import Any

from recsys.base.memory import GIB
from recsys.pages import render
from recsys.pages.charts.bars import colour
from recsys.pages.elements import size
from recsys.pages.page_table import Cell, Cells, PageTable, Paint, columns
from recsys.sharding.estimate import plan_charts
from recsys.sharding.estimate.compare import COLUMNS, LEFT, PlanAttempt, best_first, cells, verdict, where_of
from recsys.sharding.estimate.plan_charts import WORST, bytes_of
from recsys.sharding.estimate.report import PlanReport
from recsys.sharding.infeasible import COLUMNS as NEEDS
from recsys.sharding.infeasible import gib

NEAR = 0.15  # below this share of a device's memory, shards are also shown magnified
MEMORY = {"hbm": "HBM", "ddr": "Host memory (DDR)"}
TABLES = ("table", "rows", "dim", "ids per row", "weights", "optimizer", "type", "kernel", "cached", "devices", "group")
DEVICES = (
    "device",
    "tables",
    "groups",
    "HBM GiB",
    "reserved",
    "free",
    "DDR GiB",
    "free",
    "ids per step",
    "read MB",
    "sent MB",
    "compute ms",
    "links ms",
    "ms per step",
)
PARTS = (
    Paint("compute (lookup and update, bound by memory)", "var(--compute)"),
    Paint("links between devices", "var(--links)"),
)


def page(attempts: Sequence[PlanAttempt]) -> str:
    """Return the page. With several plans, it has a comparison, then each plan, the best first."""
    order = best_first(list(attempts))
    plans = [t.plan for t in order if t.plan is not None]
    title, summary = "No plan fits", ""
    if plans:
        devices = _count(plans[0].world_size, "device")
        title = f"Sharding plan{'s' if len(order) > 1 else ''} for {plans[0].cluster}, {devices}"
        summary = f"{_count(len(plans[0].tables), 'table')}; a step is {plans[0].batch_size:,} rows over all devices"
    sections = []
    for t in order:
        if t.plan is not None:
            sections.append(_section(t.name, t.plan))
            continue
        assert t.error is not None
        m = t.error.infeasible
        table = PageTable(columns(NEEDS, LEFT), [cells for _, cells in m.rows()], [kind for kind, _ in m.rows()])
        sections.append(
            {
                "name": t.name,
                "fits": False,
                "error": str(t.error),
                "worst": f"; the {WORST} fullest of {m.devices} devices" if m.devices > WORST else "",
                "room": f"{gib(max(m.rooms))} GiB of {m.kind}",
                "chart": plan_charts.needs(m),
                "tables": table,
            }
        )
    comparison = None
    if len(order) > 1:
        kinds = ["no" if t.plan is None else "best" if t is order[0] else "" for t in order]
        rows: list[Cells] = [[*shown, Cell(reason, "wrap" if reason else "")] for *shown, reason in map(cells, order)]
        comparison = PageTable(columns(COLUMNS, LEFT), rows, kinds)
    return render(
        "sharding/estimate/plan_page.html",
        title=title,
        summary=summary,
        verdict=verdict(order),
        comparison=comparison,
        sections=sections,
        parts=PARTS,
    )


def _section(name: str, p: PlanReport) -> dict[str, Any]:
    kinds = ["hbm"] if any(d.hbm_size for d in p.devices) else []
    kinds += ["ddr"] if any(d.ddr for d in p.devices) else []
    unused = 0 if "ddr" in kinds else max(d.ddr_size for d in p.devices)
    memory = []  # to scale, and magnified if the tables take little of it
    for kind in kinds:
        whole, used = (max(bytes_of(d, kind, part) for d in p.devices) for part in ("_size", ""))
        memory.append((f"{MEMORY[kind]}, {whole / GIB:,.0f} GiB per device", plan_charts.memory(p, kind)))
        if used < NEAR * whole:
            memory.append((f"Magnified: the lowest {size(used)}", plan_charts.memory(p, kind, magnified=True)))
    clock = None
    if p.clock is not None:
        device_ms = p.clock.device_ms
        parts: list[Cells] = [[part, f"{ms:.2f}", f"{ms / device_ms:.0%}"] for part, ms in p.clock.parts.items()]
        beside = {f"the host, beside it: {part}": ms for part, ms in p.clock.host.items()}
        beside |= {"beside both: copies and ids": p.clock.copies_ms}
        parts += [[lane, f"{ms:.2f}", ""] for lane, ms in beside.items()]
        clock = PageTable(columns(("part", "ms", "share"), LEFT), parts)
    devices: list[Cells] = []
    for d in p.devices:
        gibs = (d.hbm, d.hbm_reserved, d.hbm_free, d.ddr, d.ddr_free)
        devices.append(
            [
                str(d.rank),
                str(d.tables),
                str(d.groups),
                *(f"{n / GIB:,.1f}" for n in gibs),
                f"{d.ids:,.0f}",
                *(f"{n / 1e6:,.1f}" for n in (d.lookup_bytes, d.sent_bytes)),
                *(f"{n:.3g}" for n in (d.compute_ms, d.links_ms, d.step_ms)),
            ]
        )
    return {
        "name": name,
        "fits": True,
        "facts": _facts(p),
        "legend": plan_charts.legend_of_tables(p),
        "memory": memory,
        "unused": f"{unused / GIB:,.0f} GiB" if unused else "",
        "time": plan_charts.time(p),
        "clock": clock,
        "tables": _tables(p),
        "devices": PageTable(columns(DEVICES), devices),
    }


def _facts(p: PlanReport) -> list[tuple[str, str]]:
    weights, state = size(sum(t.bytes for t in p.tables)), size(sum(t.optimizer for t in p.tables))
    slowest = max(p.devices, key=lambda d: d.step_ms)
    kind = "hbm" if any(d.hbm_size for d in p.devices) else "ddr"
    fullest = max(p.devices, key=lambda d: bytes_of(d, kind))
    whole = f"{bytes_of(fullest, kind, '_size') / GIB:,.0f} GiB {kind.upper()}"
    whole_step = []
    if p.clock is not None:
        rate = f"per whole step (predicted): {p.clock.rows_per_second:,.0f} rows/s, bound by {p.clock.bound}"
        whole_step = [(f"{p.clock.step_ms:.3g} ms", rate)]
    return [
        *whole_step,
        (weights, f"weights, and {state} of optimizer state"),
        (size(bytes_of(fullest, kind)), f"of {whole}, on the fullest device"),
        (
            f"{p.step_ms:.3g} ms",
            f"per step in the embeddings: {slowest.compute_ms:.3g} compute, {slowest.links_ms:.3g} links",
        ),
        (p.bound, "bounds the slowest device"),
        (f"{p.imbalance:.2f}", "imbalance: slowest device over mean"),
        (str(max(d.groups for d in p.devices)), "lookup kernels per device, one per group"),
    ]


def _tables(p: PlanReport) -> PageTable:
    rows: list[Cells] = []
    for i, t in enumerate(plan_charts.largest_first(p)):
        numbers = [f"{t.rows:,}", str(t.dim), f"{t.ids_a_row:g}", size(t.bytes), size(t.optimizer)]
        cached = f"{t.cache_load_factor:.0%}" if t.cache_load_factor else ""
        places = [t.type, t.kernel, cached, where_of(t, p.world_size), str(t.group)]
        rows.append([Cell(t.table, mark=colour(i)), *numbers, *places])
    return PageTable(columns(TABLES, LEFT), rows)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
