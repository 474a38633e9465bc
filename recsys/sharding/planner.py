"""The machines to plan for, sharding plans for them, and modules sharded by a plan."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, dist_data
from torchrec.distributed.comm_ops import ReduceScatterV_Wait
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.types import PlannerError, ShardingOption
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from recsys.base.errors import DoesNotFit, UserError
from recsys.base.memory import GIB
from recsys.schema.command_schemas import ClusterConfig
from recsys.schema.run_schema import ShardingConfig
from recsys.sharding.constraints import constraints
from recsys.sharding.infeasible import infeasible
from recsys.sharding.optimizers import SparseOptimizer
from recsys.sharding.sharders import SequenceSharder, Sharder, check_comms
from recsys.sharding.table_memory import TableMemory, usable_memory
from recsys.sharding.tables import TableInfo, tables
from recsys.sharding.touched_rows import use_touched_rows


def this_machine(accelerator: str, devices: int) -> ClusterConfig:
    """Return the cluster config of this machine, shared by `devices` processes."""
    here = ClusterConfig(name="this machine", device="cpu" if accelerator == "cpu" else "cuda", devices=devices)
    here.ddr_gib = _memory() / GIB
    if here.device == "cuda":
        here.hbm_gib = torch.cuda.get_device_properties(0).total_memory / GIB
    return here


def _memory() -> int:
    """Return the bytes of RAM, or the container's limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    return min(whole, int(text)) if text != "max" else whole


def topology(cluster: ClusterConfig) -> Topology:
    """Convert GiB and GB/s into the bytes and bytes per millisecond that TorchRec plans with."""
    per_ms = 1e9 / 1e3
    return Topology(
        world_size=cluster.nodes * cluster.devices,
        local_world_size=cluster.devices,
        compute_device=cluster.device,
        hbm_cap=int((cluster.hbm_gib or 0) * GIB),
        ddr_cap=int((cluster.ddr_gib or 0) * GIB / cluster.devices),
        hbm_mem_bw=cluster.hbm_gbs * per_ms,
        ddr_mem_bw=cluster.ddr_gbs * per_ms / cluster.devices,
        hbm_to_ddr_mem_bw=cluster.pcie_gbs * per_ms,
        intra_host_bw=cluster.intra_node_gbs * per_ms,
        inter_host_bw=cluster.inter_node_gbs * per_ms,
    )


def check_cluster(cluster: ClusterConfig) -> None:
    """Fill in this machine's memory if the config leaves it unset. Raises UserError for a GPU without memory."""
    if cluster.ddr_gib is None:
        cluster.ddr_gib = _memory() / GIB
    if cluster.device == "cuda" and not (cluster.hbm_gib or 0) > 0:
        raise UserError(f"cluster.hbm_gib={cluster.hbm_gib}: must be above 0 if cluster.device=cuda")


def make_planner(
    module: nn.Module,
    sharding: ShardingConfig,
    optim: SparseOptimizer,
    topology: Topology,
    batch_size: int,
    ids: dict[str, list[float]] | None = None,
    seconds: int | None = None,
    load_factors: dict[str, float] | None = None,
    accumulate: int = 1,
    prefetch: bool = False,
    bfloat16: bool = False,
) -> tuple[EmbeddingShardingPlanner, list[ModuleSharder[nn.Module]]]:
    """Return TorchRec's planner for these machines, and its sharders.

    Args:
        batch_size: rows per process and step.
        ids: expected ids per row of each feature of a table, by table; 1 by default.
        seconds: time limit, after which the planner returns its best plan so far.
        load_factors: see `constraints`.
        accumulate: number of batches whose gradients are summed for one step.
        prefetch, bfloat16: see `Sharder`.
    """
    device = topology.compute_device
    check_comms(sharding, device)
    infos, nodes = tables(module), topology.world_size // topology.local_world_size
    fused = optim.is_fused(torch.device(device), accumulate)
    allowed = constraints(
        sharding, infos, topology.world_size, device, nodes=nodes, load_factors=load_factors, fused=fused
    )
    for d in topology.devices if sharding.hbm_gib else ():
        d.storage.hbm = min(d.storage.hbm, int((sharding.hbm_gib or 0) * GIB))
    for table, numbers in (ids or {}).items():
        allowed[table].pooling_factors = numbers
    times = EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=allowed)
    memory = TableMemory(topology, allowed, optim, fused, prefetch)
    enumerator = EmbeddingEnumerator(topology, batch_size, allowed, estimator=[times, memory])

    def fill(best: list[ShardingOption]) -> list[ShardingOption]:
        enumerator.populate_estimates(memory.fill_caches(best, usable_memory(planner) or topology))
        return best

    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=enumerator,
        constraints=allowed,
        callbacks=[fill],
        timeout_seconds=seconds,
    )
    kinds: tuple[Any, ...] = (Sharder, SequenceSharder)
    return planner, [kind(optim, torch.device(device), infos, sharding, prefetch, bfloat16) for kind in kinds]


