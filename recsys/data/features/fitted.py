"""Apply, save and load what was fitted on the training split."""

import json
import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.data.features.blocks import CONTENTS, ITEM, ROW, WEIGHT
from recsys.data.features.dense_columns import LookedUpVector
from recsys.data.features.encoders import Lookup, State
from recsys.data.features.find_types import canonical_values
from recsys.data.features.label_columns import kept_columns
from recsys.data.features.raw_types import RawType
from recsys.data.features.resolved_data import ResolvedData, feature_spec, plain_labels, resolve, with_zones
from recsys.data.features.row_contents import Contents
from recsys.data.features.steps import Params
from recsys.data.features.value_index import MAX_DICT_ROWS, ValueIndex
from recsys.data.features.value_types import Text, ValueType
from recsys.data.features.vectors import Vectors
from recsys.files import manifest
from recsys.files.atomic import write_text
from recsys.interface.features import OUT_OF_VOCABULARY, FeatureSpec
from recsys.interface.labels import Label
from recsys.schema.data_schema import DataConfig, ItemsConfig

VOCABULARIES = "vocabularies"
TRANSFORMS = "transforms.json"
VERSION = 2  # of that file; 1 has the state of `quantiles` under that name
ITEMS, ROWS = "items", "items.parquet"  # the item table: a Fitted of its own, and in its folder the items' features
RAW_SCHEMA = "raw.parquet"  # no rows: the raw columns and their types (raw_schema.py)
INITIAL = "initial_tables"  # one .npy file for each table that starts from vectors; runs have no copy
SIDES = "sides"  # one Parquet file for each side table
VECTORS = f"{VOCABULARIES}/vectors"
SEMANTIC_IDS = f"{VOCABULARIES}/semantic_ids"  # their table, codebooks and report
WAITING = f"{VOCABULARIES}/waiting"
ENCODINGS = f"{VOCABULARIES}/encodings"  # inside, so that a copy of a run's vocabularies folder is complete

TextLookup = Callable[[pl.Series], pl.Series]  # text -> the Int32 index of each value


@dataclass
class ItemTable:
    """The item table.

    fitted: the transforms of the items' features
    rows: one row for each candidate, with ITEM and the transformed features. Row 0 represents any unknown item, then
        follow the items of the vocabulary by id, then items that are not in it.
    """

    fitted: "Fitted"
    rows: pl.DataFrame

    def save(self, folder: Path) -> None:
        self.fitted.save(folder)
        self.rows.write_parquet(folder / ROWS)

    @classmethod
    def load(cls, folder: Path) -> "ItemTable":
        return cls(Fitted.load(folder), pl.read_parquet(folder / ROWS, glob=False))


