"""config -> TorchRec plan -> DistributedModelParallel, with FBGEMM kernels and their fused optimizers."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn
from torchrec import optim as trec_optim
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import CacheParams, ModuleSharder, ShardingPlan, ShardingType

from recsys.errors import DoesNotFit, UserError, did_you_mean
from recsys.schema import ShardingConfig, SparseOptimConfig, TableRule
from recsys.sharding.cluster import GIB, this_machine, topology
from recsys.sharding.misfit import misfit
from recsys.sharding.tables import PADDINGS, TableInfo, tables
from recsys.sharding.unpooled import mend_dense_lookups

TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", "grid_shard")
SEQUENCE_TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise")  # what TorchRec has for unpooled tables
UNPOOLED = {"table_row_wise": "row_wise", "table_column_wise": "column_wise", "grid_shard": "row_wise"}  # nearest ones
KERNELS = ("fused", "fused_uvm", "fused_uvm_caching")
MOST_CACHED = 0.999  # TorchRec wants a load factor below 1
COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}
FUSED_OPTIMIZERS = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
    "adam": EmbOptimType.ADAM,
    "partial_rowwise_adam": EmbOptimType.PARTIAL_ROWWISE_ADAM,
}
OPTIMIZER_CLASSES = {  # whose state is as large: for TorchRec's estimates
    "rowwise_adagrad": trec_optim.RowWiseAdagrad,
    "adagrad": trec_optim.Adagrad,
    "sgd": trec_optim.SGD,
    "adam": trec_optim.Adam,
    "partial_rowwise_adam": trec_optim.PartialRowWiseAdam,
}
CPU_FUSED = {"rowwise_adagrad", "adagrad", "sgd"}  # what FBGEMM's CPU kernels can fuse


class _EveryType:
    """Every plan type on CPU too: TorchRec's sharders offer row-wise types on CUDA only, yet they run over gloo.

    Where FBGEMM has no fused CPU kernel for the optimizer (Adam, partial row-wise Adam, any with weight decay),
    tables use the dense kernel and `RowOptimizer` updates the rows a batch touched.
    """

    TYPES = TYPES

    def __init__(self, optim: SparseOptimConfig, device: torch.device, infos: dict[str, TableInfo]) -> None:
        self.fused, self._optim, self._infos = is_fused(optim, device), optim, infos
        super().__init__(fused_params=_fused_params(optim) if self.fused else {})  # type: ignore[call-arg]

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(self.TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        if sharding_type == ShardingType.DATA_PARALLEL.value:
            return [EmbeddingComputeKernel.DENSE.value]
        if compute_device_type == "cpu":
            return [EmbeddingComputeKernel.FUSED.value]
        return list(KERNELS)

    def shard(self, module: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fused:
            info = self._infos[next(iter(params))]  # the tables of a collection have one dim
            self._fused_params = _fused_params(self._optim, info.dim / info.width)
        return super().shard(module, params, *args, **kwargs)  # type: ignore[misc]


class Sharder(_EveryType, EmbeddingBagCollectionSharder):
    """Of pooled tables."""


class SequenceSharder(_EveryType, EmbeddingCollectionSharder):
    """Of unpooled tables."""

    TYPES = SEQUENCE_TYPES  # type: ignore[assignment]


def is_fused(optim: SparseOptimConfig, device: torch.device) -> bool:
    """Whether FBGEMM fuses this optimizer there: its CPU kernels take weight_decay and do not apply it."""
    return device.type != "cpu" or (optim.name in CPU_FUSED and not optim.weight_decay)


def _fused_params(optim: SparseOptimConfig, share: float = 1.0) -> dict[str, Any]:
    """share: dim / width of padded tables. Row-wise rules take the mean over the width, of which only `dim`
    columns have a gradient: their state is `share` of what it would be, which a step of sqrt(share) undoes."""
    scale = share**0.5 if "rowwise" in optim.name else 1.0
    params: dict[str, Any] = {"optimizer": FUSED_OPTIMIZERS[optim.name], "learning_rate": optim.lr * scale}
    if optim.name != "sgd":
        decay = optim.weight_decay / (scale if "adam" in optim.name else 1.0)  # Adam's is multiplied by the rate
        params |= {"eps": optim.eps * scale, "weight_decay": decay}
    if optim.name == "rowwise_adagrad":
        params["weight_decay_mode"] = WeightDecayMode.L2  # by default FBGEMM ignores weight_decay here
    if "adam" in optim.name:
        params |= {"beta1": optim.beta1, "beta2": optim.beta2}
    return params


def check_sharding(sharding: ShardingConfig, optim: SparseOptimConfig) -> None:
    """Raises UserError for names and numbers that no plan can be made of."""
    if sharding.cache_hit_rate is not None and not 0 < sharding.cache_hit_rate < 1:
        raise UserError(f"sharding.cache_hit_rate={sharding.cache_hit_rate}: must be between 0 and 1")
    if sharding.hbm_gib is not None and sharding.hbm_gib <= 0:
        raise UserError(f"sharding.hbm_gib={sharding.hbm_gib}: must be above 0")
    if sharding.padding not in PADDINGS:
        raise UserError(f"sharding.padding={sharding.padding}: must be off, 16, 64 or 128")
    rules = {"sharding": sharding} | {f"sharding.per_table.{n}": r for n, r in rules_of(sharding).items()}
    for where, rule in rules.items():
        for t in rule.types or ():
            if t not in (*TYPES, "none"):
                raise UserError(f"{where}.types: no sharding type {t}{did_you_mean(t, (*TYPES, 'none'))}")
        for k in rule.kernels or ():
            if k not in KERNELS:
                raise UserError(f"{where}.kernels: no kernel {k}{did_you_mean(k, KERNELS)}")
        if rule.column_block is not None and (rule.column_block <= 0 or rule.column_block % 4):
            raise UserError(f"{where}.column_block={rule.column_block}: must be a positive multiple of 4")
        if rule.cache_load_factor is not None and not 0 < rule.cache_load_factor < 1:
            raise UserError(f"{where}.cache_load_factor={rule.cache_load_factor}: must be between 0 and 1")
    if optim.name not in FUSED_OPTIMIZERS:
        raise UserError(f"optim.sparse.name={optim.name}: unknown{did_you_mean(optim.name, FUSED_OPTIMIZERS)}")
    if optim.name == "sgd" and optim.weight_decay:
        raise UserError("optim.sparse.weight_decay: FBGEMM's SGD has none; use rowwise_adagrad or adagrad")


def rules_of(sharding: ShardingConfig) -> dict[str, TableRule]:
    """sharding.per_table under its schema. Raises UserError for keys and values that it has not."""
    rules = {}
    for name, given in sharding.per_table.items():
        where = f"sharding.per_table.{name}"
        if not isinstance(given, dict):
            raise UserError(f"{where}: must be a mapping, such as {{types: [row_wise]}}")
        keys = [f.name for f in fields(TableRule)]
        for key in given:
            if key not in keys:
                raise UserError(f"{where}.{key}: no such key{did_you_mean(str(key), keys)}")
        try:
            rules[name] = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TableRule), given))
        except OmegaConfBaseException as e:
            raise UserError(f"{where}: {str(e).splitlines()[0]}") from e
    return rules  # type: ignore[return-value]


def _matches(glob: str, table: TableInfo) -> bool:
    """By the table's name, or the one that the data gives it."""
    return fnmatchcase(table.name, glob) or fnmatchcase(table.vocabulary, glob)


