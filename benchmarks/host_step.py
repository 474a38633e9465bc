"""python benchmarks/host_step.py [ROUNDS]: what a training step costs its host, by part.

The mathematics of these steps is next to nothing: DLRM with 4 numbers a vector and layers of 8 units, 64 rows a batch,
one thread. What is left is what a GPU's host does for each step. The contestants take turns of a tenth of a second, and
CPU seconds are compared. Each has a part more than the one above it:

    bare TBE loop            the model's own dense part and optimizers over one TBE of FBGEMM, batches in memory
    step                     TorchRec's tables and KeyedJaggedTensors, and recsys's parts of a step, in a bare loop
    step, Lightning          the same, called by Lightning's loop with a run's callbacks
    recsys.train             the command: batches from files, logs, progress
"""

import recsys  # noqa: F401 (first: it sets how OpenMP waits, before torch loads OpenMP)

# isort: split
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
import pytorch_lightning as pl
import torch
from in_memory import trained
from steady import Claim, Sample, measure, timed
from train import META, bare, bare_loop, by_command

from recsys.config.compose import compose
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import prepare
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.job.run_config import RunConfig
from recsys.models.dlrm import DLRM
from recsys.training.epoch_loop import EpochLoop
from recsys.training.pipelines import Sequential
from recsys.training.profiling import marked_while_profiled
from recsys.training.trainer import build_module

BARE, STEP, LIGHTNING, COMMAND = "bare TBE loop", "step", "step, Lightning", "recsys.train"
ROWS, BATCHES, EPOCHS = 64, 800, 4
GOAL = 1 / 1.3


def stepped(cfg: RunConfig, fitted: Any, batches: list[Batch], epochs: int) -> Sample:
    """Train batches by the parts of recsys's step in a bare loop."""
    with process_group(cfg.accelerator, cfg.trainer.threads) as ranks:
        module = build_module(cfg, fitted, ranks)
        device = torch.device("cpu")
        module.setup_model(device)
        module.configure_optimizers()
        module.trainer = pl.Trainer(logger=False, enable_checkpointing=False)
        module.trainer.fit_loop.epoch_loop = EpochLoop(module.trainer, log_every_n_steps=50)
        loop = Sequential(module.step, device)

        def train() -> None:
            for batch in batches * epochs:
                loop.train(batch)

        with marked_while_profiled():
            return timed(train, len(batches) * epochs)()


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        arguments = [
            "model=dlrm", "model.dim=4", "model.bottom_mlp=[8,4]", "model.top_mlp=[8]", "data=criteo",
            f"data.sample.rows={ROWS * BATCHES}", f"data.prepared={folder}/prepared",
            f"trainer.batch_size={ROWS}", f"trainer.max_epochs={EPOCHS}", "trainer.threads=1",
            "trainer.early_stopping.patience=null", "data.split.validation=0", "data.split.test=0",
        ]  # fmt: skip
        cfg = RunConfig.of(compose("train", arguments))
        prepared = prepare(cfg.data)
        fitted = prepared.fitted
        loader = ParquetLoader(prepared.files("train"), fitted.features, batch_size=ROWS, training=True, shuffle=True)
        batches = [b for b in loader if b.rows == ROWS]
        units = len(batches) * EPOCHS
        model = bare(lambda f: DLRM(f, dim=4, bottom_mlp=(8, 4), top_mlp=(8,), device=META), fitted.features, True)
        run = folder / "run"
        command = by_command(arguments, itertools.repeat(run))

        def by_steps() -> Sample:
            sample = command()
            shutil.rmtree(run)
            return Sample(sample.units / ROWS, sample.wall, sample.cpu)

        def by_lightning() -> Sample:
            sample = trained(cfg, fitted, batches, units)
            return Sample(sample.units / ROWS, sample.wall, sample.cpu)

        contestants: dict[str, Callable[[], Sample]] = {
            BARE: timed(bare_loop(model, batches, EPOCHS), units),
            STEP: lambda: stepped(cfg, fitted, batches, EPOCHS),
            LIGHTNING: by_lightning,
            COMMAND: by_steps,
        }
        claims = [Claim(name, BARE, GOAL if name == COMMAND else None) for name in (STEP, LIGHTNING, COMMAND)]
        torch.set_num_threads(1)
        about = f"the host's time of a step of {ROWS} rows, one thread"
        begun = {COMMAND: (run / "metrics.csv").exists}
        measure("host_step", about, contestants, claims, rounds, "steps", begun=begun)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
