"""Memory that is missing when TorchRec's planner finds no plan.

Its PlannerError does not say which tables are too large, nor by how much. This module computes both from TorchRec's own
estimates. For each table it takes the allowed way to shard it that needs least memory, preferring those whose shards
each fit on a device. It then lays out the shards, the largest first, each on the device with most room.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ShardingOption, Storage

from recsys.base.memory import GIB
from recsys.sharding.optimizers import SparseOptimizer
from recsys.sharding.table_memory import optimizer_bytes, usable_memory

SHOWN = 10
COLUMNS = ("table", "rows", "dim", "weights", "optimizer", "needed", "largest shard", "type")
SIZES: dict[str, Callable[[Storage], int]] = {  # of a kind of memory
    "memory": lambda s: s.ddr,
    "host memory": lambda s: s.ddr,
    "HBM": lambda s: s.hbm,
    "HBM and host memory": lambda s: s.hbm + s.ddr,
}
EVERYWHERE = ("row_wise", "data_parallel")  # a shard on every device

Layout = list[list[tuple[str, int]]]


@dataclass
class TableNeed:
    """Bytes that one table needs at least. `largest` is its largest shard, which must fit on one device."""

    table: str
    rows: int
    dim: int
    weights: int
    optimizer: int
    needed: int
    largest: int
    type: str


@dataclass
class Infeasibility:
    """Bytes that the tables need and that the devices have.

    kind: kind of memory
    rooms: bytes that each device has for tables
    layout: (table, bytes) of the shards on each device
    """

    kind: str
    tables: list[TableNeed]  # the largest first
    rooms: list[int]
    layout: Layout

    @property
    def devices(self) -> int:
        return len(self.rooms)

    @property
    def needed(self) -> int:
        """Bytes that all tables need together."""
        return sum(t.needed for t in self.tables)

    @property
    def room(self) -> int:
        """Bytes that all devices have for tables."""
        return sum(self.rooms)

    @property
    def over(self) -> dict[int, int]:
        """Bytes beyond its room, for each device that has too little."""
        beyond = [sum(n for _, n in shards) - room for shards, room in zip(self.layout, self.rooms, strict=True)]
        return {d: n for d, n in enumerate(beyond) if n > 0}

    @property
    def bytes_over(self) -> int:
        """Bytes missing over all devices, or on the worst device if the total would fit."""
        return max(self.needed - self.room, *self.over.values(), 0)

    @property
    def where(self) -> str:
        """The place where memory is missing, as in 'GiB over in total'."""
        if self.devices == 1 or self.needed > self.room:
            return "in total"
        return f"on device {max(self.over, key=lambda d: self.over[d])}" if self.over else ""

    @property
    def most(self) -> list[TableNeed]:
        """The largest tables, which together need nine tenths of the memory."""
        out: list[TableNeed] = []
        for t in self.tables[:SHOWN]:
            if sum(o.needed for o in out) > 0.9 * self.needed:
                break
            out.append(t)
        return out

    def __str__(self) -> str:
        largest = ", ".join(f"{t.table} {gib(t.needed)}" for t in self.most[:3])
        if not self.bytes_over:
            return "the tables are small enough, but no layout has the allowed types and kernels"
        return (
            f"{gib(self.bytes_over)} GiB over {self.where} (needed: {gib(self.needed)}, the largest tables: {largest}; "
            f"available: {gib(self.room)} GiB of {self.kind}, {gib(self.room / self.devices)} per device)"
        )

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return (kind, cells under COLUMNS) of the largest tables, of the others together, and of all."""

        def sums(tables: list[TableNeed]) -> list[str]:
            numbers = (sum(getattr(t, key) for t in tables) for key in ("weights", "optimizer", "needed"))
            return ["", "", *map(gib, numbers), "", ""]

        out = []
        for t in self.most:
            sizes = map(gib, (t.weights, t.optimizer, t.needed, t.largest))
            out.append(("", [t.table, f"{t.rows:,}", str(t.dim), *sizes, t.type]))
        if rest := self.tables[len(self.most) :]:
            out.append(("no", [f"{len(rest)} others", *sums(rest)]))
        return [*out, ("sum", ["all", *sums(self.tables)])]

    def table(self) -> Table:
        """Return a table for the terminal: the largest tables, their sizes, and the bytes that are missing."""
        room = f"{self.devices} x {gib(self.room / self.devices)} GiB of {self.kind} are available (sizes in GiB)"
        table = Table(title=f"tables that do not fit: {room}", title_justify="left")
        for name in COLUMNS:
            words = name in ("table", "type")
            table.add_column(name, justify="left" if words else "right", no_wrap=name in COLUMNS[1:6])
        for style, cells in self.rows():
            table.add_row(*cells, style="dim" if style == "no" else None)
        table.add_section()
        if self.needed > self.room:
            table.add_row("missing in total", *[""] * 4, gib(self.needed - self.room), "", "")
        worst = sorted(self.over.items(), key=lambda item: -item[1])
        for device, n in worst[:4] if self.devices > 1 else ():
            table.add_row(f"missing on device {device}", *[""] * 4, gib(n), "", "")
        if len(worst) > 4:
            table.add_row(f"and on {len(worst) - 4} other devices", *[""] * 7, style="dim")
        return table


