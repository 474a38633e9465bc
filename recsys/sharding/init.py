"""Initial weights of the tables, which depend on the seed but not on the plan or the number of processes.

TorchRec initialises each shard by itself. If all ranks have the same seed, the shards of a table start equal: a
column-wise table then has the same columns twice, and trains as if it had half its dim.
"""

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel

from recsys.base.errors import UserError
from recsys.sharding.tables import TableInfo

BLOCK_ROWS = 65_536  # number of rows that are sampled together, in full width


@torch.no_grad()
def init_tables(
    dmp: DistributedModelParallel,
    infos: dict[str, TableInfo],
    seed: int,
    vectors: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Fill this rank's shards of every table by its config's init_fn, block by block of rows.

    vectors: pretrained vectors by vocabulary, (rows, dim), for tables of this dim; rows with NaN keep what init_fn drew

    Args:
        seed: seed of the initial rows; they do not depend on the sharding.
    """
    by_parameter = {i.parameter: i for i in infos.values()}
    for name, weight in dmp.state_dict().items():
        if name not in by_parameter:
            continue
        if isinstance(weight, ShardedTensor):
            for local in weight.local_shards():
                row, column = local.metadata.shard_offsets
                _fill(local.tensor, row, column, by_parameter[name], seed, vectors or {})
        else:
            _fill(weight, 0, 0, by_parameter[name], seed, vectors or {})


def _fill(shard: Tensor, row: int, column: int, info: TableInfo, seed: int, vectors: Mapping[str, np.ndarray]) -> None:
    rows, columns = shard.shape
    given = vectors.get(info.vocabulary)
    cuda = [shard.device] if shard.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        for first in range(row - row % BLOCK_ROWS, row + rows, BLOCK_ROWS):
            key = [seed, zlib.crc32(info.name.encode()), first]
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
            height = min(BLOCK_ROWS, info.rows - first)
            block = torch.empty(height, info.dim, device=shard.device)
            info.init(block)
            if given is not None and given.shape[1] == info.dim:
                pretrained = torch.from_numpy(np.array(given[first : first + height])).to(block.device)
                block = torch.where(pretrained.isnan(), block, pretrained)
            block = nn.functional.pad(block, (0, info.width - info.dim))
            start, stop = max(first, row), min(first + height, row + rows)
            shard[start - row : stop - row] = block[start - first : stop - first, column : column + columns]


def check_vectors(infos: Mapping[str, TableInfo], vectors: Mapping[str, np.ndarray]) -> None:
    """Raise UserError if no table of the model has the width of the pretrained vectors of its vocabulary."""
    for vocabulary, given in vectors.items():
        dims = [info.dim for info in infos.values() if info.vocabulary == vocabulary]
        if dims and given.shape[1] not in dims:
            raise UserError(
                f"data.sparse: the vectors of table {vocabulary} have {given.shape[1]} numbers, but the model's table "
                f"has {max(dims)}; change model.dim until both are equal"
            )
