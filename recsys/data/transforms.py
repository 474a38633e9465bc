"""Transforms: fitted on the training split, applied by one code when preparing and when predicting.

`typed` turns raw columns into label, dense floats and sparse strings, and tells unparsable rows;
`Fitted.apply` turns those into what models read: dense Float32, ids Int32 (lists where multi-valued).
A dense transform is one entry of TRANSFORMS: what it needs to know of the column, and its expression.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf

from recsys.data.formats import LINE, BadRow, Block
from recsys.data.hashing import bucket_ids
from recsys.errors import UserError
from recsys.features import OUT_OF_VOCABULARY, DenseFeature, FeatureSpec, SparseFeature
from recsys.schema import DataConfig, DenseConfig, SparseConfig

LABEL = "__label__"
FLOAT32_MAX = 3.4e38
TIME = "__time__"
Params = dict[str, float]


def _log(x: pl.Expr, p: Params) -> pl.Expr:
    """ln(x - min + 1), min that of the training split; smaller values count as min."""
    return (x - p["min"] + 1).clip(lower_bound=1).log()


def _standardise(x: pl.Expr, p: Params) -> pl.Expr:
    """(x - mean) / std of the training split."""
    return ((x - p["mean"]) / (p["std"] or 1.0)).clip(-FLOAT32_MAX, FLOAT32_MAX)


def _minmax(x: pl.Expr, p: Params) -> pl.Expr:
    """To [0, 1] over the training split's range."""
    return ((x - p["min"]) / ((p["max"] - p["min"]) or 1.0)).clip(0, 1)


TRANSFORMS: dict[str, Callable[[pl.Expr, Params], pl.Expr]] = {
    "log": _log,
    "standardise": _standardise,
    "minmax": _minmax,
}


def dense_columns(data: DataConfig) -> dict[str, DenseConfig]:
    """Each dense feature's config with the defaults filled in."""
    return {name: _with_defaults(DenseConfig, data.dense_defaults, c, name) for name, c in data.dense.items()}


def sparse_columns(data: DataConfig) -> dict[str, SparseConfig]:
    """Each sparse feature's config with the defaults filled in, single-valued ones first."""
    columns = {n: _with_defaults(SparseConfig, data.sparse_defaults, c, n) for n, c in data.sparse.items()}
    return dict(sorted(columns.items(), key=lambda item: item[1].split is not None))


def hashed_rows(c: SparseConfig) -> int | None:
    """Rows of the feature's table where its config alone says how many: encode: hash."""
    return c.buckets + 1 if c.encode == "hash" and c.buckets else None


def _with_defaults(kind: Any, defaults: Any, given: Any, name: str) -> Any:
    values = {k: v for k, v in asdict(defaults).items() if v is not None}
    values |= {k: v for k, v in asdict(given).items() if v is not None} if given else {}
    return kind(**({"column": name} | values))


