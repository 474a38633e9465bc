"""Runs as jobs of a Slurm cluster, through submitit, which sweep.slurm.cluster=local makes run them here."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.base.append import append
from recsys.base.errors import UserError, did_you_mean
from recsys.base.packages import check_extra
from recsys.sweep import processes
from recsys.sweep.processes import Process, end_left, signal_all

JOBS = "jobs"  # folder in the sweep's, for submitit's scripts, logs and results
TIMEOUT_MINUTES = 24 * 60  # default time limit; submitit's own is five minutes
GONE_SECONDS = 120.0


class Command:
    """Function that a job executes: runs a process and watches it. If the cluster restarts the job, the run resumes."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, cwd: str) -> None:
        self.command, self.env, self.folder, self.cwd = list(command), dict(env), folder, cwd

    def __call__(self) -> int:
        os.chdir(self.cwd)
        process = Process(self.command, self.env, self.folder)
        try:
            while (status := process.poll()) is None:
                time.sleep(0.5)
            return status
        except BaseException:
            process.end()
            raise

    def checkpoint(self) -> Any:
        """Return the job that continues this one. submitit calls it on preemption and at the time limit."""
        from submitit.helpers import DelayedSubmission

        end_left(self.folder)
        rest = [a for a in self.command if a != "resume=auto"]
        return DelayedSubmission(Command([*rest, "resume=auto"], self.env, self.folder, self.cwd))


class Cluster:
    """submitit's executor with sweep.slurm as its parameters. Raises UserError for invalid ones, and without it."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        check_extra("slurm", "sweep.launcher=slurm")
        import submitit

        given = {"timeout_min": TIMEOUT_MINUTES} | dict(parameters)
        name = given.pop("cluster", "slurm")
        # private: submitit checks parameters only when a job starts
        common = set(submitit.AutoExecutor._valid_parameters())
        slurm_only = set(submitit.SlurmExecutor._valid_parameters())
        if wrong := next((key for key in given if key not in common | slurm_only), None):
            hint = did_you_mean(wrong, common | slurm_only)
            raise UserError(f"sweep.slurm.{wrong}: submitit has no such parameter{hint}")
        try:
            self._executor = submitit.AutoExecutor(folder / JOBS, cluster=name)
            self._executor.update_parameters(**{k if k in common else f"slurm_{k}": v for k, v in given.items()})
        except (RuntimeError, ValueError, NameError, AssertionError) as e:
            raise UserError(f"sweep.launcher=slurm: {' '.join(str(e).split())}") from None

    def start(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> "SlurmJob":
        run = Command(command, env, folder.resolve(), os.getcwd())
        return SlurmJob(self._executor.submit(run), folder)

    def end_left(self, job: str, folder: Path) -> None:
        """Cancel the job of a killed sweep, and wait until it is gone."""
        inner = self._executor._executor
        left = inner.job_class(inner.folder, job)
        left.cancel(check=False)
        deadline = time.monotonic() + GONE_SECONDS
        while not left.done(force_check=True):
            if time.monotonic() > deadline:
                hint = f"cancel it (scancel {job}), then resume the sweep"
                raise UserError(f"job {job} of {folder} is still running; {hint}")
            time.sleep(1)
        end_left(folder)


class SlurmJob:
    """A job, with the methods of Process."""

    def __init__(self, job: Any, folder: Path) -> None:
        self._job, self._folder, self.job = job, folder, str(job.job_id)
        self._deadline: float | None = None

    def poll(self) -> int | None:
        if not self._job.done():
            if self._deadline is not None and time.monotonic() > self._deadline:
                signal_all(self._folder, signal.SIGKILL)  # with cluster=local, whose job may miss that it is cancelled
            return None
        try:
            status: int = self._job.result()
        except Exception as e:  # it did not start, ran out of time, or was cancelled
            if self._deadline is None:
                line = f"error: job {self.job}: {str(e).strip().splitlines()[0]}\n"
                append(self._folder / "output.log", line.encode(), sync=False)
            status = 1
        if status or self._deadline is not None:
            end_left(self._folder)  # with cluster=local; Slurm ends all processes itself
        return status

    def end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + processes.GRACE_SECONDS
            self._job.cancel(check=False)
