"""Lines that say what is wrong with a training or its results, and what to try."""

import math
from typing import Any

import numpy as np
import polars as pl

from recsys.data.features.blocks import HISTORY, KEY, ROW
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.metrics_table import of_label
from recsys.job.run_config import RunConfig
from recsys.schema.data_schema import GroupConfig, SplitConfig
from recsys.sharding.optimizers import OPTIMIZERS

SUSPICIOUS = 0.98  # AUC on real data from which a feature may give the label away
MIN_RARER_ROWS = 20  # rows of the rarer class, below which an AUC says little
FEW_STEPS = 200  # of an optimizer, in which no model is trained
DIVERGED = 1.1 * math.log(2)  # logloss that no model has that predicts about 1/2 for each row
MAX_RATIO = 2.0  # ratio of predictions and labels, or its inverse, that is not calibrated
MIN_SAID_SECONDS = 60.0  # seconds of validations that are worth a word
MAX_OF_TRAINING = 0.1  # time of validations, as a share of the training's
MIN_MOVE = 2.0  # distance that item vectors must be able to move, in standard deviations of their initial values
MAX_CUT = 0.1  # share of the training interactions that the length of lists may leave out
LOOKED_AT = 100_000  # lists
MIN_OF_POPULAR = 0.9  # of the NDCG of the most popular items, below which a model has not learnt
QUERIES = 20_000  # training rows in which a feature may tell the item
MIN_ROWS, MIN_REPEATED = 100, 10  # of them, and items of several rows
BY_CHANCE = -14.0  # the logarithm of one in a million
RISING = 0.002  # relative improvement of the last validation, from which more epochs are worth their time


def cut_lists(cfg: RunConfig, prepared: Prepared) -> str | None:
    """Return a line about the training interactions that are left out because lists are cut, or None if they are few.

    Reads the first training rows, whose histories have all items.
    """
    sequences, item = cfg.data.sequences, cfg.data.item_feature
    if sequences is None or sequences.stride is not None or item is None:
        return None
    lists = pl.scan_parquet(prepared.files("train"), glob=False).head(LOOKED_AT)
    known = lists.select(pl.col(HISTORY).list.len()).filter(pl.col(HISTORY) > 0).collect()[HISTORY].to_numpy()
    return cut_by(sequences.max_length, known)


def cut_by(max_length: int, lengths: np.ndarray) -> str | None:
    """Return the line of `cut_lists` for training lists of these lengths, (B,), before they are cut."""

    def cut(length: int) -> float:
        return 1 - np.minimum(lengths, length + 1).sum() / lengths.sum()

    if not len(lengths) or cut(max_length) < MAX_CUT:
        return None
    longer = max_length
    while cut(longer) >= MAX_CUT:
        longer *= 2
    return (
        f"data.sequences.max_length={max_length} leaves out {cut(max_length):.0%} of the training interactions: set "
        f"data.sequences.max_length={longer} and model.max_length={longer}, or data.sequences.stride={max_length}, "
        "which makes several rows of a long list"
    )


