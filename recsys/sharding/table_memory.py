"""Memory of tables and of their optimizers' states, as FBGEMM and recsys allocate it, for TorchRec's planner."""

from typing import Any

from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Shard, ShardingOption, Storage
from torchrec.distributed.types import CacheParams

from recsys.sharding.optimizers import SparseOptimizer

SLOT = 16  # bytes beside a cached row: its id, and when it was used
LOCK = 4  # bytes more with prefetching, which counts the uses of a cached row
ROUNDED = 4  # bytes that rounding adds to a shard at most


class TableMemory(EmbeddingStorageEstimator):
    """TorchRec's estimate of weights, caches and the ids of a step, with the states and gradients that are allocated.

    TorchRec 1.8 takes states in proportion to the weights (_get_optimizer_multipler). So a row-wise optimizer has a
    number for each row of the table, instead of each row of each column block; states of float16 tables have 2 bytes a
    number, although FBGEMM's have 4; partial row-wise Adam has no row-wise state; and states follow the rows into host
    memory and caches, although FBGEMM caches none, and keeps row-wise ones on the device. It is told of no optimizer.

    Args:
        optim: the optimizer of the tables.
        fused: whether FBGEMM's kernels apply it. If not, GPUs have a gradient of the whole shard.
        prefetch: whether a pipeline loads the rows of the next batch into the cache.
    """

    def __init__(
        self,
        topology: Topology,
        constraints: dict[str, ParameterConstraints],
        optim: SparseOptimizer,
        fused: bool,
        prefetch: bool,
    ) -> None:
        super().__init__(topology=topology, constraints=constraints)
        self._on_gpu = topology.compute_device != "cpu"
        self._optim, self._fused, self._prefetch = optim, fused, prefetch
        self._widest: dict[tuple[str, str], int] = {}  # columns of cached shards, by module and type

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Set the memory of every shard of the options."""
        super().estimate(sharding_options, sharder_data_map)
        for option in filter(_is_cached, sharding_options):
            kernel = option.module[0], option.sharding_type
            self._widest[kernel] = max(self._widest.get(kernel, 0), option.shards[0].size[1])
        for option in sharding_options:
            for shard in option.shards:
                assert shard.storage is not None
                shard.storage += self._beside_weights(option, shard)

    def _beside_weights(self, option: ShardingOption, shard: Shard) -> Storage:
        rows, columns = shard.size
        by_row, by_element = self._optim.state_bytes(rows, columns)
        if not self._on_gpu:
            return Storage(hbm=0, ddr=by_row + by_element)
        in_host = "uvm" in option.compute_kernel
        dense = not self._fused or option.compute_kernel == "dense"
        gradient = rows * columns * option.tensor.element_size() if dense else 0
        on_device = by_row + gradient
        if _is_cached(option):
            more = self._slot(option) - SLOT - columns * option.tensor.element_size()
            on_device += round(rows * (option.cache_load_factor or 0) * more)
        return Storage(hbm=on_device, ddr=by_element) if in_host else Storage(hbm=on_device + by_element, ddr=0)

    def _slot(self, option: ShardingOption) -> int:
        """Return the bytes of a cached row, which has as many columns as the widest table of its kernel."""
        widest = self._widest[option.module[0], option.sharding_type]
        return widest * option.tensor.element_size() + SLOT + LOCK * self._prefetch

    def fill_caches(self, options: list[ShardingOption], usable: Topology) -> list[ShardingOption]:
        """Give the open caches of a plan what its devices have left, and return their options, to be estimated again.

        All tables of a device grow by the same share of their rows, and each has one share on all of its devices.

        Args:
            usable: the memory that tables may take.
        """
        open_ = [o for o in options if _is_cached(o) and isinstance(o.cache_params, OpenCache)]
        left = [d.storage.hbm - ROUNDED * len(open_) for d in usable.devices]
        whole = [0] * len(left)  # bytes of caches of all rows
        for o in options:
            for s in o.shards:
                assert s.rank is not None and s.storage is not None
                left[s.rank] -= s.storage.hbm
                whole[s.rank] += s.size[0] * self._slot(o) if o in open_ else 0
        for o in open_:
            more = min(max(left[s.rank], 0) / whole[s.rank] for s in o.shards if s.rank is not None)
            o.cache_params = cache((o.cache_load_factor or 0.0) + more)
        return open_


def _is_cached(option: ShardingOption) -> bool:
    return option.compute_kernel == "fused_uvm_caching"


def optimizer_bytes(option: ShardingOption, optim: SparseOptimizer) -> int:
    """Return the bytes of the states of all shards of a table, replicas included."""
    return sum(sum(optim.state_bytes(*shard.size)) for shard in option.shards)


class OpenCache(CacheParams):
    """A cache of as many rows as the devices of the plan have room for, see `fill_caches`."""


def cache(load_factor: float | None) -> CacheParams:
    """Return the parameters of a cache of this share of a table's rows; None: of what the plan leaves room for."""
    least, most = 0.001, 0.999  # TorchRec requires a load factor below 1
    return OpenCache(load_factor=least) if load_factor is None else CacheParams(load_factor=min(load_factor, most))


def usable_memory(planner: EmbeddingShardingPlanner) -> Topology | None:
    """Return the memory that a planner gave to tables in its last plan, less what it reserves."""
    # private: the planner keeps it to itself
    return planner._storage_reservation.last_reserved_topology
