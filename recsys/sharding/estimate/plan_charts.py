"""Charts of a plan in HTML: the shards on each device, and the time of a step."""

from collections.abc import Callable, Sequence
from html import escape

from recsys.memory import GIB
from recsys.sharding.estimate.report import DeviceReport, PlanReport, TableReport

COLOURS = 12
DEVICES_PER_ROW, MANY_PER_ROW = 64, 128  # devices per row; MANY_PER_ROW if there are more than 256
TALL, LOW = 260, 96  # height in pixels, with one row of devices and with several
FLAT = 4  # up to this many devices, bars are horizontal
Segment = tuple[float, str, str, str]  # value, colour, label, tooltip


def size(n: float) -> str:
    """Format bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 100 or (unit != "MiB" and n < 1000):
            return f"{n:,.0f} {unit}" if unit == "B" or n >= 10 else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:,.1f} GiB" if n >= 1 else f"{n:.2f} GiB"


def colours(tables: Sequence[TableReport]) -> dict[str, str]:
    """Return the colour of each table. The largest tables have their own, the others share one."""
    order = sorted(tables, key=lambda t: (-t.bytes, t.table))
    return {t.table: f"var(--c{i})" if i < COLOURS else "var(--other)" for i, t in enumerate(order)}


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of (colour or class, text) pairs."""
    marks = (f'<i style="background:{c}"></i>' if c.startswith("var") else f'<i class="{c}"></i>' for c, _ in entries)
    spans = (f"<span>{mark}{escape(text)}</span>" for mark, (_, text) in zip(marks, entries, strict=True))
    return f'<div class="legend">{"".join(spans)}</div>'


def table_legend(plan: PlanReport) -> str:
    """Return the legend of the tables' colours and sizes."""
    shown = sorted(plan.tables, key=lambda t: (-t.bytes, t.table))
    colour = colours(plan.tables)
    entries = [(colour[t.table], f"{t.table} {size(t.bytes)}") for t in shown[:COLOURS]]
    if len(shown) > COLOURS:
        rest = sum(t.bytes for t in shown[COLOURS:])
        entries.append(("var(--other)", f"{len(shown) - COLOURS} others {size(rest)}"))
    return legend([*entries, ("hatch", "reserved"), ("var(--free)", "free")])


def memory(plan: PlanReport, kind: str, magnified: bool = False) -> str:
    """Draw one bar per device, as high as its memory.

    Args:
        kind: "hbm" or "ddr".
        magnified: scale the bars to the fullest device's tables instead of to the devices' memory.
    """
    by_device: dict[int, list[Segment]] = {d.rank: [] for d in plan.devices}
    colour = colours(plan.tables)
    for t in sorted(plan.tables, key=lambda t: (-t.bytes, t.table)):
        for s in t.shards:
            if s.get(kind):
                by_device[s["rank"]].append((s[kind], colour[t.table], t.table, _shard_tooltip(t, s, kind)))
    top = max(getattr(d, kind if magnified else f"{kind}_size") for d in plan.devices) or 1

    def segments(d: DeviceReport) -> list[Segment]:
        if magnified:
            return by_device[d.rank]
        reserved = getattr(d, f"{kind}_reserved")
        tooltip = (
            f"device {d.rank}\nreserved: {reserved / GIB:.1f} GiB for the dense part, the ids of a step and a margin"
        )
        return [*by_device[d.rank], *([(reserved, "hatch", "", tooltip)] if reserved > 0 else [])]

    ticks = [(x, size(top * x) if magnified else f"{top * x / GIB:,.0f} GiB") for x in (0, 0.5, 1)]
    return _charts(plan, segments, top, ticks, lambda d: _device_tooltip(d, kind))


def time(plan: PlanReport) -> str:
    """Draw one bar per device: compute and links of a step, to the scale of the slowest device."""
    top = plan.step_ms or 1.0

    def segments(d: DeviceReport) -> list[Segment]:
        tooltip = f"device {d.rank}: {d.step_ms:.3g} ms\ncompute {d.compute_ms:.3g} ms, links {d.links_ms:.3g} ms"
        return [(d.compute_ms, "var(--compute)", "", tooltip), (d.links_ms, "var(--links)", "", tooltip)]

    mean = sum(d.step_ms for d in plan.devices) / len(plan.devices)
    ticks = [(x, f"{top * x:.3g} ms") for x in (0, 0.5, 1)]
    return _charts(plan, segments, top, ticks, lambda d: f"device {d.rank}", mean=mean / top)


