"""Charts of a plan: the shards on each device, and the time of a step."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from recsys.base.memory import GIB
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.bars import COLOURS, Part, Stack, colour, lying, standing
from recsys.pages.elements import join, size
from recsys.pages.page_table import Paint
from recsys.sharding.estimate.clock import DeviceReport
from recsys.sharding.estimate.report import PlanReport, TableReport
from recsys.sharding.infeasible import Infeasibility, gib

PAGE_PIXELS = 1124  # width of the page in pixels
DEVICES_PER_ROW, MANY_PER_ROW = 64, 128  # devices per row; MANY_PER_ROW if there are more than 256
TALL, LOW = 260, 96  # height in pixels, with one row of devices and with several
FLAT = 4  # up to this many devices, bars are horizontal
MIN_SHARD_PIXELS = 1.5  # shards of fewer pixels are drawn as one
WORST = 8  # number of devices shown if no plan fits


def bytes_of(d: DeviceReport, kind: str, part: str = "") -> int:
    """Return the bytes for tables of a kind of memory, hbm or ddr, or of its part: _free, _reserved, _size."""
    return int(getattr(d, kind + part))


def largest_first(plan: PlanReport) -> list[TableReport]:
    """Return the tables in the order of their colours."""
    return sorted(plan.tables, key=lambda t: (-t.bytes, t.table))


def legend_of_tables(plan: PlanReport) -> list[Paint]:
    """Return the colours and sizes of the tables: the largest have their own colours, the others share one."""
    tables = largest_first(plan)
    paints = [Paint(f"{t.table} {size(t.bytes)}", colour(i)) for i, t in enumerate(tables[:COLOURS])]
    if rest := tables[COLOURS:]:
        paints.append(Paint(f"{len(rest)} others {size(sum(t.bytes for t in rest))}"))
    return [*paints, Paint("reserved", "var(--hatch)"), Paint("free", "var(--free)")]


def memory(plan: PlanReport, kind: str, magnified: bool = False) -> Markup:
    """Draw a bar for each device, as long as its memory; if magnified, as long as the fullest device's tables."""
    parts: dict[int, list[Part]] = {d.rank: [] for d in plan.devices}
    for i, t in enumerate(largest_first(plan)):
        cached = f"\na cache of {t.cache_load_factor:.0%} of the rows" if t.cache_load_factor and kind == "hbm" else ""
        for s in (s for s in t.shards if s.get(kind)):
            (row, column), rows, columns = s["offsets"], s["rows"], s["columns"]
            across = "all columns" if columns == t.dim else f"columns {column}\u2013{column + columns - 1} of {t.dim}"
            down = "all rows" if rows == t.rows else f"rows {row:,}\u2013{row + rows - 1:,} of {t.rows:,}"
            place = f"{down}, {across}{cached}\n{size(s[kind])} on device {s['rank']}"
            tip = f"{t.table}: {t.type}, {t.kernel}\n{place}"
            parts[s["rank"]].append(Part(s[kind], colour(i), t.table, tip))
    top = max(bytes_of(d, kind, "" if magnified else "_size") for d in plan.devices) or 1
    for d in plan.devices:
        free = top - bytes_of(d, kind) if magnified else bytes_of(d, kind, "_free")
        used, left, whole = (bytes_of(d, kind, part) / GIB for part in ("", "_free", "_size"))
        tip = f"device {d.rank}: {used:,.1f} of {whole:,.0f} GiB for tables, {left:,.1f} free"
        parts[d.rank].append(Part(free, "none", tip=tip))
        if not magnified:
            n = bytes_of(d, kind, "_reserved")
            tip = f"device {d.rank}\nreserved: {n / GIB:.1f} GiB for the dense part, the ids of a step and a margin"
            parts[d.rank].append(Part(n, "var(--hatch)", tip=tip))
    return _devices(plan, parts, top, size if magnified else lambda n: f"{n / GIB:,.0f} GiB")


