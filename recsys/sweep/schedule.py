"""Starts a sweep's runs, watches them, ends them; the record is written after every change."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.console import say
from recsys.errors import UserError
from recsys.sweep import show
from recsys.sweep.machine import Machine
from recsys.sweep.processes import Process, end_left
from recsys.sweep.record import FAILED, Run, Sweep, Trial
from recsys.sweep.search import Search
from recsys.sweep.slurm import Cluster, Job
from recsys.sweep.space import composed
from recsys.sweep.watch import last_error, outcome, validations

TRAIN = (sys.executable, "-m", "recsys.train")
POLL_SECONDS = 0.2
STOPS = (signal.SIGTERM, signal.SIGHUP)


@dataclass
class Active:
    trial: Trial
    run: Run
    process: Process | Job
    share: int
    since: float
    before: float  # seconds of earlier attempts
    told: int = 0  # validations that the search knows of
    pruned: bool = False


class Schedule:
    def __init__(self, folder: Path, sweep: Sweep, search: Search, on: Machine | Cluster) -> None:
        self._folder, self._sweep, self._search, self._on = folder, sweep, search, on
        self._active: list[Active] = []

    def run(self) -> None:
        """Until no trial is left; interrupted, it leaves no process behind, and the record says so."""
        with _stopping():
            try:
                self._take_up()
                while self._start_next() or self._active:
                    for active in list(self._active):
                        self._look(active)
                    time.sleep(POLL_SECONDS)
            except (KeyboardInterrupt, SystemExit):
                say(f"interrupted; go on with: python -m recsys.sweep resume {self._folder}")
                raise
            finally:
                self._end_all()

    def _take_up(self) -> None:
        """What an earlier process of this sweep has left: runs to go on with, failed ones to try again."""
        for trial in self._sweep.trials:
            failed = trial.status in FAILED
            for run in trial.runs:
                folder = self._folder / run.folder
                if run.status in ("running", "interrupted"):
                    if run.job is not None and isinstance(self._on, Cluster):
                        self._on.end_left(run.job, folder)
                    end_left(folder)
                    if (found := outcome(folder)) is not None:  # it came to its end alone
                        run.status, run.exit, run.metrics = "ok", 0, found
                    else:
                        run.status = "waiting"
                elif run.status in FAILED:
                    run.status, run.error, run.exit = "waiting", None, None
            if failed:
                self._search.again(trial)
            elif trial.status == "ok" and not trial.mean:
                self._close(trial)
        self._sweep.save(self._folder)

    # --- start ---------------------------------------------------------------------------------------

    def _start_next(self) -> bool:
        """Start what there is room for; whether a run is still to come."""
        while True:
            waiting = self._waiting()
            if waiting is None and len(self._active) < self._sweep.settings["jobs"]:
                trial = self._search.next()
                waiting = (trial, trial.runs[0]) if trial is not None else None
            if waiting is None or len(self._active) >= self._sweep.settings["jobs"]:
                return waiting is not None
            self._start(*waiting)

    def _waiting(self) -> tuple[Trial, Run] | None:
        """The first run that may start: of a trial that can be pruned, after its first seed."""
        for trial in self._sweep.trials:
            if trial.status in (*FAILED, "pruned"):
                continue
            for i, run in enumerate(trial.runs):
                if run.status == "waiting" and (i == 0 or not self._search.prunes or trial.runs[0].status == "ok"):
                    return trial, run
        return None

    def _start(self, trial: Trial, run: Run) -> None:
        folder = self._folder / run.folder
        overrides = trial.overrides + ([] if run.seed is None else [f"seed={run.seed}"])
        more, env, share = list[str](), dict[str, str](), 0
        if isinstance(self._on, Machine):
            more, env, share = self._on.share(self._config(overrides))
        resume = ["resume=auto"] if run.attempts else []
        command = [*TRAIN, *overrides, *more, f"run_dir={_quoted(folder)}", *resume]
        env["RECSYS_SWEEP"] = self._folder.resolve().name
        run.status, run.attempts = "running", run.attempts + 1
        self._sweep.save(self._folder)  # before: a sweep that is killed here knows that the run may be there
        process = self._on.start(command, env, folder)
        run.job = process.job
        self._active.append(Active(trial, run, process, share, time.monotonic(), run.seconds))
        self._sweep.save(self._folder)
        say(f"{show.name(trial, run)} starts: {show.differs(trial)} -> {folder}")

    def _config(self, overrides: list[str]) -> Any:
        """Of a run that gets its share of the machine; None where it composes with no other's values: it will tell."""
        try:
            return composed(overrides) if self._sweep.settings["jobs"] > 1 else None
        except UserError:
            return None

    # --- watch ---------------------------------------------------------------------------------------

    def _look(self, a: Active) -> None:
        status = a.process.poll()
        if a.run is a.trial.runs[0] and self._search.prunes:
            self._report(a, done=status is not None)
        if status is None:
            return
        self._active.remove(a)
        if isinstance(self._on, Machine):
            self._on.give_back(a.share)
        self._ended(a, status)
        if all(r.status == "ok" for r in a.trial.runs) or a.trial.status in (*FAILED, "pruned"):
            self._close(a.trial)
        self._sweep.save(self._folder)
        say(show.ended(a.trial, a.run, self._sweep, self._folder))

    def _report(self, a: Active, done: bool) -> None:
        values = list(validations(self._folder / a.run.folder, self._sweep.metric))
        for step, value in list(enumerate(values))[a.told :]:
            a.told = step + 1
            if self._search.report(a.trial, step, value) and not done and not a.pruned:
                a.pruned = True
                a.process.end()

    def _ended(self, a: Active, status: int) -> None:
        run, folder = a.run, self._folder / a.run.folder
        run.seconds = round(a.before + time.monotonic() - a.since, 1)
        run.exit = status if status >= 0 else 128 - status
        found = outcome(folder) if status == 0 else None
        if found is not None:
            run.status, run.metrics = "ok", found
        elif a.pruned:
            run.status = "pruned"
            run.metrics = dict([(self._sweep.metric, v) for v in validations(folder, self._sweep.metric)][-1:])
        else:
            run.status = "killed" if status < 0 else "failed"
            run.error = None if status < 0 else last_error(folder) or "it wrote no metrics.json"
            run.exit = run.exit or 1

    def _close(self, trial: Trial) -> None:
        """All that the trial will tell is there."""
        if trial.status == "ok" and any(self._sweep.metric not in r.metrics for r in trial.runs):
            trial.runs[0].status, trial.runs[0].exit = "failed", 1
            trial.runs[0].error = f"its metrics.json has no {self._sweep.metric}"
        trial.summarise()
        if not any(a.trial is trial for a in self._active):
            self._search.ended(trial)

    def _end_all(self) -> None:
        for a in self._active:
            a.process.end()
        while self._active:
            for a in list(self._active):
                if a.process.poll() is not None:
                    self._active.remove(a)
                    a.run.status = "interrupted"
                    a.run.seconds = round(a.before + time.monotonic() - a.since, 1)
            time.sleep(POLL_SECONDS)
        self._sweep.save(self._folder)


@contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM and a closed terminal end a sweep as Ctrl-C does; once it is ending, a second one changes nothing."""

    def stop(number: int, _: Any) -> None:
        for s in (*STOPS, signal.SIGINT):
            signal.signal(s, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, stop) for s in (*STOPS, signal.SIGINT)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _quoted(folder: Path) -> str:
    """As Hydra's grammar has a path."""
    text = os.fspath(folder)
    if all(c.isalnum() or c in "/._-" for c in text):
        return text
    return "'" + text.replace("'", "\\'") + "'"