@dataclass
class Fitted:
    """Everything that was fitted on the training split, with the data config.

    data: the data config
    dense: for each dense feature, the fitted parameters of each step
    vocabularies: for each table with a vocabulary, a frame (value, count, id)
    vectors: for each dense feature with vectors, the vectors
    encoders: for each sparse feature whose encoder learns more than a vocabulary, what it has learnt
    items: the item table, if data.items.file is set
    labels: the labels; the labels of an older folder lack what is fitted
    mean_weight: the mean weight of the training rows
    initial_tables: for each table that starts from pretrained vectors, (rows, width) float32, NaN for rows without one
    trainings: the number of trainings that came before, of runs that this one goes on from (start_from)
    waiting: for each table, a frame (value, count, seen) of values that had no row in these trainings
    types: the meaning of each raw column of text; None of an older folder
    contents: the training rows that features by mean labels were fitted to; None of an older folder, or without such
    """

    data: ResolvedData
    dense: dict[str, list[Params]]
    vocabularies: dict[str, pl.DataFrame] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    encoders: dict[str, State] = field(default_factory=dict)
    items: ItemTable | None = None
    labels: tuple[Label, ...] = ()
    mean_weight: float = 1.0
    initial_tables: dict[str, np.ndarray] = field(default_factory=dict)
    trainings: int = 0
    waiting: dict[str, pl.DataFrame] = field(default_factory=dict)
    types: dict[str, RawType] | None = None
    contents: Contents | None = None

    def __post_init__(self) -> None:
        self.labels = self.labels or plain_labels(self.data)

    @property
    def features(self) -> FeatureSpec:
        """The features that models see, with the sizes of their tables."""
        spec = feature_spec(
            self.data,
            lambda c: c.encoder.known_rows or self.vocabularies[c.table].height + 1,
            lambda n: self.vectors[n].matrix.shape[1],
            items=False,
            labels=self.labels,
        )
        return spec if self.items is None else replace(spec, items=self.items.fitted.features)

    @property
    def candidates(self) -> pl.Series:
        """The items that can be retrieved, as text, beginning with candidate 1."""
        return self.item_vocabulary["value"] if self.items is None else self.items.rows[ITEM][1:]

    @property
    def item_vocabulary(self) -> pl.DataFrame:
        """Value and count of the items of the training split, beginning with id 1."""
        name = self.data.item_feature
        assert name is not None
        return self.vocabularies[self.data.sparse_columns[name].table]

    @property
    def matrices(self) -> dict[str, np.ndarray]:
        """The vectors of each dense feature that has some: (1 + values, width) float32. `apply` returns row numbers."""
        return {name: v.matrix for name, v in self.vectors.items()}

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Transform parsed rows into model inputs, in the order of the feature spec.

        Dense columns are Float32 (with vectors: Int32, the row of `matrices`; a row's own vector: Array), ids are Int32
        or List(Int32). Rows with a non-null ROW are treated as training rows; without the column, no row is.
        """
        if ROW not in frame.columns and self._reads_row:
            frame = frame.with_columns(pl.lit(None, pl.Int64).alias(ROW))
        if frame.height > MAX_DICT_ROWS:
            return self._select(frame, self._text_columns)
        # for a few rows, polars' threads and calls into Python cost more than the work itself
        label = self._kept(frame)
        single = self._single
        others = frame.select_seq(*label, *(e for n, e in self._text_columns.items() if n not in single))
        ids = zip(*(index.look_up_list(frame[name]) for name, index in single.items()), strict=True)
        singles = pl.DataFrame(list(ids), schema=dict.fromkeys(single, pl.Int32), orient="row")  # quicker than Series
        columns = {s.name: s for s in [*others.get_columns(), *singles.get_columns()]}
        return pl.DataFrame(
            [s for name, s in columns.items() if name not in self._text_columns]
            + [columns[name] for name in self._text_columns]
        )

    def share_tables(self, before: "Fitted") -> None:
        """Share what `before` has built to look text up, where its vocabularies are almost equal."""
        vars(self)["_tables"] = {
            table: before._tables[table].changed(v["value"]) if table in before._tables else index
            for (table, index), v in zip(self._tables.items(), self.vocabularies.values(), strict=True)
        }
        if "candidate_index" in vars(before):
            vars(self)["candidate_index"] = before.candidate_index.changed(self.candidates)

    def restricted(self, dense: Container[str], sparse: Container[str], *, grouped: bool = True) -> "Fitted":
        """Return a `Fitted` of some of the features, which shares the tables in which text is looked up.

        Args:
            dense: keys of data.dense.
            sparse: keys of data.sparse.
            grouped: keep data.group.
        """
        data = replace(
            self.data,
            dense={n: c for n, c in self.data.dense.items() if n in dense},
            sparse={n: c for n, c in self.data.sparse.items() if n in sparse},
            group=self.data.group if grouped else None,
            items=self.data.items if self.data.item_feature in sparse else ItemsConfig(),
        )
        fitted = replace(
            self,
            data=data,
            dense={n: self.dense[n] for n in data.dense_columns},
            vectors={n: v for n, v in self.vectors.items() if n in data.dense_columns},
            encoders={n: v for n, v in self.encoders.items() if n in data.sparse_columns},
            items=self.items if self.data.item_feature in sparse else None,
        )
        shared = {"indexes": {n: self.indexes[n] for n in data.text_columns}, "_tables": self._tables}
        vars(fitted).update(shared)  # their cached values
        return fitted

    def candidate_ids(self, items: pl.Series) -> pl.Series:
        """Return the candidate id of each item, 0 if it is not a candidate: (P,) text -> (P,) Int32."""
        return self.candidate_index.look_up(items)

    def code_indices(self, values: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        """Return the index of each code, by column. values: the text of each code, by column."""
        values = canonical_values(self.data, self.types or {}, values)
        return {name: look_up(values[name]) for name, look_up in self._lookups.items() if name in values}

    def apply_codes(self, frame: pl.DataFrame, indices: Mapping[str, pl.Series]) -> pl.DataFrame:
        """Transform parsed rows whose text is codes. indices: what `code_indices` returns."""
        lists = {n: _gather_from(indices[n])(pl.element()) for n in self.data.query_columns if n in frame.columns}
        frame = frame.with_columns(pl.col(n).list.eval(ids) for n, ids in lists.items())
        return self._select(frame, self._columns(indices))

    def code_index(self, name: str, values: Mapping[str, pl.Series]) -> Lookup | None:
        """Return the lookup of a column's codes; None if it holds no text or its first step is not fitted yet."""
        if name not in values or (c := _reader(self.data, name)) is None or not self.dense[c]:
            return None
        return _gather_from(self._text_lookup(name, self._index(name))(values[name]))

    def _select(self, frame: pl.DataFrame, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
        label = self._kept(frame)
        others = [n for n in self.data.list_columns if n in frame.columns]
        return frame.select(*label, *columns.values(), *others)

    def _kept(self, frame: pl.DataFrame) -> list[pl.Expr]:
        """Return the labels and the weight, scaled to a mean of 1, if the rows have them."""
        scaled = (pl.col(WEIGHT) * (1 / self.mean_weight)).cast(pl.Float32)
        columns = [c for c in kept_columns(self.data) if c in frame.columns]
        return [scaled if c == WEIGHT else pl.col(c) for c in columns]

    @cached_property
    def _reads_row(self) -> bool:
        return any(ROW in e.meta.root_names() for e in self._text_columns.values())

    @cached_property
    def _text_columns(self) -> dict[str, pl.Expr]:
        """The features' expressions over text."""
        return self._columns({})

    def _columns(self, indices: Mapping[str, pl.Series]) -> dict[str, pl.Expr]:
        """Return each feature's expression, over codes for the columns in `indices`, else over text."""
        columns, sequences = {}, self.data.sequences
        for name, c in self.data.dense_columns.items():
            columns[name] = c.expr(self.dense[name], self._lookup(c.parsed, c.value_type, indices)).alias(name)
        for name, s in self.data.sparse_columns.items():
            lookup = self._lookup(name, s.value_type, indices)
            x = pl.element() if s.is_list else pl.col(name)
            ids = s.encoder.ids(x, lookup, self.encoders.get(name, []))
            if s.is_list:
                ids = pl.col(name).list.eval(ids).fill_null([]).cast(pl.List(pl.Int32))
            if s.sequence and sequences is not None and sequences.pad is not None:  # to max_length + 1 ids
                fill = pl.lit(OUT_OF_VOCABULARY, pl.Int32).repeat_by(sequences.max_length + 1 - ids.list.len())
                ids = pl.concat_list([fill, ids] if sequences.pad == "left" else [ids, fill])
            columns[name] = ids.alias(name)
        return columns

    @cached_property
    def _lookups(self) -> dict[str, TextLookup]:
        """The lookup of each column of text: 1 + the value's row in its fitted table, 0 if unknown; or its hash."""
        lookups = {name: self._text_lookup(name, self.indexes[name]) for name in self.data.text_columns}
        return lookups | {n: self.candidate_index.look_up for n in self.data.query_columns}  # noqa: C420 (there may be none)

    @cached_property
    def candidate_index(self) -> ValueIndex:
        """Maps items to candidate ids, and all other text to 0."""
        return ValueIndex(self.candidates)

    @cached_property
    def indexes(self) -> Mapping[str, ValueIndex | None]:
        """The table in which the text of each column of parsed rows is looked up; None if it has no vocabulary."""
        return {name: self._index(name) for name in self.data.text_columns}

    def _index(self, name: str) -> ValueIndex | None:
        if name in self.vectors:
            return ValueIndex(self.vectors[name].values)
        if (feature := _reader(self.data, name)) is not None:
            return ValueIndex(self.dense[feature][0]["table"]["value"])
        return self._tables.get(self.data.sparse_columns[name].table)

    def _text_lookup(self, name: str, index: ValueIndex | None) -> TextLookup:
        if index is not None:
            return index.look_up
        look_up, state = self.data.sparse_columns[name].encoder.look_up, self.encoders.get(name, [])
        return lambda values: look_up(values, state)

    @cached_property
    def _tables(self) -> dict[str, ValueIndex]:
        return {table: ValueIndex(v["value"]) for table, v in self.vocabularies.items()}

    @cached_property
    def _single(self) -> dict[str, ValueIndex]:
        """The vocabularies of features with one value a row."""
        sparse = self.data.sparse_columns
        return {n: self._tables[c.table] for n, c in sparse.items() if c.table in self._tables and not c.is_list}

    def _lookup(self, name: str, value_type: ValueType, indices: Mapping[str, pl.Series]) -> Lookup | None:
        if not isinstance(value_type, Text):
            return None
        if name in indices:
            return _gather_from(indices[name])
        look_up = self._lookups[name]
        return lambda text: text.map_batches(look_up, return_dtype=pl.Int32, is_elementwise=True)

    def save(self, folder: Path) -> None:
        """Write transforms.json, features.json, vocabularies/, its encodings/ and vectors/, and items/."""
        (folder / VOCABULARIES).mkdir(parents=True, exist_ok=True)
        # only the first transform of a feature can have a table
        encodings = {name: ps[0]["table"] for name, ps in self.dense.items() if ps and "table" in ps[0]}
        if self.contents is not None:
            encodings[CONTENTS] = pl.DataFrame({"hash": self.contents.hashes})
        kinds = {VOCABULARIES: self.vocabularies, ENCODINGS: encodings, WAITING: self.waiting}
        for kind, tables in kinds.items():
            for name, table in tables.items():
                (folder / kind).mkdir(exist_ok=True)
                table.write_parquet(folder / kind / f"{name}.parquet")
        for name, v in self.vectors.items():
            v.save(folder / VECTORS, name)
        for name, matrix in self.initial_tables.items():
            (folder / INITIAL).mkdir(exist_ok=True)
            np.save(folder / INITIAL / f"{name}.npy", matrix)
        if self.items is not None:
            self.items.save(folder / ITEMS)
        columns = {} if self.types is None else {"columns": {n: t.to_json() for n, t in self.types.items()}}
        self.features.save(folder / "features.json", columns)
        dense = {n: [{k: v for k, v in p.items() if k != "table"} for p in ps] for n, ps in self.dense.items()}
        state = {"version": VERSION, "data": asdict(self.data), "dense": dense, "encoders": self.encoders}
        state |= {"labels": [label.to_json() for label in self.labels], "mean_weight": self.mean_weight}
        state |= {"trainings": self.trainings} if self.trainings else {}
        write_text(folder / TRANSFORMS, json.dumps(state, indent=1) + "\n")  # last: it marks a complete folder

    @classmethod
    def load(cls, folder: Path) -> "Fitted":
        """Read what `save` wrote. Raises DamagedFile if a file differs from its entry in the folder's manifest."""
        manifest.check(folder, of=is_fitted)
        state = json.loads((folder / TRANSFORMS).read_text(encoding="utf-8"))
        if state.get("version", 1) > VERSION:
            raise UserError(f"{folder / TRANSFORMS}: a later recsys wrote it; install that, or a later one")
        if group := state["data"].get("group"):
            group.setdefault("ties", "order")  # a folder from before this key
        data = resolve(parse(DataConfig, state["data"]))
        if (folder / RAW_SCHEMA).is_file():  # older folders do not name the zones of their times
            data = with_zones(data, pl.read_parquet_schema(folder / RAW_SCHEMA))
        tables = {c.table for c in data.sparse_columns.values() if c.encoder.vocabulary is not None}

        def table(kind: str, name: str) -> pl.DataFrame:
            file = manifest.inside(folder, f"{kind}/{name}.parquet")
            try:
                return pl.read_parquet(file, glob=False)
            except (pl.exceptions.PolarsError, OSError):
                raise manifest.DamagedFile(file, manifest.UNREADABLE) from None

        vocabularies = {t: table(VOCABULARIES, t) for t in sorted(tables)}
        for name, c in data.dense_columns.items():
            if isinstance(c.value_type, Text) and c.is_number:
                state["dense"][name][0]["table"] = table(ENCODINGS, name)
        vectors = {
            n: Vectors.load(folder / VECTORS, n) for n, c in data.dense_columns.items() if isinstance(c, LookedUpVector)
        }
        items = ItemTable.load(folder / ITEMS) if (folder / ITEMS).is_dir() else None
        labels = tuple(Label.from_json(x) for x in state.get("labels", []))
        encoders, mean_weight = state.get("encoders", state.get("quantiles", {})), state.get("mean_weight", 1.0)
        initial = {f.stem: np.load(f, mmap_mode="r") for f in sorted((folder / INITIAL).glob("*.npy"))}
        waiting = {f.stem: table(WAITING, f.stem) for f in sorted((folder / WAITING).glob("*.parquet"))}
        columns = json.loads((folder / "features.json").read_text(encoding="utf-8")).get("columns")
        types = None if columns is None else {n: RawType.from_json(t) for n, t in columns.items()}
        known = table(ENCODINGS, CONTENTS) if (folder / ENCODINGS / f"{CONTENTS}.parquet").is_file() else None
        contents = None if known is None else Contents(known["hash"].to_numpy())
        before = (state.get("trainings", 0), waiting, types, contents)
        return cls(data, state["dense"], vocabularies, vectors, encoders, items, labels, mean_weight, initial, *before)

    @staticmethod
    def copy(source: Path, target: Path) -> None:
        """Copy a saved Fitted, with the features that models see, so that a run works without the prepared data."""
        target.mkdir(parents=True, exist_ok=True)
        state = json.loads((source / TRANSFORMS).read_text(encoding="utf-8"))
        sparse = state["data"]["sparse"]
        state["data"]["sparse"] = {n: c for n, c in sparse.items() if not c or c.get("model") is not False}
        (target / TRANSFORMS).write_text(json.dumps(state, indent=1) + "\n")
        shutil.copy(source / "features.json", target)
        shutil.copytree(source / VOCABULARIES, target / VOCABULARIES, dirs_exist_ok=True)
        for part in (SIDES, ITEMS):
            if (source / part).exists():
                shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        if (source / RAW_SCHEMA).exists():
            shutil.copy(source / RAW_SCHEMA, target)


def is_fitted(name: str) -> bool:
    """Return whether `Fitted.save` or `RawSchema.save` writes a file of this name to their folder."""
    whole, folders = (TRANSFORMS, "features.json", RAW_SCHEMA), (VOCABULARIES, ITEMS, SIDES, INITIAL)
    return name in whole or name.startswith(tuple(f"{f}/" for f in folders))


def fitted_files(folder: Path) -> list[Path]:
    """Return the files that `Fitted.save` and `RawSchema.save` have written to a folder."""
    return [f for f in folder.rglob("*") if f.is_file() and is_fitted(f.relative_to(folder).as_posix())]


def _gather_from(index: pl.Series) -> Lookup:
    # within list.eval, pl.lit(index) would be repeated for each list
    return lambda codes: codes.map_batches(index.gather, return_dtype=index.dtype, is_elementwise=True)


def _reader(data: ResolvedData, parsed: str) -> str | None:
    """Return the dense feature that reads this column of text."""
    columns = data.dense_columns.items()
    return next((n for n, c in columns if c.parsed == parsed and isinstance(c.value_type, Text)), None)
