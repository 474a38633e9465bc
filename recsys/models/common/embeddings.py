"""Embedding tables for a FeatureSpec. Models create all of their tables here."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.fx
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recsys.features import FeatureSpec


class PooledEmbeddings(nn.Module):
    """Pooled embeddings: one table of `dim` columns for each table of `features`.

    An empty bag is zero. TorchRec sums the rows of each bag, and this module divides for a mean: TorchRec 1.8 divides
    row-wise tables after pooling, then also divides tables of other types in a mixed plan, and never divides
    grid-sharded ones.

    Args:
        prefix: prefix of the tables' names. A table is an attribute of a module and may not be called `items` or
            `type`; a second collection over the same features needs a prefix of its own.
        device: where the weights are created; "meta" allocates nothing until they are sharded.
        init_std: standard deviation of the initial rows (0 for zeros); None for TorchRec's default, uniform in
            +-1/sqrt(rows).
        weighted: whether to multiply rows by the ids' weights; "mean" pooling then divides by the sum of the weights.
        vocabularies: folder of the vocabularies within prepared data: "items/" for features of items, otherwise "".
    """

    def __init__(
        self,
        features: FeatureSpec,
        dim: int,
        *,
        prefix: str = "t_",
        device: torch.device | None = None,
        init_std: float | None = None,
        weighted: bool = False,
        vocabularies: str = "",
    ) -> None:
        super().__init__()
        if dim <= 0:
            raise ValueError(f"dim={dim}: must be at least 1")
        self.dim, self.prefix, self.vocabularies = dim, prefix, vocabularies
        self.names = [f.name for f in features.sparse]
        self.means = [f.name for f in features.sparse if f.pooling == "mean"]
        # tables that start at 0 hold first-order weights, not vectors
        self.frozen = [i for i, f in enumerate(features.sparse) if f.frozen and init_std != 0]
        tables = [
            EmbeddingBagConfig(
                name=prefix + name,
                embedding_dim=dim,
                num_embeddings=users[0].cardinality,
                feature_names=[f.name for f in users],
                init_fn=None if init_std is None else partial(nn.init.normal_, std=init_std),
            )
            for name, users in features.tables.items()
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=device, is_weighted=weighted)
        self.tables = [t.name for t in tables]

    def widen(self, width: int) -> None:
        """Recreate the tables with `width` columns for alignment. The columns after `dim` stay zero; weights are not
        kept.
        """
        tables = [replace(c, embedding_dim=width) for c in self.bags.embedding_bag_configs()]
        self.bags = EmbeddingBagCollection(tables=tables, device=self.bags.device, is_weighted=self.bags.is_weighted())

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Return one vector per feature, in the FeatureSpec's order: sparse with F keys of B bags -> (B, F, dim)."""
        vectors = _pool(self.bags(sparse), sparse, self.names, self.means, self.dim)
        return _without_gradient(vectors, self.frozen) if self.frozen else vectors


@torch.fx.wrap  # type: ignore[misc]
def _without_gradient(vectors: Tensor, places: list[int]) -> Tensor:
    """Return the vectors (B, F, dim) without the gradient of the features at `places`, so that no optimizer moves their
    tables.
    """
    frozen = torch.zeros(vectors.shape[1], dtype=torch.bool)
    frozen[places] = True
    return torch.where(frozen.to(vectors.device)[None, :, None], vectors.detach(), vectors)


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
    return vectors / sizes[:, :, None]


def _sizes(bags: JaggedTensor) -> Tensor:
    """Return the divisor of each bag's mean (B,): its number of ids or the sum of their weights; 1 for an empty bag."""
    lengths = bags.lengths()
    if bags.weights_or_none() is None:
        return lengths.clamp(min=1).float()
    totals = torch.segment_reduce(bags.weights(), "sum", lengths=lengths)
    return torch.where(totals == 0, 1, totals)


class SequenceEmbeddings(nn.Module):
    """Unpooled embeddings: one row for each id of the features in `names`, which may share tables."""

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

    def widen(self, width: int) -> None:
        """Recreate the tables with `width` columns, see PooledEmbeddings.widen."""
        tables = [replace(c, embedding_dim=width) for c in self.rows.embedding_configs()]
        self.rows = EmbeddingCollection(tables=tables, device=self.rows.device)

    def forward(self, sparse: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return, by feature, a JaggedTensor whose values are the rows (ids, dim) in the order of the ids."""
        return _narrow(self.rows(sparse), self.names, self.dim, self.frozen)


@torch.fx.wrap  # type: ignore[misc]
def _narrow(rows: dict[str, JaggedTensor], names: list[str], dim: int, frozen: list[str]) -> dict[str, JaggedTensor]:
    values = {n: rows[n].values()[:, :dim] for n in names}
    values |= {n: values[n].detach() for n in frozen}
    return {n: JaggedTensor(values[n], lengths=rows[n].lengths()) for n in names}
