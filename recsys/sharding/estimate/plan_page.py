"""A plan, or several beside each other, as one HTML page that needs no other file."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from recsys.html import document, footer
from recsys.memory import GIB
from recsys.sharding.estimate import charts as pictures
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

WORST = 8  # devices shown of a plan that does not fit
NEAR = 0.15  # share of a device's memory below which shards are shown once more, magnified
ROWS = 40  # of a table before the rest is folded
FORMULAS = (
    "Weights of a table: rows × dim × 4 bytes (float32). Optimizer state: one number a row (row-wise Adagrad), one an "
    "element (Adagrad), two (Adam), both one a row and one an element (partial row-wise Adam), none (SGD).",
    "Lookup bytes a step: the sum over bags of NNZ × dim × 4 bytes + NNZ × 8: the rows read, and the int64 ids that "
    "name them. NNZ is the number of ids in a bag, 1 unless data.sparse.X.mean_length says otherwise.",
    "All-to-all bytes that a device sends to its W − 1 peers in a step: 2 × (W − 1) × rows of a device's batch × "
    "features × columns × 4, pooled vectors (row-wise: partial sums) forward and as many gradients backward. A replica "
    "all-reduces its gradient: 2 (W − 1) / W × its weights. The ids themselves are not counted.",
    "Memory of a shard: its weights, its optimizer's state and the buffers of its input and output. Reserved: the "
    "dense part with gradients and optimizer, a step's ids, and 15 % of HBM. Times: bytes over bandwidth, forward and "
    "backward. Both are TorchRec's: torchrec.distributed.planner (shard_estimators, storage_reservations), 1.8.",
    "A group is one call of FBGEMM's table-batched kernel on a device: tables of one module, sharding type, pooling, "
    "optimizer and kind of kernel (torchrec.distributed.embedding_sharding.group_tables). Dims may differ within one.",
)


def page(tried: Sequence[PlanAttempt]) -> str:
    """The whole page. With several plans, a comparison first, then each, the best first."""
    order = best_first(list(tried))
    plans = [t.plan for t in order if t.plan is not None]
    several = len(order) > 1
    if plans:
        title = f"Sharding plan{'s' if several else ''} for {plans[0].cluster}, {_count(plans[0].world_size, 'device')}"
        said = f"{_count(len(plans[0].tables), 'table')}; a step is {plans[0].batch_size:,} rows over all devices"
    else:
        title, said = "No plan fits", ""
    parts = [f"<h1>{escape(title)}</h1><p>{escape(said)}</p>"]
    if several:
        parts.append(f"<p><b>{escape(verdict(order))}</b></p>{_comparison(order)}")
    parts += [_section(t, several) for t in order]
    parts.append(footer("Estimates, not measurements.", FORMULAS))
    return document(title, "\n".join(parts), Path(__file__).parent)


def _section(t: PlanAttempt, several: bool) -> str:
    if t.plan is None:
        assert t.error is not None
        return (
            f"<h2>sharding={escape(t.name)} does not fit</h2><p>{escape(str(t.error))}</p>{_misfit(t.error.infeasible)}"
        )
    p = t.plan
    parts = [f"<h2>sharding={escape(t.name)}</h2>" if several else "", _cards(p)]
    parts.append("<h3>Which shard lies where</h3>" + pictures.table_legend(p))
    if any(d.hbm_size for d in p.devices):
        parts.append(_memory(p, "hbm", "HBM"))
    size = max(d.ddr_size for d in p.devices) / GIB
    if any(d.ddr for d in p.devices):
        parts.append(_memory(p, "ddr", "Host memory (DDR)"))
    elif size:
        parts.append(f"<p>Host memory (DDR): none of the {size:,.0f} GiB a device is used.</p>")
    parts.append("<h3>Estimated time of a step in the embeddings</h3>")
    marks = [
        ("var(--compute)", "compute (lookup and update, bound by memory)"),
        ("var(--links)", "links between devices"),
    ]
    parts.append(pictures.legend(marks) + pictures.time(p))
    parts.append("<p>The dashed line is the mean. The slowest device decides: all wait for it.</p>")
    parts.append(f"<h3>Tables</h3>{_tables(p)}<h3>Devices</h3>{_devices(p)}")
    return "\n".join(parts)


def _memory(p: PlanReport, kind: str, name: str) -> str:
    """To scale, and once more from near where tables take little of it."""
    whole, used = (max(getattr(d, kind + part) for d in p.devices) for part in ("_size", ""))
    picture = f"<p>{name}, {whole / GIB:,.0f} GiB a device</p>{pictures.memory(p, kind)}"
    if used < NEAR * whole:
        picture += f"<p>The same from near: the lowest {pictures.size(used)}</p>{pictures.memory(p, kind, near=True)}"
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
        (f"{p.step_ms:.3g} ms", f"a step: {slowest.compute_ms:.3g} compute, {slowest.links_ms:.3g} links"),
        (p.bound, "bounds the slowest device"),
        (f"{p.imbalance:.2f}", "imbalance: slowest over mean"),
        (str(max(d.groups for d in p.devices)), "lookup kernels a device, one a group"),
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
        "ids a row",
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
        "device", "tables", "groups", "HBM GiB", "reserved", "free", "DDR GiB", "free", "ids a step", "read MB",
        "sent MB", "compute ms", "links ms", "ms a step",
    )  # fmt: skip
    return _table(names, [("", _device_cells(d)) for d in p.devices])


def _device_cells(d: DeviceReport) -> list[str]:
    memory = (d.hbm, d.hbm_reserved, d.hbm_free, d.ddr, d.ddr_free)
    return [
        str(d.rank), str(d.tables), str(d.groups), *(f"{n / GIB:,.1f}" for n in memory), f"{d.ids:,.0f}",
        *(f"{n / 1e6:,.1f}" for n in (d.lookup_bytes, d.sent_bytes)),
        *(f"{n:.3g}" for n in (d.compute_ms, d.links_ms, d.step_ms)),
    ]  # fmt: skip


def _misfit(m: Infeasibility) -> str:
    """The devices on which most is over, beside what is there, and the tables that make up most of it."""
    colour = {t.table: f"var(--c{i})" if i < pictures.COLOURS else "var(--other)" for i, t in enumerate(m.tables)}
    held = [sum(n for _, n in shards) for shards in m.layout]
    worst = sorted(range(m.devices), key=lambda d: m.rooms[d] - held[d])[:WORST]
    top = max(*(held[d] for d in worst), *m.rooms, 1)
    bars = []
    for d in worst:
        shards = "".join(
            f'<i style="width:{n / top:.3%};background:{colour[t]}" data-t="{escape(t)}: {gib(n)} GiB"></i>'
            for t, n in m.layout[d]
            if n / top > 0.001
        )
        over = f"{gib(held[d] - m.rooms[d])} GiB over" if held[d] > m.rooms[d] else "fits"
        there = f'<b style="left:{m.rooms[d] / top:.3%}"></b>'
        bars.append(f'<div class="need"><span>device {d}: {over}</span>{shards}{there}</div>')
    told = (
        "Shards laid out the largest first, each on the device with most room"
        f"{f'; the {WORST} fullest of {m.devices} devices' if m.devices > WORST else ''}. "
        f"The mark: what a device has for tables, {gib(max(m.rooms))} GiB of {m.kind}."
    )
    rows = [(kind, [escape(c) for c in cells]) for kind, cells in m.rows()]
    return f"<p>{told}</p>{''.join(bars)}<h3>Tables</h3>{_table(NEEDS, rows)}"


def _table(names: Sequence[str], rows: Sequence[tuple[str, Iterable[str]]]) -> str:
    """names in the head; (class, cells in HTML) a row. What is beyond ROWS rows is folded."""
    kinds = ["l" + (" wrap" if n == "why not" else "") if n in LEFT else "" for n in names]
    head = "".join(f'<th class="{k}">{escape(n)}</th>' for n, k in zip(names, kinds, strict=True))
    lines = [
        f'<tr class="{kind}">' + "".join(f'<td class="{k}">{c}</td>' for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for kind, row in rows
    ]

    def table(some: Sequence[str]) -> str:
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(some)}</tbody></table></div>'

    if len(lines) <= ROWS + 8:
        return table(lines)
    return table(lines[:ROWS]) + f"<details><summary>{len(lines) - ROWS} more</summary>{table(lines[ROWS:])}</details>"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
