"""What was learnt from the training split: applied to typed rows, saved, loaded."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from omegaconf import OmegaConf

from recsys.atomic import write_text
from recsys.config.schema_data import DataConfig, SparseConfig
from recsys.data.transforms.column_names import ITEM, LABEL, ROW
from recsys.data.transforms.columns import (
    DenseColumn,
    dense_columns,
    feature_spec,
    is_bag,
    is_sequence,
    item_feature,
    known_rows,
    query_columns,
    sparse_columns,
    text_columns,
)
from recsys.data.transforms.hashing import bucket_ids
from recsys.data.transforms.index import SHORT, Index
from recsys.data.transforms.steps import Params
from recsys.data.transforms.vectors import Vectors
from recsys.features import OUT_OF_VOCABULARY, FeatureSpec

VOCABULARIES = "vocabularies"
ITEMS = "items"  # of data for retrieval, what is known of each candidate: a Fitted of its own, and its rows
RAW_SCHEMA = "raw.parquet"  # no rows: the raw columns and their types (online.py)
SIDES = "sides"  # a side table each
VECTORS = f"{VOCABULARIES}/vectors"
ENCODINGS = f"{VOCABULARIES}/encodings"  # within, so that whoever copies a run's vocabularies has all that it needs

Known = Callable[[pl.Series], pl.Series]  # of text, what is known of each value
Lookup = Callable[[pl.Expr], pl.Expr]  # the same, of a column of text or of codes


@dataclass
class Items:
    """The table of items: `rows` are candidates, ITEM and what `fitted` makes of the rest; row 0 is any unknown one,
    the vocabulary's follow by id, then those that it lacks.
    """

    fitted: "Fitted"
    rows: pl.DataFrame

    def save(self, folder: Path) -> None:
        self.fitted.save(folder)
        self.rows.write_parquet(folder / "items.parquet")

    @classmethod
    def load(cls, folder: Path) -> "Items":
        return cls(Fitted.load(folder), pl.read_parquet(folder / "items.parquet"))


@dataclass
class Fitted:
    """Everything that was learnt from the training split, and the config it was learnt for."""

    data: DataConfig
    dense: dict[str, list[Params]]  # per feature, a dict a step
    vocabularies: dict[str, pl.DataFrame] = field(default_factory=dict)  # per table that has one: value, count, id
    vectors: dict[str, Vectors] = field(default_factory=dict)  # per dense feature that has some
    quantiles: dict[str, list[float]] = field(default_factory=dict)  # per feature of quantiles, the bounds of buckets
    items: Items | None = None  # where data.items.file is given

    @property
    def features(self) -> FeatureSpec:
        spec = feature_spec(
            self.data,
            lambda n, c: known_rows(c) or self.vocabularies[c.table or n].height + 1,
            lambda n: self.vectors[n].matrix.shape[1],
            items=False,
        )
        return spec if self.items is None else replace(spec, items=self.items.fitted.features)

    @property
    def candidates(self) -> pl.Series:
        """The items that can be retrieved, as text: candidate 1 first."""
        name = item_feature(self.data)
        assert name is not None
        if self.items is not None:
            return self.items.rows[ITEM][1:]
        return self.vocabularies[sparse_columns(self.data)[name].table or name]["value"]

    @property
    def matrices(self) -> dict[str, np.ndarray]:
        """By dense feature that has vectors, (1 + values, width) float32: `apply` gives its rows."""
        return {name: v.matrix for name, v in self.vectors.items()}

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """From `typed` to what models read: dense Float32 (or, Int32, the row of `matrices`), ids Int32 or List(Int32),
        in the spec's order.

        Rows that have a ROW get what training sees; where the column is missing, none is of the training split.
        """
        if ROW not in frame.columns and self._reads_row:
            frame = frame.with_columns(pl.lit(None, pl.Int64).alias(ROW))
        if frame.height > SHORT:
            return self._select(frame, self._of_text)
        # of a few rows, polars' calls into Python and its threads cost more than what they do
        label = [LABEL] if LABEL in frame.columns else []
        single = self._single
        made = frame.select_seq(*label, *(e for n, e in self._of_text.items() if n not in single))
        ids = zip(*(index.listed(frame[name]) for name, index in single.items()), strict=True)
        found = pl.DataFrame(list(ids), schema=dict.fromkeys(single, pl.Int32), orient="row")  # quicker than Series
        columns = {s.name: s for s in [*made.get_columns(), *found.get_columns()]}
        return pl.DataFrame([columns[name] for name in (*label, *self._of_text)])

    def candidate_ids(self, items: pl.Series) -> pl.Series:
        """(P,) items as text -> the candidates that they are; 0 where they are none."""
        return self._candidate_of(items)

    def indices(self, values: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        """By column of text: of each code, what is known of the value that it stands for."""
        return {name: of(values[name]) for name, of in self._known.items() if name in values}

    def applied(self, frame: pl.DataFrame, indices: Mapping[str, pl.Series]) -> pl.DataFrame:
        """`apply`, of rows whose text is codes."""
        lists = {n: _gathered(indices[n])(pl.element()) for n in query_columns(self.data) if n in frame.columns}
        frame = frame.with_columns(pl.col(n).list.eval(of) for n, of in lists.items())
        return self._select(frame, self._columns(indices))

    def index(self, name: str, values: Mapping[str, pl.Series]) -> Lookup | None:
        """Of a column's codes; None where it holds no text, or nothing is known of its values yet."""
        if name not in values or (c := _reader(self.data, name)) is None or not self.dense[c]:
            return None
        return _gathered(self._known_of(name)(values[name]))

    def _select(self, frame: pl.DataFrame, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
        label = [LABEL] if LABEL in frame.columns else []
        queries = [n for n in query_columns(self.data) if n in frame.columns]
        return frame.select(*label, *columns.values(), *queries)

    @cached_property
    def _reads_row(self) -> bool:
        return any(ROW in e.meta.root_names() for e in self._of_text.values())

    @cached_property
    def _of_text(self) -> dict[str, pl.Expr]:
        return self._columns({})

    def _columns(self, indices: Mapping[str, pl.Series]) -> dict[str, pl.Expr]:
        """Every feature's expression: of text, or of codes that have `indices`."""
        columns = {}
        for name, c in dense_columns(self.data).items():
            looked_up = self._looked_up(c.typed, indices) if c.reads == "value" else None
            dtype = pl.Float32 if c.vectors is None else pl.Int32
            columns[name] = dense_expr(c, self.dense[name], looked_up).cast(dtype).alias(name)
        return columns | {n: self._ids(n, s, indices) for n, s in sparse_columns(self.data).items()}

    @cached_property
    def _known(self) -> dict[str, Known]:
        """By column of text: 1 + the value's row in what was learnt of it, 0 where it has none; or its hash."""
        known = {name: self._known_of(name) for name in text_columns(self.data)}
        return known | {n: self._candidate_of for n in query_columns(self.data)}  # noqa: C420 (read where there are such)

    @cached_property
    def _candidate_of(self) -> Known:
        return Index.rows_of(self.candidates).of

    def _known_of(self, name: str) -> Known:
        if name in self.vectors:
            return Index.rows_of(self.vectors[name].values).of
        if (feature := _reader(self.data, name)) is not None:
            return Index.rows_of(self.dense[feature][0]["table"]["value"]).of
        c = sparse_columns(self.data)[name]
        if c.encode == "hash":
            return lambda values: bucket_ids(values.fill_null(""), c.buckets or 1)
        return self._tables[c.table or name].of

    @cached_property
    def _tables(self) -> dict[str, Index]:
        return {table: Index.rows_of(v["value"]) for table, v in self.vocabularies.items()}

    @cached_property
    def _single(self) -> dict[str, Index]:
        """The vocabularies of features that have one value a row."""
        sparse = sparse_columns(self.data)
        return {n: self._tables[c.table or n] for n, c in sparse.items() if known_rows(c) is None and not is_bag(c)}

    def _looked_up(self, name: str, indices: Mapping[str, pl.Series]) -> Lookup:
        if name in indices:
            return _gathered(indices[name])
        known = self._known[name]
        return lambda text: text.map_batches(known, return_dtype=pl.Int32, is_elementwise=True)

    def _ids(self, name: str, c: SparseConfig, indices: Mapping[str, pl.Series]) -> pl.Expr:
        if c.encode == "id":
            ids: Lookup = lambda x: x.cast(pl.Int32)  # noqa: E731
        elif c.encode == "quantiles":
            bounds = self.quantiles[name]
            ids = lambda x: _bucket(x, bounds, c.quantiles or 1)  # noqa: E731
        else:
            ids = self._looked_up(name, indices)
        if not is_bag(c):
            return ids(pl.col(name)).alias(name)
        lists = pl.col(name).list.eval(ids(pl.element())).fill_null([]).cast(pl.List(pl.Int32))
        return _padded(lists, self.data).alias(name) if is_sequence(self.data, c) else lists.alias(name)

    def save(self, folder: Path) -> None:
        """transforms.json, features.json, vocabularies/<table>.parquet and vocabularies/encodings/<feature>.parquet."""
        (folder / VOCABULARIES).mkdir(parents=True, exist_ok=True)
        for kind, tables in {VOCABULARIES: self.vocabularies, ENCODINGS: self._encodings()}.items():
            for name, table in tables.items():
                (folder / kind).mkdir(exist_ok=True)
                table.write_parquet(folder / kind / f"{name}.parquet")
        for name, v in self.vectors.items():
            v.save(folder / VECTORS, name)
        if self.items is not None:
            self.items.save(folder / ITEMS)
        self.features.save(folder / "features.json")
        dense = {n: [{k: v for k, v in p.items() if k != "table"} for p in ps] for n, ps in self.dense.items()}
        state = {"version": 1, "data": asdict(self.data), "dense": dense, "quantiles": self.quantiles}
        write_text(folder / "transforms.json", json.dumps(state, indent=1) + "\n")  # last

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
            if c.reads == "value" and c.vectors is None:
                state["dense"][name][0]["table"] = pl.read_parquet(folder / ENCODINGS / f"{name}.parquet")
        vectors = {
            n: Vectors.load(folder / VECTORS, n) for n, c in dense_columns(data).items() if c.vectors is not None
        }
        items = Items.load(folder / ITEMS) if (folder / ITEMS).is_dir() else None
        return cls(data, state["dense"], vocabularies, vectors, state.get("quantiles", {}), items)

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a saved Fitted, so that a run can be used without the prepared data; of features, those models see."""
        target.mkdir(parents=True, exist_ok=True)
        state = json.loads((source / "transforms.json").read_text())
        sparse = state["data"]["sparse"]
        state["data"]["sparse"] = {n: c for n, c in sparse.items() if not c or c.get("model") is not False}
        (target / "transforms.json").write_text(json.dumps(state, indent=1) + "\n")
        shutil.copy(source / "features.json", target)
        shutil.copytree(source / VOCABULARIES, target / VOCABULARIES, dirs_exist_ok=True)
        for part in (SIDES, ITEMS):
            if (source / part).exists():
                shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        if (source / RAW_SCHEMA).exists():
            shutil.copy(source / RAW_SCHEMA, target)


def _bucket(x: pl.Expr, bounds: list[float], n: int) -> pl.Expr:
    """1 + how many of the bounds are below x; n + 1 where it is missing."""
    places = pl.Series([*bounds], dtype=pl.Float64)
    found = x.map_batches(
        lambda s: places.search_sorted(s, side="left").cast(pl.Int32) + 1, return_dtype=pl.Int32, is_elementwise=True
    )
    return pl.when(x.is_null()).then(pl.lit(n + 1, pl.Int32)).otherwise(found)


def _gathered(index: pl.Series) -> Lookup:
    return lambda codes: codes.map_batches(index.gather, return_dtype=index.dtype, is_elementwise=True)


def _padded(lists: pl.Expr, data: DataConfig) -> pl.Expr:
    """Sequences of max_length + 1 ids, where they are to be; row 0 fills up."""
    c = data.sequences
    if c is None or c.pad is None:
        return lists
    fill = pl.lit(OUT_OF_VOCABULARY, pl.Int32).repeat_by(c.max_length + 1 - lists.list.len())
    return pl.concat_list([fill, lists] if c.pad == "left" else [lists, fill])


def _reader(data: DataConfig, typed: str) -> str | None:
    """The dense feature that reads this column of text."""
    return next((n for n, c in dense_columns(data).items() if c.typed == typed and c.reads == "value"), None)


def dense_expr(c: DenseColumn, params: list[Params], looked_up: Lookup | None) -> pl.Expr:
    """The column filled, where that is known, and passed through the first len(params) of its steps."""
    x = pl.col(c.typed)
    if c.reads == "value" and looked_up is not None:
        x = looked_up(x)
    if c.fill is not None:
        x = x.fill_null(c.fill)
    for step, p in zip(c.steps, params, strict=False):
        x = step.apply(x, p)
    return x
