"""Vocabularies that grow: the id tables of a training that goes on from another run.

A vocabulary is the id table of its embedding table: frame (value, count, id, since, seen), in the order of ids. `count`
is the number of training occurrences so far. Trainings are numbered from 0: `since` is the one in which the value got
its row, and `seen` the last one whose rows have the value. Vocabularies of a first training lack both; they are 0.

An id never changes while its value has the row. A new value gets the next row or, if the table is full, the row of a
value that is not in this training's rows. Nothing is removed before a new value needs the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.dense_columns import DenseColumn, LookedUpVector
from recsys.data.features.encoders import EVICT, SparseColumn, Vocabulary
from recsys.data.features.fit import StatisticsPass, Training, merge_statistics, vocabulary_tables
from recsys.data.features.fitted import Fitted
from recsys.data.features.label_columns import fit_weight, with_first_position, with_shares
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_contents import targets
from recsys.data.features.training_statistics import Labels
from recsys.data.features.value_index import shares
from recsys.interface.features import OUT_OF_VOCABULARY
from recsys.schema.data_schema import ItemsConfig

WAITING_TRAININGS = 10  # after which a value that has no row and does not come again is forgotten


def check_same_labels(old: Fitted, data: ResolvedData) -> None:
    """Raise UserError if the labels of `data` mean something else than those that a run predicts."""
    before, now = old.data.label_kinds, data.label_kinds
    if [*before] != [*now]:
        names = [", ".join(labels) or "none" for labels in (before, now)]
        why = "; a run keeps its labels and their order"
        raise UserError(f"data.labels: the run has {names[0]}, and this config has {names[1]}{why}")
    for name, label in before.items():
        for part in fields(label.config):
            ran, given = (json.dumps(getattr(c.config, part.name)) for c in (label, now[name]))
            if ran != given:
                why = "by which its labels are read; set it as there, or train a new run"
                raise UserError(f"{now[name].key}.{part.name}={given}: the run has {ran}, {why}")


def check_growth(old: Fitted, data: ResolvedData) -> None:
    """Raise UserError if the features of `data` are not those that were fitted, or cannot be fitted to more rows."""
    if data.sample_negatives != old.data.sample_negatives:
        ran = old.data.sample_negatives
        raise UserError(
            f"data.sample_negatives={data.sample_negatives:g}: the run has {ran:g}, for which its "
            f"predictions are corrected; set {ran:g}, or train a new run"
        )
    if (encoded := targets(data)) and old.contents is None:
        why = "target was fitted by an older version, so that rows which come again would see their own labels"
        raise UserError(f"data.dense.{encoded[0]}.transform: {why}; train a new run without start_from")
    columns = (
        ("dense", old.data.dense_columns, data.dense_columns),
        ("sparse", old.data.sparse_columns, data.sparse_columns),
    )
    before: Mapping[str, DenseColumn | SparseColumn]
    now: Mapping[str, DenseColumn | SparseColumn]
    for kind, before, now in columns:
        # a run has no copy of features that models do not read
        known = {n for n in now if n in before or kind == "dense"}
        if names := sorted(before.keys() ^ known):
            where = "the run" if names[0] in before else "this config"
            raise UserError(f"data.{kind}.{names[0]}: only {where} has this feature; start_from needs equal features")
        for name in before:
            if before[name] != now[name]:
                raise UserError(f"{now[name].key}: differs from the run's; start_from needs equal features")
    if data.look_backs and old.data.has_moments != data.has_moments:
        how = "moment" if old.data.has_moments else "order"
        raise UserError(f"data.group.ties: differs from the run's; start_from needs equal features: set {how}")
    if data.semantic_ids is not None and data.semantic_ids.codes is None:
        why = "new codes would be fitted, which are not those of the run"
        raise UserError(f"data.semantic_ids: {why}; start_from takes given codes only (data.semantic_ids.codes)")
    if data.k_core:
        raise UserError(
            "data.k_core: counts the rows of the whole data set, and start_from reads new rows alone; use "
            "min_count of the features instead"
        )
    for where, part in {"data": data, "data.items": data.item_table}.items():
        for name, c in part.dense_columns.items() if part is not None else ():
            if isinstance(c, LookedUpVector) and any(str(way) not in ("l2", "layer") for way in c.vectors.normalise):
                why = "is fitted to the vectors, and a new fit would change the old items' vectors"
                raise UserError(
                    f"{where}, vectors of {name}: normalise={c.vectors.normalise[0]} {why}; start_from "
                    "takes l2 and layer only"
                )


def grow(old: Fitted, data: ResolvedData, training: Training) -> Fitted:
    """Return transforms that are `old` for all that it knows, whose vocabularies also have the new training values.

    Numbers are transformed as before. A table that `old` lacks is fitted to these rows alone, and so are mean labels if
    some rows come again, which would see their own labels in the old means.

    Args:
        old: the transforms of the run that the training goes on from.
        data: the data config; its features must be equal to the old ones.
        training: the new training rows.
    """
    encoded = targets(data)
    params = {name: [] if name in encoded else list(old.dense[name]) for name in data.dense_columns}
    seen = merge_statistics(training.collect(StatisticsPass(data, params, True, old.types or {})))
    if not seen.rows:
        raise data.without_rows("train")
    number = old.trainings + 1
    vocabularies, waiting = {}, {}
    for table, (names, rules) in vocabulary_tables(data.sparse_columns, data.item_feature).items():
        counts = training.total(names, ["value"], min(rules.min_count, 1))
        vocabularies[table], waiting[table] = grow_table(
            old.vocabularies.get(table), old.waiting.get(table), counts, rules, number
        )
        rows = vocabularies[table].height + 1
        if rules.capacity is not None and rows > rules.capacity:
            say(
                f"capacity={rules.capacity} of table {table}: the run that this one starts from has given {rows} rows; "
                "they stay, and new values take the rows of old ones"
            )
    dense, contents = old.dense, old.contents
    if contents is not None and seen.contents is not None and (known := seen.contents.share_in(contents)):
        which, contents = f"data.dense.{', '.join(encoded)}", seen.contents
        say(f"{which}: about {known:.0%} of these rows are like rows of the training before: target is fitted to these")
        for name in encoded:
            means = data.dense_columns[name].steps[0].fit(training.total([name], Labels.keys, 1))
            dense = dense | {name: [means, *old.dense[name][1:]]}
    data = with_first_position(data, seen.statistics, old.data.position.first)
    grown = replace(old, data=data, dense=dense, contents=contents, vocabularies=vocabularies, waiting=waiting)
    grown = replace(grown, trainings=number, items=None)
    labels = with_shares(old.labels, data, seen.rows, seen.statistics)
    return replace(grown, initial_tables={}, labels=labels, mean_weight=fit_weight(data, seen.statistics))


def reweighted(old: Fitted, data: ResolvedData, training: Training) -> Fitted:
    """Return transforms that are `old`, with weights of a mean of 1 over these training rows, if there are some."""
    weights = replace(data, dense={}, sparse={}, group=None, items=ItemsConfig())
    seen = merge_statistics(training.collect(StatisticsPass(weights, {}, True, {})))
    mean = fit_weight(weights, seen.statistics) if seen.rows else old.mean_weight
    return replace(old, data=replace(old.data, weight=data.weight), mean_weight=mean)


def grow_table(
    old: pl.DataFrame | None, waiting: pl.DataFrame | None, counts: pl.DataFrame, rules: Vocabulary, number: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the id table after a training, and the values that wait for a row.

    Args:
        old: the id table before; None if the table is new.
        waiting: frame (value, count, seen) of the values that had no row before.
        counts: frame (value, count) of the new training rows.
        rules: the strictest of the features that share the table.
        number: the number of the training.
    """
    table = id_table(old)
    now = counts.select("value", pl.col("count").cast(pl.UInt32).alias("new"))
    table = table.join(now, on="value", how="left", maintain_order="left").with_columns(
        count=pl.col("count") + pl.col("new").fill_null(0),
        seen=pl.when(pl.col("new").is_not_null()).then(pl.lit(number, pl.Int32)).otherwise("seen"),
    )
    unknown = now.join(table, on="value", how="anti")
    if waiting is None:
        waiting = pl.DataFrame(schema={"value": pl.String, "count": pl.UInt32, "seen": pl.Int32})
    unknown = (
        unknown.join(waiting.rename({"count": "before"}).drop("seen"), on="value", how="left")
        .with_columns(count=pl.col("new") + pl.col("before").fill_null(0), seen=pl.lit(number, pl.Int32))
        .sort("count", "value", descending=[True, False])
    )
    admitted = unknown.filter(pl.col("count") >= rules.min_count)
    if rules.admit is not None and rules.admit != 1:  # n occurrences let a value in with probability 1 - (1 - admit)^n
        missed = (1 - rules.admit) ** admitted["new"].to_numpy().astype(np.float64)
        admitted = admitted.filter(pl.Series(shares(admitted["value"], number) >= missed, dtype=pl.Boolean))
    room = admitted.height if rules.capacity is None else max(rules.capacity - 1 - table.height, 0)
    rows = admitted.with_columns(since=pl.lit(number, pl.Int32))
    taken = _taken(table, rows[room:], rules.evict or "age", number)
    columns = ["value", "count", "since", "seen"]
    kept = table.select(columns).with_row_index("place")
    new = rows[room : room + len(taken)].select(pl.Series("place", taken, pl.UInt32), *columns)
    replaced = pl.concat([kept.join(new, on="place", how="anti"), new]).sort("place").drop("place")
    grown = pl.concat([replaced, rows[:room].select(columns)])
    ids = pl.int_range(grown.height, dtype=pl.Int32, eager=True) + (OUT_OF_VOCABULARY + 1)
    left = unknown.join(rows[: room + len(taken)], on="value", how="anti").select("value", "count", "seen")
    old_left = waiting.join(unknown, on="value", how="anti").filter(pl.col("seen") > number - WAITING_TRAININGS)
    return grown.select("value", "count", ids.alias("id"), "since", "seen"), pl.concat([left, old_left])