def tells_the_item(prepared: Prepared, tables: set[str]) -> str | None:
    """Return a line about features that have one value for each item in the first training rows, or None.

    The model reads them with the query, and so has a property of the item that it is to find. Lists of earlier rows,
    and those of a sequence, of which the model reads what is before that item, tell it nothing.

    tables: the tables, by their names in the data, that the model looks up.
    """
    item, columns = prepared.fitted.data.item_feature, prepared.fitted.data.sparse_columns
    read = {n: c for n, c in columns.items() if n != item and c.table in tables}
    of_row = {n: pl.col(n) for n, c in read.items() if c.sequence is None and c.look_back is None}
    of_row |= {n: x.cast(pl.List(pl.String)).list.join(",") for n, x in of_row.items() if columns[n].is_list}
    if item is None or not of_row:
        return None
    chosen = pl.col(item).list.last() if columns[item].sequence is not None else pl.col(item)
    first = pl.scan_parquet(prepared.files("train"), glob=False).head(QUERIES)
    rows = first.select(chosen.alias(KEY), *of_row.values()).filter(pl.col(KEY) > 0).collect()
    items = rows.group_by(KEY).agg(pl.len().alias(ROW), pl.col(*of_row).n_unique()).filter(pl.col(ROW) > 1)
    again = int(items[ROW].sum()) - items.height
    shares = {n: rows[n].value_counts(normalize=True)["proportion"] for n in of_row}
    # by chance, all further rows of the items have the value of the first one
    chance = {n: again * math.log(float(s.dot(s) or 1)) for n, s in shares.items()}
    single = [n for n in of_row if items[n].max() == 1 and chance[n] < BY_CHANCE]
    if not single or rows.height < MIN_ROWS or items.height < MIN_REPEATED:
        return None
    return (
        f"data.sparse.{', '.join(single)}: has one value for each item in the first {rows.height:,} training rows, and "
        "the model reads it with the query, also that of the item which it is to find; move it to data.items.sparse, "
        "with a file of the items in data.items.file"
    )


def below_popularity(metric: str, value: float, popular: float) -> str | None:
    """Return a line about a model that ranks worse than the items' counts do, or None.

    Args:
        metric: the name of the metric, with its split.
        value: that of the model.
        popular: that of the list of the most popular items.
    """
    if value >= MIN_OF_POPULAR * popular:
        return None
    return (
        f"{metric} {value:.5f} is below that of the most popular items, {popular:.5f}: the model has not learnt; try "
        "other values of its keys or, if it trains in steps, a higher optim.sparse.lr and optim.dense.lr (lower ones "
        "if the loss rose), more epochs (trainer.max_epochs, trainer.early_stopping.patience), or another loss"
    )


def too_few_steps(metrics: dict[str, Any]) -> str | None:
    """Return a line about a training of one short epoch, from what metrics.json has, or None."""
    steps = metrics["train"].get("steps")
    if steps is None or steps >= FEW_STEPS or metrics["train"].get("epochs") != 1:
        return None
    longer = "trainer=until_best trains until validation no longer improves"
    return f"trained {_steps(steps)} only: {longer if 'validation' in metrics else 'set trainer.max_epochs'}"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def still_improving(metric: str, before: float, last: float, epochs: int) -> str | None:
    """Return a line about a training whose last validation was the best one, or None if it gained little.

    Args:
        metric: the monitored metric, with its split.
        before: the best value of the earlier validations.
    """
    if not abs(last - before) >= RISING * abs(before):
        return None
    return (
        f"{metric} still improved when the training ended, from {before:.5g} to {last:.5g}: set "
        f"trainer.max_epochs={2 * epochs}"
    )


def slow_validations(cfg: RunConfig, training: float, validating: float) -> str | None:
    """Return a line that says so if a long training has spent much time, in seconds, on validations."""
    if validating < max(MIN_SAID_SECONDS, MAX_OF_TRAINING * training) or cfg.trainer.validate_every_n_steps is not None:
        return None
    every = math.ceil(cfg.trainer.validate_every * validating / (MAX_OF_TRAINING * training))
    return (
        f"validations took {validating:.0f} s, and training {training:.0f} s: "
        f"trainer.validate_every={every} (epochs) makes that a tenth"
    )


