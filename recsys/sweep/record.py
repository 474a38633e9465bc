"""sweep.json: what a sweep is, and how each of its trials stands. Whole at any moment, whoever is killed."""

import json
import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from recsys.atomic import write_text
from recsys.errors import UserError

FILE, LOCK = "sweep.json", ".lock"
FAILED = ("failed", "killed")


@dataclass
class Run:
    """A trial with one seed."""

    folder: str  # under the sweep's
    seed: int | None = None  # null: the config's
    status: str = "waiting"  # waiting | running | interrupted | ok | failed | killed | pruned
    exit: int | None = None  # its exit status; 128 + N where signal N killed it
    error: str | None = None
    seconds: float = 0.0  # of all attempts
    attempts: int = 0
    job: str | None = None  # the cluster's name of the last attempt
    metrics: dict[str, float] = field(default_factory=dict)  # validation/auc, test/auc, ...


@dataclass
class Trial:
    """A point of the space, run with every seed."""

    number: int
    values: dict[str, str]
    overrides: list[str]  # all of its command's, but for seed and run_dir
    runs: list[Run]
    asked: int | None = None  # its number in Optuna's study
    mean: dict[str, float] = field(default_factory=dict)  # over seeds
    deviation: dict[str, float] = field(default_factory=dict)  # the sample's; of one seed there is none

    @property
    def status(self) -> str:
        states = [r.status for r in self.runs]
        for status in (*FAILED, "pruned", "running", "interrupted"):
            if status in states:
                return status
        return "ok" if set(states) == {"ok"} else "waiting"

    def summarise(self) -> None:
        """mean and deviation of what all runs have."""
        for name in self.runs[0].metrics:
            values = [r.metrics[name] for r in self.runs if name in r.metrics]
            if len(values) == len(self.runs):
                self.mean[name] = statistics.fmean(values)
                if len(values) > 1:
                    self.deviation[name] = statistics.stdev(values)


@dataclass
class Sweep:
    command: list[str]  # the overrides as given
    cwd: str  # where: relative paths in them, and conf/
    settings: dict[str, Any]  # SweepConfig
    metric: str
    direction: str  # maximize | minimize
    seeds: list[int]
    wanted: int  # trials, when all are there
    trials: list[Trial] = field(default_factory=list)

    def best_first(self) -> list[Trial]:
        """Those that are done by their metric, then the others as they came."""
        sign = -1 if self.direction == "maximize" else 1

        def key(t: Trial) -> tuple[bool, float, int]:
            done = t.status == "ok" and self.metric in t.mean
            return not done, sign * t.mean[self.metric] if done else 0.0, t.number

        return sorted(self.trials, key=key)

    def new_trial(self, values: dict[str, str], overrides: list[str], asked: int | None = None) -> Trial:
        n = len(self.trials)
        runs = [Run(f"{n}/seed-{s}", s) for s in self.seeds] or [Run(str(n))]
        trial = Trial(n, values, overrides, runs, asked)
        self.trials.append(trial)
        return trial

    def save(self, folder: Path) -> None:
        write_text(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def load(folder: Path) -> Sweep:
    """Raises UserError where no sweep lies there."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if not (folder / FILE).exists():
        raise UserError(f"{folder}: holds no sweep (no {FILE})")
    try:
        found = Sweep(**json.loads((folder / FILE).read_text()))
        trials: list[Any] = found.trials
        found.trials = [Trial(**t | {"runs": [Run(**r) for r in t["runs"]]}) for t in trials]
    except (TypeError, KeyError, ValueError) as e:
        raise UserError(f"{folder / FILE}: is not of a sweep of this version ({e})") from e
    if not under_way(folder):  # it was killed before it could say so
        for trial in found.trials:
            trial.runs = [replace(r, status="interrupted") if r.status == "running" else r for r in trial.runs]
    return found


def lock(folder: Path) -> FileLock:
    """Held by the process that runs the sweep; gone with it. Raises UserError where another one has it."""
    held = FileLock(folder / LOCK)
    try:
        held.acquire(timeout=0.5)  # `status` takes it for a moment
    except Timeout:
        raise UserError(f"{folder}: its sweep is running in another process") from None
    return held


def under_way(folder: Path) -> bool:
    """Whether a process runs the sweep."""
    if not (folder / LOCK).exists() or not os.access(folder / LOCK, os.W_OK):
        return False
    try:
        with FileLock(folder / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True
