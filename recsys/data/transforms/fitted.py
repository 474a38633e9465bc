"""What was learnt from the training split: applied to typed rows, saved, loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import polars as pl
from omegaconf import OmegaConf

from recsys.data.hashing import bucket_ids
from recsys.data.transforms.columns import DenseColumn, dense_columns, feature_spec, is_bag, known_rows, sparse_columns
from recsys.data.transforms.index import SHORT, Index
from recsys.data.transforms.names import LABEL, ROW
from recsys.data.transforms.steps import Params
from recsys.features import OUT_OF_VOCABULARY, FeatureSpec
from recsys.schema import DataConfig, SparseConfig

VOCABULARIES = "vocabularies"
ENCODINGS = f"{VOCABULARIES}/encodings"  # within, so that whoever copies a run's vocabularies has all that it needs


@dataclass
class Fitted:
    """Everything that was learnt from the training split, and the config it was learnt for."""

    data: DataConfig
    dense: dict[str, list[Params]]  # per feature, a dict a step
    vocabularies: dict[str, pl.DataFrame] = field(default_factory=dict)  # per table that has one: value, count, id
    quantiles: dict[str, list[float]] = field(default_factory=dict)  # per feature of quantiles, the bounds of buckets

    @property
    def features(self) -> FeatureSpec:
        return feature_spec(self.data, lambda n, c: known_rows(c) or self.vocabularies[c.table or n].height + 1)

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """From `typed` to what models read: dense Float32, ids Int32 or List(Int32), in the spec's order.

        Rows that have a ROW get what training sees; where the column is missing, none is of the training split.
        """
        exprs, short, looked_up, reads_row = self._columns
        if reads_row and ROW not in frame.columns:
            frame = frame.with_columns(pl.lit(None, pl.Int64).alias(ROW))
        label = [LABEL] if LABEL in frame.columns else []
        if frame.height > SHORT:
            return frame.select(*label, *exprs.values())
        # of a few rows, polars' calls into Python and its threads cost more than what they do
        made = {s.name: s for s in frame.select_seq(*label, *short).get_columns()}
        ids = zip(*(index.listed(frame[name]) for name, index in looked_up.items()), strict=True)
        found = pl.DataFrame(list(ids), schema=dict.fromkeys(looked_up, pl.Int32), orient="row")  # quicker than Series
        made |= {s.name: s for s in found.get_columns()}
        return pl.DataFrame([made[name] for name in (*label, *exprs)])

    @cached_property
    def _columns(self) -> tuple[dict[str, pl.Expr], list[pl.Expr], dict[str, Index], bool]:
        """Every feature's expression; those that short frames use; the indices of all others; if any reads ROW."""
        sparse = sparse_columns(self.data)
        tables = {t: Index(v["value"], v["id"], OUT_OF_VOCABULARY) for t, v in self.vocabularies.items()}
        single = {n: c.table or n for n, c in sparse.items() if known_rows(c) is None and not is_bag(c)}
        exprs = {n: dense_expr(c, self.dense[n]).cast(pl.Float32).alias(n) for n, c in dense_columns(self.data).items()}
        exprs |= {n: self._ids(n, c, tables) for n, c in sparse.items()}
        reads_row = any(ROW in e.meta.root_names() for e in exprs.values())
        short = [e for n, e in exprs.items() if n not in single]
        return exprs, short, {n: tables[t] for n, t in single.items()}, reads_row

    def _ids(self, name: str, c: SparseConfig, tables: dict[str, Index]) -> pl.Expr:
        if c.encode == "quantiles":
            return _bucket(pl.col(name), self.quantiles[name], c.quantiles or 1).alias(name)
        ids = tables[c.table or name].expr if c.encode != "hash" else _hashed(c.buckets or 1)
        if not is_bag(c):
            return ids(pl.col(name)).alias(name)
        return pl.col(name).list.eval(ids(pl.element())).fill_null([]).cast(pl.List(pl.Int32)).alias(name)

    def save(self, folder: Path) -> None:
        """transforms.json, features.json, vocabularies/<table>.parquet and vocabularies/encodings/<feature>.parquet."""
        (folder / VOCABULARIES).mkdir(parents=True, exist_ok=True)
        for kind, tables in {VOCABULARIES: self.vocabularies, ENCODINGS: self._encodings()}.items():
            for name, table in tables.items():
                (folder / kind).mkdir(exist_ok=True)
                table.write_parquet(folder / kind / f"{name}.parquet")
        self.features.save(folder / "features.json")
        dense = {n: [{k: v for k, v in p.items() if k != "table"} for p in ps] for n, ps in self.dense.items()}
        state = {"version": 1, "data": asdict(self.data), "dense": dense, "quantiles": self.quantiles}
        (folder / "transforms.json").write_text(json.dumps(state, indent=1) + "\n")

    def _encodings(self) -> dict[str, pl.DataFrame]:
        """Of features whose first transform has a table: no other can have one."""
        return {name: ps[0]["table"] for name, ps in self.dense.items() if ps and "table" in ps[0]}

    @classmethod
    def load(cls, folder: Path) -> "Fitted":
        state = json.loads((folder / "transforms.json").read_text())
        data = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), state["data"]))
        assert isinstance(data, DataConfig)
        tables = {c.table or name for name, c in sparse_columns(data).items() if known_rows(c) is None}
        vocabularies = {t: pl.read_parquet(folder / VOCABULARIES / f"{t}.parquet") for t in sorted(tables)}
        for name, c in dense_columns(data).items():
            if c.reads == "value":
                state["dense"][name][0]["table"] = pl.read_parquet(folder / ENCODINGS / f"{name}.parquet")
        return cls(data, state["dense"], vocabularies, state.get("quantiles", {}))

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a saved Fitted, so that a run can be used without the prepared data."""
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "transforms.json", target)
        shutil.copy(source / "features.json", target)
        shutil.copytree(source / VOCABULARIES, target / VOCABULARIES, dirs_exist_ok=True)


def _bucket(x: pl.Expr, bounds: list[float], n: int) -> pl.Expr:
    """1 + how many of the bounds are below x; n + 1 where it is missing."""
    places = pl.Series([*bounds], dtype=pl.Float64)
    found = x.map_batches(
        lambda s: places.search_sorted(s, side="left").cast(pl.Int32) + 1, return_dtype=pl.Int32, is_elementwise=True
    )
    return pl.when(x.is_null()).then(pl.lit(n + 1, pl.Int32)).otherwise(found)


def _hashed(buckets: int) -> Callable[[pl.Expr], pl.Expr]:
    return lambda values: values.fill_null("").map_batches(
        lambda s: bucket_ids(s, buckets), return_dtype=pl.Int32, is_elementwise=True
    )


def dense_expr(c: DenseColumn, params: list[Params]) -> pl.Expr:
    """The column filled, where that is known, and passed through the first len(params) of its steps."""
    x = pl.col(c.typed)
    if c.fill is not None:
        x = x.fill_null(c.fill)
    for step, p in zip(c.steps, params, strict=False):
        x = step.apply(x, p)
    return x
