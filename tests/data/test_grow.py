"""Id tables that grow: ids never swap, a full table gives rows away in the stated order, counts are kept."""

import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.base.errors import UserError
from recsys.data.features.encoders import Vocabulary
from recsys.data.features.grow import WAITING_TRAININGS, check_growth, grow_table

Counts = dict[str, int]
counts = st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(1, 9), max_size=6)


def grown(trainings: list[Counts], **config: object) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """Return the id table and the waiting values after each training."""
    rules = Vocabulary(**config)  # type: ignore[arg-type]
    table, waiting, found = None, None, []
    for number, training in enumerate(trainings):
        rows = pl.DataFrame(
            {"value": list(training), "count": list(training.values())}, schema={"value": pl.String, "count": pl.UInt32}
        )
        table, waiting = grow_table(table, waiting, rows, rules, number)
        found.append((table, waiting))
    return found


def ids(table: pl.DataFrame) -> dict[str, int]:
    return dict(zip(table["value"], table["id"], strict=True))


@settings(max_examples=examples(200))
@given(
    trainings=st.lists(counts, min_size=1, max_size=6),
    capacity=st.none() | st.integers(2, 8),
    evict=st.sampled_from(["age", "count"]),
    least=st.integers(1, 4),
)
def test_ids_never_swap(trainings: list[Counts], capacity: int | None, evict: str, least: int) -> None:
    before: dict[str, int] = {}
    for number, (table, waiting) in enumerate(grown(trainings, capacity=capacity, evict=evict, min_count=least)):
        now = ids(table)
        assert table["id"].to_list() == list(range(1, len(table) + 1)) and len(now) == len(table)
        assert capacity is None or len(table) <= capacity - 1
        assert all(now[v] == i for v, i in before.items() if v in now)
        gone = before.keys() - now.keys()
        assert not gone & trainings[number].keys()  # a value of these rows keeps its row
        assert capacity is not None or not gone
        fresh = table.filter(pl.col("since") == number)["value"].to_list()
        assert set(fresh) == now.keys() - before.keys()
        assert not set(waiting["value"]) & now.keys()
        seen = dict(zip(table["value"], table["seen"], strict=True))
        assert all(seen[v] == max(n for n in range(number + 1) if v in trainings[n]) for v in now)
        before = now


@settings(max_examples=examples(100))
@given(trainings=st.lists(counts, min_size=1, max_size=6), least=st.integers(1, 9))
def test_without_a_limit_every_value_of_enough_rows_has_one(trainings: list[Counts], least: int) -> None:
    table, _ = grown(trainings, min_count=least)[-1]
    total = {v: sum(t.get(v, 0) for t in trainings) for v in "abcdefghijkl"}
    assert dict(zip(table["value"], table["count"], strict=True)) == {v: n for v, n in total.items() if n >= least}


def test_the_oldest_gives_its_row_first() -> None:
    table, waiting = grown([{"a": 9, "b": 5, "c": 4}, {"b": 1}, {"x": 2, "y": 1, "z": 1}], capacity=4)[-1]
    assert ids(table) == {"x": 3, "y": 1, "z": 2}  # c, then a, which was more frequent, then b
    assert waiting.is_empty()


def test_the_rarest_gives_its_row_first_and_to_more_frequent_ones_only() -> None:
    table, waiting = grown([{"a": 9, "b": 5, "c": 4}, {"x": 6, "y": 5, "z": 1}], capacity=4, evict="count")[-1]
    assert ids(table) == {"a": 1, "b": 2, "x": 3}  # y is as frequent as b
    assert set(waiting["value"]) == {"y", "z"}


def test_a_missing_value_keeps_its_row() -> None:
    table, _ = grown([{"": 1, "a": 5}, {"x": 9, "y": 9}], capacity=3)[-1]
    assert "" in ids(table)


def test_a_value_comes_back_as_a_new_one() -> None:
    found = grown([{"a": 3, "b": 2}, {"c": 1}, {"b": 1}], capacity=3)
    assert [ids(t) for t, _ in found] == [{"a": 1, "b": 2}, {"a": 1, "c": 2}, {"b": 1, "c": 2}]
    table = found[-1][0].row(0, named=True)
    assert (table["value"], table["count"], table["since"], table["seen"]) == ("b", 1, 2, 2)


def test_rare_values_wait_and_are_forgotten() -> None:
    quiet: list[Counts] = [{"a": 1}] * WAITING_TRAININGS
    assert "x" in ids(grown([{"a": 9}, {"x": 2}, {"x": 1}], min_count=3)[-1][0])
    assert "x" not in ids(grown([{"a": 9}, {"x": 2}, *quiet, {"x": 1}], min_count=3)[-1][0])


@pytest.mark.parametrize("occurrences", [1, 4])
def test_admission_by_chance(occurrences: int) -> None:
    """A value of n occurrences gets a row with probability 1 - (1 - p)^n: 4,000 values, 5 standard deviations."""
    values: Counts = {f"v{i}": occurrences for i in range(4000)}
    share = len(grown([{"a": 1}, values], admit=0.3)[-1][0]) / 4000
    expected = 1 - 0.7**occurrences
    assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 4000) ** 0.5)


def test_a_run_whose_rows_see_those_of_their_time_cannot_go_on_without() -> None:
    text = "group: {by: u, order: t, ties: order}\nsparse: {item: {}, before: {column: item, lag: 1}}"
    old, now = of_yaml(text), of_yaml(text.replace(", ties: order", ""))
    known = learn(old, rows(old, u=["a", "a"], t=[1, 1], item=["x", "y"]))
    check_growth(known, old)
    with pytest.raises(UserError, match=r"data.group.ties: differs from the run's; .* equal features: set order"):
        check_growth(known, now)
