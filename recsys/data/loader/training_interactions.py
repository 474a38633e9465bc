"""The interactions of the training rows, for models that read them all at once."""

import polars as pl
import torch
from torch import Tensor

from recsys.batch import Interactions, JaggedIds
from recsys.data.features import HISTORY
from recsys.data.prepare.prepared import Prepared


def training_lists(prepared: Prepared) -> JaggedIds:
    """Return the items that each group has chosen in training, one list per group that has any."""
    rows = _columns(prepared, [HISTORY])[HISTORY]
    rows = rows.filter(rows.list.len() > 0)
    return JaggedIds(_ids(rows.explode(empty_as_null=False, keep_nulls=False)), _ids(rows.list.len()))


def training_pairs(prepared: Prepared, user: str) -> Interactions:
    """Return the distinct pairs of a known item and the value of the feature `user` in the training rows."""
    features = prepared.fitted.features
    assert features.item is not None
    # of rows that are sequences, the last window of a group has all of its items
    item = HISTORY if features.feature(features.item).sequence else features.item
    pairs = _columns(prepared, [user, item]).rename({user: "user", item: "item"})
    if item == HISTORY:
        pairs = pairs.explode("item", empty_as_null=False, keep_nulls=False)
    pairs = pairs.filter(pl.col("item") > 0).unique().sort("user", "item")
    return Interactions(_ids(pairs["user"]), _ids(pairs["item"]))


def _columns(prepared: Prepared, names: list[str]) -> pl.DataFrame:
    files = prepared.files("train")
    check = prepared.check_in_background(files)
    check.start()
    check.finish()
    return pl.concat([pl.read_parquet(f, columns=names, glob=False).select(names) for f in files])


def _ids(x: pl.Series) -> Tensor:
    return torch.from_numpy(x.cast(pl.Int64).to_numpy().copy())
