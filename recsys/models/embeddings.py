"""Embedding tables for a FeatureSpec: the only place where models create tables."""

from functools import partial

import torch
import torch.fx
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from recsys.features import FeatureSpec

_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}


def embedding_bags(
    features: FeatureSpec,
    dim: int,
    *,
    prefix: str = "t_",
    device: torch.device | None = None,
    init_std: float | None = None,
) -> EmbeddingBagCollection:
    """One table of `dim` columns for each table of `features`, pooled per feature.

    device: where the weights live until they are sharded; "meta" allocates nothing.
    prefix: of the tables' names, since a table is an attribute of a module and may not be called `items`
    or `type`; another one sets apart a second collection over the same features.
    init_std: rows start normal with this deviation (0: at zero); by default, TorchRec's, uniform in +-1/sqrt(rows).

    Raises ValueError where `dim` does not suit FBGEMM's kernels (a multiple of 4).
    """
    if dim <= 0 or dim % 4:
        raise ValueError(f"embedding dim {dim} is not a positive multiple of 4, which FBGEMM's kernels need")
    tables = []
    for name, users in features.tables.items():
        if len({f.pooling for f in users}) > 1:
            raise ValueError(f"table {name}: features that share a table must share its pooling")
        tables.append(
            EmbeddingBagConfig(
                name=prefix + name,
                embedding_dim=dim,
                num_embeddings=users[0].cardinality,
                feature_names=[f.name for f in users],
                pooling=_POOLING[users[0].pooling],
                init_fn=None if init_std is None else partial(torch.nn.init.normal_, std=init_std),
            )
        )
    return EmbeddingBagCollection(tables=tables, device=device)


def stack(pooled: KeyedTensor, features: FeatureSpec) -> Tensor:
    """(B, F, dim) from the pooled embeddings, in the FeatureSpec's order of features."""
    return _stack(pooled, [f.name for f in features.sparse])


@torch.fx.wrap  # type: ignore[misc]  # so that TorchRec's train pipeline can trace a model
def _stack(pooled: KeyedTensor, names: list[str]) -> Tensor:
    if pooled.keys() == names:
        return pooled.values().reshape(-1, len(names), pooled.values().shape[1] // len(names))
    by_name = pooled.to_dict()
    return torch.stack([by_name[name] for name in names], dim=1)