def short_training(cfg: RunConfig, interactions: float, epochs: float) -> str | None:
    """Return a warning if item vectors cannot move by MIN_MOVE deviations of their initial values, otherwise None.

    Adam changes an element of a table's row by about the learning rate, at most, in each step that looks the row up.
    An item is looked up about once for each of its interactions, so the number of steps that train its vector depends
    on the interactions per item and on the epochs, not on the number of steps of the run (experiments/item_counts).
    With optim.sparse.every_row, the other steps move it, too.

    Args:
        cfg: config of a retrieval model that is trained step by step.
        interactions: mean number of training interactions per item.
    """
    deviation, sparse = cfg.model.get("init_std"), cfg.optim.sparse
    is_adam = OPTIMIZERS[sparse.name].counts_steps
    if not (deviation and is_adam and sparse.lr and interactions) or sparse.every_row:
        return None
    distance = sparse.lr * interactions * epochs
    if distance >= MIN_MOVE * deviation:
        return None
    wanted = math.ceil(MIN_MOVE * deviation / (sparse.lr * interactions))
    return (
        f"optim.sparse.lr={sparse.lr} is too low for {interactions:.3g} interactions per item and {epochs:.3g} epochs: "
        f"Adam moves item vectors by at most {distance:.2g} (model.init_std={deviation}); set "
        f"trainer.max_epochs={wanted} or more, or raise optim.sparse.lr and optim.dense.lr"
    )


def too_good(test: dict[str, Any]) -> str | None:
    """Return a line about test metrics that are better than real data usually allow, or None."""
    for label, own in of_label(test).items():
        shown = {"auc": "AUC", "gauc": "GAUC"} if "auc" in own else {"accuracy": "accuracy"}  # of classes
        ne, logloss = own.get("ne", math.nan), own.get("logloss", math.nan)
        if math.isfinite(ne) and math.isfinite(logloss) and ne > 0:
            # share of the rarer class, by the entropy of the mean label, which NE divides by
            low, high = 0.0, 0.5
            for _ in range(50):
                p = (low + high) / 2
                entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
                low, high = (p, high) if entropy < logloss / ne else (low, p)
            if own.get("rows", test.get("rows", 0)) * low < MIN_RARER_ROWS:
                continue
        for name in shown:
            if own.get(name, 0.0) >= SUSPICIOUS:
                of = f" of {label}" if label else ""
                return f"test {shown[name]}{of} {own[name]:.3f}: check that no feature is known only after the label"
    return None


def sees_the_future(split: SplitConfig, group: GroupConfig | None) -> str | None:
    """Return a line about test rows that training has seen the future of, and what to type instead, or None.

    Ji et al., A Critical Study on Data Leakage in Recommender System Offline Evaluation, 2023, doi.org/10.1145/3569930
    """
    if split.by != "leave_one_out" or not split.test or group is None or group.order is None:
        return None
    return (
        f"data.split.by=leave_one_out: if {group.order} is a time, training has rows of other users that are later "
        "than a user's test row, as no model in service has; to test on the future alone, add data.split.by=time "
        f"data.split.column={group.order}"
    )


def too_weak(metrics: dict[str, Any]) -> str | None:
    """Return a line about a model that predicts worse than a constant, or is far from calibrated, and what to try.

    metrics: the metrics of a run; None is returned for models without binary labels
    """
    for label, own in of_label(metrics.get("test", {})).items():
        of, ratio = f" of {label}" if label else "", own.get("calibration")
        if own.get("ne", 0.0) >= 1:
            if (logloss := own.get("logloss", 0.0)) > DIVERGED:
                return (
                    f"test logloss{of} {logloss:.3g} is above {math.log(2):.2g}, that of a model before its training: "
                    "it has diverged or overfits; try a lower optim.sparse.lr and optim.dense.lr, or fewer epochs"
                )
            weakness = f"test NE{of} {own['ne']:.3f}: the mean of the label predicts better than this model"
            break
        if ratio is not None and not 1 / MAX_RATIO <= ratio <= MAX_RATIO and math.isfinite(ratio):
            weakness = f"test calibration{of} {ratio:.3g}: predictions sum to {ratio:.3g} times the labels"
            break
    else:
        return None
    steps, epochs = metrics["train"].get("steps"), metrics["train"].get("epochs")
    if steps is None:  # fitted at once
        return f"{weakness}; check the label and the features"
    if steps < FEW_STEPS:
        return f"{weakness}, after {_steps(steps)} only; try trainer=until_best, or a smaller trainer.batch_size"
    if epochs == 1:
        return f"{weakness}, after one epoch; try trainer=until_best"
    return f"{weakness}; try model=gbm, or a larger min_count of the features"
