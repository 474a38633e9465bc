"""The config of a data set that recsys.new proposes, and the reasons."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from recsys.new.column_kinds import Column, Features, sql_name
from recsys.new.label import LabelGuess
from recsys.new.questions import Question
from recsys.new.roles import Roles
from recsys.new.splits import Split

MAX_SMALL = 2_000_000  # rows of which one epoch makes few steps


@dataclass
class Proposal:
    """The config of a data set, and the reasons."""

    root: str  # the folder of the files
    source: dict[str, Any]
    reasons: dict[str, str]  # key of `source:` -> why it has its value
    columns: list[Column]  # of the rows
    roles: Roles
    label: LabelGuess | None  # None for retrieval models
    split: Split
    features: Features
    rows: int  # their number, estimated
    typed: bool  # whether columns have types, which SQL has to turn into text
    no_time: str  # why the rows have no time, if they have none
    questions: list[Question] = field(default_factory=list)  # what the files do not tell, the gravest first
    unused: list[tuple[str, str]] = field(default_factory=list)  # files that are not of the rows, and why
    where: dict[str, str] = field(default_factory=dict)  # SQL conditions of rows to use -> what the other rows lack
    group: dict[str, Any] | None = None  # for retrieval models: whose rows belong together
    max_length: int = 0  # for retrieval models: of their sequences
    repeats: bool = False  # for retrieval models: whether users often come back to an item
    copies: str = ""  # how many of the rows that were looked at are copies of others

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def leave_out_without(self, columns: Iterable[Column], what: str = "") -> None:
        """Leave out the rows that lack a value of one of these columns. what: what they lack; else the column"""
        self.where |= {f"{sql_name(c.name)} IS NOT NULL": what or c.name for c in columns if c.missing}

    def time_column(self, time: Column) -> str:
        """Return the column of a time: the file's, or one that is derived by SQL."""
        assert time.time is not None
        if time.time.sql is None:
            return time.name
        sql = time.time.sql_of(time, typed=self.typed)
        derived = next((name for name, other_sql in self.features.derive.items() if other_sql == sql), None)
        if derived is None:
            derived = f"{time.name}_time"
            self.features.derive[derived] = sql
        return derived

    def command(self, name: str) -> str:
        """Return the command that trains; one epoch of few rows makes few steps."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec" + " protocol.filter_history=false" * self.repeats
        single = " model=dcnv2" if len(self.features.inputs) == 1 else ""  # model=dlrm multiplies pairs of vectors
        small = " trainer=until_best" if self.rows < MAX_SMALL else ""
        small += " trainer.batch_size=256" if self.rows < MAX_SMALL / 10 else ""
        return f"python -m recsys.train data={name}{single}{small}"
