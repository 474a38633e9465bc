"""Plans on the terminal."""

from rich.table import Table

from recsys.console import results, say
from recsys.memory import GIB
from recsys.sharding.estimate.compare import (
    COLUMNS,
    PlanAttempt,
    best_first,
    cells,
    verdict,
    why_not,
)
from recsys.sharding.estimate.report import PlanReport, TableReport

SHOWN = 16  # devices in the table; the files have all
LEFT = ("table", "type", "kernel", "devices", "sharding", "fits", "bound by", "why not")


def show(found: PlanReport) -> None:
    """Tables of the tables and of the devices."""
    tables = _table(
        f"plan for {found.cluster}: {found.world_size} devices",
        ("table", "rows", "dim", "GiB", "optimizer GiB", "type", "kernel", "devices", "group"),
    )
    for t in sorted(found.tables, key=lambda t: -t.bytes):
        sizes = (f"{t.bytes / GIB:.3f}", f"{t.optimizer / GIB:.3f}")
        kernel = t.kernel + (f" {t.cache_load_factor:.0%}" if t.cache_load_factor else "")
        where = where_of(t, found.world_size)
        tables.add_row(t.table, f"{t.rows:,}", str(t.dim), *sizes, t.type, kernel, where, str(t.group))
    results.print(tables)
    results.print(_devices(found))
    size = sum(t.bytes for t in found.tables) / GIB
    calls = max(d.groups for d in found.devices)
    say(
        f"{size:,.1f} GiB of weights; a step of {found.batch_size:,} rows: {found.step_ms:.3g} ms in the embeddings "
        f"(estimated), bound by {found.bound}; imbalance {found.imbalance:.2f}; "
        f"{calls} lookup kernel{'s' if calls > 1 else ''} a device (tables of one group share one)"
    )


def _devices(found: PlanReport) -> Table:
    names = (
        "device", "tables", "groups", "HBM GiB", "free", "DDR GiB", "free", "ids a step", "read MB", "sent MB",
        "ms a step",
    )  # fmt: skip
    shown, title = found.devices, "devices"
    if len(shown) > SHOWN:
        shown = sorted(shown, key=lambda d: (-d.step_ms, -d.hbm))[:SHOWN]
        title = f"the {SHOWN} slowest of {found.world_size} devices"
    devices = _table(title, names)
    for d in shown:
        numbers = (d.hbm / GIB, d.hbm_free / GIB, d.ddr / GIB, d.ddr_free / GIB)
        devices.add_row(
            str(d.rank), str(d.tables), str(d.groups), *(f"{n:,.1f}" for n in numbers), f"{d.ids:,.0f}",
            f"{d.lookup_bytes / 1e6:,.1f}", f"{d.sent_bytes / 1e6:,.1f}", f"{d.step_ms:.3g}",
        )  # fmt: skip
    return devices


def show_side_by_side(tried: list[PlanAttempt]) -> None:
    """One row a choice, the best first."""
    table = _table("plans side by side, the best first", COLUMNS[:-1])
    for t in best_first(tried):
        table.add_row(*cells(t)[:-1], style=None if t.plan is not None else "dim")
    results.print(table)
    for t in tried:
        if t.plan is None:
            results.print(f"{t.name} does not fit: {why_not(t)}", markup=False)
    say(verdict(tried))


def where_of(t: TableReport, world: int) -> str:
    """The devices that hold it: all, a range, or some."""
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
