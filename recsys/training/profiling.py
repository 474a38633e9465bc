"""Measure the parts of training steps, and callbacks for debug runs: overfitting one batch, profiling operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from recsys.base.console import results, say
from recsys.training.epoch_loop import CloseCallback, loop_of

if TYPE_CHECKING:
    from recsys.interface.batch import Batch

PARTS = ("forward", "backward", "optimizer")
PENDING = 50  # number of steps after which GPU events are read
WARM = 10  # number of first steps, which are not representative
OPERATORS = 15


class Overfit(CloseCallback):
    """Callback that reports how the loss of repeatedly seen batches has changed."""

    def __init__(self) -> None:
        self._losses: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self._losses.append(float(outputs["loss"]))

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        first, last = self._losses[0], self._losses[-1]
        verdict = (
            "it learns" if last < first / 2 else "it hardly learns: check the loss, the learning rates and the labels"
        )
        say(f"debug=overfit: the loss went from {first:.4g} to {last:.4g} in {len(self._losses)} steps: {verdict}")


class Profile(CloseCallback):
    """Callback that profiles `steps` steps after the first WARM steps.

    Args:
        steps: number of profiled steps.
        trace: file to which rank 0 writes a trace; a table is printed and training stops. None only measures `share`.
        resume_clock: called after the profiler's start and stop, so that their time does not count as training.

    Attributes:
        share: share of the profiled time spent in collectives, including waiting for other ranks; None before it is
            measured.
    """

    def __init__(self, steps: int, trace: Path | None, resume_clock: Callable[[], None]) -> None:
        self.share: float | None = None
        self._steps, self._trace, self._begun, self._since = steps, trace, 0, 0.0
        self._profile: profile | None = None
        self._resume_clock = resume_clock

    def needs(self, batch: int) -> bool:
        return self._trace is not None or self._begun < WARM + self._steps

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self._begun += 1
        if self._begun == WARM + 1:
            gpu = [ProfilerActivity.CUDA] if module.device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._profile.start()
            self._resume_clock()
            self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        ends = self._trace is None or loop_of(trainer).ends_step  # then training stops
        if self._profile is not None and self._begun >= WARM + self._steps and ends:
            self._finish(trainer)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._profile is not None:
            self._finish(trainer)
        elif self._trace is not None and self._begun <= WARM:
            problem = f"{self._begun} steps are too few: the first {WARM} steps are not profiled"
            say(f"debug=profile: {problem}; train more batches")

    def _finish(self, trainer: pl.Trainer) -> None:
        assert self._profile is not None
        steps, seconds = max(self._begun - WARM, 1), time.perf_counter() - self._since
        self._profile.stop()
        operators = self._profile.key_averages()
        on_gpu = torch.cuda.is_available()
        time_field = "self_device_time_total" if on_gpu else "cpu_time_total"
        names = ("gloo:", "nccl:", "ncclDevKernel")
        self.share = sum(getattr(o, time_field) for o in operators if o.key.startswith(names)) / 1e6 / seconds
        profiled, self._profile = self._profile, None
        self._resume_clock()
        if self._trace is None:
            return
        trainer.should_stop = True
        if not trainer.is_global_zero:
            return
        self._trace.parent.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(self._trace))
        from rich.table import Table

        own = (lambda o: o.self_device_time_total) if on_gpu else (lambda o: o.self_cpu_time_total)
        total = sum(map(own, operators)) or 1
        table = Table(title=f"slowest operators of a step (self {'GPU' if on_gpu else 'CPU'} time)")
        for name, justify in (("operator", "left"), ("calls", "right"), ("ms per step", "right"), ("share", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        slowest = sorted(operators, key=own, reverse=True)
        parts = [o for o in slowest[OPERATORS:] if o.key.startswith("recsys.")]
        for o in slowest[:OPERATORS] + parts:
            table.add_row(o.key, f"{o.count / steps:,.1f}", f"{own(o) / 1e3 / steps:,.3f}", f"{own(o) / total:.1%}")
        results.print(table)
        say(f"debug=profile: {steps} steps; open {self._trace} in chrome://tracing or ui.perfetto.dev")


@contextmanager
def marked_while_profiled() -> Iterator[None]:
    """Let the marks of PyTorch, TorchRec and FBGEMM (`record_function`) do nothing while no profiler runs.

    A step has twenty of them, which otherwise take a sixth of the time of a small one (benchmarks/host_step.py).
    """
    enter, leave = record_function.__enter__, record_function.__exit__

    def entered(mark: record_function) -> record_function:
        # private: no public function of PyTorch says whether a profiler runs
        return enter(mark) if torch.autograd._profiler_enabled() else mark

    def left(mark: record_function, *error: Any) -> None:
        if mark.record is not None:
            leave(mark, *error)
            mark.record = None

    record_function.__enter__, record_function.__exit__ = entered, left  # type: ignore[method-assign]
    try:
        yield
    finally:
        record_function.__enter__, record_function.__exit__ = enter, leave  # type: ignore[method-assign]


class Timing:
    """Seconds spent in each part of the steps.

    Host time is measured on CPUs, CUDA events on GPUs, which avoids synchronising.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        with record_function(f"recsys.{name}"):
            if self._cuda:
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                yield
                stop.record()
                self._events.append((name, start, stop))
                if len(self._events) > 2 * PENDING * len(PARTS):
                    self._read(PENDING * len(PARTS))
            else:
                begun = time.perf_counter()
                yield
                self._seconds[name] += time.perf_counter() - begun

    @property
    def seconds(self) -> dict[str, float]:
        if self._events:
            torch.cuda.synchronize()
            self._read(len(self._events))
        return dict(self._seconds)

    def _read(self, events: int) -> None:
        """Add the durations of the oldest events, which have already finished."""
        for name, start, stop in self._events[:events]:
            stop.synchronize()
            self._seconds[name] += start.elapsed_time(stop) / 1e3
        del self._events[:events]
