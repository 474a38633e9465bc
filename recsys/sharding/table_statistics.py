"""Statistics of trained tables: the norm of their rows, and the share of rows that had a gradient."""

from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel

from recsys.sharding.row_optimizer import RowOptimizer
from recsys.sharding.sharded_checkpoint import local_tables
from recsys.sharding.tables import TableInfo

SEEN = ("sum", "exp_avg_sq")  # states that are 0 until a row has a gradient


def table_statistics(
    dmp: DistributedModelParallel, infos: dict[str, TableInfo], optimizer: str, row_optimizer: RowOptimizer | None
) -> dict[str, dict[str, Any]]:
    """Return the statistics of each table. Collective.

    Args:
        dmp: the sharded model.
        infos: the tables, by name.
        optimizer: name of the tables' optimizer.
        row_optimizer: optimizer of the tables with dense kernels; None if there are none.

    Returns:
        By table: rows, dim, norm (root mean square of the rows' norms) and touched (share of rows that had a gradient;
            None with SGD, which has no state).
    """
    weights, states = local_tables(dmp, infos, optimizer, row_optimizer)
    statistics: dict[str, dict[str, Any]] = {}
    for name, info in infos.items():
        shards = weights[info.parameter]
        measured = not shards.replicated or dist.get_rank() == 0
        squares = [float(t.double().square().sum()) for t in shards.local_tensors if measured]
        state = next((states[k] for s in SEEN if (k := f"{info.parameter}/{s}") in states), None)
        rows = 0.0
        if state is not None and measured:
            local = zip(state.local_regions, state.local_tensors, strict=True)
            rows = sum(float((t != 0).any(1).sum()) for p, t in local if p.column == 0)
        sums = torch.tensor([sum(squares), rows], dtype=torch.float64)
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
        statistics[name] = {
            "rows": info.rows,
            "dim": info.dim,
            "norm": (float(sums[0]) / max(info.rows, 1)) ** 0.5,
            "touched": None if state is None else float(sums[1]) / max(info.rows, 1),
        }
    return statistics
