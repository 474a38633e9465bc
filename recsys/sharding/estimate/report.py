"""Estimates of a plan by table and by device: bytes, lookups, traffic and time.

weights of a table = rows x dim x 4 bytes (float32), or 2 (sharding.table_dtype=fp16)
lookup bytes per step = ids x (dim x 4 + 8), for the rows read and their int64 ids
all-to-all bytes per step that a device sends to its W - 1 peers: vectors in the forward pass and as many gradients in
the backward pass. Table- and column-wise tables send pooled vectors of rows x dim x 4 bytes, row-wise tables partial
sums, within a node first; on CPUs twice, where gloo reduces and scatters by an all-reduce (a benchmark measures it).
Replicas all-reduce their whole gradient, 2 (W - 1) / W x weights.

Times on GPUs are those of these bytes (clock.py, compared with measured steps). TorchRec's estimates, by which its
planner chooses, are planner_ms: they take a tenth of the bus for rows in host memory, for instance. On CPUs, times are
TorchRec's. Reserved memory is the part that its planner does not give to tables: for the dense part with its optimizer
and gradients, for the ids of a step, and a margin.

A group is the set of tables that one fused kernel call looks up on a device: tables of the same embedding collection,
sharding type, pooling and kind of kernel (fused, wherever the rows are, or dense). All tables have the same optimizer
and number format here. FBGEMM takes tables of different dims in one call.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import Shard, ShardingOption

from recsys.schema.command_schemas import ClusterConfig
from recsys.schema.run_schema import CommsConfig
from recsys.sharding.estimate.clock import VECTORS, DeviceReport, StepClock, table_parts
from recsys.sharding.optimizers import SparseOptimizer
from recsys.sharding.sharders import BYTES
from recsys.sharding.table_memory import optimizer_bytes

SECTOR = 32  # bytes that a GPU's memory reads or writes at least
SORT = 128  # bytes per id of FBGEMM's sort in the backward pass: 4 radix passes over 12 bytes, read, written, counted
SUMMED = ("row_wise", "table_row_wise", "grid_shard")  # types whose devices hold partial sums of a pooled vector


@dataclass(frozen=True)
class ShardTraffic:
    """A shard's ids and bytes in a step.

    ids: looked up
    gathered: by lookups: rows in whole sectors, ids, and the vectors that are written
    updated: by the update: ids sorted, gradients of vectors read, rows and state read and written in whole sectors
    host: of rows in host memory that the device reads, each once in the lookups and once in the update; those that it
        writes go the other way on the bus, at the same time
    within, between: of vectors and their gradients, sent to devices of the same node and of other nodes
    id_bytes: ids and lengths that each other device sends to the shard's
    """

    ids: float
    gathered: float
    updated: float
    host: float
    within: float
    between: float
    id_bytes: float

    @classmethod
    def of(
        cls, option: ShardingOption, shard: Shard, topology: Topology, comms: CommsConfig, batch_size: int, state: int
    ) -> "ShardTraffic":
        """Return the traffic of a shard.

        Args:
            comms: the number types of exchanged vectors.
            batch_size: rows per step and device.
            state: bytes of the optimizer's state of a row of the shard.
        """
        world, (height, width) = topology.world_size, shard.size
        replica, features = option.sharding_type == "data_parallel", len(option.input_lengths)
        rows = batch_size if replica else batch_size * world
        ids = rows * sum(option.input_lengths) * (1 if replica else height / option.tensor.shape[0])
        vectors = (rows * features if option.is_pooled else ids) * width
        number = option.tensor.element_size()
        row = -(-width * number // SECTOR) * SECTOR
        touched = 2 * min(ids, height) * (row + -(-state // SECTOR) * SECTOR)  # at most all rows, read and written
        if replica:
            touched += 3 * height * width * number  # a gradient of the whole table: written, reduced, applied
        hits = {"fused_uvm_caching": option.cache_params.load_factor or 0.0 if option.cache_params else 0.0}
        in_host = 1 - hits.get(option.compute_kernel, 0.0) if "uvm" in option.compute_kernel else 0.0
        twice = option.is_pooled and option.sharding_type == "row_wise" and topology.compute_device == "cpu"
        numbers = vectors * (BYTES[comms.forward] * (2 if twice else 1) + BYTES[comms.backward])
        summed = option.is_pooled and option.sharding_type in SUMMED
        within, between = (
            reduced(height * width * number, topology) if replica else exchanged(numbers, topology, summed)
        )
        return cls(
            ids=ids,
            gathered=(1 - in_host) * ids * row + ids * 8 + vectors * 4,
            updated=(1 - in_host) * touched + vectors * 4 + ids * SORT,
            host=in_host * (min(ids, height) * row + touched / 2),
            within=within,
            between=between,
            id_bytes=0.0 if replica else 4 * (ids / world + batch_size * features),
        )


def exchanged(size: float, topology: Topology, summed: bool) -> tuple[float, float]:
    """Return the bytes that a device sends within its node and to other nodes of `size` bytes, for all devices.

    Sums are reduced within the node first; other vectors go to each device directly.
    """
    world, local = topology.world_size, topology.local_world_size
    if summed:
        return size * (local - 1) / local, size / local * (world - local) / world
    return size * (local - 1) / world, size * (world - local) / world


def reduced(size: float, topology: Topology) -> tuple[float, float]:
    """Return the bytes that a device sends within its node and to other nodes in an all-reduce of `size` bytes."""
    within, between = exchanged(size, topology, summed=True)
    return 2 * within, 2 * between


@dataclass
class TableReport:
    """One table. rows and dim describe the whole table; bytes and optimizer are the sizes of its weights and state."""

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
    ids_a_row: float = 1.0  # over all features that use the table
    group: int = 0  # tables of the same group share a kernel call on each device


@dataclass
class PlanReport:
    """A plan: its tables and devices."""

    cluster: str
    world_size: int
    batch_size: int  # rows per step over all devices
    tables: list[TableReport]
    devices: list[DeviceReport] = field(default_factory=list)
    sharding: str = ""  # name of the config's choice, if it has one
    devices_a_node: int = 1
    clock: StepClock | None = None
    no_clock: str = ""  # why a whole step cannot be predicted
    skewed: str | None = None  # tables whose lookups one device answers, if their counts are known

    @property
    def step_ms(self) -> float:
        """Time of the slowest device in the embeddings, which all others wait for."""
        return max((d.step_ms for d in self.devices), default=0.0)

    @property
    def planner_ms(self) -> float:
        """TorchRec's estimate of `step_ms`, by which its planner chooses among plans."""
        return max((d.planner_ms for d in self.devices), default=0.0)

    @property
    def compared_ms(self) -> float:
        """Time by which plans are compared: of a whole step, or in the embeddings if that is not known."""
        return self.step_ms if self.clock is None else self.clock.step_ms

    @property
    def device_ms(self) -> float:
        """Time of the slowest device, also outside of the embeddings if that is known."""
        return self.step_ms if self.clock is None else self.clock.device_ms

    @property
    def imbalance(self) -> float:
        """Time of the slowest device over the mean; 1 is even."""
        mean = sum(d.step_ms for d in self.devices) / max(len(self.devices), 1)
        return self.step_ms / mean if mean else 1.0

    @property
    def bound(self) -> str:
        """The larger part of the slowest device's step: "links" or "memory"."""
        slowest = max(self.devices, key=lambda d: d.step_ms)
        return "links" if slowest.links_ms > slowest.compute_ms else "memory"

    def to_json(self) -> dict[str, Any]:
        summary = {key: getattr(self, key) for key in ("step_ms", "planner_ms", "bound", "imbalance")}
        if self.clock is not None:
            summary |= {"whole_step_ms": self.clock.step_ms, "rows_per_second": self.clock.rows_per_second}
        return asdict(self) | {"summary": summary | {"bytes": sum(t.bytes for t in self.tables)}}


