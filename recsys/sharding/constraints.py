"""sharding: and its rules for single tables -> what TorchRec's planner may choose from."""

from dataclasses import fields
from fnmatch import fnmatchcase

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import CacheParams

from recsys.config.schema_run import ShardingConfig, SparseOptimConfig, TableRule
from recsys.errors import UserError, did_you_mean
from recsys.sharding.sharders import FUSED_OPTIMIZERS, KERNELS, SEQUENCE_TYPES, TYPES
from recsys.sharding.tables import PADDINGS, TableInfo

UNPOOLED = {"table_row_wise": "row_wise", "table_column_wise": "column_wise", "grid_shard": "row_wise"}  # nearest ones
COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}
MOST_CACHED = 0.999  # TorchRec wants a load factor below 1


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
