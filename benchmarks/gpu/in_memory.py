"""What the benchmarks of GPUs share: drawn batches, a loader over them, settings, and runs whose steps are measured.

The batches are drawn in memory before a run starts, so that no disk is measured: ids of a long tail, 13 numbers, and as
many ids of each list as the data declares. A run takes them in turn, through the loader's copies to the GPU.
"""

import recsys  # noqa: F401 (first: it sets how OpenMP waits, before torch loads OpenMP)

# isort: split
import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytorch_lightning as lightning
import torch
from steady import Clock, Sample
from torch.profiler import ProfilerActivity, profile, schedule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.data.features.encoders import SparseColumn
from recsys.data.features.resolved_data import feature_spec
from recsys.data.loader.device_copies import copied_ahead, pinned_ahead, with_upcoming
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.job.run_config import RunConfig
from recsys.training.callbacks import Throughput
from recsys.training.epoch_loop import CloseCallback
from recsys.training.loaders import local_device
from recsys.training.pipelines import BATCHES_AHEAD, NONE, PIPELINES
from recsys.training.profiling import marked_while_profiled
from recsys.training.trainer import build_module, build_trainer

WARM = 5  # steps before those that are measured
TRACED = 6  # steps after them, which are traced
TAIL = 3.0  # ids are rows x u ^ TAIL, u uniform: half of them are among an eighth of the rows
NOTHING = [  # every setting that is measured is off, whatever the defaults are
    "trainer.pipeline=none", "trainer.precision=32-true", "trainer.tf32=false", "trainer.compile=false",
    "trainer.cuda_graphs=false", "sharding.table_dtype=fp32",
]  # fmt: skip
DEFAULTS = "recsys, defaults"  # nothing but the model, the data and the batch is typed


