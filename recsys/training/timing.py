"""Measure the parts of training steps: forward, backward, optimizer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import record_function

PARTS = ("forward", "backward", "optimizer")
PENDING = 50  # number of steps after which GPU events are read


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
