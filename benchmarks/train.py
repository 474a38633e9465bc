"""python benchmarks/train.py [ROUNDS]: recsys.train as a user runs it against a bare loop over FBGEMM's TBE.

DLRM small (bottom 64-32-16, top 64-32-1, dim 16), batch 8192, on the built-in sample, one process. The bound has the
same dense model and optimizers, one TBE over all tables, and its batches as tensors in memory before it starts.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn

from recsys.config.compose import compose
from recsys.config.settings import data_config
from recsys.data.loader import ParquetLoader
from recsys.data.prepare.prepared import prepare
from recsys.features import FeatureSpec
from recsys.models.dlrm import DLRM

BATCH, ROWS, EPOCHS = 8192, 1_000_000, 4


class Bare(nn.Module):
    """The dense part of DLRM over one TBE, ids as one tensor of all features."""

    def __init__(self, features: FeatureSpec) -> None:
        super().__init__()
        self.dlrm = DLRM(features, device=torch.device("meta"))
        del self.dlrm.embeddings
        self.tbe = SplitTableBatchedEmbeddingBagsCodegen(
            [(f.cardinality, 16, EmbeddingLocation.HOST, ComputeDevice.CPU) for f in features.sparse],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=0.05,
            eps=1e-8,
        )
        for table, f in zip(self.tbe.split_embedding_weights(), features.sparse, strict=True):
            table.uniform_(-(f.cardinality**-0.5), f.cardinality**-0.5)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        vectors = self.tbe(ids, offsets).view(len(dense), -1, 16)
        bottom = self.dlrm.bottom(dense)
        dots = self.dlrm.dot(torch.cat([bottom[:, None], vectors], dim=1))
        return self.dlrm.logits(self.dlrm.top(torch.cat([bottom, dots], dim=1)))


def bound(files: list[Path], features: FeatureSpec) -> float:
    """Samples a second of the bare loop."""
    loader = ParquetLoader(files, features, batch_size=BATCH, training=True, shuffle=True)
    batches = [(b.dense, b.sparse.values().long(), b.sparse.offsets().long(), b.labels) for b in loader]
    model = Bare(features)
    optimizer = torch.optim.Adam([p for n, p in model.named_parameters() if "tbe" not in n], lr=0.005)
    start = time.perf_counter()
    for dense, ids, offsets, labels in batches * EPOCHS:
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, ids, offsets), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(batches) * EPOCHS * BATCH / (time.perf_counter() - start)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "model=dlrm", "data=criteo", f"data.sample.rows={ROWS}", f"data.prepared={folder}/prepared",
            f"trainer.batch_size={BATCH}", f"trainer.max_epochs={EPOCHS}",
        ]  # fmt: skip
        prepared = prepare(data_config(compose("train", arguments)))
        ours, bounds = [], []
        for i in range(rounds):
            bounds.append(bound(prepared.files("train"), prepared.fitted.features))
            run = f"{folder}/run-{i}"
            command = [sys.executable, "-m", "recsys.train", *arguments, f"run_dir={run}"]
            subprocess.run(command, check=True, capture_output=True)
            ours.append(json.loads(Path(run, "metrics.json").read_text())["train"]["samples_per_second"])
            print(f"ours {ours[-1]:,.0f} samples/s, bare TBE {bounds[-1]:,.0f}: {ours[-1] / bounds[-1]:.2f}")
    ratio = statistics.median(a / b for a, b in zip(ours, bounds, strict=True))
    print(f"median ratio {ratio:.2f} (target 0.85)")
    result = {"rounds": rounds, "ours": ours, "bare_tbe": bounds, "median_ratio": ratio}
    target = Path(__file__).parent / "results" / "train.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