def id_table(vocabulary: pl.DataFrame | None) -> pl.DataFrame:
    """Return frame (value, count, since, seen) of a vocabulary, in the order of ids; None has no rows."""
    if vocabulary is None:
        return pl.DataFrame(schema={"value": pl.String, "count": pl.UInt32, "since": pl.Int32, "seen": pl.Int32})
    missing = [pl.lit(0, pl.Int32).alias(name) for name in ("since", "seen") if name not in vocabulary.columns]
    return vocabulary.with_columns(missing).select("value", "count", "since", "seen")


def fresh_rows(fitted: Fitted) -> Mapping[str, np.ndarray]:
    """Return the rows that got a new value in this training, by table; those of item features are items/TABLE."""
    rows = {
        table: v.filter(pl.col("since") == fitted.trainings)["id"].to_numpy()
        for table, v in fitted.vocabularies.items()
        if "since" in v.columns
    }
    if fitted.items is not None:
        rows |= {f"items/{table}": ids for table, ids in fresh_rows(fitted.items.fitted).items()}
    return rows


def _taken(table: pl.DataFrame, rows: pl.DataFrame, evict: str, number: int) -> np.ndarray:
    """Return the places of the values that give their rows to the first of `rows`, in the order of `rows`."""
    places = table.with_row_index("place").filter((pl.col("seen") < number) & (pl.col("value") != ""))
    places = places.sort(*EVICT[evict], "place", descending=[False, False, True])[: rows.height]
    if evict == "count":
        rarer = places["count"].to_numpy() < rows["count"].to_numpy()[: places.height]
        places = places.filter(pl.Series(np.logical_and.accumulate(rarer)))
    return places["place"].to_numpy()
