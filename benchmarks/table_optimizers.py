"""python benchmarks/table_optimizers.py [ROUNDS]: Adam of the rows that a batch touches : FBGEMM's row-wise Adagrad.

DLRM small (bottom 64-32-16, top 64-32-1) over 26 tables of 16 columns, batch 2048, ids drawn from a Zipf law, in one
process and on tensors in memory, at several table sizes. CPU seconds, rounds interleaved.
"""

import sys

import numpy as np
import torch
from steady import Claim, measure, timed
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.parsing import parse
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.dlrm import DLRM
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

BATCH, TABLES, STEPS = 2048, 26, 12
SIZES = (2_000, 20_000, 200_000)
RULES = ("rowwise_adagrad", "adam", "partial_rowwise_adam")


def spec(rows: int) -> FeatureSpec:
    dense = tuple(DenseFeature(f"x{i}") for i in range(13))
    return FeatureSpec(dense, tuple(SparseFeature(f"c{i}", rows, f"c{i}") for i in range(TABLES)))


def batches(features: FeatureSpec, rows: int, count: int) -> list[Batch]:
    random = np.random.default_rng(0)
    names = [f.name for f in features.sparse]
    made = []
    for _ in range(count):
        ids = torch.from_numpy((random.zipf(1.2, BATCH * TABLES) * 2_654_435_761) % rows)
        sparse = KeyedJaggedTensor.from_lengths_sync(names, ids, torch.ones(BATCH * TABLES, dtype=torch.int32))
        made.append(Batch(torch.rand(BATCH, 13), sparse, torch.from_numpy(random.integers(0, 2, (BATCH, 1))).float()))
    return made


class Trainer:
    """A model and its optimizer, without a Lightning trainer."""

    def __init__(self, rows: int, rule: str) -> None:
        self.features = spec(rows)
        sparse = parse(SparseOptimConfig, {"name": rule})
        placement = Placement(sharding=ShardingConfig(), sparse=sparse, batch_size=BATCH, local_world_size=1)
        updates = Updates(make_optimizer=lambda p: torch.optim.Adam(p, lr=0.001))
        make = lambda: Task(DLRM(self.features, device=torch.device("meta")))  # noqa: E731
        self.module = RecsysModule(make, placement, updates)
        self.module.setup_model(torch.device("cpu"))
        self.optimizer = self.module.configure_optimizers()
        self.batches = batches(self.features, rows, STEPS)
        self.train()  # warm up

    def train(self) -> None:
        for batch in self.batches:
            self.optimizer.zero_grad()
            loss, _ = self.module.dmp(batch)
            loss.backward()
            self.optimizer.step()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with process_group("cpu", None):
        trainers = {(rows, rule): Trainer(rows, rule) for rows in SIZES for rule in RULES}
        measure(
            "table_optimizers",
            "Optimizers of 26 tables of 16 columns, DLRM small, batch 2048, tensors in memory",
            {f"{rule}, {rows:,} rows": timed(t.train, STEPS * BATCH) for (rows, rule), t in trainers.items()},
            [
                Claim(f"{rule}, {rows:,} rows", f"{RULES[0]}, {rows:,} rows", 0.7)
                for rule in RULES[1:]
                for rows in SIZES
            ],
            rounds,
            "samples",
        )


if __name__ == "__main__":
    main()
