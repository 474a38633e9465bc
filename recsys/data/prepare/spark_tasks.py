"""What Spark's executors do with an item, and how the driver hears of it: shared files, and small talk as tasks end."""

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

from recsys.atomic import whole_file
from recsys.errors import UserError

DOCS = "see docs/scale_out.md"


class Listed(AccumulatorParam):
    """What finished tasks say. Spark brings it to the driver when a task ends, once, however often it was tried."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


class Job(InheritableThread):
    """A job that runs while the driver looks at what comes of it."""

    def __init__(self, context: Any, group: str, rows: Any, run: "Run") -> None:
        self.error: BaseException | None = None

        def body() -> None:
            try:
                context.setJobGroup(group, "recsys", interruptOnCancel=True)
                rows.foreachPartition(run)
            except BaseException as e:
                self.error = e

        super().__init__(target=body, daemon=True)


@dataclass(frozen=True)
class Outcome:
    error: str | None
    kept: bool  # the result lies in a file


@dataclass
class Run:
    """What an executor does with an item. A user's mistake is an outcome, which no second try would change."""

    function: Any  # a Broadcast
    outcomes: Any  # an Accumulator
    results: str
    cwd: str
    polars: str

    def __call__(self, numbered: Iterable[tuple[int, Any]]) -> None:
        for number, item in numbered:
            rows, error, kept = [0.0], None, False
            try:
                self._check_machine()
                result = self.function.value(item, rows.append)
                if kept := result is not None:
                    put(Path(self.results, f"{number}.pickle"), result)
            except UserError as e:
                error = str(e)
            except Exception as e:
                e.add_note(f"On Spark's executor {socket.gethostname()}:\n{traceback.format_exc()}")
                with suppress(Exception):  # one that cannot be pickled, which Spark tells as text
                    put(Path(self.results, "error"), e)
                raise
            self.outcomes.add([(number, sum(rows), Outcome(error, kept))])

    def _check_machine(self) -> None:
        host = socket.gethostname()
        if Path(self.cwd).is_dir():  # where the paths are relative ones
            os.chdir(self.cwd)
        if not Path(self.results).is_dir():
            folder = Path(self.results).parent
            raise UserError(f"engine=spark: {host} does not see {folder}: data.prepared must be on all machines")
        if pl.__version__ != self.polars:
            raise UserError(f"engine=spark: {host} has polars {pl.__version__}, the driver {self.polars}; {DOCS}")


def put(file: Path, value: Any) -> None:
    with whole_file(file, unique=True) as building:
        building.write_bytes(pickle.dumps(value, protocol=5))


def taken(file: Path, outcome: Outcome) -> Any:
    """The result. Raises UserError where the item was the user's mistake."""
    if outcome.error is not None:
        raise UserError(outcome.error)
    if not outcome.kept:
        return None
    value = pickle.loads(file.read_bytes())
    file.unlink()
    return value


def failure(results: Path, error: BaseException | None) -> BaseException:
    """What an executor failed with, or what Spark says where it could not even tell."""
    try:
        failed = pickle.loads((results / "error").read_bytes())
        assert isinstance(failed, BaseException)
        if not isinstance(failed, ImportError):
            return failed
        text = f"{failed}"
    except Exception:
        text = str(error)
    if "No module named" in text or "unpickl" in text.lower():
        told = next((line for line in text.splitlines() if "No module named" in line), "it cannot be unpickled")
        return UserError(f"engine=spark: executors lack this package or what it needs ({told.strip()}); {DOCS}")
    failed = RuntimeError("a job of Spark's failed")
    failed.__cause__ = error
    return failed