def time(plan: PlanReport) -> Markup:
    """Draw a bar for each device: compute and links of a step, to the scale of the slowest device."""
    parts: dict[int, list[Part]] = {}
    for d in plan.devices:
        tip = f"device {d.rank}: {d.step_ms:.3g} ms\ncompute {d.compute_ms:.3g} ms, links {d.links_ms:.3g} ms"
        shown = ((d.compute_ms, "var(--compute)"), (d.links_ms, "var(--links)"))
        parts[d.rank] = [Part(ms, paint, tip=tip) for ms, paint in shown]
    mean = sum(d.step_ms for d in plan.devices) / len(plan.devices)
    return _devices(plan, parts, plan.step_ms or 1.0, lambda ms: f"{ms:.3g} ms", mean)


def needs(m: Infeasibility) -> Markup:
    """Draw the needs of the devices that have too little memory; the mark is what they have."""
    colours = {t.table: colour(i) for i, t in enumerate(m.tables)}
    needed = [sum(n for _, n in shards) for shards in m.layout]
    worst = sorted(range(m.devices), key=lambda d: m.rooms[d] - needed[d])[:WORST]
    top = max(*(needed[d] for d in worst), *m.rooms, 1)
    bars = []
    for d in worst:
        missing = needed[d] - m.rooms[d]
        shards = [(t, n) for t, n in m.layout[d] if n / top > 0.001]
        parts = [Part(n, colours[t], t, f"{t}: {gib(n)} GiB") for t, n in shards]
        name = f"device {d}: {f'{gib(missing)} GiB missing' if missing > 0 else 'fits'}"
        bars.append(Stack(parts, name, mark=m.rooms[d]))
    return lying(bars, Axis(0, top, 200, PAGE_PIXELS), wide=PAGE_PIXELS, thick=26)


def _devices(
    plan: PlanReport, parts: dict[int, list[Part]], top: float, text: Callable[[float], str], mean: float | None = None
) -> Markup:
    """Draw the bars of all devices: below each other if they are few, else side by side, in rows."""
    devices, marks = plan.devices, (0, top / 2, top)
    if len(devices) <= FLAT:
        bars = [Stack(_merged(parts[d.rank], top / PAGE_PIXELS, d), f"device {d.rank}", mark=mean) for d in devices]
        return lying(bars, Axis(0, top, 78, PAGE_PIXELS, marks=marks, text=text), wide=PAGE_PIXELS)
    per_row = DEVICES_PER_ROW if len(devices) <= 4 * DEVICES_PER_ROW else MANY_PER_ROW
    high = LOW if len(devices) > per_row else TALL
    charts = []
    for start in range(0, len(devices), per_row):
        row = devices[start : start + per_row]
        gap = 10 if len(row) <= 8 else 5 if len(row) <= 32 else 2 if len(row) <= 64 else 1
        every = 1 if len(row) <= 32 else max(plan.devices_a_node, 4)
        bars = []
        for d in row:
            name = str(d.rank) if d.rank % every == 0 else ""
            first_of_node = plan.devices_a_node > 1 and d.rank > start and d.rank % plan.devices_a_node == 0
            space = gap + 2.0 if first_of_node else 0.0
            bars.append(Stack(_merged(parts[d.rank], top / high, d), name, mark=mean, space=space))
        charts.append(standing(bars, Axis(0, top, high + 5, 5, marks=marks, text=text), wide=PAGE_PIXELS, gap=gap))
    return join(charts)


def _merged(parts: Sequence[Part], pixel: float, d: DeviceReport) -> list[Part]:
    """Return the parts, of which shards of less than MIN_SHARD_PIXELS pixels are one. pixel: value of a pixel"""
    small = [p for p in parts if p.name and p.value < MIN_SHARD_PIXELS * pixel]
    if not small:
        return list(parts)
    together = sum(p.value for p in small)
    tip = f"{len(small)} small shards\n{size(together)} on device {d.rank}"
    first = parts.index(small[0])
    shown = [p for p in parts if p not in small]
    return [*shown[:first], Part(together, "var(--other)", tip=tip), *shown[first:]]
