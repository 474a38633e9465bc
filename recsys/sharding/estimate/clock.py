"""Prediction of a training step's time, the parts that TorchRec's estimate leaves out included.

Three lanes run side by side, and a step takes as long as the longest one:

device: lookups, exchanges of vectors, dense kernels and updates, one after another. A dense kernel takes the longest of
    its operations at the rate of matrix products, its bytes at the bandwidth of memory, and KERNEL_US.
host: the Python and the C++ that call the device, see `host_parts`.
copies: the batch to the device, and its ids to the devices that look them up, if trainer.pipeline runs them beside the
    step before; otherwise they are a part of the device's lane.

The rates are the peaks of conf/cluster times the shares below. Shares and latencies are assumed: round numbers that
were set before any step was predicted, the same for all devices and configs. The times of the host are calibrated on
one H100 and its host at commit 05650dae, as round numbers: LOOP, PIPELINE, LOOKUPS, OPTIMIZER and GRAPH on a trace of
NVIDIA's small DLRM with everything on, COMPILED on one of DCN-V2, OPERATION on the rate of DCN-V2 in bf16-mixed, and
PAGEABLE on those of DLRM with and without the pipeline. docs/explanation/step_time.md compares predictions with
published times and with all that was measured there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recsys.schema.command_schemas import ClusterConfig
from recsys.sharding.estimate.dense_work import DenseWork, KernelWork

MATMUL, STREAM, GATHER, LINK = 0.5, 0.8, 0.65, 0.75  # shares of peaks: products, elementwise kernels, rows, links
KERNEL_US = 2.0  # least time of a kernel
LATENCY_US, LATENCY_NODES_US = 20.0, 60.0  # of a collective within a node, and between nodes
BUCKET_BYTES = 25 << 20  # of gradients that DistributedDataParallel all-reduces at once
OPTIMIZER_BYTES = 28  # a dense weight's in a step of Adam: weight, gradient and two moments read, three written
PAGEABLE_GBS = 5.0  # copies of batches that are not pinned: the host's, and the device waits for them
LOOP_MS = 2.5  # of the host in a step: Lightning's loop and hooks, the loss, autograd's engine
PIPELINE_MS = 0.8  # of the host: TorchRec's pipeline, which splits the ids of the next batch and sends them
LOOKUPS_MS = 1.0  # of the host: lookups and update of tables with their KeyedJaggedTensor, whatever the plan
OPTIMIZER_MS = 0.7  # of the host: Adam of the dense part, by lists of tensors
# of the host for an operation outside of compiled code, beside its launch: Python, dispatch, autograd
OPERATION_US = 20.0
COMPILED_US = 60.0  # of the host for a kernel of code that is compiled for varying lengths, beside its launch
GRAPH_MS = 0.5  # of the host for a replay: of the forward pass, or of the backward pass
HOST, VECTORS = "the host", "vectors between devices"
HIDES_COPY, HIDES_IDS = ("base", "sparse_dist", "prefetch"), ("sparse_dist", "prefetch")


@dataclass
class DeviceReport:
    """One device: bytes, ids and traffic per step, and milliseconds."""

    rank: int
    hbm: int = 0
    hbm_free: int = 0
    ddr: int = 0
    ddr_free: int = 0
    hbm_reserved: int = 0
    ddr_reserved: int = 0
    ids: float = 0.0
    lookup_bytes: float = 0.0
    gathered_bytes: float = 0.0  # by lookups, see ShardTraffic
    updated_bytes: float = 0.0
    host_bytes: float = 0.0
    sent_bytes: float = 0.0
    sent_id_bytes: float = 0.0  # of sent_bytes: ids and lengths
    sent_between_bytes: float = 0.0  # of the other sent_bytes: to other nodes
    compute_ms: float = 0.0
    links_ms: float = 0.0
    planner_ms: float = 0.0  # TorchRec's estimate of both
    tables: int = 0
    groups: int = 0

    @property
    def step_ms(self) -> float:
        """Time of a step in the embeddings."""
        return self.compute_ms + self.links_ms

    @property
    def hbm_size(self) -> int:
        return self.hbm + self.hbm_reserved + self.hbm_free

    @property
    def ddr_size(self) -> int:
        return self.ddr + self.ddr_reserved + self.ddr_free


@dataclass
class StepClock:
    """Predicted milliseconds of a step.

    parts: of the slowest device's lane, in the order in which they run
    host: parts of the host's lane beside it
    copies_ms: the lane of the copies beside them
    rows: of a step, over all devices
    fixed_ms: the share of the device's lane that larger batches do not lengthen
    """

    parts: dict[str, float]
    host: dict[str, float]
    copies_ms: float
    rows: int
    fixed_ms: float = 0.0

    @property
    def host_ms(self) -> float:
        """The host's lane."""
        return sum(self.host.values())

    @property
    def device_ms(self) -> float:
        """The slowest device's lane."""
        return sum(self.parts.values())

    @property
    def step_ms(self) -> float:
        """The longest lane."""
        return max(self.device_ms, self.host_ms, self.copies_ms)

    @property
    def least_rows(self) -> int:
        """About the rows of a step from which the device takes longer than the host: `rows` times a power of two."""
        longer = (self.host_ms - self.fixed_ms) / max(self.device_ms - self.fixed_ms, 1e-6)
        return self.rows << math.ceil(math.log2(max(longer, 1)))

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.step_ms * 1e3

    @property
    def bound(self) -> str:
        """Name of what takes longest in a step: a part of the device's lane, or another lane."""
        if self.step_ms > self.device_ms:
            return HOST if self.host_ms >= self.copies_ms else "copies and ids"
        return max(self.parts, key=lambda part: self.parts[part])


