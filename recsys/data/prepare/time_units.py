"""Compare the units in which files hold times: rows of other units are neither before nor after each other."""

from recsys.base.errors import UserError
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import unit_of_time
from recsys.data.prepare.chunks import Chunk, ParsedChunk


class TimeUnits:
    """The units of the columns by which rows are split and ordered in time.

    Raises:
        UserError: (`add`) a file holds numbers since 1970 in another unit than a file before it. Times are seconds.
    """

    def __init__(self, data: ResolvedData) -> None:
        self._columns = data.moments
        self._first: dict[str, tuple[str, str]] = {}  # the unit of each column, and the first file that has it

    def add(self, chunk: Chunk, parsed: ParsedChunk) -> None:
        """Compare a chunk's rows with those of the chunks before it."""
        medians = parsed.info.get("medians", {})  # older chunks have none
        for name, value in ((n, x) for n in medians for x in medians[n] if x is not None):
            if (unit := unit_of_time(value)) is None:
                continue
            what = f"{chunk.file} holds {_described(unit, value)}"
            other, first = self._first.setdefault(name, (unit, what))
            if other != unit:
                raise UserError(f"column {self._columns[name]}: {first}, and {what}; write all of them in one unit")


def _described(unit: str, value: float) -> str:
    """Return the unit of numbers, and one of them. Text and types of times are read as seconds."""
    return f"{'times or ' if unit == 'seconds' else ''}{unit} since 1970, such as {value:.0f}"
