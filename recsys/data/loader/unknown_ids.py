"""Find the features whose unknown id (row 0 of their table) training does not train, although new values will have it.

With `min_count: 1`, each training value has a row of its own. So all new values of validation, test and production get
row 0 as it was initialised, unless a share of the training ids is replaced by it.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recsys.data.prepare.prepared import Prepared
from recsys.features import OUT_OF_VOCABULARY, SparseFeature
from recsys.files.manifest import UNREADABLE, DamagedFile

FIRST_ROWS = 1_000_000  # of a split, that are looked at


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
