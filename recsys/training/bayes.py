"""The best metrics that a model can reach on a built-in sample: the metrics of the teacher that drew its labels.

A sample has a file teacher.parquet, with a row for each row of the raw file, in its order, and for each label NAME the
columns NAME (null where a row has no such label) and NAME_expected, its probability or its expectation. Rows that the
config of the sample drops are left out. The sample `clicks` has one column instead, `probability`.
"""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.features import LABEL
from recsys.data.features.label_columns import label_columns
from recsys.data.features.label_kinds import NumberLabelColumn
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.collected_rows import Rows
from recsys.evaluation.value_metrics import NumberMetrics

FILE = "teacher.parquet"


def best_metrics(prepared: Prepared) -> dict[str, float] | None:
    """Return the metrics of the teacher on the test rows, for the labels that the teacher knows, or None.

    auc and logloss of a binary label, rmse of a number; with the label's name in front if there are several. Only
    splits whose test rows are the last rows of the raw file have them.
    """
    data = prepared.fitted.data
    file = Path(prepared.info["root"]) / FILE
    if data.sample is None or data.split.by not in ("order", "time") or not file.exists():
        return None
    rows = prepared.rows("test")
    teacher, columns = pl.read_parquet(file, glob=False).tail(rows), label_columns(data)
    test = pl.concat(pl.read_parquet(f, columns=list(columns), glob=False) for f in prepared.files("test"))
    metrics: dict[str, float] = {}
    for (column, c), name in zip(columns.items(), data.label_configs, strict=True):
        if c.is_text or c.config.at_least is not None:
            continue  # the teacher knows the expectation of the column alone
        if column == LABEL and teacher.columns == ["probability"]:
            expected, labels = teacher["probability"].to_numpy(), test[column].to_numpy()
        else:
            if f"{c.column}_expected" not in teacher.columns:
                continue  # the teacher does not know the label
            known = teacher.drop_nulls(c.column)
            given = known[c.column].cast(pl.Float32)
            # prepared rows may have another order
            if not given.sort().equals(test[column].drop_nulls().sort(), check_names=False):
                continue  # the last rows are not the test rows: with another `where`, or another column to split by
            expected, labels = known[f"{c.column}_expected"].to_numpy(), given.to_numpy()
        rows_of = Rows(np.arange(len(labels)), expected, labels)
        is_number = isinstance(c, NumberLabelColumn)
        measured = NumberMetrics.of(rows_of) if is_number else binary_metrics(expected, labels)
        best = {n: measured[n] for n in (("rmse",) if is_number else ("auc", "logloss"))}
        metrics |= {f"{name}/{n}" if data.labels else n: x for n, x in best.items()}
    return metrics or None
