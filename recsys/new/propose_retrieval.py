"""Propose features and split of data for retrieval models."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recsys.new.choose_label import choose
from recsys.new.column_kinds import Column, IdKind, sql_name
from recsys.new.label import BinaryGuess
from recsys.new.proposal import Proposal
from recsys.new.propose_features import features_of
from recsys.new.roles import copies
from recsys.new.splits import Split, split_by_files, split_by_groups
from recsys.new.statistics import counts_of, quantile

MIN_KEPT = 0.95  # share of the users whose rows all fit into a list
MIN_REPEATED = 0.1  # share of the rows with an item that the user had before, from which it may come again
MAX_LENGTH = 200  # of lists: the time of attention grows with its square


def propose_retrieval(p: Proposal, files: Sequence[Path]) -> None:
    """Fill in groups, sequences, items, features and split of data without a label: users and the items they chose."""
    by_name = {c.name: c for c in p.columns}
    user = p.roles.user or by_name.get("user") or by_name["list"]
    item, time = p.roles.item or by_name["item"], p.roles.time
    p.group = {"by": user.name}
    if time is not None:
        p.group["order"] = p.time_column(time)
        p.leave_out_without([time], "a time")
    p.leave_out_without((user, item))
    longest = int(quantile(counts_of(user.values)["count"], MIN_KEPT))
    p.max_length = min(max(longest, 10), MAX_LENGTH)
    p.reasons["sequences"] = f"{MIN_KEPT:.0%} of the users have at most {longest} rows"
    share = _repeated(user.values, item.values)
    p.repeats = share >= MIN_REPEATED
    if share >= MIN_REPEATED / 10:
        known = "lists have items of the history, as metrics" if p.repeats else "lists leave such items out, as metrics"
        what = f"{share:.0%} of a user's rows after the first have an item that the user had before"
        p.reasons["group"] = f"{what}; protocol.filter_history={str(not p.repeats).lower()}: {known}"
    p.split = Split({"by": "leave_one_out"}, "each user's last item is a test row, the one before it a validation row")
    if user.name == "list":  # the reader adds this column
        p.split = split_by_groups("list", "whole lines are held out; the column `list` identifies them")
        p.columns = [c for c in p.columns if c is not user]
    p.split = split_by_files(Path(p.root), files) or p.split
    item.kind, item.role = item.kind if item.kind.is_code else IdKind(item.reason), "item"
    derived = p.features.derive
    p.features = features_of([item], {}, typed=p.typed)
    p.features.derive |= derived
    p.items = next((s for s in p.sides if s.key == item.name and s.items()), None)
    other_names = copies(p.columns)
    used = {item.name, user.name, time.name if time else ""}
    users = [s for s in p.sides if s.key == user.name and s.features().sparse]
    if users:
        p.source["joins"] = [s.join() for s in users]
    for f in features_of([c for s in users for c in s.columns], {}, typed=p.typed).sparse:
        f.settings["per"] = "group"
        p.features.sparse.append(f)
    others = [c for c in p.columns if c.name not in used]
    chosen = _chosen(others)
    for c in others:
        why = "models of sequences read items; its value is not known before the item"
        own = c.reason if c.kind.says_nothing or c.kind.is_row_id else why
        p.features.left_out.append((c.name, other_names.get(c.name) or chosen.get(c.name) or own))
    p.unused += [(s.file, "not used by retrieval models") for s in p.sides if s is not p.items and s not in users]


def _repeated(user: pl.Series, item: pl.Series) -> float:
    """Return the share of the rows, without the first of each user, whose item the user had in another row before."""
    rows = pl.DataFrame({"user": user, "item": item}).drop_nulls()
    after_the_first = rows.height - rows["user"].n_unique()
    return (rows.height - rows.n_unique()) / after_the_first if after_the_first else 0.0


def _chosen(columns: Sequence[Column]) -> dict[str, str]:
    """Return a line for the column that says which items users chose, if one does: all rows are taken for choices."""
    label = choose(columns, "auto", retrieval=True)
    if not isinstance(label, BinaryGuess) or label.doubt or label.undecided:
        return {}
    c, name = label.column, sql_name(label.column.name)
    positive = ", ".join("'" + v.replace("'", "''") + "'" for v in label.positive)
    least = 1 if label.at_least is None else label.at_least
    sql = f"{name} IN ({positive})" if positive else f"CAST({name} AS DOUBLE) >= {least:g}"
    sql = name if c.values.dtype == pl.Boolean else sql
    return {c.name: f"{label.what}, and the others count as interactions, too, unless you add: where: {sql}"}
