"""Turn columns into dense and sparse features, with a reason for each, and propose the split of the rows."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from recsys.new.column_kinds import Column, Feature, Features, IdKind, ListKind, UnusedKind, mean, quantile, sql_name
from recsys.new.find_files import split_of
from recsys.new.gather import Gathered, files_answers
from recsys.new.known_names import NAMES, names_an_id_of, rank_of
from recsys.new.label import LabelGuess, choose
from recsys.new.leaks import AFTERWARDS, doubtful_names, later_times, leaks, names_splits
from recsys.new.proposal import Proposal, Split, split_at_random, split_by_files, split_by_groups, split_by_time
from recsys.new.questions import Question
from recsys.new.yaml_text import flow

MIN_COMMON = 0.8  # of the values of a list, from which they are those of another column
MIN_GROUPS = 20
MAX_GROUP = 200  # rows of a query, a display or an order
MIN_KEPT = 0.95  # share of the rows whose users have lists of no more rows
MIN_REPEATED = 0.1  # share of the rows with an item that the user had before, from which it may come again
MAX_LENGTH = 200  # of lists: the time of attention grows with its square


def features_of(columns: Sequence[Column], leaks: Mapping[str, str], *, typed: bool) -> Features:
    """Return the features that the columns make.

    Args:
        leaks: the columns that give the label away, and why.
        typed: columns have types, which SQL has to turn into text.
    """
    features, names = Features(), set[str]()
    for c in columns:
        if c.role == "label":
            continue
        if c.name in leaks:
            features.left_out.append((c.name, leaks[c.name]))
        else:
            c.kind.add_features(features, c, feature_name(c.name, names), typed=typed)
    _share_tables(features, columns)
    numbers = [f for f in features.dense if f.settings.get("transform")]
    if numbers:  # the transform of most numbers is the default; medians of many columns take too much memory
        usual = Counter(flow(f.settings["transform"]) for f in numbers).most_common(1)[0][0]
        transform = next(f.settings["transform"] for f in numbers if flow(f.settings["transform"]) == usual)
        features.dense_defaults = {"fill": "median" if len(numbers) <= 200 else "mean", "transform": transform}
        for f in numbers:
            if f.settings["transform"] == transform:
                del f.settings["transform"]
    if features.dense and not features.sparse:
        for f in (f for f in features.dense[:5] if "cyclic" not in f.settings):
            settings = {"column": f.settings.get("column", f.name), "quantiles": 10}
            why = "models need a sparse feature: ranges of the number"
            features.sparse.append(Feature(f"{f.name}_bucket", settings, why))
    return features


def _share_tables(features: Features, columns: Sequence[Column]) -> None:
    """Let a list and the column whose values it holds read one table: a history and the item of the row."""
    by_name = {c.name: c for c in columns}
    read = [(f, by_name.get(f.settings.get("column", f.name))) for f in features.sparse]
    for f, c in read:
        if c is None or not isinstance(c.kind, ListKind) or "split" not in f.settings:
            continue
        elements, codes = c.kind.elements(c), [one for _, one in read if one is not None and one.kind.is_code]
        shares = [(mean(elements.is_in(one.texts.implode())), one.name) for one in codes]
        share, name = max(shares, default=(0.0, ""))
        if share >= MIN_COMMON:
            f.settings["table"] = name
            f.why += f"; its values are those of {name}"


def feature_name(column: str, taken: set[str]) -> str:
    """Return a name that a feature may have, like the column's, and add it to those that are taken."""
    name = re.sub(r"[^\w -]+", "_", column.strip()).strip(" _")[:100] or "column"
    name = name if not name[0].isdigit() else f"c_{name}"
    base, n = (f"{name}_" if name == "label" or name.startswith("__") else name), 2
    name = base
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name


def propose_ranking(p: Proposal, label: LabelGuess, gathered: Gathered, root: Path) -> None:
    """Fill in features and split of data with a label."""
    _leave_out_rows(p, label)
    known_later = _known_later(p, label, gathered)
    group = _group_of(p)
    if group is not None:
        known_later[group.name] = "it identifies rows that belong together; later rows have other values"
    p.features = features_of(p.columns, known_later, typed=p.typed)
    split, time = split_by_files(root, gathered.files), p.roles.time
    if split is None:
        _ask_about_splits(p, gathered, root)
    if split is None and group is not None:
        split = split_by_groups(group.name, f"rows of one {group.name} stay together")
    elif split is None and time is not None:
        split = split_by_time(time, p.label, p.time_column(time))
        if split is not None:
            p.leave_out_without([time], "a time")
        p.split = split_at_random(f"too many rows have the same {time.name} to split by it")
    p.split = split or p.split