def gib(n: float) -> str:
    """Format bytes in GiB, with one decimal or two digits."""
    return f"{n / GIB:,.1f}" if n == 0 or n >= 0.05 * GIB else f"{n / GIB:.2g}"


def infeasible(
    planner: EmbeddingShardingPlanner,
    sharders: list[Any],
    module: nn.Module,
    topology: Topology,
    optim: SparseOptimizer,
) -> Infeasibility:
    """Compute why a planner found no plan.

    Args:
        planner: the planner, after it has failed.
        optim: the optimizer of the tables, whose states need memory, too.
    """
    options: dict[str, list[ShardingOption]] = {}
    # private: the planner keeps its options and the memory it may use to itself
    for o in planner._enumerator.enumerate(module, sharders):  # type: ignore[union-attr]
        options.setdefault(f"{o.path}.{o.name}", []).append(o)
    choices, usable = list(options.values()), usable_memory(planner)
    kinds = ["HBM"] if topology.compute_device != "cpu" else ["memory"]
    if any("uvm" in o.compute_kernel for of_table in choices for o in of_table):
        # each may be short where there is enough of both together
        kinds = ["HBM and host memory", "HBM", "host memory"]
    stores = [d.storage if usable else Storage(0, 0) for d in (usable or topology).devices]
    found = [_missing(kind, choices, stores, topology.local_world_size, optim) for kind in kinds]
    return next((m for m in found if m.bytes_over), found[0])


def _missing(
    kind: str, choices: list[list[ShardingOption]], stores: list[Storage], local: int, optim: SparseOptimizer
) -> Infeasibility:
    """Compare the memory of one kind with what the least of each table's options need."""
    size = SIZES[kind]
    rooms = [size(s) for s in stores]
    least = [min(c, key=lambda o: (max(_sizes(o, size)) > max(rooms), size(o.total_storage))) for c in choices]
    tables = []
    for o in least:
        rows, dim = o.tensor.shape
        sizes = _sizes(o, size)
        copies = len(o.shards) if o.sharding_type == "data_parallel" else 1
        weights, state = rows * dim * o.tensor.element_size() * copies, optimizer_bytes(o, optim)
        tables.append(TableNeed(o.name, rows, dim, weights, state, sum(sizes), max(sizes), o.sharding_type))
    tables.sort(key=lambda t: -t.needed)
    # place the shards, the largest first, each on the device with most room
    left = list(rooms)
    layout: Layout = [[] for _ in rooms]
    for o in sorted(least, key=lambda o: -max(_sizes(o, size))):
        sizes = _sizes(o, size)
        if o.sharding_type in EVERYWHERE and len(sizes) == len(left):
            places = list(range(len(left)))
        elif o.sharding_type == "table_row_wise" and len(sizes) == local:
            host = max(range(0, len(left), local), key=lambda h: min(left[h : h + local]))
            places = list(range(host, host + local))
        else:
            places = sorted(range(len(left)), key=lambda d: -left[d])[: len(sizes)]
        for i, n in enumerate(sizes):
            device = places[i % len(places)]
            left[device] -= n
            layout[device].append((o.name, n))
    return Infeasibility(kind, tables, rooms, layout)


def _sizes(option: ShardingOption, size: Callable[[Storage], int]) -> list[int]:
    return [size(s.storage or Storage(0, 0)) for s in option.shards]
