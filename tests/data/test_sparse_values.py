"""Crosses, patterns and quantile buckets: which values they make, and what a config may say of them."""

import numpy as np
import polars as pl
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows, some_rows

from recsys.data.features.batch_tensors import batch_of
from recsys.data.features.value_index import bucket_ids

FEW = settings(max_examples=examples(60), deadline=None)
TEXT = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4))


def test_a_cross_is_a_value_of_its_own() -> None:
    data = of_yaml("""
        sparse:
          pair: {cross: [user, hour]}
          three: {cross: [hour, user, x], encode: hash, buckets: 100}
          user: {}
    """)
    frame = rows(data, user=["a", "a", "a", None], hour=[1, 1, 2, None], x=[0.5, float("nan"), 1, None])
    learnt = learn(data, frame)
    assert learnt.vocabularies["pair"]["value"].to_list() == ["a\x1f1", "\x1f", "a\x1f2"]
    done = learnt.apply(frame)
    assert done["pair"].to_list() == [1, 1, 3, 2] and done["user"].to_list() == [1, 1, 1, 2]
    joined = pl.Series(["1\x1fa\x1f0.5", "1\x1fa\x1f", "2\x1fa\x1f1", "\x1f\x1f"])
    assert done["three"].to_list() == bucket_ids(joined, 100).to_list()
    unseen = rows(data, user=["b", "a"], hour=[1, 3], x=[0, 0])
    assert learnt.apply(unseen)["pair"].to_list() == [0, 0]


def test_tokens_of_a_pattern() -> None:
    data = of_yaml(r"""
        sparse:
          tags: {column: text, pattern: '#\w+', max_length: 2}
          users: {column: text, pattern: '@\w+', encode: hash, buckets: 9, pooling: mean}
          s: {column: text}
    """)
    frame = rows(data, text=["#a #b @me #a #c", None, "", "# no @", "#é#日本 #b", "#b"])
    learnt = learn(data, frame)
    assert [(f.name, f.multi_valued) for f in learnt.features.sparse] == [("s", False), ("tags", True), ("users", True)]
    assert learnt.vocabularies["tags"].rows() == [("#b", 2, 1), ("#a", 1, 2), ("#é", 1, 3), ("#日本", 1, 4)]
    done = learnt.apply(frame)
    assert done["tags"].to_list() == [[2, 1], [], [], [], [3, 4], [1]]
    assert done["users"].to_list() == [bucket_ids(pl.Series(["@me"]), 9).to_list(), [], [], [], [], []]
    assert learnt.apply(rows(data, text=["#new #b"]))["tags"].to_list() == [[0, 1]]


def test_quantile_buckets() -> None:
    data = of_yaml("sparse: {age: {quantiles: 4}, same: {column: z, quantiles: 3}}")
    frame = rows(data, age=[*range(1, 101), None], z=[7] * 101)
    learnt = learn(data, frame.head(40), frame.tail(-40))
    np.testing.assert_allclose(learnt.encoders["age"], np.quantile(np.arange(1, 101), [0.25, 0.5, 0.75]))
    assert {f.name: f.cardinality for f in learnt.features.sparse} == {"age": 6, "same": 5}
    done = learnt.apply(frame)
    assert done["age"].dtype == pl.Int32
    assert dict(done["age"].value_counts().rows()) == {1: 25, 2: 25, 3: 25, 4: 25, 5: 1}  # 5: missing
    assert done["same"].unique().to_list() == [1]
    later = learnt.apply(rows(data, age=[-1e9, 1e9, None], z=[6, 8, None]))
    assert later["age"].to_list() == [1, 4, 5] and later["same"].to_list() == [1, 2, 4]


def test_a_number_that_is_none_is_a_bad_row() -> None:
    _, bad = some_rows(of_yaml("sparse: {age: {quantiles: 2}}"), age=["1", "old", "", "inf", "nan"])
    assert [(b.line, b.reason) for b in bad] == [(2, "age is not a number"), (4, "age is not a number")]


@FEW
@given(st.lists(st.tuples(TEXT, TEXT, st.one_of(st.none(), st.floats(-1e38, 1e38))), min_size=1, max_size=20))
def test_any_values(values: list[tuple[str | None, str | None, float | None]]) -> None:
    data = of_yaml(r"""
        sparse:
          c: {cross: [p, q], min_count: 2}
          h: {cross: [q, p], encode: hash, buckets: 3}
          w: {column: p, pattern: '\w*'}
          n: {quantiles: 3}
    """)
    p, q, n = (list(column) for column in zip(*values, strict=True))
    frame = rows(
        data, p=pl.Series(p, dtype=pl.String), q=pl.Series(q, dtype=pl.String), n=pl.Series(n, dtype=pl.Float64)
    )
    learnt = learn(data, frame.head(5), frame.tail(-5))
    done = learnt.apply(frame)
    rows_of = {f.name: f.cardinality for f in learnt.features.sparse}
    for name in rows_of:
        ids = done[name].explode().drop_nulls() if name == "w" else done[name]
        assert ids.is_between(0, rows_of[name] - 1).all() and not ids.null_count()
    batch_of(done, learnt.features)
    assert learnt.apply(frame.head(0)).schema == done.schema
