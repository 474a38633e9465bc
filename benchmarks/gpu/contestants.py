"""Measure contestants one after another within a time limit, and write what is known after each of them.

A topic is a file of JSON in $OUT, or in benchmarks/results/gpu/CARD (without a GPU: outputs/gpu). It is written before
the first contestant and after each one, so that a script that is killed leaves what it has measured, and which
contestants it did not reach. docs/make_gpu_tables.py writes the tables of docs/how_to/train/gpus.md from these files.
"""

import argparse
import gc
import json
import math
import os
import re
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from steady import Sample

from recsys.base.packages import FBGEMM, version_of
from recsys.config.compose import compose
from recsys.files.atomic import write_text
from recsys.job.run_config import RunConfig

MIN_SECONDS = 15.0  # what a contestant may take on a GPU before one has run
ROOT = Path(__file__).parents[2]
Contestants = dict[str, Callable[[], Sample]]


@dataclass(frozen=True)
class Arguments:
    """What a script was given.

    device: cpu or cuda
    small: whether to use tiny sizes, which show that a script works, and nothing else
    rounds: number of rounds
    only: parts of names; contestants whose names have none of them are left out
    deadline: time.monotonic() after which no contestant begins
    """

    device: str
    small: bool
    rounds: int
    only: tuple[str, ...]
    deadline: float

    @classmethod
    def parse(cls, about: str) -> "Arguments":
        """Read the command line."""
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
        parser.add_argument("--small", action="store_true", help="tiny sizes, for a test of the script itself")
        parser.add_argument("--rounds", type=int, default=1)
        parser.add_argument("--only", default="", help="parts of names of contestants, separated by commas")
        parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of the script")
        given = parser.parse_args()
        if given.device == "cuda" and not torch.cuda.is_available():
            parser.error("there is no GPU; use --device cpu --small")
        only, deadline = tuple(filter(None, given.only.split(","))), time.monotonic() + given.seconds
        return cls(given.device, given.small, given.rounds, only, deadline)

    def config(self, *overrides: str) -> RunConfig:
        """Return the config of a run on the device."""
        accelerator = "cpu" if self.device == "cpu" else "gpu"
        return RunConfig.of(compose("train", [*overrides, f"trainer.accelerator={accelerator}"]))


@dataclass
class Outcome:
    """What a contestant did.

    rates, cpu_rates: units per second by the clock and of CPU, one for each round
    peak_gib: most memory of the GPU that PyTorch had allocated; None without a GPU and for other processes
    seconds: of all rounds, with the preparation of each
    problem: why there are no further rates: it failed, was skipped, or was not reached
    """

    rates: list[float] = field(default_factory=list)
    cpu_rates: list[float] = field(default_factory=list)
    peak_gib: float | None = None
    seconds: float = 0.0
    problem: str | None = "not reached"


def folder() -> Path:
    """Return the folder of results, which exists."""
    if torch.cuda.is_available():
        card = re.split(r"[\s-]", torch.cuda.get_device_name().removeprefix("NVIDIA ").lower())[0]  # h100, a100
        measured = ROOT / "benchmarks" / "results" / "gpu" / card
    else:
        measured = ROOT / "outputs" / "gpu"
    results = Path(os.environ.get("OUT") or measured)
    results.mkdir(parents=True, exist_ok=True)
    return results


def measure(
    given: Arguments,
    topic: str,
    about: str,
    contestants: Contestants,
    unit: str,
    *,
    share: float = 1.0,
    parts: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Run the contestants in their order, print each as it finishes, and write TOPIC.json after each.

    A contestant that fails does not end the others. One that may not finish before the deadline is skipped.

    Args:
        given: the script's arguments.
        topic: name of the file.
        about: what is measured.
        contestants: run a round each; the most informative come first.
        unit: what is counted.
        share: of the time that is left, for this topic.
        parts: more numbers by contestant, which the contestants add.
    """
    chosen = {n: c for n, c in contestants.items() if not given.only or any(part in n for part in given.only)}
    outcomes = {name: Outcome() for name in chosen}
    head = {"about": about, "unit": unit} | machine()
    deadline = time.monotonic() + share * (given.deadline - time.monotonic())
    longest = MIN_SECONDS if given.device == "cuda" else 0.0

    def write() -> None:
        results = {"contestants": {name: asdict(o) for name, o in outcomes.items()}, "parts": parts or {}}
        write_text(folder() / f"{topic}.json", json.dumps(head | results, indent=1) + "\n")

    write()
    for name in [name for _ in range(given.rounds) for name in chosen]:
        outcome = outcomes[name]
        if outcome.problem not in (None, "not reached"):
            continue  # it failed, or there was no time, in an earlier round
        if deadline - time.monotonic() < longest:
            outcome.problem = "skipped: no time" if not outcome.rates else "further rounds skipped: no time"
        else:
            longest = max(longest, _run(chosen[name], outcome))
        print(f"{topic:12} {name:34} {_line(outcome, unit)}", flush=True)
        write()


def _run(contestant: Callable[[], Sample], outcome: Outcome) -> float:
    """Run a round, write what it did into `outcome`, and return its seconds."""
    begin, on_gpu = time.monotonic(), torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        sample = contestant()
    except Exception as error:
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        outcome.problem = f"failed: {type(error).__name__}: {lines[0][:300]}"
    else:
        outcome.problem = None
        outcome.rates.append(sample.units / sample.wall)
        outcome.cpu_rates.append(sample.units / sample.cpu)
        if on_gpu and (peak := torch.cuda.max_memory_allocated()):
            outcome.peak_gib = max(peak / 2**30, outcome.peak_gib or 0)
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    seconds = time.monotonic() - begin
    outcome.seconds += seconds
    return seconds


def _line(outcome: Outcome, unit: str) -> str:
    if outcome.problem is not None:
        return outcome.problem
    rates = f"{statistics.median(outcome.rates):>12,.0f} {unit}/s, {statistics.median(outcome.cpu_rates):>12,.0f}/CPU s"
    peak = "" if outcome.peak_gib is None else f", peak {outcome.peak_gib:.1f} GiB"
    return f"{rates}{peak}, {outcome.seconds:.0f} s in all"


def machine() -> dict[str, Any]:
    """Return what a rate depends on: day, GPU, cores, versions and commit (COMMIT, where there is no git)."""
    fbgemm = next((p for p in FBGEMM if version_of(p)), FBGEMM[0])
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = os.environ.get("COMMIT", "")
    return {
        "date": date.today().isoformat(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "versions": {p: version_of(p) for p in ("torch", fbgemm, "torchrec")},
        "commit": commit or None,
        "note": os.environ.get("NOTE", ""),
    }
