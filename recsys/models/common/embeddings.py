"""Embedding tables for a FeatureSpec. Models create all of their tables here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recsys.interface.features import FeatureSpec


class OwnDims(nn.Module):
    """Vectors of `dim` numbers from rows of tables with dims of their own: a projection without bias for each such
    table (Ginart et al., Mixed Dimension Embeddings, 2019, https://arxiv.org/abs/1909.11810).

    Args:
        dims: columns of each table.
        users: the table of each feature, by its name.
    """

    def __init__(self, dims: Mapping[str, int], users: Mapping[str, str], dim: int) -> None:
        super().__init__()
        self._users = dict(users)
        other = sorted({d for d in dims.values() if d != dim})
        self._places = {d: {t: i for i, t in enumerate(t for t in dims if dims[t] == d)} for d in other}
        self._dim_of = {name: dims[table] for name, table in users.items()}
        self.projections = nn.ParameterDict()
        for d, places in self._places.items():  # keeps the variance of the rows
            self.projections[str(d)] = nn.Parameter(
                torch.empty(len(places), d, dim).uniform_(-((3 / d) ** 0.5), (3 / d) ** 0.5)
            )

    def forward(self, rows: dict[str, Tensor]) -> Tensor:
        """Return the vectors of F features, in order: rows (B, own dim) of each -> (B, F, dim)."""
        found = dict(rows)
        for d, places in self._places.items():
            names = [n for n in rows if self._dim_of[n] == d]
            weights = self.projections[str(d)]
            weights = weights.index_select(0, copied_index([places[self._users[n]] for n in names], weights.device))
            projected = torch.einsum("bnd,ndo->bno", torch.stack([rows[n] for n in names], dim=1), weights)
            found |= dict(zip(names, projected.unbind(1), strict=True))
        return torch.stack([found[n] for n in rows], dim=1)


class PooledEmbeddings(nn.Module):
    """Pooled embeddings: one table of `dim` columns for each table of `features`.

    Tables whose features have a dim of their own are projected to `dim` columns.

    An empty bag is zero. TorchRec sums the rows of each bag, and this module divides for a mean: TorchRec 1.8 divides
    row-wise tables after pooling, then also divides tables of other types in a mixed plan, and never divides
    grid-sharded ones.

    Args:
        prefix: prefix of the tables' names. A table is an attribute of a module and may not be called `items` or
            `type`; a second collection over the same features needs a prefix of its own.
        device: where the weights are created; "meta" allocates nothing until they are sharded.
        init_std: standard deviation of the initial rows (0 for zeros); None for TorchRec's default, uniform in
            +-1/sqrt(rows).
        vocabularies: folder of the vocabularies within prepared data: "items/" for features of items, otherwise "".
        flat: whether the model only concatenates the vectors; tables with dims of their own are then not projected.
        rounded: whether the model multiplies matrices by the vectors before anything else, so that they lose nothing if
            tables on GPUs return them in the type that autocast multiplies.

    dims: columns of each table, without padding
    width: number of elements of all vectors of a row
    """

    def __init__(
        self,
        features: FeatureSpec,
        dim: int,
        *,
        prefix: str = "t_",
        device: torch.device | None = None,
        init_std: float | None = None,
        vocabularies: str = "",
        flat: bool = False,
        rounded: bool = False,
    ) -> None:
        super().__init__()
        if dim <= 0:
            raise ValueError(f"dim={dim}: must be at least 1")
        self.dim, self.prefix, self.vocabularies, self.rounded = dim, prefix, vocabularies, rounded
        self.names = [f.name for f in features.sparse]
        self.means = [f.name for f in features.sparse if f.pooling == "mean"]
        # tables that start at 0 hold first-order weights, not vectors
        self.frozen = [i for i, f in enumerate(features.sparse) if f.frozen and init_std != 0]
        self.dims = {
            prefix + t: users[0].dim if init_std != 0 and users[0].dim else dim for t, users in features.tables.items()
        }
        self.table_of = {f.name: prefix + f.table for f in features.sparse}
        self.mixed = any(d != dim for d in self.dims.values())
        self.own_dims = OwnDims(self.dims, self.table_of, dim) if self.mixed and not flat else None
        self.width = sum(self.dims[self.table_of[n]] if flat else dim for n in self.names)
        tables = [
            EmbeddingBagConfig(
                name=prefix + name,
                embedding_dim=self.dims[prefix + name],
                num_embeddings=users[0].cardinality,
                feature_names=[f.name for f in users],
                init_fn=None if init_std is None else partial(nn.init.normal_, std=init_std),
            )
            for name, users in features.tables.items()
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=device)
        self.tables = [t.name for t in tables]

    def lay_out(self, multiple: int, data_type: DataType) -> None:
        """Recreate the tables with a multiple of `multiple` columns, for alignment, of numbers of this type.

        The columns after a table's dim stay zero; weights are not kept.
        """
        tables = [_laid_out(c, self.dims[c.name], multiple, data_type) for c in self.bags.embedding_bag_configs()]
        self.bags = EmbeddingBagCollection(tables=tables, device=self.bags.device)

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Return one vector per feature, in the FeatureSpec's order: sparse with F keys of B bags -> (B, F, dim).

        If `flat` and tables have dims of their own, return all vectors one after another, (B, width).
        """
        if self.mixed:
            dims = [self.dims[self.table_of[n]] for n in self.names]
            each = _pool_each(self.bags(sparse), sparse, self.names, self.means, dims, self.frozen)
            return combine(each, self.own_dims)
        vectors = _pool(self.bags(sparse), sparse, self.names, self.means, self.dim)
        return _without_gradient(vectors, self.frozen) if self.frozen else vectors


def copied_index(places: Sequence[int], device: torch.device) -> Tensor:
    """Return an index on a device, to which it is copied without a wait of the host."""
    index = torch.tensor(places, dtype=torch.int64)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index


def combine(vectors: dict[str, Tensor], own_dims: OwnDims | None) -> Tensor:
    """Combine the vectors of tables of several dims as `PooledEmbeddings` does. vectors: (B, dim) of each feature"""
    return torch.cat(list(vectors.values()), dim=1) if own_dims is None else own_dims(vectors)


def _laid_out(config: Any, dim: int, multiple: int, data_type: DataType) -> Any:
    return replace(config, embedding_dim=dim + -dim % multiple, data_type=data_type)


@torch.fx.wrap  # type: ignore[misc]
def _pool_each(
    sums: KeyedTensor, sparse: KeyedJaggedTensor, names: list[str], means: list[str], dims: list[int], frozen: list[int]
) -> dict[str, Tensor]:
    """Return the vector of each feature, (B, its own dim)."""
    by_name = sums.to_dict()
    vectors = {n: by_name[n][:, :d] for n, d in zip(names, dims, strict=True)}
    vectors |= {n: vectors[n] / _sizes(sparse[n])[:, None] for n in means}
    return vectors | {names[i]: vectors[names[i]].detach() for i in frozen}


@torch.fx.wrap  # type: ignore[misc]
def _without_gradient(vectors: Tensor, places: list[int]) -> Tensor:
    """Return the vectors (B, F, dim) without the gradient of the features at `places`, so that no optimizer moves their
    tables.
    """
    frozen = torch.zeros(vectors.shape[1], dtype=torch.bool, device=vectors.device)
    frozen = frozen.index_fill(0, copied_index(places, vectors.device), True)
    return torch.where(frozen[None, :, None], vectors.detach(), vectors)


@torch.fx.wrap  # type: ignore[misc]  # keep TorchRec's train pipeline from tracing into it
def _pool(sums: KeyedTensor, sparse: KeyedJaggedTensor, names: list[str], means: list[str], dim: int) -> Tensor:
    if sums.keys() == names:
        vectors = sums.values().reshape(-1, len(names), sums.values().shape[1] // len(names))
    else:  # sharding may reorder keys
        by_name = sums.to_dict()
        vectors = torch.stack([by_name[name] for name in names], dim=1)
    vectors = vectors[:, :, :dim]
    if not means:
        return vectors
    sizes = torch.stack([_sizes(sparse[n]) if n in means else vectors.new_ones(len(vectors)) for n in names], dim=1)
    return (vectors / sizes[:, :, None].float()).to(vectors.dtype)


def _sizes(bags: JaggedTensor) -> Tensor:
    """Return the divisor of each bag's mean (B,): its number of ids; 1 for an empty bag."""
    return bags.lengths().clamp(min=1).float()


class SequenceEmbeddings(nn.Module):
    """Unpooled embeddings: one row for each id of the features in `names`, which may share tables.

    Args:
        dim: columns of the tables.
        names: names of the features.
        prefix: prefix of the tables' names.
        device, init_std: as for PooledEmbeddings.
    """

    def __init__(
        self,
        features: FeatureSpec,
        dim: int,
        names: Sequence[str],
        *,
        prefix: str = "s_",
        device: torch.device | None = None,
        init_std: float | None = None,
    ) -> None:
        super().__init__()
        if dim <= 0:
            raise ValueError(f"dim={dim}: must be at least 1")
        if missing := sorted(set(names) - {f.name for f in features.sparse}):
            raise ValueError(
                f"{missing[0]}: no such sparse feature; there are {', '.join(f.name for f in features.sparse)}"
            )
        self.dim, self.prefix, self.names = dim, prefix, list(names)
        if wrong := [f for f in features.sparse if f.name in names and f.dim not in (None, dim)]:
            raise ValueError(
                f"the table {wrong[0].table} has {wrong[0].dim} columns, and histories need tables of dim={dim}; "
                "leave it out of dims"
            )
        self.frozen = [f.name for f in features.sparse if f.frozen and f.name in names]
        tables = [
            EmbeddingConfig(
                name=prefix + name,
                embedding_dim=dim,
                num_embeddings=users[0].cardinality,
                feature_names=[f.name for f in users if f.name in names],
                init_fn=None if init_std is None else partial(nn.init.normal_, std=init_std),
            )
            for name, users in features.tables.items()
            if any(f.name in names for f in users)
        ]
        self.rows = EmbeddingCollection(tables=tables, device=device)
        self.tables = [t.name for t in tables]
        self.dims = dict.fromkeys(self.tables, dim)

    def lay_out(self, multiple: int, data_type: DataType) -> None:
        """Recreate the tables as PooledEmbeddings.lay_out does."""
        tables = [_laid_out(c, self.dims[c.name], multiple, data_type) for c in self.rows.embedding_configs()]
        self.rows = EmbeddingCollection(tables=tables, device=self.rows.device)

    def forward(self, sparse: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return, by feature, a JaggedTensor whose values are the rows (ids, dim) in the order of the ids."""
        return _narrow(self.rows(sparse), self.names, self.dim, self.frozen)


@torch.fx.wrap  # type: ignore[misc]
def _narrow(rows: dict[str, JaggedTensor], names: list[str], dim: int, frozen: list[str]) -> dict[str, JaggedTensor]:
    values = {n: rows[n].values()[:, :dim] for n in names}
    values |= {n: values[n].detach() for n in frozen}
    return {n: JaggedTensor(values[n], lengths=rows[n].lengths()) for n in names}