def step_clock(
    devices: Sequence[DeviceReport],
    work: DenseWork,
    cluster: ClusterConfig,
    *,
    rows: int,
    row_bytes: float,
    pipeline: str,
    compiled: bool,
    graphs: bool,
    sharding_types: int,
) -> StepClock:
    """Predict a step.

    Args:
        devices: bytes of the tables on each device.
        work: the dense kernels of a device.
        cluster: the machines; half_tflops and float32_tflops must be set.
        rows: of a step, over all devices.
        row_bytes: bytes of a row of a batch: numbers, ids, labels.
        pipeline: trainer.pipeline, auto resolved.
        compiled: the dense kernels are those of compiled code (trainer.compile).
        graphs: they are launched as two graphs (trainer.cuda_graphs).
        sharding_types: number of different types of the plan's tables, each of which has collectives of its own.
    """
    world = cluster.nodes * cluster.devices
    latency = latency_ms(cluster)
    forward, backward = (sum(kernel_ms(k, cluster) for k in work.kernels if k.backward is b) for b in (False, True))
    products = sum(kernel_ms(k, cluster) for k in work.kernels if k.flops)
    gigabytes_per_second = cluster.pcie_gbs * LINK if pipeline in HIDES_COPY else PAGEABLE_GBS
    copy = rows / world * row_bytes / (gigabytes_per_second * 1e6)
    reduced = max(0.0, all_reduce_ms(work.weights * 4, cluster) - backward)  # the rest runs beside the backward pass
    lanes = []
    share = (world - cluster.devices) / max(world - 1, 1)  # of ids, to other nodes
    for d in devices:
        ids = links_ms(d.sent_id_bytes * (1 - share), d.sent_id_bytes * share, cluster) + 2 * sharding_types * latency
        tables = table_parts(d, cluster, sharding_types)
        beside = (copy if pipeline in HIDES_COPY else 0) + (ids if pipeline in HIDES_IDS else 0)
        parts = {
            "copies and ids": copy + ids - beside,
            "lookups": tables["lookups"],
            VECTORS: tables[VECTORS],
            "matrix products": products,
            "other dense kernels": forward + backward - products,
            "gradients between devices": reduced,
            "dense optimizer": work.weights * OPTIMIZER_BYTES / (cluster.hbm_gbs * STREAM * 1e6),
            "update of tables": tables["update of tables"],
            "rows in host memory": tables["rows in host memory"],
        }
        by_host = host_parts(len(work.kernels), cluster.launch_us, pipeline, compiled=compiled, graphs=graphs)
        by_host["copies"] = 0.0 if pipeline in HIDES_COPY else copy
        shown, shown_host = ({k: ms for k, ms in lane.items() if ms} for lane in (parts, by_host))
        fixed = parts["gradients between devices"] + parts["dense optimizer"] + 2 * sharding_types * latency
        fixed += len(work.kernels) * KERNEL_US / 1e3
        lanes.append(StepClock(shown, shown_host, beside, rows, fixed))
    return max(lanes, key=lambda lane: (lane.step_ms, lane.device_ms))


