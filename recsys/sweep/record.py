"""sweep.json: a sweep and the state of its trials. The file is written atomically."""

import json
import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from recsys.base.errors import UserError
from recsys.base.secrets import mask_overrides, masked, restore_overrides, restored
from recsys.files.atomic import write_text
from recsys.files.json_text import read_json

FILE, LOCK = "sweep.json", ".lock"
FAILED = ("failed", "killed")
SEED, FOLD = "seed", "data.split.fold"  # keys whose values repeat each trial


@dataclass
class TrialRun:
    """A trial with one seed, or one fold of data.split."""

    folder: str  # relative to the sweep's folder
    seed: int | None = None  # or fold; null for the config's
    status: str = "waiting"  # waiting | running | interrupted | ok | failed | killed | pruned
    exit: int | None = None  # exit status; 128 + N if signal N killed it
    error: str | None = None
    seconds: float = 0.0  # duration of all attempts together
    attempts: int = 0
    job: str | None = None  # the cluster's id of the last attempt
    metrics: dict[str, float] = field(default_factory=dict)  # validation/auc, test/auc, ...


@dataclass
class Trial:
    """A point of the space, run with every seed or fold."""

    number: int
    values: dict[str, str]
    overrides: list[str]  # overrides of its command, without seed or fold and run_dir
    runs: list[TrialRun]
    asked: int | None = None  # number of the trial in Optuna's study
    mean: dict[str, float] = field(default_factory=dict)  # over seeds or folds
    deviation: dict[str, float] = field(default_factory=dict)  # sample deviation over them; empty with one

    @property
    def status(self) -> str:
        """Status of the trial, from the statuses of its runs."""
        states = [r.status for r in self.runs]
        for status in (*FAILED, "pruned", "running", "interrupted"):
            if status in states:
                return status
        return "ok" if set(states) == {"ok"} else "waiting"

    def summarise(self) -> None:
        """Set the mean and deviation of the metrics that all runs have."""
        for name in self.runs[0].metrics:
            values = [r.metrics[name] for r in self.runs if name in r.metrics]
            if len(values) == len(self.runs):
                self.mean[name] = statistics.fmean(values)
                if len(values) > 1:
                    self.deviation[name] = statistics.stdev(values)


@dataclass
class Sweep:
    """A sweep: its settings, and its trials so far."""

    command: list[str]  # the overrides as given
    cwd: str  # working directory of the command
    settings: dict[str, Any]  # SweepConfig
    metric: str
    direction: str  # maximize | minimize
    seeds: list[int]
    wanted: int  # total number of trials
    trials: list[Trial] = field(default_factory=list)
    repeated: str = SEED  # the key whose values `seeds` are: seed, or data.split.fold

    @property
    def unit(self) -> str:
        """Return what the runs of a trial differ in: seed or fold."""
        return self.repeated.rpartition(".")[2]

    def best_first(self) -> list[Trial]:
        """Return the finished trials sorted by their metric, then the others by number."""
        sign = -1 if self.direction == "maximize" else 1

        def key(t: Trial) -> tuple[bool, float, int]:
            done = t.status == "ok" and self.metric in t.mean
            return not done, sign * t.mean[self.metric] if done else 0.0, t.number

        return sorted(self.trials, key=key)

    def new_trial(self, values: dict[str, str], overrides: list[str], asked: int | None = None) -> Trial:
        """Add a trial to the sweep."""
        n = len(self.trials)
        runs = [TrialRun(f"{n}/{self.unit}-{s}", s) for s in self.seeds] or [TrialRun(str(n))]
        trial = Trial(n, values, overrides, runs, asked)
        self.trials.append(trial)
        return trial

    def save(self, folder: Path) -> None:
        """Write sweep.json, with secrets masked."""
        content = asdict(self)
        content["command"] = mask_overrides(self.command)
        for trial in content["trials"]:
            trial["overrides"], trial["values"] = mask_overrides(trial["overrides"]), masked(trial["values"])
        write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


def load(folder: Path) -> Sweep:
    """Load the sweep of a folder, with its secrets taken from the environment. Raises UserError if there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if not (folder / FILE).exists():
        raise UserError(f"{folder}: not a sweep (it has no {FILE})")
    try:
        sweep = Sweep(**read_json(folder / FILE))
        trials: list[Any] = sweep.trials
        sweep.trials = [Trial(**t | {"runs": [TrialRun(**r) for r in t["runs"]]}) for t in trials]
        sweep.command = restore_overrides(sweep.command)
        for trial in sweep.trials:
            trial.overrides, trial.values = restore_overrides(trial.overrides), restored(trial.values)
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise UserError(f"{folder / FILE}: not readable by this version of recsys ({e})") from e
    if not under_way(folder):  # the sweep was killed before it could record that its runs ended
        for trial in sweep.trials:
            trial.runs = [replace(r, status="interrupted") if r.status == "running" else r for r in trial.runs]
    return sweep


def lock(folder: Path) -> FileLock:
    """Lock the sweep for this process; the lock ends with the process. Raises UserError if another process has it."""
    file_lock = FileLock(folder / LOCK)
    try:
        file_lock.acquire(timeout=0.5)  # `status` locks it for a moment
    except Timeout:
        raise UserError(f"{folder}: another process is running this sweep") from None
    return file_lock


def under_way(folder: Path) -> bool:
    """Return whether a process is running the sweep."""
    if not (folder / LOCK).exists() or not os.access(folder / LOCK, os.W_OK):
        return False
    try:
        with FileLock(folder / LOCK).acquire(timeout=0):
            return False
    except Timeout:
        return True