def typed(data: DataConfig, block: Block, *, labelled: bool = True) -> tuple[pl.DataFrame, list[BadRow]]:
    """Label (Float32), dense (Float64, null where missing), sparse (String) and, for a split by time,
    the time (Float64); rows whose label or numbers cannot be read are set aside with the reason.
    """
    raw, numbers = block.frame, {}
    _check_types(data, raw, labelled)
    columns: list[pl.Expr] = [pl.col(LINE)]
    if labelled:
        value = pl.col(data.label.column).cast(pl.Float64, strict=False).fill_nan(None)
        if data.label.at_least is None:
            columns.append(value.cast(pl.Float32).alias(LABEL))
        else:
            columns.append((value >= data.label.at_least).cast(pl.Float32).alias(LABEL))
        if data.split.by == "time":
            columns.append(pl.col(data.split.column or "").cast(pl.Float64, strict=False).fill_nan(None).alias(TIME))
    for name, c in dense_columns(data).items():
        assert c.column
        numbers[name] = c.column
        columns.append(pl.col(c.column).cast(pl.Float64, strict=False).fill_nan(None).alias(name))
    for name, s in sparse_columns(data).items():
        values = pl.col(s.column or name)
        dtype = raw.schema[s.column or name]
        if s.split is not None:
            if isinstance(dtype, pl.Array):
                values = values.arr.to_list()
            elif dtype != pl.List:
                values = values.cast(pl.String).str.split(s.split)
            values = values.cast(pl.List(pl.String)).list.eval(pl.element().filter(pl.element() != ""))  # nor null
            columns.append((values.list.head(s.max_length) if s.max_length else values).alias(name))
        else:
            values = values.fill_nan(None) if dtype.is_float() else values
            columns.append(values.cast(pl.String).alias(name))
    frame = raw.select(columns)
    reason = _reasons(data, raw, frame, numbers, labelled)
    if reason.null_count() == frame.height:
        return frame, block.bad
    wrong = reason.is_not_null()
    texts = raw.drop(LINE).select(pl.concat_str(pl.all().cast(pl.String), separator="\t", ignore_nulls=True))
    bad = (
        [
            BadRow(str(block.file), line, why, text)
            for line, why, text in zip(
                frame[LINE].filter(wrong), reason.filter(wrong), texts.to_series().filter(wrong), strict=True
            )
        ]
        if texts.width
        else []
    )
    return frame.filter(~wrong), block.bad + bad


def _check_types(data: DataConfig, raw: pl.DataFrame, labelled: bool) -> None:
    """Raises UserError for a column whose type (known for Parquet alone) holds no number or no value."""
    single = {f"data.dense.{n}": c.column for n, c in dense_columns(data).items()}
    single |= {f"data.sparse.{n}": c.column for n, c in sparse_columns(data).items() if c.split is None}
    single |= {"data.label": data.label.column} if labelled else {}
    for who, column in single.items():
        dtype = raw.schema[column or ""]
        if dtype.is_nested():
            hint = "; set split (to any text) and every element counts" if "sparse" in who else ""
            raise UserError(f"{who}: column {column} holds {dtype}, not one value a row{hint}")
    for name, c in sparse_columns(data).items():
        dtype = raw.schema[c.column or name]
        if c.split is not None and dtype.is_nested() and (dtype == pl.Struct or dtype.inner.is_nested()):  # type: ignore[attr-defined]
            raise UserError(f"data.sparse.{name}: column {c.column} holds {dtype}, not a list of values")


def _reasons(
    data: DataConfig, raw: pl.DataFrame, frame: pl.DataFrame, numbers: dict[str, str], labelled: bool
) -> pl.Series:
    """Why a row cannot be used, null where it can."""
    reason = pl.Series("reason", [None] * frame.height, dtype=pl.String)
    checks: list[tuple[pl.Series, str]] = []
    if labelled:
        label = frame[LABEL]
        valid = label.is_in([0.0, 1.0]).fill_null(False)
        checks.append(
            (
                ~valid,
                f"label {data.label.column} is not a number"
                if data.label.at_least is not None
                else f"label {data.label.column} is neither 0 nor 1",
            )
        )
        if TIME in frame.columns:
            checks.append((~frame[TIME].is_finite().fill_null(False), f"time {data.split.column} is not a number"))
    for name, column in numbers.items():
        lost = frame[name].is_null() & raw[column].is_not_null()
        if lost.any() and raw.schema[column].is_float():
            lost = lost & raw[column].is_not_nan()
        elif lost.any() and raw.schema[column] == pl.String:
            lost = lost & ~raw[column].str.to_lowercase().is_in(["nan", ""])
        lost = lost | frame[name].is_infinite().fill_null(False)
        checks.append((lost, f"{column} is not a number"))
        checks.append(((frame[name].abs() > FLOAT32_MAX).fill_null(False), f"{column} is too large"))
    for mask, why in checks:
        if mask.any():
            told = pl.Series([why], dtype=pl.String).new_from_index(0, frame.height)
            reason = reason.zip_with(~mask | reason.is_not_null(), told)
    return reason


