"""Run items on Spark's executors. Results come back as shared files; outcomes as an accumulator when tasks end."""

import os
import pickle
import socket
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pyspark import InheritableThread
from pyspark.accumulators import AccumulatorParam

from recsys.base.errors import UserError
from recsys.files.atomic import whole_file

DOCS = "see docs/how_to/train/several_nodes.md"


class ListAccumulator(AccumulatorParam):
    """A list of the outcomes of finished tasks. Spark adds a task's outcome once, however often it was tried."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


class SparkJob(InheritableThread):
    """A Spark job in a thread, so that the driver can use its results while it runs.

    Args:
        context: the SparkContext.
        group: name of the job, by which it can be cancelled.
        rows: an RDD.
        run: called in each task with the rows of its partition.

    error: the exception that ended the job; None while it runs and if it succeeds
    """

    def __init__(self, context: Any, group: str, rows: Any, run: "ItemRunner") -> None:
        self.error: BaseException | None = None

        def body() -> None:
            try:
                context.setJobGroup(group, "recsys", interruptOnCancel=True)
                rows.foreachPartition(run)
            except BaseException as e:
                self.error = e

        super().__init__(target=body, daemon=True)


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of an item: the message of a UserError, and whether there is a result file."""

    error: str | None
    has_result: bool


@dataclass
class ItemRunner:
    """Calls the function on items, on an executor.

    A UserError does not fail the task: it becomes an outcome, because trying again would not help.
    """

    function: Any  # a Broadcast
    outcomes: Any  # an Accumulator
    results: str
    cwd: str
    polars: str

    def __call__(self, numbered: Iterable[tuple[int, Any]]) -> None:
        for number, item in numbered:
            rows, error, has_result = [0.0], None, False
            try:
                self._check_machine()
                result = self.function.value(item, rows.append)
                if has_result := result is not None:
                    write_pickle(Path(self.results, f"{number}.pickle"), result)
            except UserError as e:
                error = str(e)
            except Exception as e:
                e.add_note(f"On Spark's executor {socket.gethostname()}:\n{traceback.format_exc()}")
                with suppress(Exception):  # if it cannot be pickled, Spark still reports it as text
                    write_pickle(Path(self.results, "error"), e)
                raise
            self.outcomes.add([(number, sum(rows), TaskOutcome(error, has_result))])

    def _check_machine(self) -> None:
        host = socket.gethostname()
        if Path(self.cwd).is_dir():  # relative paths start here
            os.chdir(self.cwd)
        if not Path(self.results).is_dir():
            folder = Path(self.results).parent
            raise UserError(f"engine=spark: {host} does not see {folder}; put data.prepared on a shared folder")
        if pl.__version__ != self.polars:
            raise UserError(f"engine=spark: {host} has polars {pl.__version__}, the driver {self.polars}; {DOCS}")


def write_pickle(file: Path, value: object) -> None:
    """Write a pickle file atomically."""
    with whole_file(file, unique=True) as building:
        building.write_bytes(pickle.dumps(value, protocol=5))


def take_result(file: Path, outcome: TaskOutcome) -> Any:
    """Read and remove the result file. Raises UserError if the function raised one."""
    if outcome.error is not None:
        raise UserError(outcome.error)
    if not outcome.has_result:
        return None
    value = pickle.loads(file.read_bytes())
    file.unlink()
    return value


def job_failure(results: Path, error: BaseException | None) -> BaseException:
    """Return the exception that an executor wrote, or one made of Spark's message if it could not write any."""
    try:
        failed = pickle.loads((results / "error").read_bytes())
        assert isinstance(failed, BaseException)
        if not isinstance(failed, ImportError):
            return failed
        text = f"{failed}"
    except Exception:
        text = str(error)
    if "No module named" in text or "unpickl" in text.lower():
        reason = next((line for line in text.splitlines() if "No module named" in line), "it cannot be unpickled")
        return UserError(f"engine=spark: executors lack recsys or a package it needs ({reason.strip()}); {DOCS}")
    failed = RuntimeError("a Spark job failed")
    failed.__cause__ = error
    return failed
