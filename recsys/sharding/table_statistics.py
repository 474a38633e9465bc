"""What training has made of each table: how long its rows are, and how many it has touched."""

from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel

from recsys.sharding.checkpoint import held_tables
from recsys.sharding.row_optimizer import RowOptimizer
from recsys.sharding.tables import TableInfo

SEEN = ("sum", "exp_avg_sq")  # states that are 0 until a row has had a gradient


def table_statistics(
    dmp: DistributedModelParallel, infos: dict[str, TableInfo], optimizer: str, row_optimizer: RowOptimizer | None
) -> dict[str, dict[str, Any]]:
    """Collective. By table: rows, dim, norm (the root of the mean squared norm of a row) and touched (the share of its
    rows that had a gradient; None with SGD, which remembers nothing).
    """
    weights, states = held_tables(dmp, infos, optimizer, row_optimizer)
    found: dict[str, dict[str, Any]] = {}
    for name, info in infos.items():
        pieces = weights[info.parameter]
        own = not pieces.replicated or dist.get_rank() == 0
        squares = [float(t.double().square().sum()) for t in pieces.local if own]
        state = next((states[k] for s in SEEN if (k := f"{info.parameter}/{s}") in states), None)
        rows = 0.0
        if state is not None and own:
            held = zip(state.mine, state.local, strict=True)
            rows = sum(float((t != 0).any(1).sum()) for p, t in held if p.column == 0)
        sums = torch.tensor([sum(squares), rows], dtype=torch.float64)
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
        found[name] = {
            "rows": info.rows,
            "dim": info.dim,
            "norm": (float(sums[0]) / max(info.rows, 1)) ** 0.5,
            "touched": None if state is None else float(sums[1]) / max(info.rows, 1),
        }
    return found
