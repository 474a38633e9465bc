"""python benchmarks/train.py [small|large] [ROUNDS]: recsys.train as a user runs it against loops over bare tensors.

DLRM on the built-in sample of Criteo's shape, one process, row-wise Adagrad for the tables and Adam for the rest:

    small   bottom 64-32-16, top 64-32-1, dim 16, batch 8192
    large   bottom 512-256-64, top 1024-1024-512-256-1, dim 64, batch 2048

The bound has the same dense model and optimizers over one TBE of FBGEMM, and its batches as tensors in memory before it
starts. The other loop has nn.EmbeddingBag(sparse=True) tables and torch.optim.Adagrad. Neither reads a file.
"""

import recsys  # noqa: F401 (first: it sets how OpenMP waits, before torch loads OpenMP, so that all wait alike)

# isort: split
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from steady import Sample, measure
from torch import Tensor, nn

from recsys.config.compose import compose
from recsys.config.settings import data_config
from recsys.data.loader import ParquetLoader
from recsys.data.prepare.prepared import prepare
from recsys.features import FeatureSpec
from recsys.memory import keep_freed_memory
from recsys.models.dlrm import DLRM

SIZES = {  # batch, rows of the sample, epochs, dim, bottom, top
    "small": (8192, 500_000, 2, 16, (64, 32, 16), (64, 32)),
    "large": (2048, 80_000, 1, 64, (512, 256, 64), (1024, 1024, 512, 256)),
}
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class Bare(nn.Module):
    """The dense part of DLRM over one TBE, or over nn.EmbeddingBag tables."""

    def __init__(self, features: FeatureSpec, size: str, fbgemm: bool) -> None:
        super().__init__()
        *_, self.dim, bottom, top = SIZES[size]
        self.dlrm = DLRM(features, dim=self.dim, bottom_mlp=bottom, top_mlp=top, device=torch.device("meta"))
        del self.dlrm.embeddings
        rows = [f.cardinality for f in features.sparse]
        self.tables: nn.Module
        if fbgemm:
            self.tables = SplitTableBatchedEmbeddingBagsCodegen(
                [(n, self.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
                optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
                learning_rate=0.05,
                eps=1e-8,
            )
            weights = self.tables.split_embedding_weights()
        else:
            self.tables = nn.ModuleList(nn.EmbeddingBag(n, self.dim, mode="sum", sparse=True) for n in rows)
            weights = [t.weight.data for t in self.tables]
        for table, n in zip(weights, rows, strict=True):
            table.uniform_(-(n**-0.5), n**-0.5)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        if isinstance(self.tables, nn.ModuleList):
            of_feature = ids.view(len(self.tables), -1)
            at = offsets[: len(dense)]
            vectors = torch.stack([t(i, at) for t, i in zip(self.tables, of_feature, strict=True)], dim=1)
        else:
            vectors = self.tables(ids, offsets).view(len(dense), -1, self.dim)
        assert self.dlrm.bottom is not None and self.dlrm.dot is not None
        bottom = self.dlrm.bottom(dense)
        dots = self.dlrm.dot(torch.cat([bottom[:, None], vectors], dim=1))
        return self.dlrm.logits(self.dlrm.top(torch.cat([bottom, dots], dim=1)))


def in_memory(batches: list[Batch], features: FeatureSpec, size: str, *, fbgemm: bool) -> Callable[[], Sample]:
    """Return a round of a loop over tensors in memory."""
    batch, _, epochs, *_ = SIZES[size]
    model = Bare(features, size, fbgemm)
    dense = [p for n, p in model.named_parameters() if "tables" not in n]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=0.005)]
    if not fbgemm:
        optimizers.append(torch.optim.Adagrad(model.tables.parameters(), lr=0.05))

    def run() -> Sample:
        wall, cpu = time.perf_counter(), time.process_time()
        for x, ids, offsets, labels in batches * epochs:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, ids, offsets), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return Sample(len(batches) * epochs * batch, time.perf_counter() - wall, time.process_time() - cpu)

    return run


def by_command(arguments: list[str], folders: Iterator[Path]) -> Callable[[], Sample]:
    """Return a round of python -m recsys.train, of which the training counts, without its start."""

    def run() -> Sample:
        folder = next(folders)
        command = [sys.executable, "-m", "recsys.train", *arguments, f"run_dir={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        train = json.loads((folder / "metrics.json").read_text())["train"]
        return Sample(train["samples"], train["seconds"], train["cpu_seconds"])

    return run


def main() -> None:
    size = sys.argv[1] if len(sys.argv) > 1 else "small"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    batch, rows, epochs, dim, bottom, top = SIZES[size]
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "model=dlrm", "data=criteo", f"data.sample.rows={rows}", f"data.prepared={folder}/prepared",
            f"model.dim={dim}", f"model.bottom_mlp={list(bottom)}", f"model.top_mlp={list(top)}",
            f"trainer.batch_size={batch}", f"trainer.max_epochs={epochs}", "trainer.early_stopping.patience=null",
        ]  # fmt: skip
        prepared = prepare(data_config(compose("train", arguments)))
        features = prepared.fitted.features
        loader = ParquetLoader(prepared.files("train"), features, batch_size=batch, training=True, shuffle=True)
        batches = [
            (b.dense, b.sparse.values().long(), b.sparse.offsets().long(), b.labels) for b in loader if b.rows == batch
        ]
        folders = (Path(folder, f"run-{i}") for i in range(1000))
        contestants = {
            "bare TBE": in_memory(batches, features, size, fbgemm=True),
            "nn.EmbeddingBag": in_memory(batches, features, size, fbgemm=False),
            "recsys.train": by_command(arguments, folders),
            "recsys.train bf16-mixed compiled": by_command(
                [*arguments, "trainer.precision=bf16-mixed", "trainer.compile=true"], folders
            ),
        }
        contestants["recsys.train bf16-mixed compiled"]()  # compiles once
        measure(f"train_{size}", contestants, "bare TBE", rounds, "samples")


if __name__ == "__main__":
    main()