def rule_of(table: TableInfo, sharding: ShardingConfig) -> TableRule:
    """What holds for one table: for all tables, then what the matching rules say, the last one winning."""
    rule = TableRule(
        types=list(sharding.types),
        kernels=list(sharding.kernels),
        column_block=sharding.column_block,
    )
    rows, dim = table.rows, table.width
    size = rows * dim * 4
    for name, other in rules_of(sharding).items():
        if not _matches(other.match or name, table):
            continue
        low, high = max(other.min_rows or 0, (other.min_bytes or 0) / (dim * 4)), other.max_rows
        if rows < low or (high is not None and rows > high) or (other.max_bytes is not None and size > other.max_bytes):
            continue
        for key in ("types", "kernels", "column_block", "cache_load_factor"):
            if getattr(other, key) is not None:
                setattr(rule, key, getattr(other, key))
    return rule


def constraints(
    sharding: ShardingConfig,
    tables: dict[str, TableInfo],
    world_size: int,
    device: str = "cpu",
    *,
    nodes: int = 1,
    load_factors: dict[str, float] | None = None,
) -> dict[str, ParameterConstraints]:
    """What the planner may choose from, for every table.

    load_factors: by vocabulary, of those that are cached; a rule's own goes before it.

    In one process every type but `data_parallel` comes to the same whole table in one fused kernel;
    so does a replica that has no twin. `none` keeps tables whole: with several processes, as replicas.
    On CPU all memory is one, so that every kernel comes to `fused`.
    """
    for name, given in rules_of(sharding).items():
        if not any(_matches(given.match or name, table) for table in tables.values()):
            near = did_you_mean(name, [t.vocabulary for t in tables.values()])
            raise UserError(f"sharding.per_table.{name}: matches no table{near}")
    out: dict[str, ParameterConstraints] = {}
    for table in tables.values():
        rule = rule_of(table, sharding)
        types, kernels = _types(table, rule, world_size), list(rule.kernels or []) or ["fused"]
        width = table.width
        if width % 4:
            raise UserError(f"model: dim {width} (table {table.name}) is not a multiple of 4; set sharding.padding=16")
        parts = nodes if types == ["grid_shard"] else world_size
        block = rule.column_block or 4 * -(-width // (4 * parts))
        if types and COLUMN_TYPES.issuperset(types) and rule.column_block and width % block and width > block:
            raise UserError(f"sharding.column_block={block} does not divide the dim {width} of table {table.name}")
        cached = device == "cuda" and "fused_uvm_caching" in kernels
        measured = (load_factors or {}).get(table.vocabulary, sharding.cache_load_factor)
        load = rule.cache_load_factor if rule.cache_load_factor is not None else min(measured, MOST_CACHED)
        out[table.name] = ParameterConstraints(
            sharding_types=types or None,
            # a replica's kernel is `dense` whatever the others may be
            compute_kernels=[*kernels, "dense"] if device == "cuda" else None,
            min_partition=min(block, width),
            cache_params=CacheParams(load_factor=load) if cached else None,
        )
    return out


def _types(table: TableInfo, rule: TableRule, world_size: int) -> list[str]:
    """The plan types that suit this table, of those that its rule allows; empty: the planner's choice of all."""
    types = list(rule.types or [])
    if world_size == 1:
        return ["table_wise"]
    if types == ["none"]:
        return ["data_parallel"]
    if not table.pooled:
        types = list(dict.fromkeys(UNPOOLED.get(t, t) for t in types)) or list(SEQUENCE_TYPES)
    if table.width == table.dim:
        return types
    # a block's row-wise state would count its share of the padding
    allowed = [t for t in types or TYPES if t not in COLUMN_TYPES]
    if not allowed:
        raise UserError(
            f"sharding.types=[{','.join(types)}]: dim {table.dim} of table {table.name} is padded to {table.width}, "
            f"and padded tables cannot be cut into columns; try model.dim={table.width} or another sharding.padding"
        )
    return allowed


def make_planner(
    module: nn.Module,
    sharding: ShardingConfig,
    optim: SparseOptimConfig,
    topology: Topology,
    batch_size: int,
    ids: dict[str, list[float]] | None = None,
    seconds: int | None = None,
    load_factors: dict[str, float] | None = None,
) -> tuple[EmbeddingShardingPlanner, list[ModuleSharder[nn.Module]]]:
    """TorchRec's planner for these machines, and its sharders.

    batch_size: rows a process and step; ids: expected ids a row, by table, for each of its features (1 by default);
    seconds: after which the best plan so far is taken; load_factors: see `constraints`.
    """
    device = topology.compute_device
    infos, nodes = tables(module), topology.world_size // topology.local_world_size
    allowed = constraints(sharding, infos, topology.world_size, device, nodes=nodes, load_factors=load_factors)
    for d in topology.devices if sharding.hbm_gib else ():
        d.storage.hbm = min(d.storage.hbm, int((sharding.hbm_gib or 0) * GIB))
    for table, numbers in (ids or {}).items():
        allowed[table].pooling_factors = numbers
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=batch_size, constraints=allowed, timeout_seconds=seconds
    )
    kinds: tuple[Any, ...] = (Sharder, SequenceSharder)
    return planner, [kind(optim, torch.device(device), infos) for kind in kinds]


