"""What a plan means before it runs: bytes, lookups, traffic and time, by table and by device.

weights of a table = rows x dim x 4 bytes (float32)
lookup bytes a step = ids x (dim x 4 + 8): the rows read and the int64 ids that name them
all-to-all bytes a step of a device, over its W - 1 peers: what it sends in the forward pass, twice (the backward
pass sends the gradients back): pooled vectors of rows x dim x 4 bytes for table- and column-wise tables, partial sums
for row-wise ones; replicas all-reduce their whole gradient, 2 (W - 1) / W x weights
Times and memory of shards are TorchRec's estimates (torchrec.distributed.planner.shard_estimators).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import ShardingOption

from recsys.schema import SparseOptimConfig


@dataclass
class TableReport:
    """bytes: weights; optimizer: bytes of its state; dim, rows of the whole table."""

    table: str
    rows: int
    dim: int
    bytes: int
    optimizer: int
    type: str
    kernel: str
    ranks: list[int]
    shards: list[dict[str, Any]]
    cache_load_factor: float | None = None


@dataclass
class DeviceReport:
    """Bytes, a step's ids and traffic, and milliseconds of one device."""

    rank: int
    hbm: int = 0
    hbm_free: int = 0
    ddr: int = 0
    ddr_free: int = 0
    ids: float = 0.0
    lookup_bytes: float = 0.0
    sent_bytes: float = 0.0
    compute_ms: float = 0.0
    links_ms: float = 0.0
    tables: int = 0

    @property
    def step_ms(self) -> float:
        return self.compute_ms + self.links_ms


@dataclass
class PlanReport:
    cluster: str
    world_size: int
    batch_size: int  # rows a step over all devices
    tables: list[TableReport]
    devices: list[DeviceReport] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        """The slowest device's: all wait for it."""
        return max((d.step_ms for d in self.devices), default=0.0)

    @property
    def imbalance(self) -> float:
        """The slowest device's time over the mean: 1 is even."""
        mean = sum(d.step_ms for d in self.devices) / max(len(self.devices), 1)
        return self.step_ms / mean if mean else 1.0

    @property
    def bound(self) -> str:
        """What the slowest device spends most of its step on."""
        slowest = max(self.devices, key=lambda d: d.step_ms)
        return "links" if slowest.links_ms > slowest.compute_ms else "memory"

    def to_json(self) -> dict[str, Any]:
        summary = {"step_ms": self.step_ms, "bound": self.bound, "imbalance": self.imbalance}
        return asdict(self) | {"summary": summary | {"bytes": sum(t.bytes for t in self.tables)}}


def optimizer_bytes(rows: int, dim: int, name: str) -> int:
    """State of the fused optimizer, float32: a number a row, or one or two an element."""
    a_row, an_element = {
        "rowwise_adagrad": (1, 0),
        "adagrad": (0, 1),
        "sgd": (0, 0),
        "adam": (0, 2),
        "partial_rowwise_adam": (1, 1),
    }[name]
    return rows * 4 * (a_row + an_element * dim)


def report(
    options: Sequence[ShardingOption], topology: Topology, optim: SparseOptimConfig, batch_size: int, cluster: str
) -> PlanReport:
    """Of the planner's chosen options. batch_size: rows a step and device."""
    world = topology.world_size
    devices = [DeviceReport(rank) for rank in range(world)]
    tables = []
    for o in options:
        rows, dim = o.tensor.shape
        load = o.cache_params.load_factor if o.cache_params else None
        tables.append(
            TableReport(
                table=o.name,
                rows=rows,
                dim=dim,
                bytes=rows * dim * 4,
                optimizer=optimizer_bytes(rows, dim, optim.name),
                type=o.sharding_type,
                kernel=o.compute_kernel,
                ranks=[s.rank for s in o.shards if s.rank is not None],
                shards=[
                    {"rank": s.rank, "rows": s.size[0], "columns": s.size[1], "offsets": list(s.offset)}
                    for s in o.shards
                ],
                cache_load_factor=load if o.compute_kernel == "fused_uvm_caching" else None,
            )
        )
        for s in o.shards:
            assert s.rank is not None and s.storage is not None and s.perf is not None
            d = devices[s.rank]
            height, width = s.size
            whole = batch_size * world * sum(o.input_lengths)  # ids of all devices' rows
            ids = {"data_parallel": whole / world}.get(o.sharding_type, whole * height / rows)
            pooled = batch_size * (world - 1) * len(o.input_lengths) * width * 4
            sent = {"data_parallel": 2 * (world - 1) / world * rows * dim * 4}.get(o.sharding_type, 2 * pooled)
            d.hbm, d.ddr = d.hbm + s.storage.hbm, d.ddr + s.storage.ddr
            d.ids, d.lookup_bytes = d.ids + ids, d.lookup_bytes + ids * (width * 4 + 8)
            d.sent_bytes, d.tables = d.sent_bytes + sent, d.tables + 1
            d.compute_ms += s.perf.fwd_compute + s.perf.bwd_compute + s.perf.prefetch_compute
            d.links_ms += s.perf.fwd_comms + s.perf.bwd_comms
    for d, hardware in zip(devices, topology.devices, strict=True):
        d.hbm_free, d.ddr_free = hardware.storage.hbm - d.hbm, hardware.storage.ddr - d.ddr
    return PlanReport(cluster, world, batch_size * world, tables, devices)
