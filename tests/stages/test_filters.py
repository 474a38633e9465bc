"""What filters leave out."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import small_stages
from hypothesis import given
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.online.servable import Query
from recsys.stages.filters import Blocked, MostPer, Seen, Where
from recsys.stages.read_tables import check_times
from recsys.stages.visitor import Events

ITEMS = small_stages.catalogue({"seller": ["a", "a", "b", None, "a", None], "stock": [1, 0, 1, 1, 1, 0]})
EVERY = np.arange(6)
Event = tuple[str, int, int | None]
LOG = pl.DataFrame(
    {
        "user": ["u", "v", "u", "u", "w"],
        "item": ["i1", "i0", "i4", "gone", "i2"],
        "buy": [1, 1, 0, 1, 0],
        "time": [3, 1, 1, 2, 9],
    }
)


def events() -> Events:
    return Events(LOG, "user", "item", "time", 10)


def kept(part: Seen, user: str, **settings: int) -> list[int]:
    found = small_stages.recommender(
        ITEMS, {"all": small_stages.Listed(range(6))}, {"seen": part}, events=events(), time="time", **settings
    )
    [answer] = found.answers([Query([], k=6, context={"user": user})])
    return sorted(answer.items.tolist())


def test_events_are_in_the_order_of_time() -> None:
    assert [row["item"] for row in events().rows("u")] == ["i4", "gone", "i1"]
    assert events().rows("nobody") == [] and events().rows(None) == []


def test_seen() -> None:
    assert kept(Seen(), "u") == [0, 2, 3, 5]
    assert kept(Seen(), "w") == [0, 1, 3, 4, 5]
    assert kept(Seen(), "nobody") == [0, 1, 2, 3, 4, 5]
    assert kept(Seen(where="buy = 1"), "u") == [0, 2, 3, 4, 5]
    assert kept(Seen(), "u", history=1) == [0, 2, 3, 5]  # models read one event, the filter all


def test_a_bloom_filter_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.base.packages.is_installed", lambda name: name != "rbloom")
    said = r"bloom=1: a Bloom filter of \d+ events: needs rbloom, which is not installed; run: .*--extra stages$"
    with pytest.raises(UserError, match=said):
        kept(Seen(bloom=1, errors=1e-6), "u")


def test_seen_by_a_bloom_filter() -> None:
    pytest.importorskip("rbloom")
    assert kept(Seen(bloom=1, errors=1e-6), "u") == [0, 2, 3, 5]
    assert kept(Seen(bloom=1, errors=1e-6, where="buy = 1"), "u") == [0, 2, 3, 4, 5]


def test_a_history_in_the_request_counts() -> None:
    found = small_stages.recommender(ITEMS, {"all": small_stages.Listed(range(6))}, {"seen": Seen()})
    [answer] = found.answers([Query([{"item": "i2"}, {"item": "i5"}, {"item": None}], k=6)])
    assert sorted(answer.items.tolist()) == [0, 1, 3, 4]


event = st.tuples(st.sampled_from("uv"), st.integers(0, 6), st.sampled_from([0, 1, None]))  # 6: no item


@given(
    st.lists(event, min_size=1, max_size=12),
    st.lists(event, max_size=5),
    st.sampled_from(["u", "v", "nobody", None]),
    st.sampled_from([None, "buy = 1", "buy IS NULL OR buy = 0"]),
)
def test_stored_events_and_the_history_of_the_request_count_alike(
    stored: list[Event], rows: list[Event], user: str | None, where: str | None
) -> None:
    pytest.importorskip("rbloom")
    columns = ("user", "item", "buy")
    log = pl.DataFrame(
        [(u, f"i{i}", b) for u, i, b in stored], dict(zip(columns, (str, str, int), strict=True)), orient="row"
    )
    history = [{"item": f"i{i}", "buy": b} for _, i, b in rows]
    counts = {None: {0, 1, None}, "buy = 1": {1}}.get(where, {0, None})
    expected = {i for u, i, b in stored if u == user and b in counts} | {i for _, i, b in rows if b in counts}
    for part in (Seen(where), Seen(where, bloom=1, errors=1e-9)):
        found = small_stages.recommender(
            ITEMS, {"all": small_stages.Listed(range(6))}, {"seen": part}, events=Events(log, "user", "item", None, 2)
        )
        [answer] = found.answers([Query(history, k=6, context={"user": user})])
        assert sorted(answer.items.tolist()) == sorted(set(range(6)) - expected)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"item": "i1"}, r"^history\[1\]: column buy: None is missing, and seen.where reads it; send it, or null"),
        ({"item": "i1", "buy": "often"}, r"^history\[1\]: column buy: 'often'"),
    ],
)
def test_a_row_of_a_history_needs_what_where_reads(row: dict[str, str], said: str) -> None:
    found = small_stages.recommender(
        ITEMS, {"all": small_stages.Listed(range(6))}, {"seen": Seen("buy = 1")}, events=events()
    )
    with pytest.raises(UserError, match=said):
        found.answers([Query([{"item": "i0", "buy": "1"}, row], k=6, context={"user": "u"})])


def test_mistakes_of_seen() -> None:
    resources = small_stages.resources(ITEMS)
    with pytest.raises(UserError, match="needs the pipeline's events"):
        Seen(where="buy = 1").bind(resources, "filters.seen")
    resources = small_stages.resources(ITEMS, events=events())
    with pytest.raises(UserError, match=r"filters.seen.where: 'bought = 1': there is no column bought"):
        Seen(where="bought = 1").bind(resources, "filters.seen")


def test_most_per() -> None:
    part = MostPer("seller", 1)
    part.bind(small_stages.resources(ITEMS), "filters.sellers")
    assert part.keep(small_stages.visitor(), np.array([4, 0, 3, 2, 5, 1])).tolist() == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert part.keep(small_stages.visitor(), EVERY[:0]).tolist() == []
    with pytest.raises(UserError, match=r"filters.sellers.column: the table of items has no column selller"):
        MostPer("selller", 1).bind(small_stages.resources(ITEMS), "filters.sellers")


def test_blocked(tmp_path: Path) -> None:
    (tmp_path / "blocked.txt").write_text("i1\n\nunheard of\ni5\n")
    part = Blocked(items=["i0"], file="blocked.txt")
    part.bind(small_stages.resources(ITEMS, root=tmp_path), "filters.blocked")
    assert part.keep(small_stages.visitor(), EVERY).tolist() == [False, False, True, True, True, False]
    for wrong, message in ((Blocked(), "blocks nothing"), (Blocked(file="none.txt"), "none.txt: no such file")):
        with pytest.raises(UserError, match=message):
            wrong.bind(small_stages.resources(ITEMS, root=tmp_path), "filters.blocked")


def test_sources_are_asked_for_more_if_filters_leave_too_few() -> None:
    """Of the first 3 items one is in stock; the list needs 3."""
    items = small_stages.catalogue({"stock": [0, 0, 1] + [0] * 20 + [1] * 5})
    source = small_stages.Listed(range(28), k=3)
    found = small_stages.recommender(items, {"all": source}, {"stock": Where("item.stock > 0")}, candidates=3)
    [answer] = found.answers([Query([])])
    assert answer.items.tolist() == [2, 23, 24] and answer.trace.rounds == 3  # 3, 12, 48
    [answer] = found.answers([Query([], k=8)])
    assert answer.items.tolist() == [2, 23, 24, 25, 26, 27]


def test_explains_what_each_stage_made_of_a_request() -> None:
    items = small_stages.catalogue({"stock": [1, 0, 1, 1]})
    sources = {"first": small_stages.Listed([1, 0, 2]), "second": small_stages.Listed([0, 3], weight=0.1)}
    pipeline = small_stages.recommender(items, sources, {"stock": Where("item.stock > 0")})
    explained = pipeline.explain({"user": "u"}, k=2)
    assert explained.columns == ["item", "first_rank", "second_rank", "merged_rank", "removed_by", "score", "place"]
    assert explained.drop("score").rows() == [
        ("i0", 2, 1, 1, None, 1),
        ("i2", 3, None, 3, None, 2),
        ("i3", None, 2, 4, None, None),
        ("i1", 1, None, 2, "stock", None),
    ]
    assert explained["score"].to_list()[:2] == pytest.approx([1 / 62 + 0.1 / 61, 1 / 63])
    assert explained["score"].is_null().to_list() == [False, False, False, True]


def test_excluded_and_wanted_items() -> None:
    found = small_stages.recommender(ITEMS, {"all": small_stages.Listed(range(6))})
    with pytest.raises(UserError, match=r"^candidates: the model knows none of them, such as 'nosuch'; leave it out"):
        found.answers([Query([], k=6, candidates=["nosuch", "i99"])])
    [a, b] = found.answers(
        [Query([], k=6, exclude=["i0", "nosuch"]), Query([], k=6, candidates=["i3", "i1", "nosuch"])]
    )
    assert a.items.tolist() == [1, 2, 3, 4, 5] and b.items.tolist() == [1, 3]
    [short] = found.answers([Query([], k=7)])
    assert short.items.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="k=0: must be at least 1"):
        found.answers([Query([], k=0)])


@pytest.mark.parametrize("bad", ["notatime", "1e400", "nan"])
def test_times_that_are_none(bad: str) -> None:
    numbers = [1.0, float(bad)] if bad != "notatime" else ["1", bad]
    with pytest.raises(UserError, match=r"events: column time: .* is neither a number nor a time \(1 of 2 rows\)"):
        check_times(pl.DataFrame({"time": numbers}), "time", "events")
    check_times(pl.DataFrame({"time": ["2026-01-01", None, "5"]}), "time", "events")