def host_parts(kernels: int, launch_us: float, pipeline: str, *, compiled: bool, graphs: bool) -> dict[str, float]:
    """Return the milliseconds of the host in a step by part.

    They do not depend on the plan: only plans with one group of tables were measured.

    Args:
        kernels: number of dense kernels.
        launch_us: time of a launch.
        pipeline: trainer.pipeline, auto resolved.
        compiled: the dense kernels are those of compiled code.
        graphs: they are launched as two graphs.
    """
    each = (COMPILED_US if compiled else OPERATION_US) + launch_us
    return {
        "loop": LOOP_MS,
        "pipeline and ids": PIPELINE_MS if pipeline in HIDES_IDS else 0.0,
        "lookups and update of tables": LOOKUPS_MS,
        "dense kernels": 2 * GRAPH_MS if graphs else kernels * each / 1e3,
        "dense optimizer": OPTIMIZER_MS,
    }


def kernel_ms(kernel: KernelWork, cluster: ClusterConfig) -> float:
    """Return the milliseconds of a dense kernel: operations, bytes, or the least time of a kernel."""
    peak = cluster.half_tflops if kernel.half else cluster.float32_tflops
    assert peak is not None
    memory = kernel.bytes / (cluster.hbm_gbs * STREAM * 1e6)
    return max(kernel.flops / (peak * MATMUL * 1e9), memory, KERNEL_US / 1e3)


def all_reduce_ms(size: float, cluster: ClusterConfig) -> float:
    """Return the milliseconds of an all-reduce of `size` bytes, within nodes and then by each device between nodes."""
    n, m = cluster.devices, cluster.nodes
    if n * m == 1:
        return 0.0
    latency = latency_ms(cluster)
    within, between = 2 * (n - 1) / n * size, 2 * (m - 1) / m * size / n
    return links_ms(within, between, cluster) + latency * -(-size // BUCKET_BYTES)


def table_parts(d: DeviceReport, cluster: ClusterConfig, sharding_types: int) -> dict[str, float]:
    """Return the milliseconds of a GPU's step in its tables, by part.

    Args:
        sharding_types: number of different types of the plan's tables, each of which has collectives of its own.
    """
    within = d.sent_bytes - d.sent_id_bytes - d.sent_between_bytes
    return {
        "lookups": d.gathered_bytes / (cluster.hbm_gbs * GATHER * 1e6),
        VECTORS: links_ms(within, d.sent_between_bytes, cluster) + 2 * sharding_types * latency_ms(cluster),
        "update of tables": d.updated_bytes / (cluster.hbm_gbs * GATHER * 1e6),
        "rows in host memory": d.host_bytes / (cluster.pcie_gbs * GATHER * 1e6),
    }


def latency_ms(cluster: ClusterConfig) -> float:
    """Return the milliseconds of a collective without bytes."""
    if cluster.nodes * cluster.devices == 1:
        return 0.0
    return (LATENCY_US if cluster.nodes == 1 else LATENCY_NODES_US) / 1e3


def links_ms(within: float, between: float, cluster: ClusterConfig) -> float:
    """Return the milliseconds in which a device sends bytes within its node and, at the same time, to other nodes."""
    return max(within / cluster.intra_node_gbs, between / cluster.inter_node_gbs) / (LINK * 1e6)
