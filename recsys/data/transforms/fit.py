"""Learn transforms, vocabularies and quantiles from the training split, in as few passes as they need."""

from collections.abc import Callable, Iterable

import polars as pl

from recsys.data.transforms.columns import DenseColumn, dense_columns, known_rows, sparse_columns
from recsys.data.transforms.fitted import Fitted, dense_expr
from recsys.data.transforms.names import ROW
from recsys.data.transforms.statistics import Counts, Sample, Statistic
from recsys.data.transforms.steps import Params
from recsys.errors import UserError
from recsys.features import OUT_OF_VOCABULARY
from recsys.schema import DataConfig, SparseConfig


def fit(data: DataConfig, training: Callable[[], Iterable[pl.DataFrame]]) -> Fitted:
    """Learn all that is to be learnt. `training()` iterates `typed` frames of the training split.

    One pass learns vocabularies and the first step of each dense feature, the next one second steps, and so on.
    Ids follow descending counts, ties by value, from 1; id 0 is for what is rare or was never seen.
    A missing value is a value of its own (the empty string), multi-valued columns have none.
    Of hashed features there is nothing to learn.
    """
    dense, sparse = dense_columns(data), sparse_columns(data)
    params: dict[str, list[Params]] = {name: [] for name in dense}
    counts = {c.table or n: Counts() for n, c in sparse.items() if known_rows(c) is None}
    samples = {n: Sample() for n, c in sparse.items() if c.encode == "quantiles"}
    first = {n: counts[c.table or n] for n, c in sparse.items() if known_rows(c) is None} | samples
    todo = _next(dense, params)
    seen = _gather(training(), {n: (dense_expr(dense[n], params[n]), s) for n, s in todo.items()}, first)
    if not seen:
        raise UserError(f"data={data.name}: the train split has no rows; see data.split")
    while todo:
        for name, statistic in todo.items():
            params[name].append(dense[name].steps[len(params[name])].fit(statistic))
        todo = _next(dense, params)
        if todo:
            _gather(training(), {n: (dense_expr(dense[n], params[n]), s) for n, s in todo.items()}, {})
    bounds = {n: _bounds(s, sparse[n].quantiles or 1) for n, s in samples.items()}
    return Fitted(data, params, _vocabularies(sparse, counts), bounds)


def _next(dense: dict[str, DenseColumn], params: dict[str, list[Params]]) -> dict[str, Statistic]:
    """What each feature's next step must see, by feature; steps that learn nothing are passed."""
    todo: dict[str, Statistic] = {}
    for name, c in dense.items():
        for step in c.steps[len(params[name]) :]:
            if (statistic := step.statistic()) is not None:
                todo[name] = statistic
                break
            params[name].append({})
    return todo


def _gather(
    frames: Iterable[pl.DataFrame], dense: dict[str, tuple[pl.Expr, Statistic]], sparse: dict[str, Counts | Sample]
) -> int:
    """One pass: show every statistic its column of all frames; the number of rows."""
    rows = 0
    for frame in frames:
        if frame.is_empty():
            continue
        if ROW not in frame.columns:
            frame = frame.with_columns(pl.int_range(rows, rows + frame.height).alias(ROW))
        rows += frame.height
        shown = frame.select(e.alias(n) for n, (e, _) in dense.items())
        for name, (_, statistic) in dense.items():
            statistic.add(shown[name], frame)
        for name, statistic in sparse.items():
            values = frame[name]
            statistic.add(values.explode().drop_nulls() if values.dtype == pl.List else values, frame)
    return rows


def _vocabularies(sparse: dict[str, SparseConfig], counts: dict[str, Counts]) -> dict[str, pl.DataFrame]:
    least = dict.fromkeys(counts, 1)
    for name, c in sparse.items():
        if (table := c.table or name) in counts:
            least[table] = max(least[table], c.min_count or 1)
    return {
        table: seen.result()
        .filter(pl.col("count") >= least[table])
        .sort(["count", "value"], descending=[True, False])
        .with_row_index("id", offset=OUT_OF_VOCABULARY + 1)
        .select("value", "count", pl.col("id").cast(pl.Int32))
        for table, seen in counts.items()
    }


def _bounds(sample: Sample, n: int) -> list[float]:
    """Of at most n buckets: a bucket holds what is above one bound and not above the next; ties share one."""
    return sorted(set(sample.quantiles([i / n for i in range(1, n)])))
