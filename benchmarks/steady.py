"""Rounds in which several contestants run one after another, and their rates as ratios with a spread.

Neighbours on a shared machine slow down whole rounds, so that only ratios within a round are compared; CPU seconds are
measured beside wall seconds, since they suffer less. Contestants that take turns of a tenth of a second meet the same
neighbours, so that a few rounds tell a difference of some percent.
"""

import json
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


class PeerFailed(Exception):
    """Another library, or its environment, failed."""


@dataclass(frozen=True)
class Sample:
    """What a contestant did in one round, in seconds by the clock and of CPU."""

    units: float
    wall: float
    cpu: float


@dataclass(frozen=True)
class Claim:
    """How many times as fast one contestant is as another. goal: the least that we want"""

    ours: str
    other: str
    goal: float | None = None


@dataclass
class Ratio:
    """Ratios of two rates in each round, with their median."""

    rounds: Sequence[float]
    median: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        self.median, self.low, self.high = statistics.median(self.rounds), min(self.rounds), max(self.rounds)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} - {self.high:.2f})"


def by_cpu(samples: Sequence[Sample], others: Sequence[Sample]) -> Ratio:
    """Return how many units a contestant does in a CPU second for each of the other."""
    return Ratio([(a.units / a.cpu) / (b.units / b.cpu) for a, b in zip(samples, others, strict=True)])


def by_clock(samples: Sequence[Sample], others: Sequence[Sample]) -> Ratio:
    """Return how many units a contestant does in a second for each of the other."""
    return Ratio([(a.units / a.wall) / (b.units / b.wall) for a, b in zip(samples, others, strict=True)])


def machine() -> dict[str, Any]:
    """Return what a rate depends on."""
    fast = [k for k in ("amx_bf16", "avx512_bf16") if torch.cpu.get_capabilities().get(k)]
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "bfloat16": fast,
    }


def measure(
    topic: str,
    about: str,
    contestants: Mapping[str, Callable[[], Sample]],
    claims: Sequence[Claim],
    rounds: int,
    unit: str,
    parts: Mapping[str, Mapping[str, float]] | None = None,
    begun: Mapping[str, Callable[[], bool]] | None = None,
) -> None:
    """Run the rounds, print them, and write all samples and ratios to benchmarks/results/TOPIC.json.

    A peer that fails is left out, with a line that says so: it may not be installed.

    Args:
        topic: name of the file.
        about: what is measured, for readers of the page.
        contestants: run a round each.
        claims: the pairs of contestants that are compared.
        rounds: number of rounds; the order changes from round to round.
        unit: what is counted.
        parts: parts of a whole by name, to be drawn as bars.
        begun: None, or contestants take turns, see `in_turns`.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for r in range(rounds):
        if begun is not None:
            for name, sample in in_turns(contestants, begun).items():
                samples[name].append(sample)
            continue
        names = [n for n in contestants if n in samples]
        for name in names[r % len(names) :] + names[: r % len(names)]:
            try:
                samples[name].append(contestants[name]())
            except PeerFailed as error:
                del samples[name]
                print(f"{topic}: {name} is left out: {error}", flush=True)
    for name, of in samples.items():
        rate, cpu = (statistics.median(s.units / t for s, t in zip(of, ts, strict=True)) for ts in _seconds(of))
        print(f"{topic:12} {name:34} {rate:>12,.1f} {unit}/s, {cpu:>12,.1f} per CPU second", flush=True)
    compared = []
    for claim in claims:
        if claim.ours in samples and claim.other in samples:
            pair = samples[claim.ours], samples[claim.other]
            clock, cpu_ratio = by_clock(*pair), by_cpu(*pair)
            goal = "" if claim.goal is None else f", goal {claim.goal:g}"
            text = f"{claim.ours} : {claim.other}"
            print(f"{topic:12} {text}: {clock} by the clock, {cpu_ratio} by CPU seconds{goal}", flush=True)
            compared.append({**asdict(claim), "clock": asdict(clock), "cpu": asdict(cpu_ratio)})
    result = {
        "about": about, "unit": unit, "rounds": rounds, "machine": machine(), "claims": compared,
        "parts": parts or {},
        "samples": {name: [asdict(s) for s in of] for name, of in samples.items()},
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{topic}.json").write_text(json.dumps(result, indent=1) + "\n")


def _seconds(of: Sequence[Sample]) -> tuple[list[float], list[float]]:
    return [s.wall for s in of], [s.cpu for s in of]


class Clock:
    """Seconds by the clock and of CPU since it started, children included that have ended."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), self._cpu()

    @staticmethod
    def _cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + usage.ru_utime + usage.ru_stime

    def sample(self, units: float) -> Sample:
        return Sample(units, time.perf_counter() - self.wall, self._cpu() - self.cpu)


def timed(work: Callable[[], object], units: float) -> Callable[[], Sample]:
    """Return a round that does the work, of so many units."""

    def run() -> Sample:
        clock = Clock()
        work()
        return clock.sample(units)

    return run


def in_turns(
    contestants: Mapping[str, Callable[[], Sample]], begun: Mapping[str, Callable[[], bool]], turn: float = 0.1
) -> dict[str, Sample]:
    """Run contestants of one thread in processes of their own that take turns, and return their samples by CPU seconds.

    Args:
        contestants: run once each, in a fork of this process; they may start a process.
        begun: for contestants that start a process, whether what counts has begun there. They run alone until then.
        turn: seconds of a turn.
    """
    fork = multiprocessing.get_context("fork")

    def answer(run: Callable[[], Sample], to: Connection) -> None:
        os.setpgid(0, 0)
        to.send(run())

    running, answers = {}, {}
    for name, run in contestants.items():
        answers[name], to = fork.Pipe(duplex=False)
        process = fork.Process(target=answer, args=(run, to))
        process.start()
        to.close()
        group = process.pid
        assert group is not None
        os.setpgid(group, group)
        while name in begun and not begun[name]() and not wait([process.sentinel], turn):
            pass
        os.killpg(group, signal.SIGSTOP)
        running[group] = process
    while running:
        for group, process in list(running.items()):
            os.killpg(group, signal.SIGCONT)
            process.join(turn)
            if process.exitcode is None:
                os.killpg(group, signal.SIGSTOP)
            else:
                del running[group]
    found = {name: given.recv() for name, given in answers.items()}
    return {name: Sample(s.units, s.cpu, s.cpu) for name, s in found.items()}  # the clock ran in others' turns, too


def peer(script: str, *arguments: object) -> Callable[[], Sample]:
    """Return a round of a script of benchmarks/peers in an environment of its own, made by uv the first time."""

    def run() -> Sample:
        path = Path(__file__).parent / "peers" / f"{script}.py"
        command = ["uv", "run", "--quiet", "--script", str(path), *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
        with tempfile.TemporaryDirectory() as folder:  # some write logs into the working directory
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode:
            raise PeerFailed((done.stderr.strip() or "no output").splitlines()[-1])
        return Sample(**json.loads(done.stdout.splitlines()[-1]))

    return run