def make_plan(
    module: nn.Module,
    sharding: ShardingConfig,
    optim: SparseOptimConfig,
    *,
    device: torch.device,
    batch_size: int,
    local_world_size: int,
    load_factors: dict[str, float] | None = None,
) -> tuple[ShardingPlan, list[ModuleSharder[nn.Module]]]:
    """The plan for the processes of the default group, made by rank 0's planner and shared.

    batch_size: rows a process and step. Raises UserError where no plan fits.
    """
    world_size = dist.get_world_size()
    cluster = this_machine(device.type, local_world_size)
    cluster.nodes = world_size // local_world_size
    with quiet_torchrec(), optimizer_counted(module, optim):
        planner, sharders = make_planner(
            module, sharding, optim, topology(cluster), batch_size, load_factors=load_factors
        )
        try:
            group = dist.group.WORLD
            assert group is not None
            plan = planner.collective_plan(module, sharders, group)
        except PlannerError as e:
            found = misfit(planner, sharders, module, topology(cluster), optim)
            raise DoesNotFit(f"sharding: no plan fits {world_size} x {device.type}: {found}", found) from e
    use_dense_kernels(plan, optim, device)
    return plan, sharders


def use_dense_kernels(plan: ShardingPlan, optim: SparseOptimConfig, device: torch.device) -> None:
    """Where FBGEMM does not fuse the optimizer. The planner itself would accept the dense kernel for replicas only."""
    for sharded in plan.plan.values() if not is_fused(optim, device) else ():
        for p in sharded.values():  # type: ignore[attr-defined]
            p.compute_kernel = EmbeddingComputeKernel.DENSE.value


