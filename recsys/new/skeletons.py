"""The text of a new model, its test, its YAML and of a new experiment, as docs/how_to/add/model.md describes them."""

MODEL = '''"""{title}: replace this line by one sentence that says what the model computes, then the paper."""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import flat_width, flatten
from recsys.ranges import Width


class {title}(nn.Module):
    """Predict the logits by one linear layer over the dense features and the embeddings of the sparse ones."""

    def __init__(self, features: FeatureSpec, *, dim: Width = 16, device: torch.device | None = None) -> None:
        super().__init__()
        self.embeddings = PooledEmbeddings(features, dim, device=device)
        self.logits = nn.Linear(flat_width(features, dim), features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        return self.logits(flatten(dense, vectors))
'''

MODEL_YAML = """# python -m recsys.train model={name}
_target_: {module}.{title}
dim: 16
"""

MODEL_TEST = '''"""{title} computes what an independent implementation computes with the same weights."""

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.features import DenseFeature, FeatureSpec, SparseFeature
from {module} import {title}


def test_logits_equal_those_of_plain_lookups() -> None:
    features = FeatureSpec(
        dense=(DenseFeature("price"),),
        sparse=(SparseFeature("user", 5, "user"), SparseFeature("item", 7, "item")),
    )
    model = {title}(features, dim=4)
    dense, ids = torch.tensor([[0.5], [-1.0]]), {{"user": torch.tensor([1, 4]), "item": torch.tensor([6, 2])}}
    sparse = KeyedJaggedTensor(
        keys=[*ids], values=torch.cat([*ids.values()]), lengths=torch.ones(4, dtype=torch.int64)
    )
    weights = dict(model.named_parameters())
    tables = {{name: weights[f"embeddings.bags.embedding_bags.t_{{name}}.weight"] for name in ids}}
    inputs = torch.cat([dense, *(tables[name][rows] for name, rows in ids.items())], dim=1)
    expected = inputs @ weights["logits.weight"].T + weights["logits.bias"]
    torch.testing.assert_close(model(dense, sparse), expected)
'''

RETRIEVER = '''"""{title}: replace this line by one sentence that says what the model computes, then the paper."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from recsys.batch import Batch
from recsys.features import FeatureSpec
from recsys.models.common.items import Items, QueryBatch, next_items
from recsys.models.common.lists import list_means
from recsys.models.protocols import RetrievalModel


class {title}(nn.Module, RetrievalModel):
    """The query vector is the mean of the vectors of all items of a list except the last one, which is the target."""

    def __init__(self, features: FeatureSpec, *, dim: int = 16, device: torch.device | None = None) -> None:
        super().__init__()
        self.items = Items(features, dim, device=device)

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        items, lengths = lists.values().long(), lists.lengths().long()
        queries = next_items(items, lengths, every=False)  # one query per list; targets are added below
        if not self.training:
            return queries
        lists_with_items = (lengths > 0).nonzero()[:, 0]
        last = (lengths.cumsum(0) - 1)[lists_with_items]
        known = items[last] > 0  # unknown items (id 0) cannot be targets
        return replace(queries, targets=items[last[known]], query_of_target=lists_with_items[known])

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return query vectors (B, dim) from the vectors (P, dim) of query_batch.inputs."""
        return list_means(vectors, query_batch.lengths)
'''

RETRIEVER_YAML = """# python -m recsys.train model={name} data=sample_sequences
defaults:
  - override /loss@_global_.loss: full_softmax
  - override /optim@_global_.optim: adam
  - override /trainer@_global_.trainer: sequences
_target_: {module}.{title}
dim: 16
"""

RETRIEVER_TEST = '''"""{title} computes what an independent implementation computes with the same weights."""

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch
from recsys.features import FeatureSpec, SparseFeature
from {module} import {title}


def test_queries_are_means_of_all_items_but_the_last() -> None:
    items = SparseFeature("items", 9, "items", multi_valued=True)
    model = {title}(FeatureSpec(dense=(), sparse=(items,), labels=(), item="items"), dim=4)
    lists = KeyedJaggedTensor(
        keys=["items"], values=torch.tensor([3, 5, 8, 2, 4]), lengths=torch.tensor([3, 2])
    )
    batch = Batch(torch.zeros(2, 0), lists, torch.zeros(2, 0))
    query_batch = model.make_queries(batch)
    assert query_batch.targets.tolist() == [8, 4]
    [table] = model.items.parameters()
    queries = model.encode(batch, query_batch, model.items(query_batch.inputs))
    torch.testing.assert_close(queries, torch.stack([table[[3, 5]].mean(0), table[2]]))
'''

MODELS = {"ranking": (MODEL, MODEL_YAML, MODEL_TEST), "retrieval": (RETRIEVER, RETRIEVER_YAML, RETRIEVER_TEST)}

EXPERIMENT = """# @package _global_
# python -m recsys.train experiment={name}
# Say in a sentence what this experiment measures, and what it is compared with.
defaults:
  - override /data: criteo
  - override /model: dlrm

model: {{dim: 16}}
optim: {{sparse: {{lr: 0.01}}}}
trainer: {{max_epochs: 1, batch_size: 2048}}
"""
