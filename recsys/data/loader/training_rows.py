"""Read the training rows as a whole: their interactions, unknown ids, and how often table rows are used."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from recsys.base.errors import UserError
from recsys.data.features.blocks import HISTORY, TIMES
from recsys.data.prepare.prepared import Prepared
from recsys.files.manifest import UNREADABLE, DamagedFile
from recsys.interface.ageing import Ageing
from recsys.interface.batch import CandidateIds, CandidateLists, Interactions, ItemRows, item_rows
from recsys.interface.features import OUT_OF_VOCABULARY, SparseFeature

FIRST_ROWS = 1_000_000  # of a split, that are looked at


def training_lists(prepared: Prepared, ageing: Ageing | None = None, key: str = "model") -> CandidateLists:
    """Return the items that each group has chosen in training, one list per group that has any.

    The list that ended last in data.group.order comes last; of equal ones, the one that is last in the files.

    ageing: how the items count by their age; None: alike
    key: where that stands, for messages

    Raises:
        UserError: the prepared data have no times of the items.
    """
    data = prepared.fitted.data
    if ageing is not None and TIMES not in pl.read_parquet_schema(prepared.files("train")[0]):
        why = "prepared by an older version, without the times that window and half_life need"
        raise UserError(f"{prepared.folder}: {why}; remove the folder, so that it is prepared again")
    lists = [HISTORY] if ageing is None else [HISTORY, TIMES]
    frame = _columns(prepared, [*lists, *data.recency_columns]).filter(pl.col(HISTORY).list.len() > 0)
    frame = frame.sort(data.recency_columns) if data.recency_columns else frame
    items = frame.select(pl.col(lists).explode(empty_as_null=False, keep_nulls=False))
    weights = None if ageing is None else ageing.weights(torch.from_numpy(items[TIMES].to_numpy().copy()), key)
    return CandidateLists(CandidateIds(_ids(items[HISTORY])), _ids(frame[HISTORY].list.len()), weights)


def training_counts(prepared: Prepared, ageing: Ageing, rows: int) -> Tensor:
    """Return how often each row of the item table was chosen in training, by age: (rows,) float32."""
    lists = training_lists(prepared, ageing, "loss").in_table(rows)
    return torch.bincount(lists.values, lists.weights, minlength=rows).float()


def training_pairs(prepared: Prepared, user: str) -> Interactions:
    """Return the distinct pairs of a known item and the value of the feature `user` in the training rows."""
    features = prepared.fitted.features
    assert features.item is not None
    # of rows that are sequences, the last window of a group has all of its items
    item = HISTORY if features.feature(features.item).sequence else features.item
    pairs = _columns(prepared, [user, item]).rename({user: "user", item: "item"})
    if item == HISTORY:
        pairs = pairs.explode("item", empty_as_null=False, keep_nulls=False)
    rows = item_rows(CandidateIds(_ids(pairs["item"])), features.feature(features.item).cardinality)
    pairs = pairs.with_columns(item=pl.Series(rows.numpy()))
    pairs = pairs.filter(pl.col("item") > 0).unique().sort("user", "item")
    return Interactions(_ids(pairs["user"]), ItemRows(CandidateIds(_ids(pairs["item"]))))


def _columns(prepared: Prepared, names: list[str]) -> pl.DataFrame:
    files = prepared.files("train")
    check = prepared.check_in_background(files)
    check.start()
    check.finish()
    return pl.concat([pl.read_parquet(f, columns=names, glob=False).select(names) for f in files])


def _ids(x: pl.Series) -> Tensor:
    return torch.from_numpy(x.cast(pl.Int64).to_numpy().copy())


def load_factors(folder: Path, hit_rate: float) -> dict[str, float]:
    """Return, for each table, the share of rows (most frequent first) that get `hit_rate` of the training lookups.

    Row 0, which rare values share, counts as always cached.

    Args:
        folder: the folder of prepared data or of a run.
        hit_rate: a share of the lookups, from 0 to 1.
    """
    factors = {}
    for file in sorted((folder / "vocabularies").glob("*.parquet")):
        counts = pl.read_parquet(file, columns=["count"], glob=False)["count"].cast(pl.Float64).sort(descending=True)
        hot = int((counts.cum_sum() < hit_rate * float(counts.sum())).sum()) + 1
        factors[file.stem] = (1 + min(hot, len(counts))) / (1 + len(counts))
    return factors


def untrained_unknowns(prepared: Prepared) -> list[str]:
    """Return the sparse features that can meet new values, and whose training rows have no unknown id.

    They can if the validation rows have an unknown id, or if a value occurs once in the training rows: the share of
    such values estimates the probability of a new one (Good, "The population frequencies of species and the estimation
    of population parameters", Biometrika 1953). The values that retrieval models predict are left out.
    """
    fitted = prepared.fitted
    spec = fitted.features
    features = [f for f in spec.sparse if not f.frozen and f.name != spec.item]
    trained = _with_unknown(prepared.files("train"), features)
    new = _with_unknown(prepared.files("validation"), features)
    once = {table for table, v in fitted.vocabularies.items() if (v["count"] == 1).any()}
    return [f.name for f in features if f.name not in trained and (f.name in new or f.table in once)]


def _with_unknown(files: Sequence[Path], features: Sequence[SparseFeature]) -> set[str]:
    """Return the names of the features of which the first rows have an unknown id. Raises DamagedFile."""
    names = [f.name for f in features]
    least = [pl.col(f.name).list.min().min() if f.multi_valued else pl.col(f.name).min() for f in features]
    found: set[str] = set()
    left = FIRST_ROWS if features else 0
    for file in files:
        if left <= 0:
            break
        try:
            rows = pl.read_parquet(file, columns=names, n_rows=left)
        except pl.exceptions.ComputeError:
            raise DamagedFile(file, UNREADABLE) from None
        left -= rows.height
        found |= {n for n, id_ in rows.select(least).row(0, named=True).items() if id_ == OUT_OF_VOCABULARY}
    return found
