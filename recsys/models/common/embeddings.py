"""Embedding tables for a FeatureSpec: the only place where models create tables."""

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
    """One table of `dim` columns for each table of `features`; each feature's bag of rows is pooled.

    device: where the weights live until they are sharded; "meta" allocates nothing.
    prefix: of the tables' names, since a table is an attribute of a module and may not be called `items`
    or `type`; another one sets apart a second collection over the same features.
    init_std: rows start normal with this deviation (0: at zero); by default, TorchRec's, uniform in +-1/sqrt(rows).
    vocabularies: "items/" where the features are those of items, whose vocabularies lie apart.
    weighted: rows are multiplied by the ids' weights; a mean divides by their sum.

    sparse of F keys -> (B, F, dim), in the FeatureSpec's order; an empty bag is zero

    Every table sums, and the mean is taken here: TorchRec 1.8 divides row-wise tables afterwards, and then, where
    types are mixed, also those that are not row-wise, and never grid-sharded ones.
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
            raise ValueError(f"embedding dim {dim} is not positive")
        self.dim, self.prefix, self.vocabularies = dim, prefix, vocabularies
        self.names = [f.name for f in features.sparse]
        self.means = [f.name for f in features.sparse if f.pooling == "mean"]
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
        """Tables of `width` columns, those after `dim` for alignment alone: they stay zero. Weights start anew."""
        tables = [replace(c, embedding_dim=width) for c in self.bags.embedding_bag_configs()]
        self.bags = EmbeddingBagCollection(tables=tables, device=self.bags.device, is_weighted=self.bags.is_weighted())

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        return _pool(self.bags(sparse), sparse, self.names, self.means, self.dim)


@torch.fx.wrap  # type: ignore[misc]  # so that TorchRec's train pipeline can trace a model
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
    """The divisor of each bag's mean: the number of its ids, or the sum of their weights; 1 where it is empty."""
    lengths = bags.lengths()
    if bags.weights_or_none() is None:
        return lengths.clamp(min=1).float()
    totals = torch.segment_reduce(bags.weights(), "sum", lengths=lengths)
    return torch.where(totals == 0, 1, totals)


class SequenceEmbeddings(nn.Module):
    """Unpooled: one row for each id, for the features named, which may share tables.

    sparse of F keys -> by feature a JaggedTensor whose values are (ids, dim), in the ids' order
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
            raise ValueError(f"embedding dim {dim} is not positive")
        if missing := sorted(set(names) - {f.name for f in features.sparse}):
            raise ValueError(f"no sparse feature is named {missing[0]}")
        self.dim, self.prefix, self.names = dim, prefix, list(names)
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
        """As PooledEmbeddings.widen."""
        tables = [replace(c, embedding_dim=width) for c in self.rows.embedding_configs()]
        self.rows = EmbeddingCollection(tables=tables, device=self.rows.device)

    def forward(self, sparse: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        return _narrow(self.rows(sparse), self.names, self.dim)


@torch.fx.wrap  # type: ignore[misc]
def _narrow(rows: dict[str, JaggedTensor], names: list[str], dim: int) -> dict[str, JaggedTensor]:
    return {n: JaggedTensor(rows[n].values()[:, :dim], lengths=rows[n].lengths()) for n in names}
