"""Planner constraints of each table, from the config's `sharding` and its rules for single tables."""

from fnmatch import fnmatchcase

import torch
from torchrec.distributed.planner import ParameterConstraints

from recsys.base.errors import UserError, did_you_mean
from recsys.schema.run_schema import ShardingConfig, TableRule
from recsys.sharding.sharders import SEQUENCE_TYPES, TYPES
from recsys.sharding.table_memory import cache
from recsys.sharding.tables import TableInfo

UNPOOLED = {
    "table_row_wise": "row_wise",
    "table_column_wise": "column_wise",
    "grid_shard": "row_wise",
}  # type -> nearest type of unpooled tables
COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}
ROWS_OVER_ALL, ROWS_OVER_A_NODE = {"row_wise"}, {"table_row_wise", "grid_shard"}  # over which devices rows are split


def _matches(glob: str, table: TableInfo) -> bool:
    """Return whether the pattern matches the table's name or its name in the data."""
    return fnmatchcase(table.name, glob) or fnmatchcase(table.vocabulary, glob)


def _rule_of(table: TableInfo, sharding: ShardingConfig) -> TableRule:
    """Return the rule for one table: that for all tables, overridden by the matching rules, the last one first."""
    rule = TableRule(types=list(sharding.types), kernels=list(sharding.kernels), column_block=sharding.column_block)
    rows, size = table.rows, table.bytes
    for name, other in sharding.per_table.items():
        if not _matches(other.match or name, table):
            continue
        if rows < (other.min_rows or 0) or size < (other.min_bytes or 0):
            continue
        if any(most is not None and n > most for n, most in ((rows, other.max_rows), (size, other.max_bytes))):
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
    fused: bool = True,
) -> dict[str, ParameterConstraints]:
    """Return the planner constraints of every table.

    With one process, every type (also a single replica) is planned as one whole table in a fused kernel. `none` keeps
    tables whole; with several processes, each process has a replica. CPUs have one kind of memory, so every kernel is
    `fused` there. A table with too few rows for all devices is not split by rows, because FBGEMM has no empty shards;
    it stays whole if no other type is allowed.

    Args:
        device: "cpu" or "cuda".
        nodes: number of machines.
        load_factors: share of rows to cache, by vocabulary. A rule's own cache_load_factor takes precedence.
        fused: whether FBGEMM's kernels update the tables. Only these kernels read rows in host memory.

    Raises:
        UserError: a rule fits no table, or the setting and a table do not go together.
    """
    for name, given in sharding.per_table.items():
        if not any(_matches(given.match or name, table) for table in tables.values()):
            near = did_you_mean(name, [t.vocabulary for t in tables.values()])
            raise UserError(f"sharding.per_table.{name}: matches no table{near}")
    out: dict[str, ParameterConstraints] = {}
    for table in tables.values():
        rule = _rule_of(table, sharding)
        types, kernels = _types(table, rule, world_size, nodes), list(rule.kernels or []) or ["fused"]
        width = table.width
        if width % 4:
            raise UserError(
                f"model.dim={width}: must be a multiple of 4 (table {table.name}), or set sharding.padding=16"
            )
        parts = nodes if types == ["grid_shard"] else world_size
        block = rule.column_block or 4 * -(-width // (4 * parts))
        if types and COLUMN_TYPES.issuperset(types) and rule.column_block and width % block and width > block:
            raise UserError(f"sharding.column_block={block}: must divide the dim {width} of table {table.name}")
        if device == "cuda" and not fused:
            if "fused" not in kernels:
                why = "only FBGEMM's fused kernels read rows in host memory"
                fix = "set trainer.accumulate=1 and optim.sparse.every_row=false, or allow the kernel fused"
                raise UserError(f"sharding.kernels=[{','.join(kernels)}]: {why}; {fix}")
            kernels = ["fused"]
        cached = device == "cuda" and "fused_uvm_caching" in kernels
        measured = (load_factors or {}).get(table.vocabulary, sharding.cache_load_factor)
        load = measured if rule.cache_load_factor is None else rule.cache_load_factor
        out[table.name] = ParameterConstraints(
            sharding_types=types or None,
            # replicas always have the kernel `dense`
            compute_kernels=[*kernels, "dense"] if device == "cuda" else None,
            min_partition=min(block, width),
            cache_params=cache(load) if cached else None,
        )
    return out


def _types(table: TableInfo, rule: TableRule, world_size: int, nodes: int) -> list[str]:
    """Return the types that the planner may give this table; an empty list for all."""
    types: list[str] = [*(rule.types or [])]
    if world_size == 1:
        return ["table_wise"]
    types = ["data_parallel"] if types == ["none"] else types
    if table.dtype != torch.float32:
        types = [t for t in types or TYPES if t != "data_parallel"]
        if not types:
            why = "replicas are updated without FBGEMM's fused kernels, which tables of fp16 need"
            raise UserError(f"sharding.table_dtype=fp16: {why}; use sharding=tablewise or another type")
    if types == ["data_parallel"]:
        return types
    if not table.pooled:
        types = list(dict.fromkeys(UNPOOLED.get(t, t) for t in types)) or list(SEQUENCE_TYPES)
    if table.width != table.dim:
        # the row-wise state of a column block would include its share of the padding
        allowed = [t for t in types or TYPES if t not in COLUMN_TYPES]
        if not allowed:
            raise UserError(
                f"sharding.types=[{','.join(types)}]: dim {table.dim} of table {table.name} is padded to "
                f"{table.width}, and padded tables cannot be split into columns; set model.dim={table.width} or "
                "another sharding.padding"
            )
        types = allowed
    too_small = {t for t in ROWS_OVER_ALL if _has_empty_shard(table.rows, world_size)}
    too_small |= {t for t in ROWS_OVER_A_NODE if _has_empty_shard(table.rows, world_size // nodes)}
    if too_small.intersection(types or TYPES):
        types = [t for t in types or TYPES if t not in too_small] or ["table_wise"]
    return types


def _has_empty_shard(rows: int, shards: int) -> bool:
    """Return whether TorchRec's row-wise split, in blocks of equal size, leaves nothing for the last device."""
    return rows <= -(-rows // shards) * (shards - 1)
