"""The tables of a module: their names, sizes and widths in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recsys.errors import UserError
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings

# sharding.padding -> bytes that a row is a multiple of; YAML reads a bare `off` as False
PADDINGS = {"off": 4, "False": 4, "16": 16, "64": 64, "128": 128}


@dataclass(frozen=True)
class TableInfo:
    """One table. dim: its columns; width: those in memory, the ones after `dim` being zero.

    vocabulary: the name that the data gives it, which several tables of a model may share
    """

    name: str
    vocabulary: str
    parameter: str  # its weight's name in a state dict
    rows: int
    dim: int
    width: int
    pooled: bool
    init: Callable[[Tensor], Any]


def tables(module: nn.Module) -> dict[str, TableInfo]:
    """Every table in the module's embedding collections, by name; before it is sharded."""
    ours = {t: m for m in module.modules() if isinstance(m, PooledEmbeddings | SequenceEmbeddings) for t in m.tables}
    found: dict[str, TableInfo] = {}
    for where, c in _configs(module):
        assert c.init_fn is not None
        if c.name in found:
            raise UserError(f"model: two tables are named {c.name}; give one of the collections another prefix")
        mine = ours.get(c.name)
        found[c.name] = TableInfo(
            name=c.name,
            vocabulary=getattr(mine, "vocabularies", "") + c.name.removeprefix(mine.prefix if mine else ""),
            parameter=f"{where}.{c.name}.weight".lstrip("."),
            rows=c.num_embeddings,
            dim=mine.dim if mine else c.embedding_dim,
            width=c.embedding_dim,
            pooled=where.endswith("embedding_bags"),
            init=c.init_fn,
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