def make_plan(
    module: nn.Module,
    sharding: ShardingConfig,
    optim: SparseOptimizer,
    *,
    device: torch.device,
    batch_size: int,
    local_world_size: int,
    load_factors: dict[str, float] | None = None,
    accumulate: int = 1,
    prefetch: bool = False,
    bfloat16: bool = False,
) -> tuple[ShardingPlan, list[ModuleSharder[nn.Module]]]:
    """Return the plan for the processes of the default group, made by rank 0's planner and shared. Collective.

    Args:
        sharding: limits of the plan, from the config.
        device: the type of device that the tables go to.
        batch_size: rows per process and step.
        local_world_size: processes of a machine.
        load_factors: see `constraints`.
        accumulate: number of batches whose gradients are summed for one step. Above 1 the tables need kernels that do
            not update them in the backward pass.
        prefetch, bfloat16: see `Sharder`.

    Raises:
        DoesNotFit: no plan fits.
    """
    world_size = dist.get_world_size()
    cluster = this_machine(device.type, local_world_size)
    cluster.nodes = world_size // local_world_size
    with quiet_torchrec():
        given = module, sharding, optim, topology(cluster), batch_size
        half = bfloat16 and world_size == 1  # processes exchange float32, in the types of sharding.comms
        planner, sharders = make_planner(
            *given, load_factors=load_factors, accumulate=accumulate, prefetch=prefetch, bfloat16=half
        )
        try:
            group = dist.group.WORLD
            assert group is not None
            plan = planner.collective_plan(module, sharders, group)
        except PlannerError as e:
            reason = infeasible(planner, sharders, module, topology(cluster), optim)
            raise DoesNotFit(f"sharding: no plan fits {world_size} x {device.type}: {reason}", reason) from e
    use_dense_kernels(plan, optim, device, accumulate)
    return plan, sharders


def use_dense_kernels(plan: ShardingPlan, optim: SparseOptimizer, device: torch.device, accumulate: int = 1) -> None:
    """Give tables the dense kernel if FBGEMM does not fuse the optimizer, or if gradients are accumulated.

    The planner allows the dense kernel only for replicated tables, so this function sets it after planning.

    Args:
        plan: the plan, which is changed.
        accumulate: number of batches whose gradients are summed for one step.
    """
    if optim.is_fused(device, accumulate):
        return
    for sharded in plan.plan.values():
        for p in sharded.values():  # type: ignore[attr-defined]
            p.compute_kernel = EmbeddingComputeKernel.DENSE.value


def shard(
    module: nn.Module, plan: ShardingPlan, sharders: list[ModuleSharder[nn.Module]], device: torch.device
) -> DistributedModelParallel:
    """Shard the tables of `module` by `plan` and, with several processes, replicate its dense part."""
    with quiet_torchrec():
        dmp = DistributedModelParallel(
            module, device=device, plan=plan, sharders=sharders, init_data_parallel=dist.get_world_size() > 1
        )
    use_touched_rows(dmp)
    keep_recats()
    gather_unequal_parts()
    return dmp if dist.get_world_size() > 1 else dmp.to(device)


def describe(plan: ShardingPlan, infos: dict[str, TableInfo]) -> list[dict[str, Any]]:
    """Return one entry per table, as in plan.json and the loggers."""
    rows = []
    for sharded in plan.plan.values():
        for name, p in sharded.items():  # type: ignore[attr-defined]
            parts = p.sharding_spec.shards if p.sharding_spec is not None else []
            sizes = [(s.placement.rank(), *s.shard_sizes, list(s.shard_offsets)) for s in parts]
            shards = [dict(zip(("rank", "rows", "columns", "offsets"), s, strict=True)) for s in sizes]
            facts = ("vocabulary", "parameter", "rows", "dim", "width", "bytes")
            row = {"table": name} | {fact: getattr(infos[name], fact) for fact in facts}
            row |= {"type": p.sharding_type, "kernel": p.compute_kernel, "ranks": list(p.ranks or []), "shards": shards}
            rows.append(row)
    return rows


@contextmanager
def quiet_torchrec() -> Iterator[None]:
    """Hide TorchRec's warnings for its own developers."""
    names = ("torchrec", "torchrec.distributed", "torch.distributed")
    before = [(logging.getLogger(n), logging.getLogger(n).level) for n in names]
    for logger, _ in before:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for logger, level in before:
                logger.setLevel(level)


Recat = Callable[..., Tensor | None]


def keep_recats() -> None:
    """Let TorchRec copy the order of ids to a GPU once; it would do so in each lookup, and wait for the copy."""
    if not hasattr(dist_data._get_recat, "__wrapped__"):
        dist_data._get_recat = _keeping(dist_data._get_recat)


def _keeping(make: Recat) -> Recat:
    kept = cache(make)

    @wraps(make)
    def recat(
        local_split: int,
        num_splits: int,
        stagger: int = 1,
        device: torch.device | None = None,
        batch_size_per_rank: Sequence[int] | None = None,
    ) -> Tensor | None:
        """Return the order, as TorchRec's _get_recat does; None if there is one process, which reorders nothing."""
        if num_splits == 1:
            return None
        if batch_size_per_rank is not None and len(set(batch_size_per_rank)) > 1:
            return make(local_split, num_splits, stagger, device, batch_size_per_rank)
        return kept(local_split, num_splits, stagger, device)

    return recat


_backward = ReduceScatterV_Wait.backward


def gather_unequal_parts() -> None:
    """Let TorchRec gather gradients of different sizes over gloo, which gathers equal ones only."""
    ReduceScatterV_Wait.backward = staticmethod(_gathered)  # type: ignore[method-assign]


def _gathered(ctx: Any, gradient: Tensor) -> Any:
    request, sizes = ctx.myreq, ctx.myreq.rsi
    if sizes.equal_splits or dist.get_backend(ctx.pg) != "gloo":
        return _backward(ctx, gradient)
    if sizes.codecs is not None:
        gradient = sizes.codecs.backward.encode(gradient)
    padded = gradient.new_zeros(max(sizes.input_splits), *gradient.shape[1:])
    padded[: len(gradient)] = gradient
    parts = [torch.empty_like(padded) for _ in sizes.input_splits]
    request.req = dist.all_gather(parts, padded, group=ctx.pg, async_op=True)
    request.req.wait()
    request.tensor = torch.cat([part[:n] for part, n in zip(parts, sizes.input_splits, strict=True)])
    return None, None, request.dummy_tensor
