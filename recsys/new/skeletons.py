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

from recsys.features import DenseFeature, FeatureSpec, Label, SparseFeature
from {module} import {title}


def test_logits_are_those_of_plain_lookups() -> None:
    features = FeatureSpec(
        dense=(DenseFeature("price"),),
        sparse=(SparseFeature("user", 5, "user"), SparseFeature("item", 7, "item")),
        labels=(Label("label"),),
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
