"""One plan, or a comparison of several, as a self-contained HTML page."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from recsys.memory import GIB
from recsys.pages import document, footer
from recsys.sharding.estimate import plan_charts as pictures
from recsys.sharding.estimate.compare import (
    COLUMNS,
    PlanAttempt,
    best_first,
    cells,
    verdict,
)
from recsys.sharding.estimate.report import DeviceReport, PlanReport, TableReport
from recsys.sharding.estimate.terminal import LEFT, where_of
from recsys.sharding.infeasible import COLUMNS as NEEDS
from recsys.sharding.infeasible import Infeasibility, gib

WORST = 8  # number of devices shown if no plan fits
NEAR = 0.15  # below this share of a device's memory, shards are also shown magnified
ROWS = 40  # rows of a table, after which the rest is collapsed
FORMULAS = (
    "Weights of a table: rows × dim × 4 bytes (float32). Optimizer state: one number per row (row-wise Adagrad), one "
    "per element (Adagrad), two per element (Adam), one per row and one per element (partial row-wise Adam), none "
    "(SGD).",
    "Lookup bytes per step: the sum over bags of NNZ × dim × 4 bytes + NNZ × 8, for the rows and their int64 ids. NNZ "
    "is the number of ids in a bag, 1 unless data.sparse.X.mean_length says otherwise.",
    "All-to-all bytes that a device sends to its W − 1 peers per step: 2 × (W − 1) × rows of a device's batch × "
    "features × columns × 4, for pooled vectors (row-wise: partial sums) forward and as many gradients backward. A "
    "replica all-reduces its gradient: 2 (W − 1) / W × its weights. The ids are not counted.",
    "Memory of a shard: its weights, its optimizer's state and the buffers of its input and output. Reserved: the "
    "dense part with gradients and optimizer, the ids of a step, and 15 % of HBM. Times: bytes over bandwidth, forward "
    "and backward. Memory and times are TorchRec's estimates: torchrec.distributed.planner (shard_estimators, "
    "storage_reservations), 1.8.",
    "A group is one call of FBGEMM's table-batched kernel on a device: tables of one module, sharding type, pooling, "
    "optimizer and kind of kernel (torchrec.distributed.embedding_sharding.group_tables). Dims may differ in a group.",
)


def page(attempts: Sequence[PlanAttempt]) -> str:
    """Return the page. With several plans, it has a comparison, then each plan, the best first."""
    order = best_first(list(attempts))
    plans = [t.plan for t in order if t.plan is not None]
    several = len(order) > 1
    if plans:
        title = f"Sharding plan{'s' if several else ''} for {plans[0].cluster}, {_count(plans[0].world_size, 'device')}"
        summary = f"{_count(len(plans[0].tables), 'table')}; a step is {plans[0].batch_size:,} rows over all devices"
    else:
        title, summary = "No plan fits", ""
    parts = [f"<h1>{escape(title)}</h1><p>{escape(summary)}</p>"]
    if several:
        parts.append(f"<p><b>{escape(verdict(order))}</b></p>{_comparison(order)}")
    parts += [_section(t, several) for t in order]
    parts.append(footer("Estimates, not measurements.", FORMULAS))
    return document(title, "\n".join(parts), Path(__file__).parent)


def _section(t: PlanAttempt, several: bool) -> str:
    if t.plan is None:
        assert t.error is not None
        reason = f"<p>{escape(str(t.error))}</p>{_infeasible(t.error.infeasible)}"
        return f"<h2>sharding={escape(t.name)} does not fit</h2>{reason}"
    p = t.plan
    parts = [f"<h2>sharding={escape(t.name)}</h2>" if several else "", _cards(p)]
    parts.append("<h3>Shards on each device</h3>" + pictures.table_legend(p))
    if any(d.hbm_size for d in p.devices):
        parts.append(_memory(p, "hbm", "HBM"))
    size = max(d.ddr_size for d in p.devices) / GIB
    if any(d.ddr for d in p.devices):
        parts.append(_memory(p, "ddr", "Host memory (DDR)"))
    elif size:
        parts.append(f"<p>Host memory (DDR): none of the {size:,.0f} GiB per device is used.</p>")
    parts.append("<h3>Estimated time of a step in the embeddings</h3>")
    marks = [
        ("var(--compute)", "compute (lookup and update, bound by memory)"),
        ("var(--links)", "links between devices"),
    ]
    parts.append(pictures.legend(marks) + pictures.time(p))
    parts.append("<p>The dashed line is the mean. All devices wait for the slowest one.</p>")
    parts.append(f"<h3>Tables</h3>{_tables(p)}<h3>Devices</h3>{_devices(p)}")
    return "\n".join(parts)


def _memory(p: PlanReport, kind: str, name: str) -> str:
    """Draw memory to scale, and magnified if the tables take little of it."""
    whole, used = (max(getattr(d, kind + part) for d in p.devices) for part in ("_size", ""))
    picture = f"<p>{name}, {whole / GIB:,.0f} GiB per device</p>{pictures.memory(p, kind)}"
    if used < NEAR * whole:
        picture += f"<p>Magnified: the lowest {pictures.size(used)}</p>{pictures.memory(p, kind, magnified=True)}"
    return picture


def _cards(p: PlanReport) -> str:
    weights, state = (pictures.size(sum(n)) for n in ((t.bytes for t in p.tables), (t.optimizer for t in p.tables)))
    slowest = max(p.devices, key=lambda d: d.step_ms)
    kind = "hbm" if any(d.hbm_size for d in p.devices) else "ddr"
    fullest = max(p.devices, key=lambda d: getattr(d, kind))
    used, whole = pictures.size(getattr(fullest, kind)), getattr(fullest, f"{kind}_size") / GIB
    cards = (
        (weights, f"weights, and {state} of optimizer state"),
        (used, f"of {whole:,.0f} GiB {kind.upper()}, on the fullest device"),
        (f"{p.step_ms:.3g} ms", f"per step: {slowest.compute_ms:.3g} compute, {slowest.links_ms:.3g} links"),
        (p.bound, "bounds the slowest device"),
        (f"{p.imbalance:.2f}", "imbalance: slowest device over mean"),
        (str(max(d.groups for d in p.devices)), "lookup kernels per device, one per group"),
    )
    return (
        '<div class="cards">'
        + "".join(f"<div><b>{escape(b)}</b><span>{escape(s)}</span></div>" for b, s in cards)
        + "</div>"
    )


def _comparison(order: Sequence[PlanAttempt]) -> str:
    rows = []
    for i, t in enumerate(order):
        kind = "no" if t.plan is None else "best" if i == 0 else ""
        rows.append((kind, [escape(c) for c in cells(t)]))
    return _table(COLUMNS, rows)


def _tables(p: PlanReport) -> str:
    colour = pictures.colours(p.tables)
    names = (
        "table",
        "rows",
        "dim",
        "ids per row",
        "weights",
        "optimizer",
        "type",
        "kernel",
        "cached",
        "devices",
        "group",
    )
    order = sorted(p.tables, key=lambda t: (-t.bytes, t.table))
    return _table(names, [("", _table_cells(t, colour[t.table], p.world_size)) for t in order])


def _table_cells(t: TableReport, colour: str, world: int) -> list[str]:
    cached = f"{t.cache_load_factor:.0%}" if t.cache_load_factor else ""
    numbers = [f"{t.rows:,}", str(t.dim), f"{t.ids_a_row:g}", pictures.size(t.bytes), pictures.size(t.optimizer)]
    name = f'<i style="background:{colour}"></i>{escape(t.table)}'
    return [name, *numbers, t.type, t.kernel, cached, where_of(t, world), str(t.group)]


def _devices(p: PlanReport) -> str:
    names = (
        "device", "tables", "groups", "HBM GiB", "reserved", "free", "DDR GiB", "free", "ids per step", "read MB",
        "sent MB", "compute ms", "links ms", "ms per step",
    )  # fmt: skip
    return _table(names, [("", _device_cells(d)) for d in p.devices])


def _device_cells(d: DeviceReport) -> list[str]:
    memory = (d.hbm, d.hbm_reserved, d.hbm_free, d.ddr, d.ddr_free)
    return [
        str(d.rank), str(d.tables), str(d.groups), *(f"{n / GIB:,.1f}" for n in memory), f"{d.ids:,.0f}",
        *(f"{n / 1e6:,.1f}" for n in (d.lookup_bytes, d.sent_bytes)),
        *(f"{n:.3g}" for n in (d.compute_ms, d.links_ms, d.step_ms)),
    ]  # fmt: skip


def _infeasible(m: Infeasibility) -> str:
    """Draw the devices with too little memory, and list the largest tables."""
    colour = {t.table: f"var(--c{i})" if i < pictures.COLOURS else "var(--other)" for i, t in enumerate(m.tables)}
    needed = [sum(n for _, n in shards) for shards in m.layout]
    worst = sorted(range(m.devices), key=lambda d: m.rooms[d] - needed[d])[:WORST]
    top = max(*(needed[d] for d in worst), *m.rooms, 1)
    bars = []
    for d in worst:
        shards = "".join(
            f'<i style="width:{n / top:.3%};background:{colour[t]}" data-t="{escape(t)}: {gib(n)} GiB"></i>'
            for t, n in m.layout[d]
            if n / top > 0.001
        )
        over = f"{gib(needed[d] - m.rooms[d])} GiB missing" if needed[d] > m.rooms[d] else "fits"
        there = f'<b style="left:{m.rooms[d] / top:.3%}"></b>'
        bars.append(f'<div class="need"><span>device {d}: {over}</span>{shards}{there}</div>')
    caption = (
        "Shards are laid out the largest first, each on the device with most room"
        f"{f'; the {WORST} fullest of {m.devices} devices' if m.devices > WORST else ''}. "
        f"The mark is the memory of a device for tables, {gib(max(m.rooms))} GiB of {m.kind}."
    )
    rows = [(kind, [escape(c) for c in cells]) for kind, cells in m.rows()]
    return f"<p>{caption}</p>{''.join(bars)}<h3>Tables</h3>{_table(NEEDS, rows)}"


def _table(names: Sequence[str], rows: Sequence[tuple[str, Iterable[str]]]) -> str:
    """Return a table with these column names and (class, cells in HTML) rows. Rows after the first ROWS are
    collapsed.
    """
    kinds = ["l" + (" wrap" if n == "why not" else "") if n in LEFT else "" for n in names]
    head = "".join(f'<th class="{k}">{escape(n)}</th>' for n, k in zip(names, kinds, strict=True))
    lines = [
        f'<tr class="{kind}">' + "".join(f'<td class="{k}">{c}</td>' for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for kind, row in rows
    ]

    def table(shown: Sequence[str]) -> str:
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(shown)}</tbody></table></div>'

    if len(lines) <= ROWS + 8:
        return table(lines)
    return table(lines[:ROWS]) + f"<details><summary>{len(lines) - ROWS} more</summary>{table(lines[ROWS:])}</details>"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
