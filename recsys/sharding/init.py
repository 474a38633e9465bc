"""Initial weights of the tables: by the seed alone, whatever the plan and the number of processes.

TorchRec initialises each shard by itself. Where all ranks have one seed, the shards of a table then start
equal: a column-wise table has the same columns twice, and trains as if it had half its dim.
"""

import zlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

BLOCK_ROWS = 65_536  # rows that are drawn at once, in full width


def table_configs(module: nn.Module) -> dict[str, EmbeddingBagConfig]:
    """The config of every table in the module's embedding collections, by name."""
    return {
        c.name: c for m in module.modules() if isinstance(m, EmbeddingBagCollection) for c in m.embedding_bag_configs()
    }


@torch.no_grad()
def init_tables(dmp: DistributedModelParallel, configs: dict[str, EmbeddingBagConfig], seed: int) -> None:
    """Draw this rank's pieces of every table by its config's init_fn, block by block of rows."""
    for name, weight in dmp.state_dict().items():
        config = configs.get(name.split(".")[-2]) if name.endswith(".weight") else None
        if config is None:
            continue
        if isinstance(weight, ShardedTensor):
            for shard in weight.local_shards():
                row, column = shard.metadata.shard_offsets
                _draw(shard.tensor, row, column, config, seed)
        else:
            _draw(weight, 0, 0, config, seed)


def _draw(piece: Tensor, row: int, column: int, config: EmbeddingBagConfig, seed: int) -> None:
    rows, columns = piece.shape
    cuda = [piece.device] if piece.device.type == "cuda" else []
    assert config.init_fn is not None
    with torch.random.fork_rng(devices=cuda):
        for first in range(row - row % BLOCK_ROWS, row + rows, BLOCK_ROWS):
            key = [seed, zlib.crc32(config.name.encode()), first]
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
            height = min(BLOCK_ROWS, config.num_embeddings - first)
            block = torch.empty(height, config.embedding_dim, device=piece.device)
            config.init_fn(block)
            start, stop = max(first, row), min(first + height, row + rows)
            piece[start - row : stop - row] = block[start - first : stop - first, column : column + columns]