def report(
    options: Sequence[ShardingOption],
    topology: Topology,
    optim: SparseOptimizer,
    comms: CommsConfig,
    batch_size: int,
    cluster: ClusterConfig,
    usable: Topology | None = None,
) -> PlanReport:
    """Return the report of the options that the planner chose.

    Args:
        comms: the number types of the exchanged vectors.
        batch_size: rows per step and device.
        cluster: the machines.
        usable: the topology that the planner left to the tables.
    """
    world = topology.world_size
    devices = [DeviceReport(rank) for rank in range(world)]
    tables = []
    groups: dict[Any, int] = {}
    on_device: list[set[int]] = [set() for _ in devices]
    received = [0.0] * world  # bytes of ids and lengths that each other device sends to a device
    for o in options:
        group = groups.setdefault(_group_key(o), len(groups) + 1)
        rows, dim = o.tensor.shape
        load = o.cache_params.load_factor if o.cache_params else None
        tables.append(
            TableReport(
                table=o.name,
                rows=rows,
                dim=dim,
                bytes=rows * dim * o.tensor.element_size(),
                optimizer=optimizer_bytes(o, optim) // (len(o.shards) if o.sharding_type == "data_parallel" else 1),
                type=o.sharding_type,
                kernel=o.compute_kernel,
                ranks=[s.rank for s in o.shards if s.rank is not None],
                shards=[
                    {"rank": s.rank, "rows": s.size[0], "columns": s.size[1], "offsets": list(s.offset)}
                    | {"optimizer": sum(optim.state_bytes(*s.size))}
                    | ({"hbm": s.storage.hbm, "ddr": s.storage.ddr} if s.storage else {})
                    for s in o.shards
                ],
                cache_load_factor=load if o.compute_kernel == "fused_uvm_caching" else None,
                ids_a_row=sum(o.input_lengths),
                group=group,
            )
        )
        for s in o.shards:
            assert s.rank is not None and s.storage is not None and s.perf is not None
            d = devices[s.rank]
            on_device[s.rank].add(group)
            width = s.size[1]
            traffic = ShardTraffic.of(o, s, topology, comms, batch_size, sum(optim.state_bytes(1, width)))
            received[s.rank] += traffic.id_bytes
            d.hbm, d.ddr = d.hbm + s.storage.hbm, d.ddr + s.storage.ddr
            d.ids += traffic.ids
            d.lookup_bytes += traffic.ids * (width * o.tensor.element_size() + 8)
            d.gathered_bytes, d.updated_bytes = d.gathered_bytes + traffic.gathered, d.updated_bytes + traffic.updated
            d.host_bytes, d.sent_bytes = d.host_bytes + traffic.host, d.sent_bytes + traffic.within + traffic.between
            d.sent_between_bytes, d.tables = d.sent_between_bytes + traffic.between, d.tables + 1
            d.compute_ms += s.perf.fwd_compute + s.perf.bwd_compute + s.perf.prefetch_compute
            if world > 1:  # TorchRec also counts them for a single device
                d.links_ms += s.perf.fwd_comms + s.perf.bwd_comms
    for d, of in zip(devices, received, strict=True):
        d.sent_id_bytes = sum(received) - of
        d.sent_bytes += d.sent_id_bytes
    left = (usable or topology).devices
    for d, hardware, rest, numbers in zip(devices, topology.devices, left, on_device, strict=True):
        d.hbm_free, d.ddr_free = rest.storage.hbm - d.hbm, rest.storage.ddr - d.ddr
        d.hbm_reserved = hardware.storage.hbm - rest.storage.hbm
        d.ddr_reserved = hardware.storage.ddr - rest.storage.ddr
        d.groups = len(numbers)
        d.planner_ms = d.step_ms
        if cluster.device == "cuda":
            parts = table_parts(d, cluster, len({t.type for t in tables} - {"data_parallel"}))
            d.links_ms = parts[VECTORS]
            d.compute_ms = sum(parts.values()) - d.links_ms
    return PlanReport(cluster.name, world, batch_size * world, tables, devices, devices_a_node=cluster.devices)


def _group_key(option: ShardingOption) -> tuple[Any, ...]:
    """Return the properties that tables of one fused kernel call share, as in
    torchrec.distributed.embedding_sharding.group_tables.

    TorchRec groups the tables of one module and sharding type by number format, pooling, fused parameters (the
    optimizer) and kind of kernel. Rows in HBM, in host memory and cached rows have the same kind. Widths do not matter.
    """
    path, module = option.module
    configs = module.embedding_bag_configs() if option.is_pooled else module.embedding_configs()
    pooling = next((str(c.pooling) for c in configs if c.name == option.name), "") if option.is_pooled else "none"
    kernel = option.compute_kernel.removesuffix("_caching").removesuffix("_uvm")
    return path, option.sharding_type, pooling, kernel
