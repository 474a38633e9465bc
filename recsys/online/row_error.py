"""The error of a value that a row holds."""

from recsys.base.errors import UserError


class RowError(UserError):
    """A row that cannot be read: row, column, value and the reason. rows: what the message calls the rows"""

    def __init__(self, column: str, value: object, why: str, row: int | None, rows: str = "rows") -> None:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        super().__init__(f"{'' if row is None else f'{rows}[{row}]: '}column {column}: {shown} {why}")
        self.column, self.value, self.why, self.row = column, value, why, row
