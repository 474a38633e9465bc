"""Turn columns into dense and sparse features, with a reason for each."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from recsys.new.column_kinds import Column, Feature, Features, ListKind, mean
from recsys.new.yaml_text import flow

MIN_COMMON = 0.8  # of the values of a list, from which they are those of another column


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