def _device_tooltip(d: DeviceReport, kind: str) -> str:
    used, free, size = (getattr(d, kind + part) / GIB for part in ("", "_free", "_size"))
    return f"device {d.rank}: {used:,.1f} of {size:,.0f} GiB for tables, {free:,.1f} free"


def _shard_tooltip(t: TableReport, s: dict[str, object], kind: str) -> str:
    row, column = s["offsets"]  # type: ignore[misc]
    rows, columns = s["rows"], s["columns"]
    across = "all columns" if columns == t.dim else f"columns {column}\u2013{column + columns - 1} of {t.dim}"  # type: ignore[operator, has-type]
    down = "all rows" if rows == t.rows else f"rows {row:,}\u2013{row + rows - 1:,} of {t.rows:,}"  # type: ignore[operator, has-type]
    cached = f"\na cache of {t.cache_load_factor:.0%} of the rows" if t.cache_load_factor and kind == "hbm" else ""
    return f"{t.table}: {t.type}, {t.kernel}\n{down}, {across}{cached}\n{size(s[kind])} on device {s['rank']}"  # type: ignore[arg-type]


def _charts(
    plan: PlanReport,
    segments: Callable[[DeviceReport], list[Segment]],
    top: float,
    ticks: list[tuple[float, str]],
    tooltip: Callable[[DeviceReport], str],
    mean: float | None = None,
) -> str:
    """Draw the bars of all devices, in rows."""
    per_row = DEVICES_PER_ROW if len(plan.devices) <= 4 * DEVICES_PER_ROW else MANY_PER_ROW
    many = len(plan.devices) > per_row
    height = LOW if many else TALL
    kind = " dense" if many else " flat" if len(plan.devices) <= FLAT else ""
    out = []
    for start in range(0, len(plan.devices), per_row):
        row = plan.devices[start : start + per_row]
        gap = 10 if len(row) <= 8 else 5 if len(row) <= 32 else 2 if len(row) <= 64 else 1
        bars = "".join(_column(plan, d, segments(d), top, height, tooltip(d), len(row)) for d in row)
        marks = "".join(f'<span style="bottom:{x:.0%};--at:{x:.0%}">{escape(text)}</span>' for x, text in ticks)
        line = (
            f'<div class="mean" style="top:{(1 - mean) * height:.1f}px;--at:{mean:.2%}"></div>'
            if mean is not None
            else ""
        )
        out.append(
            f'<div class="chart{kind}" style="--h:{height}px;--gap:{gap}px">'
            f'<div class="axis">{marks}</div><div class="cols">{line}{bars}</div></div>'
        )
    return "".join(out)


def _column(
    plan: PlanReport, d: DeviceReport, segments: list[Segment], top: float, height: int, tooltip: str, per_row: int
) -> str:
    """Draw the bar of one device. Segments of less than 1.5 pixels are drawn as one."""
    drawn, small, count = [], 0.0, 0
    for value, colour, label, tip in segments:
        pixels = value / top * height
        if pixels < 1.5 and colour != "hatch" and label:
            small, count = small + value, count + 1
            continue
        wide = pixels >= 16 if per_row > FLAT else value / top > 0.07
        text = f"<em>{escape(label)}</em>" if label and wide and per_row <= 16 else ""
        paint = 'class="hatch" style="' if colour == "hatch" else f'style="background:{colour};'
        drawn.append(f'<i {paint}--s:{value / top:.3%}" data-t="{escape(tip)}">{text}</i>')
    if count:
        few = f"{count} small shards\n{size(small)} on device {d.rank}"
        drawn.append(f'<i class="few" style="--s:{small / top:.3%}" data-t="{few}"></i>')
    every = 1 if per_row <= 32 else max(plan.devices_a_node, 4)
    name = str(d.rank) if d.rank % every == 0 else ""
    if per_row <= 4:
        name = f"device {d.rank}"
    node = plan.devices_a_node > 1 and d.rank % MANY_PER_ROW and d.rank % plan.devices_a_node == 0
    start = f'<div class="col{" node" if node else ""}"><div class="bar" data-t="{escape(tooltip)}">'
    return f"{start}{''.join(drawn)}</div><span>{name}</span></div>"
