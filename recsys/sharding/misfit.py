"""What does not fit, and by how much, where TorchRec's planner finds no plan.

Its PlannerError tells little that one can act on. So this counts again, by its own estimates: of the ways to shard a
table that the config allows, the one that takes least memory; then its shards are laid out, largest first, each on the
device with most room, and what is beyond a device's room is what is over there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ShardingOption, Storage

from recsys.schema import SparseOptimConfig
from recsys.sharding.report import optimizer_bytes

GIB = 1 << 30
SHOWN = 10
EVERYWHERE = ("row_wise", "data_parallel")  # a shard on every device


@dataclass
class TableNeed:
    """Bytes that one table needs at the least. largest: its largest shard, which must lie on one device."""

    table: str
    rows: int
    dim: int
    weights: int
    optimizer: int
    needed: int
    largest: int
    type: str


@dataclass
class Misfit:
    """needed, room: bytes over all devices, of `kind`; over: by device, what is beyond its room."""

    kind: str
    needed: int
    room: int
    tables: list[TableNeed]  # the largest first
    over: dict[int, int] = field(default_factory=dict)
    devices: int = 1

    @property
    def bytes_over(self) -> int:
        """Over all, or where all together would fit, on the worst device."""
        return max(self.needed - self.room, *self.over.values(), 0)

    @property
    def where(self) -> str:
        if self.devices == 1 or self.needed > self.room:
            return "in all"
        return f"on device {max(self.over, key=lambda d: self.over[d])}" if self.over else ""

    @property
    def most(self) -> list[TableNeed]:
        """The tables that make up most of it: nine tenths."""
        out: list[TableNeed] = []
        for t in self.tables[:SHOWN]:
            if sum(o.needed for o in out) > 0.9 * self.needed:
                break
            out.append(t)
        return out

    def __str__(self) -> str:
        told = ", ".join(f"{t.table} {gib(t.needed)}" for t in self.tables[:3])
        if not self.bytes_over:
            return "the tables are small enough, but the allowed types and kernels leave no layout"
        return (
            f"{gib(self.bytes_over)} GiB over {self.where} (needed: {gib(self.needed)}, the largest tables: {told}; "
            f"there: {gib(self.room)} GiB of {self.kind}, {gib(self.room / self.devices)} a device)"
        )

    def table(self) -> Table:
        """Which tables, how large, how far over: for the terminal."""
        room = f"{self.devices} x {gib(self.room / self.devices)} GiB of {self.kind} are there for tables"
        table = Table(title=f"what does not fit: {room}", title_justify="left")
        for name in ("table", "rows", "dim", "weights GiB", "optimizer GiB", "needed GiB", "largest shard", "type"):
            table.add_column(name, justify="left" if name in ("table", "type") else "right")
        for t in self.most:
            sizes = (gib(n) for n in (t.weights, t.optimizer, t.needed, t.largest))
            table.add_row(t.table, f"{t.rows:,}", str(t.dim), *sizes, t.type)
        if rest := self.tables[len(self.most) :]:
            sums = (sum(getattr(t, key) for t in rest) for key in ("weights", "optimizer", "needed"))
            table.add_row(f"{len(rest)} others", "", "", *map(gib, sums), "", "", style="dim")
        table.add_section()
        sums = (sum(getattr(t, key) for t in self.tables) for key in ("weights", "optimizer", "needed"))
        table.add_row("all", "", "", *map(gib, sums), "", "")
        table.add_row("over in all", "", "", "", "", gib(max(self.needed - self.room, 0)), "", "")
        for device, n in sorted(self.over.items(), key=lambda item: -item[1])[:4]:
            table.add_row(f"over on device {device}", "", "", "", "", gib(n), "", "")
        if len(self.over) > 4:
            table.add_row(f"and on {len(self.over) - 4} others", "", "", "", "", "", "", "", style="dim")
        return table


def gib(n: float) -> str:
    """GiB with a decimal, or as many as a small number needs."""
    return f"{n / GIB:,.1f}" if n == 0 or n >= 0.05 * GIB else f"{n / GIB:.2g}"


def misfit(
    planner: EmbeddingShardingPlanner, sharder: Any, module: nn.Module, topology: Topology, optim: SparseOptimConfig
) -> Misfit:
    """Why `planner` has found no plan for `module`."""
    options: dict[str, list[ShardingOption]] = {}
    for o in planner._enumerator.enumerate(module, [sharder]):  # type: ignore[union-attr]
        options.setdefault(f"{o.path}.{o.name}", []).append(o)
    kind = _kind(topology, [o for several in options.values() for o in several])
    size = {"HBM": lambda s: s.hbm, "memory": lambda s: s.ddr}.get(kind, lambda s: s.hbm + s.ddr)
    usable = planner._storage_reservation.last_reserved_topology
    rooms = [size(d.storage) if usable else 0 for d in (usable or topology).devices]
    least = [min(several, key=lambda o: _cost(o, size)) for several in options.values()]
    tables = [_need(o, size, optim) for o in least]
    return Misfit(
        kind=kind,
        needed=sum(t.needed for t in tables),
        room=sum(rooms),
        tables=sorted(tables, key=lambda t: -t.needed),
        over=_lay_out(least, rooms, size, topology.local_world_size),
        devices=len(rooms),
    )


def _kind(topology: Topology, options: Sequence[ShardingOption]) -> str:
    """Which memory the tables may lie in."""
    if topology.compute_device == "cpu":
        return "memory"
    return "HBM and host memory" if any("uvm" in o.compute_kernel for o in options) else "HBM"


def _cost(option: ShardingOption, size: Any) -> tuple[int, int]:
    """To the nearest GiB/64, so that a table in many shards comes before one as large in a single shard."""
    return round(size(option.total_storage) / (GIB / 64)), max(_sizes(option, size))


def _sizes(option: ShardingOption, size: Any) -> list[int]:
    return [size(s.storage or Storage(0, 0)) for s in option.shards]


def _need(o: ShardingOption, size: Any, optim: SparseOptimConfig) -> TableNeed:
    rows, dim = o.tensor.shape
    sizes = _sizes(o, size)
    copies = len(o.shards) if o.sharding_type == "data_parallel" else 1
    weights, state = rows * dim * 4 * copies, optimizer_bytes(rows, dim, optim.name) * copies
    return TableNeed(o.name, rows, dim, weights, state, sum(sizes), max(sizes), o.sharding_type)


def _lay_out(options: Sequence[ShardingOption], rooms: list[int], size: Any, local: int) -> dict[int, int]:
    """What is beyond each device's room, by device, for shards laid out the largest first."""
    left = list(rooms)
    for o in sorted(options, key=lambda o: -max(_sizes(o, size))):
        sizes = _sizes(o, size)
        if o.sharding_type in EVERYWHERE and len(sizes) == len(left):
            places = list(range(len(left)))
        elif o.sharding_type == "table_row_wise" and len(sizes) == local:
            host = max(range(0, len(left), local), key=lambda h: min(left[h : h + local]))
            places = list(range(host, host + local))
        else:
            places = sorted(range(len(left)), key=lambda d: -left[d])[: len(sizes)]
        for i, n in enumerate(sizes):
            left[places[i % len(places)]] -= n
    return {d: -n for d, n in enumerate(left) if n < 0}