def features_of(cfg: RunConfig, most_rows: int | None = None, parts: int = 1) -> FeatureSpec:
    """Return the features that a config's data declares.

    Args:
        cfg: the config of a run.
        most_rows: most rows of a table.
        parts: number of GPUs that share each table; one of them is measured.
    """

    def rows(column: SparseColumn) -> int:
        declared = column.planned_rows or 1000
        return max(min(-(-declared // parts), most_rows or declared), 2)

    return feature_spec(cfg.data, rows)


def lengths_of(cfg: RunConfig, features: FeatureSpec) -> dict[str, int]:
    """Return the number of ids of a row for each sparse feature."""
    columns = cfg.data.sparse_columns
    return {f.name: round(columns[f.name].mean_length or 1) if f.multi_valued else 1 for f in features.sparse}


def draw_batches(features: FeatureSpec, lengths: Mapping[str, int], rows: int, number: int) -> list[Batch]:
    """Return batches of this many rows; lists have the same length in each row."""
    random = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(number):
        totals = [rows * lengths[f.name] for f in features.sparse]
        ids = [
            (f.cardinality * torch.rand(n, generator=random) ** TAIL).int().clamp(max=f.cardinality - 1)
            for f, n in zip(features.sparse, totals, strict=True)
        ]
        sizes = [torch.full((rows,), lengths[f.name], dtype=torch.int32) for f in features.sparse]
        sparse = KeyedJaggedTensor(
            [f.name for f in features.sparse],
            torch.cat(ids),
            lengths=torch.cat(sizes),
            stride=rows,
            length_per_key=totals,
        )
        sparse.offsets()
        dense = torch.randn(rows, features.dense_width, generator=random)
        labels = (torch.rand(rows, max(len(features.labels), 1), generator=random) < 0.25).float()
        batches.append(Batch(dense, sparse, labels))
    return batches


def draw_lists(features: FeatureSpec, lengths: np.ndarray, items: int, number: int) -> list[Batch]:
    """Return batches of one list of items for each row, for retrieval models: lengths (rows,)."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(number):
        order = torch.from_numpy(random.permutation(lengths).astype(np.int32))
        parts, sizes, totals = [], [], []
        for f in features.sparse:
            size = order if f.multi_valued else torch.ones(len(order), dtype=torch.int32)
            most = items if f.name == features.item else f.cardinality
            totals.append(int(size.sum()))
            parts.append(torch.from_numpy(random.integers(1, most, totals[-1]).astype(np.int32)))
            sizes.append(size)
        keys = [f.name for f in features.sparse]
        sparse = KeyedJaggedTensor(
            keys, torch.cat(parts), lengths=torch.cat(sizes), stride=len(order), length_per_key=totals
        )
        dense = torch.zeros(len(order), features.dense_width)
        batches.append(Batch(dense, sparse, torch.zeros(len(order), 1)))
    return batches


class InMemory:
    """A loader of batches in memory, which takes them in turn as `ParquetLoader` hands out those of files.

    upcoming: the batches that come next, for a pipeline
    seconds: time that the training waited for a batch
    """

    def __init__(self, batches: Sequence[Batch], steps: int, device: torch.device, pipeline: str) -> None:
        self.upcoming: deque[Batch] = deque()
        self.seconds, self.batch_size = 0.0, batches[0].rows
        self.make_queries: Callable[[Batch, int], Any] | None = None
        self._batches, self._steps, self._device, self._pipeline = batches, steps, device, pipeline

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        batches: Generator[Batch] = (b for b in itertools.islice(itertools.cycle(self._batches), self._steps))
        ahead = self._pipeline in PIPELINES
        make_queries = self.make_queries
        make = None if make_queries is None else lambda batch: make_queries(batch, 0)
        if self._device.type == "cuda" and self._pipeline != NONE:
            batches = pinned_ahead(batches) if ahead else copied_ahead(batches, self._device, make)
        yield from with_upcoming(batches, self.upcoming, BATCHES_AHEAD) if ahead else batches


class Measured(CloseCallback):
    """Measures the steps after the first WARM ones, and writes a Chrome trace of three of them."""

    def __init__(self, trace: Path | None, begin: Callable[[Any], None] | None) -> None:
        self.sample: Sample | None = None
        self._begin = begin
        self._clock: Clock | None = None
        self._rows = 0  # trained before
        self._trace = trace
        self._profile: Any = None

    def needs(self, batch: int) -> bool:
        return self._clock is None or (self._trace is not None and batch > self._steps - TRACED)

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self._steps = trainer.num_training_batches
        if self._begin is not None:
            self._begin(module)

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        if batch_idx == WARM:
            synchronize()
            self._clock, self._rows = Clock(), module.rows_trained

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._trace is not None and batch_idx == self._steps - TRACED:  # no part of what is measured
            self._stop(module)
            self._profile = profiler(self._trace)
            self._profile.start()
        elif self._profile is not None:
            self._profile.step()

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        self._stop(module)
        if self._profile is not None:
            self._profile.stop()

    def _stop(self, module: Any) -> None:
        if self.sample is None and self._clock is not None:
            synchronize()
            self.sample = self._clock.sample(module.rows_trained - self._rows)


def profiler(trace: Path) -> Any:
    """Return a profiler that skips a step and writes the next three to a Chrome trace."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    write = lambda p: p.export_chrome_trace(str(trace))  # noqa: E731
    return profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=3, repeat=1), on_trace_ready=write)


def synchronize() -> None:
    """Wait until the GPU has done all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def fitted_for(features: FeatureSpec, items: int = 0) -> Any:
    """Return what a run needs of fitted transforms. items: number of candidates of a retrieval model"""
    counts = pl.DataFrame({"count": np.ones(max(items - 1, 0), np.int64)})
    return SimpleNamespace(
        features=features, initial_tables={}, item_vocabulary=counts, candidates=range(max(items - 1, 0)), items=None
    )


def trained(
    cfg: RunConfig,
    fitted: Any,
    batches: Sequence[Batch],
    steps: int,
    trace: Path | None = None,
    begin: Callable[[Any], None] | None = None,
) -> Sample:
    """Train with a config as recsys.train does, without validation and checkpoints.

    Args:
        cfg: the config of the run.
        fitted: see `fitted_for`.
        batches: taken in turn.
        steps: number of measured steps.
        trace: file for a Chrome trace of three more steps; None for no trace.
        begin: called with the module before its first step.
    """
    whole = WARM + steps + (TRACED if trace is not None else 0)
    torch.set_float32_matmul_precision("highest")
    with process_group(cfg.accelerator, cfg.trainer.threads) as ranks, tempfile.TemporaryDirectory() as home:
        module = build_module(cfg, fitted, ranks, total_steps=whole)
        prepared: Any = SimpleNamespace(rows=lambda _: 0)
        trainer, _ = build_trainer(cfg, Path(home), ranks, prepared)
        measured = Measured(trace, begin)
        trainer.callbacks = [Throughput(whole), measured]  # type: ignore[attr-defined]
        loader = InMemory(batches, whole, local_device(cfg.accelerator, 0), cfg.pipeline)
        with marked_while_profiled():
            trainer.fit(module, train_dataloaders=loader)
    assert measured.sample is not None
    return measured.sample
