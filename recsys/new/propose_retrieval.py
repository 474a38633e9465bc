"""Propose features and split of data for retrieval models."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recsys.new.choose_label import choose
from recsys.new.column_kinds import Column, IdKind, quantile, sql_name
from recsys.new.proposal import Proposal
from recsys.new.propose_features import features_of
from recsys.new.splits import Split, split_by_files

MIN_KEPT = 0.95  # share of the rows whose users have lists of no more rows
MIN_REPEATED = 0.1  # share of the rows with an item that the user had before, from which it may come again
MAX_LENGTH = 200  # of lists: the time of attention grows with its square


def propose_retrieval(p: Proposal, files: Sequence[Path]) -> None:
    """Fill in groups, sequences, items, features and split of data without a label: users and the items they chose."""
    user, item, time = p.roles.user, p.roles.item, p.roles.time
    assert user is not None and item is not None
    p.group = {"by": user.name}
    if time is not None:
        p.group["order"] = p.time_column(time)
        p.leave_out_without([time], "a time")
    p.leave_out_without((user, item))
    longest = int(quantile(pl.DataFrame({"user": user.values}).select(pl.len().over("user")).to_series(), MIN_KEPT))
    p.max_length = min(max(longest, 10), MAX_LENGTH)
    p.reasons["sequences"] = f"{MIN_KEPT:.0%} of the rows are those of users with at most {longest}"
    rows = pl.DataFrame({"user": user.values, "item": item.values}).drop_nulls()
    share = (rows.height - rows.n_unique()) / max(rows.height - rows["user"].n_unique(), 1)
    p.repeats = share >= MIN_REPEATED
    if share >= MIN_REPEATED / 10:
        known = "lists have items of the history, as metrics" if p.repeats else "lists leave such items out, as metrics"
        what = f"{share:.0%} of a user's rows after the first have an item that the user had before"
        p.reasons["group"] = f"{what}; protocol.filter_history={str(not p.repeats).lower()}: {known}"
    p.split = Split({"by": "leave_one_out"}, "each user's last item is a test row, the one before it a validation row")
    p.split = split_by_files(Path(p.root), files) or p.split
    item.kind, item.role = item.kind if item.kind.is_code else IdKind(item.reason), "item"
    derived = p.features.derive
    p.features = features_of([item], {}, typed=p.typed)
    p.features.derive |= derived
    used = {item.name, user.name, time.name if time else ""}
    others = [c for c in p.columns if c.name not in used]
    chosen = _chosen(others)
    for c in others:
        why = "models of sequences read items; its value is not known before the item"
        own = c.reason if c.kind.says_nothing or c.kind.is_row_id else why
        p.features.left_out.append((c.name, chosen.get(c.name) or own))


def _chosen(columns: Sequence[Column]) -> dict[str, str]:
    """Return a line for the column that says which items users chose, if one does: all rows are taken for choices."""
    label = choose(columns, "auto", retrieval=True)
    if label is None or not label.is_binary or label.doubt or label.undecided:
        return {}
    c, name = label.column, sql_name(label.column.name)
    positive = ", ".join("'" + v.replace("'", "''") + "'" for v in label.settings.get("positive", []))
    sql = f"{name} IN ({positive})" if positive else f"CAST({name} AS DOUBLE) >= {label.settings.get('at_least', 1):g}"
    sql = name if c.values.dtype == pl.Boolean else sql
    return {c.name: f"{label.what}, and the others count as interactions, too, unless you add: where: {sql}"}