@dataclass
class Fitted:
    """Everything that was learnt from the training split, and the config it was learnt for."""

    data: DataConfig
    dense: dict[str, list[Params]]  # per feature, a dict a transform
    vocabularies: dict[str, pl.DataFrame] = field(default_factory=dict)  # per table, if not hashed: value, count, id

    @property
    def features(self) -> FeatureSpec:
        return FeatureSpec(
            dense=tuple(DenseFeature(name) for name in self.dense),
            sparse=tuple(
                SparseFeature(
                    name=name,
                    table=c.table or name,
                    cardinality=hashed_rows(c) or self.vocabularies[c.table or name].height + 1,
                    pooling="mean" if c.pooling == "mean" else "sum",
                    multi_valued=c.split is not None,
                )
                for name, c in sparse_columns(self.data).items()
            ),
        )

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """From `typed` to what models read: dense Float32, ids Int32 or List(Int32), in the spec's order."""
        columns: list[pl.Expr] = [pl.col(LABEL)] if LABEL in frame.columns else []
        for name, c in dense_columns(self.data).items():
            columns.append(dense_expr(name, c, self.dense[name]).cast(pl.Float32).alias(name))
        columns += [self._ids(name, s) for name, s in sparse_columns(self.data).items()]
        return frame.select(columns)

    def _ids(self, name: str, c: SparseConfig) -> pl.Expr:
        ids = self._looked_up(c.table or name) if c.encode != "hash" else _hashed(c.buckets or 1)
        if c.split is None:
            return ids(pl.col(name)).alias(name)
        return pl.col(name).list.eval(ids(pl.element())).fill_null([]).cast(pl.List(pl.Int32)).alias(name)

    def _looked_up(self, table: str) -> Callable[[pl.Expr], pl.Expr]:
        vocabulary = self.vocabularies[table]
        if vocabulary.is_empty():  # which replace_strict refuses
            return lambda values: pl.repeat(OUT_OF_VOCABULARY, values.len(), dtype=pl.Int32)
        return lambda values: values.fill_null("").replace_strict(
            vocabulary["value"], vocabulary["id"], default=OUT_OF_VOCABULARY, return_dtype=pl.Int32
        )

    def save(self, folder: Path) -> None:
        """transforms.json, features.json and vocabularies/<table>.parquet, where a table has one."""
        (folder / "vocabularies").mkdir(parents=True, exist_ok=True)
        self.features.save(folder / "features.json")
        for table, vocabulary in self.vocabularies.items():
            vocabulary.write_parquet(folder / "vocabularies" / f"{table}.parquet")
        state = {"version": 1, "data": asdict(self.data), "dense": self.dense}
        (folder / "transforms.json").write_text(json.dumps(state, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Fitted":
        state = json.loads((folder / "transforms.json").read_text())
        data = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), state["data"]))
        assert isinstance(data, DataConfig)
        tables = {c.table or name for name, c in sparse_columns(data).items() if c.encode != "hash"}
        vocabularies = {t: pl.read_parquet(folder / "vocabularies" / f"{t}.parquet") for t in sorted(tables)}
        return cls(data, state["dense"], vocabularies)

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a saved Fitted, so that a run can be used without the prepared data."""
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "transforms.json", target)
        shutil.copy(source / "features.json", target)
        shutil.copytree(source / "vocabularies", target / "vocabularies", dirs_exist_ok=True)


def _hashed(buckets: int) -> Callable[[pl.Expr], pl.Expr]:
    return lambda values: values.fill_null("").map_batches(
        lambda s: bucket_ids(s, buckets), return_dtype=pl.Int32, is_elementwise=True
    )


def dense_expr(name: str, c: DenseConfig, params: list[Params]) -> pl.Expr:
    """The column `name` filled and passed through the first len(params) of its transforms."""
    x = pl.col(name).fill_null(0.0 if c.fill is None else c.fill)
    for transform, p in zip(c.transform or [], params, strict=False):
        x = TRANSFORMS[transform](x, p)
    return x


def fit(data: DataConfig, training: Callable[[], Iterable[pl.DataFrame]]) -> Fitted:
    """Learn dense statistics and vocabularies. `training()` iterates `typed` frames of the training split.

    Ids follow descending counts, ties by value, from 1; id 0 is for what is rare or was never seen.
    A missing value is a value of its own (the empty string), multi-valued columns have none.
    Of hashed features there is nothing to learn.
    """
    dense, sparse = dense_columns(data), {n: c for n, c in sparse_columns(data).items() if c.encode != "hash"}
    fitted: dict[str, list[Params]] = {name: [] for name in dense}
    for depth in range(max((len(c.transform or []) for c in dense.values()), default=0)):
        todo = {n: c for n, c in dense.items() if len(c.transform or []) > depth}
        moments = _moments(training(), {n: dense_expr(n, c, fitted[n]) for n, c in todo.items()})
        for name in todo if moments else ():  # none: no rows, which the next pass tells
            fitted[name].append(moments[name])
    counts: dict[str, pl.DataFrame] = {}
    rows = 0
    for frame in training():
        rows += frame.height
        for name, c in sparse.items():
            values = frame[name].explode().drop_nulls() if c.split is not None else frame[name].fill_null("")
            new = values.alias("value").to_frame().group_by("value").len("count")
            table = c.table or name
            counts[table] = (
                pl.concat([counts[table], new]).group_by("value").agg(pl.col("count").sum()) if table in counts else new
            )
    if not rows:
        raise UserError(f"data={data.name}: the train split has no rows; see data.split")
    thresholds: dict[str, int] = {}
    for name, c in sparse.items():
        table = c.table or name
        thresholds[table] = max(thresholds.get(table, 1), c.min_count or 1)
    vocabularies = {
        table: counts[table]
        .filter(pl.col("count") >= least)
        .sort(["count", "value"], descending=[True, False])
        .with_row_index("id", offset=OUT_OF_VOCABULARY + 1)
        .select("value", "count", pl.col("id").cast(pl.Int32))
        for table, least in thresholds.items()
    }
    return Fitted(data, fitted, vocabularies)


def _moments(frames: Iterable[pl.DataFrame] | Iterator[pl.DataFrame], columns: dict[str, pl.Expr]) -> dict[str, Params]:
    """min, max, mean and standard deviation of each expression over all frames (Chan et al. 1979)."""
    total: dict[str, Params] = {}
    for frame in frames:
        if frame.is_empty():
            continue
        row = frame.select(
            *(e.min().alias(f"{n}.min") for n, e in columns.items()),
            *(e.max().alias(f"{n}.max") for n, e in columns.items()),
            *(e.mean().alias(f"{n}.mean") for n, e in columns.items()),
            *(e.var(ddof=0).alias(f"{n}.var") for n, e in columns.items()),
        ).row(0, named=True)
        for n in columns:
            new = {k: float(row[f"{n}.{k}"]) for k in ("min", "max", "mean", "var")} | {"n": float(frame.height)}
            old = total.get(n)
            if old is not None:
                count, delta = old["n"] + new["n"], new["mean"] - old["mean"]
                share = new["n"] / count
                new = {
                    "min": min(old["min"], new["min"]),
                    "max": max(old["max"], new["max"]),
                    "mean": old["mean"] + delta * share,
                    "var": old["var"] * (1 - share) + new["var"] * share + delta**2 * share * (1 - share),
                    "n": count,
                }
            total[n] = new
    for m in total.values():
        m["std"] = m["var"] ** 0.5 if m["max"] > m["min"] else 0.0  # no rounding error passes for a deviation
    return {n: {k: m[k] for k in ("min", "max", "mean", "std")} for n, m in total.items()}