def _leave_out_rows(p: Proposal, label: LabelGuess) -> None:
    """Leave out rows without a label, which are events of other pages, and rows without an item if none is positive."""
    c, item = label.column, p.roles.item
    if c.missing:
        p.where[f"{sql_name(c.name)} IS NOT NULL"] = "a label"
    elif item is not None and item.missing and not label.values.filter(item.values.is_null()).sum():
        p.leave_out_without([item], "an item")
    for other in p.columns if p.where else ():
        values = other.values.filter(label.values.is_not_null())
        if other is not c and not values.dtype.is_nested() and values.len() and values.n_unique() == 1:
            other.kind = UnusedKind(f"it is always {values[0]} in rows with a label")


def _known_later(p: Proposal, label: LabelGuess, gathered: Gathered) -> dict[str, str]:
    """Return the columns that are known only after the label, and why; ask about those that may be."""
    tested = {c.name for c in p.columns if gathered.untested and c.name not in gathered.untested}
    by_values, doubts_of_values = leaks(p.columns, label)
    known_later = dict.fromkeys(gathered.untested, f"the test file lacks it: {AFTERWARDS}")
    known_later |= later_times(p.columns, p.roles.time) | by_values
    if splits := names_splits([c for c in p.columns if c.name not in known_later]):
        text = "; ".join(f"{c.name} names splits ({', '.join(c.examples(5))}): are they those to use?" for c in splits)
        guess = "no; to use them, write the rows of each into a file of its own, such as train.csv and test.csv"
        p.questions.append(Question(text, guess, key="split"))
        known_later |= {c.name: "it names the splits of whoever made the data" for c in splits}
    places = [*filter(_is_position, p.columns)] if label.values.n_unique() == 2 else []
    for place in places[:1]:
        text = f"is {place.name} where the item stood in a list? {label.column.name} then depends on it"
        guess = "yes: its effect is learned, and left out of predictions (data.position); if not, make it a feature"
        p.questions.append(Question(text, guess, key="position"))
        p.position = place.name
        known_later |= {c.name: "it is the place in a list, as data.position reads it" for c in places}
    maybe = [c.name for c in p.columns if c.distinct == 2 and c.name in label.alternatives]
    known_later |= dict.fromkeys(maybe, f"it may be the label: {AFTERWARDS}")
    doubts = doubtful_names(p.columns, label, tested) | doubts_of_values
    if doubts := {name: why for name, why in doubts.items() if name not in known_later}:
        which = "; ".join(f"{name}: {why}" for name, why in [*doubts.items()][:4])
        text = f"{'is' if len(doubts) == 1 else 'are'} {', '.join(doubts)} known before {label.column.name}? {which}"
        p.questions.append(Question(text, "no, so no feature; if so, add a feature of this name", key="leak"))
    return known_later | {name: f"{why}: {AFTERWARDS}" for name, why in doubts.items()}


def _is_position(c: Column) -> bool:
    """Return whether a column has places in lists, by its name and values: most of those from the first to the last."""
    x, named = c.numbers, rank_of(c.name, NAMES.positions) is not None
    if x is None or not named or c.role or not c.is_whole or c.missing or c.distinct < 3:
        return False
    low, high = float(x.min()), float(x.max())  # type: ignore[arg-type]
    return low in (0, 1) and high - low < 2 * c.distinct


def _group_of(p: Proposal) -> Column | None:
    """Return the column of queries, displays or orders, by its name, which must not be divided, and ask what it is for.

    Few rows have one value of it.
    """
    names = (*NAMES.queries, *NAMES.event_keys)
    for c in p.columns:
        is_named = c.role == "" and c.kind.is_single and names_an_id_of(c.name, names)
        if is_named and MIN_GROUPS < c.distinct < c.rows <= MAX_GROUP * c.distinct:
            group = flow({"group": {"by": c.name, "together": True}})
            text = f"are the rows of one {c.name} shown together, and compared with each other?"
            p.questions.append(Question(text, f"no; if so, write {group[1:-1]}", key="group"))
            return c
    return None


def _ask_about_splits(p: Proposal, gathered: Gathered, root: Path) -> None:
    """Ask whether the files that belong to no split are to be used, if others are named as test rows."""
    by_split: dict[str | None, list[Path]] = {}
    for f in gathered.files:
        by_split.setdefault(split_of(f, root), []).append(f)
    rest = by_split.pop(None, [])
    if rest and "test" in by_split:
        named = [f for files_of_split in by_split.values() for f in files_of_split]
        some = ", ".join(os.path.relpath(f, root) for f in rest[:3])
        text = f"{some} belongs to no split, beside {named[0].name}; are its rows to be used?"
        sets = [named] if "train" in by_split else [rest]
        p.questions.append(Question(text, "yes, in a split of all rows", files_answers(sets), key="files"))


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
