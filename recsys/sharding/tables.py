"""The tables of a module: names, sizes and widths in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recsys.errors import UserError
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings

# sharding.padding -> bytes; YAML reads a bare `off` as False
PADDINGS = {"off": 4, "False": 4, "16": 16, "64": 64, "128": 128}


@dataclass(frozen=True)
class TableInfo:
    """One table.

    vocabulary: its name in the data, which several tables of a model may share
    dim: number of columns
    width: number of columns in memory; those after `dim` are zero
    """

    name: str
    vocabulary: str
    parameter: str  # name of its weight in a state dict
    rows: int
    dim: int
    width: int
    pooled: bool
    init: Callable[[Tensor], Any]


def tables(module: nn.Module) -> dict[str, TableInfo]:
    """Return every table of the module's embedding collections, by name. The module must not be sharded yet."""
    owners = {t: m for m in module.modules() if isinstance(m, PooledEmbeddings | SequenceEmbeddings) for t in m.tables}
    infos: dict[str, TableInfo] = {}
    for where, c in _configs(module):
        assert c.init_fn is not None
        if c.name in infos:
            raise UserError(
                f"model: two tables are named {c.name}; pass another `prefix` to one of the embedding collections"
            )
        owner = owners.get(c.name)
        infos[c.name] = TableInfo(
            name=c.name,
            vocabulary=getattr(owner, "vocabularies", "") + c.name.removeprefix(owner.prefix if owner else ""),
            parameter=f"{where}.{c.name}.weight".lstrip("."),
            rows=c.num_embeddings,
            dim=owner.dims[c.name] if owner else c.embedding_dim,
            width=c.embedding_dim,
            pooled=where.endswith("embedding_bags"),
            init=c.init_fn,
        )
    return infos


def _configs(module: nn.Module) -> Iterator[tuple[str, BaseEmbeddingConfig]]:
    for name, m in module.named_modules():
        if isinstance(m, EmbeddingBagCollection):
            yield from ((f"{name}.embedding_bags", c) for c in m.embedding_bag_configs())
        elif isinstance(m, EmbeddingCollection):
            yield from ((f"{name}.embeddings", c) for c in m.embedding_configs())


def pad_tables(module: nn.Module, padding: str) -> None:
    """Widen tables so that a row is a multiple of `padding` bytes, the size of FBGEMM's vector loads.

    The module's weights must be on the meta device, since widened tables are created again.
    """
    columns = PADDINGS[padding] // 4
    for m in module.modules():
        if isinstance(m, PooledEmbeddings | SequenceEmbeddings) and any(d % columns for d in m.dims.values()):
            m.widen(columns)