def shard(
    module: nn.Module, plan: ShardingPlan, sharders: list[ModuleSharder[nn.Module]], device: torch.device
) -> DistributedModelParallel:
    """`module` with its tables sharded by `plan` and, in several processes, its dense part replicated."""
    with quiet_torchrec():
        dmp = DistributedModelParallel(
            module,
            device=device,
            plan=plan,
            sharders=sharders,
            init_data_parallel=dist.get_world_size() > 1,
        )
    mend_dense_lookups(dmp)
    return dmp if dist.get_world_size() > 1 else dmp.to(device)


def describe(plan: ShardingPlan, infos: dict[str, TableInfo]) -> list[dict[str, Any]]:
    """One entry a table: what plan.json and the loggers hold."""
    rows = []
    for sharded in plan.plan.values():
        for name, p in sharded.items():  # type: ignore[attr-defined]
            info = infos[name]
            shards = [
                {
                    "rank": s.placement.rank(),
                    "rows": s.shard_sizes[0],
                    "columns": s.shard_sizes[1],
                    "offsets": list(s.shard_offsets),
                }
                for s in (p.sharding_spec.shards if p.sharding_spec is not None else [])
            ]
            rows.append(
                {
                    "table": name,
                    "vocabulary": info.vocabulary,
                    "parameter": info.parameter,
                    "rows": info.rows,
                    "dim": info.dim,
                    "width": info.width,
                    "bytes": info.rows * info.width * 4,
                    "type": p.sharding_type,
                    "kernel": p.compute_kernel,
                    "ranks": list(p.ranks or []),
                    "shards": shards,
                }
            )
    return rows


@contextmanager
def optimizer_counted(module: nn.Module, optim: SparseOptimConfig) -> Iterator[None]:
    """While planning, TorchRec's estimates of memory count the optimizer's state: it looks for this attribute.

    Only while planning: where it is set when tables are sharded, TorchRec would take it for the optimizer to fuse.
    """
    configs = ("embedding_bag_configs", "embedding_configs")
    weights = [p for m in module.modules() if any(hasattr(m, c) for c in configs) for p in m.parameters()]
    for p in weights:
        p._optimizer_classes = [OPTIMIZER_CLASSES[optim.name]]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for p in weights:
            vars(p).pop("_optimizer_classes", None)


@contextmanager
def quiet_torchrec() -> Iterator[None]:
    """Without TorchRec's notes to its own developers."""
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
