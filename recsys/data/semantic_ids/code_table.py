"""A table of items and their codes: made unique, described, and written as the columns that features read."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import prefix_name

KEY = "item"
NO_CODE = 0  # in the columns of the table, codes begin with 1


@dataclass(frozen=True)
class CodeTable:
    """Items and their codes.

    items: (n,) distinct text
    codes: (n, levels), from 0
    """

    items: pl.Series
    codes: np.ndarray

    def with_numbers(self, taken: "CodeTable | None" = None) -> "CodeTable":
        """Return the table with one more code, the number of earlier items that have the same codes.

        Args:
            taken: items with numbers that come before these.
        """
        before = [] if taken is None else [taken.codes[:, : self.codes.shape[1]]]
        names = [str(i) for i in range(self.codes.shape[1])]
        every = pl.DataFrame(np.concatenate([*before, self.codes]), schema=names)
        numbers = every.select(pl.int_range(pl.len()).over(every.columns)).to_series().tail(len(self.items)).to_numpy()
        return CodeTable(self.items, np.column_stack([self.codes, numbers]))

    def collisions(self, levels: int) -> tuple[int, int]:
        """Return how many items share the codes of the first levels with another item, and the largest such group."""
        counts = np.unique(self.codes[:, :levels], axis=0, return_counts=True)[1]
        return int(counts[counts > 1].sum()), int(counts.max(initial=0))

    def columns(self, prefixes: bool) -> pl.DataFrame:
        """Return the items and one column for each level, with codes from 1, and one for each longer prefix."""
        columns = {KEY: self.items}
        columns |= {f"semantic_{i + 1}": pl.Series(c + 1, dtype=pl.Int64) for i, c in enumerate(self.codes.T)}
        frame = pl.DataFrame(columns)
        if not prefixes:
            return frame
        names = [f"semantic_{i + 1}" for i in range(self.codes.shape[1])]
        joined = [pl.concat_str(names[:n], separator="-").alias(prefix_name(n)) for n in range(2, len(names) + 1)]
        return frame.with_columns(joined)


def use_of_codes(codes: np.ndarray, size: int) -> list[dict[str, float]]:
    """Return for each level the number of codes in use and their perplexity: `size` if all are equally frequent."""
    use = []
    for column in codes.T:
        counts = np.bincount(column, minlength=size)
        shares = counts[counts > 0] / max(len(column), 1)
        use.append({"used": int((counts > 0).sum()), "perplexity": float(np.exp(-(shares * np.log(shares)).sum()))})
    return use


def read_codes(file: Path, key: str, levels: int, size: int) -> CodeTable:
    """Read {item: [code, ...]} from a JSON file.

    Raises:
        UserError: the file does not hold `levels` codes from 0 to size - 1 for each item.
    """
    try:
        given: object = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as e:
        raise UserError(f"{key}={file}: not a JSON file: {str(e).splitlines()[0]}") from e
    if not isinstance(given, dict) or not given:
        raise UserError(f"{key}={file}: must be an object {{item: [code, ...], ...}} with at least one item")
    for item, codes in given.items():
        if not isinstance(codes, list) or not all(type(c) is int for c in codes):
            raise UserError(f"{key}={file}: item {item!r}: {codes!r} is not a list of whole numbers")
        if len(codes) != levels:
            fix = f"set data.semantic_ids.levels={len(codes)}"
            raise UserError(f"{key}={file}: item {item!r} has {len(codes)} codes, not {levels}; {fix}")
        if not all(0 <= c < size for c in codes):
            fix = f"set data.semantic_ids.size={max(codes) + 1} or more" if min(codes) >= 0 else "codes begin with 0"
            raise UserError(f"{key}={file}: item {item!r}: codes {codes} are not from 0 to {size - 1}; {fix}")
    return CodeTable(pl.Series(list(given), dtype=pl.String), np.array(list(given.values()), np.int64))
