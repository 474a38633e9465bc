"""Lookups whose gradients are by rows, against FBGEMM's dense kernel, whose gradient is the whole table's."""

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, GroupedEmbeddingConfig, ShardedEmbeddingTable
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.schema.run_schema import SparseOptimConfig
from recsys.sharding.optimizers import OPTIMIZERS, sparse_optimizer
from recsys.sharding.touched_rows import RowOptimizer, _replace_forward, blocks_of

TABLES = {"a": (5, 8, ["f"]), "b": (7, 8, ["g", "h"]), "c": (3, 4, ["i"])}  # rows, dim, features: two dims
FEATURES = [f for _, _, features in TABLES.values() for f in features]


def kernel(pooling: PoolingType) -> BatchedDenseEmbeddingBag:
    tables = [
        ShardedEmbeddingTable(
            num_embeddings=rows,
            embedding_dim=dim,
            local_rows=rows,
            local_cols=dim,
            name=name,
            embedding_names=features,
            feature_names=features,
            pooling=pooling,
            compute_kernel=EmbeddingComputeKernel.DENSE,
            data_type=DataType.FP32,
        )
        for name, (rows, dim, features) in TABLES.items()
    ]
    config = GroupedEmbeddingConfig(
        data_type=DataType.FP32,
        pooling=pooling,
        is_weighted=False,
        has_feature_processor=False,
        compute_kernel=EmbeddingComputeKernel.DENSE,
        embedding_tables=tables,
    )
    return BatchedDenseEmbeddingBag(config, device=torch.device("cpu"))


def dense_kernel(pooling: PoolingType) -> nn.Module:
    return DenseTableBatchedEmbeddingBagsCodegen(
        [(rows, dim) for rows, dim, _ in TABLES.values()],
        feature_table_map=[0, 1, 1, 2],
        pooling_mode=PoolingMode.SUM if pooling == PoolingType.SUM else PoolingMode.MEAN,
        use_cpu=True,
    )


def lookups(lengths: list[int], seed: int) -> KeyedJaggedTensor:
    random = torch.Generator().manual_seed(seed)
    batch = len(lengths) // len(FEATURES)
    rows = [TABLES[t][0] for t in TABLES for _ in TABLES[t][2]]
    ids = [torch.randint(r, (sum(lengths[i * batch : (i + 1) * batch]),), generator=random) for i, r in enumerate(rows)]
    return KeyedJaggedTensor.from_lengths_sync(FEATURES, torch.cat(ids), torch.tensor(lengths, dtype=torch.int32))


@given(
    st.integers(0, 4).flatmap(lambda batch: st.lists(st.integers(0, 3), min_size=4 * batch, max_size=4 * batch)),
    st.sampled_from([PoolingType.SUM, PoolingType.MEAN]),
    st.integers(1, 2),
)
@settings(max_examples=30, deadline=None)
def test_vectors_and_gradients_are_those_of_the_dense_kernel(
    lengths: list[int], pooling: PoolingType, steps: int
) -> None:
    """Also where a batch is empty, and where the gradients of two batches add up."""
    ours, dense = kernel(pooling), dense_kernel(pooling)
    weights = ours.emb_module.weights
    with torch.no_grad():
        dense.weights.copy_(weights.uniform_(-1, 1))
    _replace_forward(ours, None)
    for seed in range(steps):
        kjt = lookups(lengths, seed)
        with torch.no_grad():
            evaluated = ours(kjt)
        vectors = ours(kjt)
        expected = dense(kjt.values(), kjt.offsets().long()) if lengths else vectors.new_zeros(0, 28)
        torch.testing.assert_close(vectors, expected)
        torch.testing.assert_close(evaluated, expected)
        factors = torch.rand(vectors.shape, generator=torch.Generator().manual_seed(seed))
        (vectors * factors).sum().backward()
        if lengths:
            (expected * factors).sum().backward()
    assert weights.grad is None  # no gradient of the whole table
    found, at = torch.zeros_like(weights), 0
    for block in blocks_of(weights):
        of_block = found[at : at + block.rows.numel()].view_as(block.rows)
        if (touched := block.touched()) is not None:
            of_block[touched[0]] = touched[1]
        at += block.rows.numel()
    torch.testing.assert_close(found, torch.zeros_like(found) if dense.weights.grad is None else dense.weights.grad)


@pytest.mark.parametrize(
    ("rule", "every_row"),
    [*((name, False) for name in OPTIMIZERS), *((name, True) for name, c in OPTIMIZERS.items() if c.counts_steps)],
)
def test_a_table_of_a_kernel_is_updated_as_if_it_were_alone(rule: str, every_row: bool) -> None:
    """Tables of one kernel share their state; each must end as with a dense gradient of its own."""
    config = SparseOptimConfig(name=rule, lr=0.1, weight_decay=0.0 if rule == "sgd" else 0.01, every_row=every_row)
    updates = sparse_optimizer(config)
    ours = kernel(PoolingType.SUM)
    with torch.no_grad():
        ours.emb_module.weights.uniform_(-1, 1)
    _replace_forward(ours, None)
    slices = list(ours._param_per_table.values())
    alone = [nn.Parameter(s.detach().clone().as_subclass(torch.Tensor)) for s in slices]
    shares = [0.5, 1.0, 0.75]  # as of padded tables
    joint = RowOptimizer(slices, updates, dict(zip(slices, shares, strict=True)))
    single = RowOptimizer(alone, updates, dict(zip(alone, shares, strict=True)))
    for seed in range(3):
        kjt = lookups([1] * 4 * 3, seed)
        for optimizer in (joint, single):
            optimizer.zero_grad()
        (ours(kjt) ** 2).sum().backward()
        of_feature = kjt.to_dict()
        for w, (_, _, features) in zip(alone, TABLES.values(), strict=True):
            sum((nn.functional.embedding(of_feature[f].values(), w) ** 2).sum() for f in features).backward()  # type: ignore[union-attr]
        joint.step()
        single.step()
        for a, b in zip(slices, alone, strict=True):
            torch.testing.assert_close(a.detach().as_subclass(torch.Tensor), b.detach(), rtol=1e-5, atol=1e-6)
            for name, value in single.state[b].items():
                mine = joint.state[a][name]
                assert mine == value if name == "step" else torch.allclose(mine, value, rtol=1e-5, atol=1e-7)
