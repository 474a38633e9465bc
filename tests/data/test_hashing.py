"""Hashed features: the hash by itself, through fitting, files and prepared data, and what a config may say of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn

from recsys.data.features import Fitted, ResolvedData, parse_rows
from recsys.data.features.blocks import LINE, Block
from recsys.data.features.value_index import bucket_ids
from recsys.data.prepare.check_data import check_data
from recsys.schema.data_schema import MAX_BUCKETS, DataConfig, LabelConfig, SparseConfig

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=30)
BUCKETS = st.integers(1, MAX_BUCKETS)


def config(sparse: dict[str, SparseConfig], defaults: dict[str, Any] | None = None, **more: Any) -> DataConfig:
    data = ResolvedData(name="t", sparse=dict(sparse), label=LabelConfig("y"), **more)
    data = replace(data, sparse_defaults=replace(data.sparse_defaults, **(defaults or {})))
    return data


def typed_rows(data: DataConfig, **columns: Any) -> pl.DataFrame:
    line = pl.int_range(1, pl.len() + 1)
    frame = pl.DataFrame(columns).with_columns((line % 2).alias("y"), line.alias(LINE))
    return parse_rows(data, Block(Path("f"), frame))[0]


def by_the_book(value: str, buckets: int) -> int:
    """What the module's docstring says, bit by bit and without a library."""
    h = 0xFFFFFFFF
    for byte in value.encode():
        h ^= byte
        for _ in range(8):
            h = h >> 1 ^ (0xEDB88320 if h & 1 else 0)
    h ^= 0xFFFFFFFF
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> 33) * factor % 2**64
    return 1 + (h ^ h >> 33) % buckets


@settings(max_examples=examples(200), deadline=None)
@given(TEXTS, BUCKETS)
def test_any_value_has_an_id_that_is_its_own_business(values: list[str], buckets: int) -> None:
    ids = bucket_ids(pl.Series("s", values, dtype=pl.String), buckets)
    assert ids.dtype == pl.Int32 and ids.name == "s"
    assert ids.to_list() == [by_the_book(v, buckets) for v in values]  # in whatever company it comes


@pytest.mark.parametrize("buckets", [1000, 1024, 65_536, 100_003])
@pytest.mark.parametrize("pattern", ["{}", "user_{:07d}", "{:08x}"])
def test_values_that_are_alike_are_spread_as_if_drawn(pattern: str, buckets: int) -> None:
    n = 200_000
    ids = bucket_ids(pl.Series([pattern.format(i) for i in range(n)]), buckets)
    counts = np.bincount(ids.to_numpy(), minlength=buckets + 1)[1:]
    # chi-squared over its degrees of freedom: 1, with a standard deviation of sqrt(2 / buckets)
    spread = ((counts - n / buckets) ** 2 / (n / buckets)).sum() / (buckets - 1)
    assert abs(spread - 1) < 5 * (2 / buckets) ** 0.5


def mixed(**more: Any) -> DataConfig:
    hashed = SparseConfig(encode="hash", buckets=50)
    return config(
        {
            "v": SparseConfig(),
            "h": hashed,
            "m": SparseConfig(encode="hash", buckets=7, split=" ", max_length=2),
            "twin": SparseConfig(column="m", encode="hash", buckets=50, table="h", split=" "),
        },
        **more,
    )


def test_a_vocabulary_beside_hashed_features(tmp_path: Path) -> None:
    data = mixed()
    check_data(data)
    frame = typed_rows(data, v=["a", "b", "a"], h=["x", None, ""], m=["p q r", None, "p  "])
    learnt = learn(data, frame)
    assert list(learnt.vocabularies) == ["v"]
    tables = [(f.name, f.table, f.cardinality) for f in learnt.features.sparse]
    assert tables == [("v", "v", 3), ("h", "h", 51), ("m", "m", 8), ("twin", "h", 51)]
    seen = learnt.apply(frame)
    assert seen["h"].to_list() == [by_the_book("x", 50), 1, 1]  # missing is the empty string, as for a vocabulary
    assert seen["m"].to_list() == [[by_the_book(c, 7) for c in "pq"], [], [by_the_book("p", 7)]]
    assert seen["twin"].to_list()[0] == [by_the_book(c, 50) for c in "pqr"]
    unseen = learnt.apply(typed_rows(data, v=["new"], h=["new"], m=["new"]))
    assert unseen.select("v", "h", "m").row(0) == (0, by_the_book("new", 50), [by_the_book("new", 7)])
    assert seen.schema == unseen.schema == learnt.apply(frame.head(0)).schema

    learnt.save(tmp_path / "one")
    Fitted.copy(tmp_path / "one", tmp_path / "two")
    again = Fitted.load(tmp_path / "two")
    assert [p.name for p in (tmp_path / "two" / "vocabularies").iterdir()] == ["v.parquet"]
    assert again.features == learnt.features and again.apply(frame).equals(seen)


def test_defaults_of_the_other_encoding_are_passed_over() -> None:
    check_data(config({"s": SparseConfig(), "t": SparseConfig(encode="vocabulary")}, {"encode": "hash", "buckets": 9}))
    check_data(config({"s": SparseConfig(encode="hash")}, {"buckets": 9, "min_count": 5}))
