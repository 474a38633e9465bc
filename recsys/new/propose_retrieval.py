"""Propose features and split of data for retrieval models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from recsys.new import choose_split as splits
from recsys.new.column_kinds import Column
from recsys.new.copies import copies
from recsys.new.propose_features import features_of
from recsys.new.statistics import counts_of

if TYPE_CHECKING:
    from recsys.new.propose import Proposal


KEPT = 0.95  # share of the rows that the length of lists keeps
MOST_LENGTH = 200  # of lists: the time of attention grows with its square


def propose_retrieval(p: Proposal, files: Sequence[Path], *, typed: bool) -> None:
    """Fill in groups, sequences, items, features and split of data without a label: users and the items they chose."""
    by_name = {c.name: c for c in p.columns}
    user = p.roles.user or by_name.get("user") or by_name["list"]
    item = p.roles.item or by_name["item"]
    p.group = {"by": user.name}
    if p.roles.time is not None:
        p.group["order"] = p.time_column(p.roles.time, typed=typed)
        p.leave_out_without([p.roles.time], "a time")
    p.leave_out_without((user, item))
    longest = _length_that_keeps(KEPT, counts_of(user.values)["count"])
    p.max_length = min(max(longest, 10), MOST_LENGTH)
    p.reasons["sequences"] = f"lists of {longest} keep {KEPT:.0%} of the sample's rows"
    p.split = splits.leave_one_out()
    if user.name == "list":  # the reader adds this column
        p.split = splits.of_lists()
        p.columns = [c for c in p.columns if c is not user]
    p.split = splits.by_files(Path(p.root), files) or p.split
    derived = p.features.derive
    p.features = features_of([_as_item(item)], {}, typed=typed)
    p.features.derive = derived
    p.items = next((s for s in p.sides if s.key == item.name and s.items()), None)
    other_names = copies(p.columns)
    used = {item.name, user.name, p.roles.time.name if p.roles.time else ""}
    fixed = _constant_per_user(p.columns, user, used | set(other_names))
    users = [s for s in p.sides if s.key == user.name and s.features().sparse]
    if users:
        p.source["joins"] = [s.join() for s in users]
    for f in features_of([*fixed, *(c for s in users for c in s.columns)], {}, typed=typed).sparse:
        f.settings["per"] = "group"
        p.features.sparse.append(f)
    why = "models of sequences read items; its value is not known before the item"
    rest = [c for c in p.columns if c.name not in used and c not in fixed]
    plain = ("constant", "empty", "row id")
    p.features.left_out += [(c.name, other_names.get(c.name) or (c.reason if c.kind in plain else why)) for c in rest]
    p.unused += [(s.file, "not used by retrieval models") for s in p.sides if s is not p.items and s not in users]


def _length_that_keeps(share: float, rows_of_user: pl.Series) -> int:
    """Return the length of lists that keeps this share of all rows, given the number of rows of each user."""
    counts = rows_of_user.sort().to_numpy()
    users = np.arange(len(counts), 0, -1)  # that have as many rows as this one, or more
    kept = np.cumsum(counts) - counts + users * counts  # if lists are as long as this user's
    return int(counts[np.searchsorted(kept, share * kept[-1])]) if len(counts) else 0


def _as_item(item: Column) -> Column:
    if item.kind not in ("id", "category"):
        item.kind = "id"
    item.role = "item"
    return item


def _constant_per_user(columns: Sequence[Column], user: Column, used: set[str]) -> list[Column]:
    """Return the categories that are the same in all rows of a user: properties of the user."""
    constant = []
    for c in columns:
        if c.name in used or c.kind not in ("category", "id"):
            continue
        frame = pl.DataFrame({"user": user.values, "x": c.values})
        per_user = frame.group_by("user").agg(pl.col("x").n_unique().alias("n"), pl.len())
        several = per_user.filter(pl.col("len") > 1)
        if several.height > 10 and several["n"].max() == 1:
            constant.append(c)
    return constant
