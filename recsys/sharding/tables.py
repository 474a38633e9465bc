"""The tables of a module: their names, sizes and widths in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recsys.models.embeddings import PooledEmbeddings, SequenceEmbeddings

# sharding.padding -> bytes that a row is a multiple of; YAML reads a bare `off` as False
PADDINGS = {"off": 4, "False": 4, "16": 16, "64": 64, "128": 128}


@dataclass(frozen=True)
class TableInfo:
    """One table. dim: its columns; width: those in memory, the ones after `dim` being zero."""

    name: str
    parameter: str  # its weight's name in a state dict
    rows: int
    dim: int
    width: int
    init: Callable[[Tensor], Any]


def tables(module: nn.Module) -> dict[str, TableInfo]:
    """Every table in the module's embedding collections, by name; before it is sharded."""
    ours = [m for m in module.modules() if isinstance(m, PooledEmbeddings | SequenceEmbeddings)]
    dims = {t: m.dim for m in ours for t in m.tables}
    found = {}
    for where, c in _configs(module):
        assert c.init_fn is not None
        width, rows = c.embedding_dim, c.num_embeddings
        found[c.name] = TableInfo(
            c.name, f"{where}.{c.name}.weight".lstrip("."), rows, dims.get(c.name, width), width, c.init_fn
        )
    return found


def _configs(module: nn.Module) -> Iterator[tuple[str, BaseEmbeddingConfig]]:
    for name, m in module.named_modules():
        if isinstance(m, EmbeddingBagCollection):
            yield from ((f"{name}.embedding_bags", c) for c in m.embedding_bag_configs())
        elif isinstance(m, EmbeddingCollection):
            yield from ((f"{name}.embeddings", c) for c in m.embedding_configs())


def pad_tables(module: nn.Module, padding: str) -> None:
    """Widen tables so that a row is a multiple of `padding` bytes: FBGEMM's kernels load rows in vectors of them.

    For a module whose weights are not there yet (on the meta device): widened tables are made anew.
    """
    columns = PADDINGS[padding] // 4
    for m in module.modules():
        if isinstance(m, PooledEmbeddings | SequenceEmbeddings) and m.dim % columns:
            m.widen(m.dim + -m.dim % columns)
