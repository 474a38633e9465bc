"""Starts, watches and ends the runs of a sweep. sweep.json is written after every change."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.config.overrides import override
from recsys.sweep import show
from recsys.sweep.processes import Machine, Process, end_left
from recsys.sweep.record import FAILED, Sweep, Trial, TrialRun
from recsys.sweep.search import Search
from recsys.sweep.slurm import Cluster, SlurmJob
from recsys.sweep.space import composed
from recsys.sweep.watch import last_error, outcome, validations

TRAIN = (sys.executable, "-m", "recsys.train")
POLL_SECONDS = 0.2
STOPS = (signal.SIGTERM, signal.SIGHUP)


@dataclass
class Active:
    """A run in progress."""

    trial: Trial
    run: TrialRun
    process: Process | SlurmJob
    share: int
    since: float
    before: float  # seconds of earlier attempts
    reported: int = 0  # number of validations already reported to the search
    pruned: bool = False


class Schedule:
    """Starts, watches and ends the runs of a sweep. search: chooses the settings of trials"""

    def __init__(self, folder: Path, sweep: Sweep, search: Search, runner: Machine | Cluster) -> None:
        self._folder, self._sweep, self._search, self._runner = folder, sweep, search, runner
        self._active: list[Active] = []

    def run(self) -> None:
        """Run until all trials have ended. If interrupted, end all processes and record it."""
        with _stopping():
            try:
                self._update_earlier_runs()
                while self._start_next() or self._active:
                    for active in list(self._active):
                        self._check(active)
                    time.sleep(POLL_SECONDS)
            except (KeyboardInterrupt, SystemExit):
                say(f"interrupted; resume with: python -m recsys.sweep resume {self._folder}")
                raise
            finally:
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

    def _update_earlier_runs(self) -> None:
        """Update the runs that an earlier process of this sweep left.

        Finished runs are recorded, interrupted runs continue, and failed runs are repeated.
        """
        for trial in self._sweep.trials:
            failed = trial.status in FAILED
            for run in trial.runs:
                folder = self._folder / run.folder
                if run.status in ("running", "interrupted"):
                    if run.job is not None and isinstance(self._runner, Cluster):
                        self._runner.end_left(run.job, folder)
                    end_left(folder)
                    if (metrics := outcome(folder)) is not None:  # it finished without the sweep
                        run.status, run.exit, run.metrics = "ok", 0, metrics
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
        """Start runs until the number of concurrent runs is reached. Return whether a run is still waiting."""
        while True:
            may_start = (
                (trial, run)
                for trial in self._sweep.trials
                if trial.status not in (*FAILED, "pruned")
                for i, run in enumerate(trial.runs)
                # trials that can be pruned start with their first seed
                if run.status == "waiting" and (i == 0 or not self._search.prunes or trial.runs[0].status == "ok")
            )
            waiting = next(may_start, None)
            if waiting is None and len(self._active) < self._sweep.settings["jobs"]:
                trial = self._search.next()
                waiting = (trial, trial.runs[0]) if trial is not None else None
            if waiting is None or len(self._active) >= self._sweep.settings["jobs"]:
                return waiting is not None
            self._start(*waiting)

    def _start(self, trial: Trial, run: TrialRun) -> None:
        folder = self._folder / run.folder
        overrides = trial.overrides + ([] if run.seed is None else [f"{self._sweep.repeated}={run.seed}"])
        more, env, share = list[str](), dict[str, str](), 0
        if isinstance(self._runner, Machine):
            cfg = None
            if self._sweep.settings["jobs"] > 1:
                with suppress(UserError):  # which the run itself reports
                    cfg = composed(overrides)
            more, env, share = self._runner.share(cfg)
        resume = ["resume=auto"] if run.attempts else []
        command = [*TRAIN, *overrides, *more, override("run_dir", folder), *resume]
        sweep = self._folder.resolve().name
        env |= {"RECSYS_SWEEP": sweep, "RECSYS_JOB_TYPE": "trial", "RECSYS_RUN_NAME": f"{sweep}/{run.folder}"}  # of W&B
        run.status, run.attempts = "running", run.attempts + 1
        self._sweep.save(self._folder)  # a sweep that is killed here finds the run when it is resumed
        process = self._runner.start(command, env, folder)
        run.job = process.job
        self._active.append(Active(trial, run, process, share, time.monotonic(), run.seconds))
        self._sweep.save(self._folder)
        say(f"{show.name(trial, run, self._sweep)} starts: {show.differences(trial)} -> {folder}")

    # --- watch ---------------------------------------------------------------------------------------

    def _check(self, a: Active) -> None:
        status, run, folder = a.process.poll(), a.run, self._folder / a.run.folder
        if run is a.trial.runs[0] and self._search.prunes:
            for step, value in list(enumerate(validations(folder, self._sweep.metric)))[a.reported :]:
                a.reported = step + 1
                if self._search.report(a.trial, step, value) and status is None and not a.pruned:
                    a.pruned = True
                    a.process.end()
        if status is None:
            return
        self._active.remove(a)
        if isinstance(self._runner, Machine):
            self._runner.give_back(a.share)
        run.seconds = round(a.before + time.monotonic() - a.since, 1)
        run.exit = status if status >= 0 else 128 - status
        metrics = outcome(folder) if status == 0 else None
        if metrics is not None:
            run.status, run.metrics = "ok", metrics
        elif a.pruned:
            run.status = "pruned"
            run.metrics = dict([(self._sweep.metric, v) for v in validations(folder, self._sweep.metric)][-1:])
        else:
            run.status = "killed" if status < 0 else "failed"
            run.error = None if status < 0 else last_error(folder) or "it wrote no metrics.json"
            run.exit = run.exit or 1
        if all(r.status == "ok" for r in a.trial.runs) or a.trial.status in (*FAILED, "pruned"):
            self._close(a.trial)
        self._sweep.save(self._folder)
        say(show.end_message(a.trial, run, self._sweep, self._folder))

    def _close(self, trial: Trial) -> None:
        """Finish a trial whose runs have all ended."""
        if trial.status == "ok" and any(self._sweep.metric not in r.metrics for r in trial.runs):
            trial.runs[0].status, trial.runs[0].exit = "failed", 1
            other = f"{self._sweep.metric.rpartition('/')[0]}/logloss"
            hint = f"; a new sweep with sweep.metric={other} ranks it" if other in trial.runs[0].metrics else ""
            trial.runs[0].error = f"{self._sweep.metric} is not defined on its rows{hint}"
        trial.summarise()
        if not any(a.trial is trial for a in self._active):
            self._search.ended(trial)


@contextmanager
def _stopping() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a sweep as Ctrl-C does; ignore further signals while it is ending."""

    def stop(number: int, _: object) -> None:
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
