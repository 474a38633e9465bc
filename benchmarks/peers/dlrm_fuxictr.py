# /// script
# requires-python = "==3.11.*"
# dependencies = ["fuxictr==2.3.10", "polars<2", "torch==2.13.0"]
# ///
"""DLRM of FuxiCTR's layers, in its trainer and its loader of NumPy files, see one_round.py.

The package has no DLRM: its model zoo is in its repository.
"""

import tempfile
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FeatureEmbedding, InnerProductInteraction, MLP_Block
from fuxictr.pytorch.models import BaseModel
from one_round import DIM, arguments, by_name, run


class DLRM(BaseModel):
    def __init__(self, features: FeatureMap, dense: int, folder: str) -> None:
        super().__init__(features, model_root=folder, metrics=["AUC"], verbose=0)
        self.dense = [name for name in features.features if name.startswith("dense")]
        fields = len(features.features) - dense
        self.embeddings = FeatureEmbedding(features, DIM, not_required_feature_columns=self.dense)
        self.bottom = MLP_Block(dense, hidden_units=[64, 32, DIM])
        self.dots = InnerProductInteraction(fields + 1, output="inner_product")
        self.top = MLP_Block(DIM + self.dots.interaction_units, hidden_units=[64, 32], output_dim=1)
        self.compile("adam", "binary_crossentropy", 1e-3)

    def forward(self, inputs: Any) -> dict[str, torch.Tensor]:
        x = self.get_inputs(inputs)
        bottom = self.bottom(torch.stack([x[name].float() for name in self.dense], dim=1))
        dots = self.dots(torch.cat([bottom[:, None], self.embeddings(x)], dim=1))
        return {"y_pred": self.output_activation(self.top(torch.cat([bottom, dots], dim=1)))}


rows, batch, epochs = arguments()
columns = by_name(rows)
features = FeatureMap("criteo", ".")
for name in columns:
    kind: dict[str, Any] = {"type": "numeric"}
    if name.startswith("id"):
        kind = {"type": "categorical", "vocab_size": int(rows["cardinalities"][int(name.removeprefix("id_"))])}
    features.features[name] = {"source": "", **kind}
features.labels = ["label"]
features.num_fields = len(columns)
features.set_column_index()
with tempfile.TemporaryDirectory() as folder:
    np.savez(f"{folder}/train.npz", label=rows["labels"][:, 0], **columns)
    loader, _ = RankDataLoader(features, "train", f"{folder}/train.npz", batch_size=batch, num_workers=0)
    model = DLRM(features, rows["dense"].shape[1], folder)
    model.eval_step = lambda: None
    model._max_gradient_norm, model._eval_steps = 10.0, 10**9
    model._stop_training, model._total_steps = False, 0
    run(lambda: [model.train_epoch(loader) for _ in range(epochs)], len(rows["labels"]) * epochs)
