"""Bytes that a shard of a table moves in a step: in memory, and to other devices."""

from dataclasses import dataclass

from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.types import Shard, ShardingOption

from recsys.schema.run_schema import CommsConfig
from recsys.sharding.comms import BYTES

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
