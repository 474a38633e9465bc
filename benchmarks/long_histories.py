"""python benchmarks/long_histories.py [ROUNDS]: training steps of models that read histories of 100 to 10,000 items.

Models with their defaults, W = 32 for an item with its category, tables of 100,000 items and 100 categories, tensors in
memory, one process. A batch has 262,144 items in histories of one length; `uneven` is one history of 10,000 items among
255 of 100. The peak memory is what a process of its own grows by in its first step of these sizes.
"""

import multiprocessing
import resource
import sys

import torch
from steady import Claim, measure, timed
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.memory import keep_freed_memory
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.din import DIN
from recsys.models.sdim import SDIM
from recsys.models.sim import SIM
from recsys.models.target_attention import TargetAttention
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

ITEMS = 2**18  # of the histories of a batch
LENGTHS = {
    **{f"{n:,} items": torch.full((ITEMS // n,), n) for n in (100, 1_000, 10_000)},
    "uneven": torch.tensor([10_000, *[100] * 255]),
}
MODELS: dict[str, type[nn.Module]] = {"sdim": SDIM, "sim": SIM, "target_attention": TargetAttention, "din": DIN}
SIZES = {"item": 100_000, "kind": 100}
FEATURES = FeatureSpec(
    dense=(),
    sparse=(
        *(SparseFeature(name, rows, name) for name, rows in SIZES.items()),
        *(SparseFeature(f"{n}s", rows, n, multi_valued=True, sequence=True) for n, rows in SIZES.items()),
    ),
)


def batch(lengths: torch.Tensor) -> Batch:
    generator = torch.Generator().manual_seed(0)
    rows, values = len(lengths), int(lengths.sum())
    ids = [torch.randint(1, f.cardinality, (values if f.multi_valued else rows,), generator=generator)
           for f in FEATURES.sparse]  # fmt: skip
    bags = torch.cat([lengths if f.multi_valued else torch.ones(rows, dtype=torch.long) for f in FEATURES.sparse])
    sparse = KeyedJaggedTensor.from_lengths_sync([f.name for f in FEATURES.sparse], torch.cat(ids), bags.int())
    return Batch(torch.zeros(rows, 0), sparse, torch.randint(0, 2, (rows, 1), generator=generator).float())


class Trainer:
    """A model and its optimizers, without a Lightning trainer."""

    def __init__(self, model: type[nn.Module], lengths: torch.Tensor) -> None:
        placement = Placement(ShardingConfig(), SparseOptimConfig(name="rowwise_adagrad", lr=0.1), len(lengths), 1)
        updates = Updates(make_optimizer=lambda p: torch.optim.Adam(p, lr=0.001))
        self.module = RecsysModule(lambda: Task(model(FEATURES, device=torch.device("meta"))), placement, updates)
        self.module.setup_model(torch.device("cpu"))
        self.optimizer = self.module.configure_optimizers()
        self.batch = batch(lengths)
        self.train(batch(torch.tensor([3, 0])))  # warm up

    def train(self, rows: Batch | None = None) -> None:
        self.optimizer.zero_grad()
        self.module.dmp(rows or self.batch)[0].backward()
        self.optimizer.step()


def peak(model: str, case: str) -> float:
    """Return by how many MiB a process grows in its first step."""
    with process_group("cpu", None):
        trainer = Trainer(MODELS[model], LENGTHS[case])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer.train()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    cases = [(model, case) for case in LENGTHS for model in MODELS]
    peaks = {}
    for model, case in cases:  # forked, before this process computes anything
        with multiprocessing.get_context("fork").Pool(1) as process:
            peaks[f"{model}, {case}"] = process.apply(peak, (model, case))
        print(f"peak of {model}, {case}: {peaks[f'{model}, {case}']:,.0f} MiB", flush=True)
    keep_freed_memory()  # as recsys.train does
    with process_group("cpu", None):
        trainers = {(model, case): Trainer(MODELS[model], LENGTHS[case]) for model, case in cases}
        measure(
            "long_histories",
            "Training steps of models that read long histories, tensors in memory; peak memory of a step",
            {f"{m}, {case}": timed(t.train, int(LENGTHS[case].sum())) for (m, case), t in trainers.items()},
            [Claim(f"sdim, {case}", f"{m}, {case}") for case in LENGTHS for m in MODELS if m != "sdim"],
            rounds,
            "items",
            parts={f"peak of a step, MiB: {name}": {"MiB": value} for name, value in peaks.items()},
        )


if __name__ == "__main__":
    main()
