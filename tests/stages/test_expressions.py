"""Conditions in SQL and formulas: values, and mistakes with their place."""

import sys
from typing import Any

import numpy as np
import pytest
import small_stages

from recsys.base.errors import UserError
from recsys.stages.expressions import Condition, Formula

ITEMS = small_stages.catalogue(
    {"stock": [0, 3, None, 5], "region": ["eu", "us", "eu", None], "price": [1.0, 2.0, 4.0, 8.0], "made": [9, 8, 7, 1]}
)
RESOURCES = small_stages.resources(ITEMS, user=["region", "age"], context=["time", "budget"])
EVERY = np.arange(4)


def condition(sql: str) -> Condition:
    return Condition(sql, "filters.mine.sql", RESOURCES)


@pytest.mark.parametrize(
    ("sql", "user", "context", "expected"),
    [
        ("item.stock > 0", {}, {}, [False, True, False, True]),
        ("item.region = user.region and item.stock > 0", {"region": "us"}, {}, [False, True, False, False]),
        ("item.region = user.region", {}, {}, [False] * 4),
        ("user.age >= 18", {"age": 20}, {}, [True] * 4),
        ("user.age >= 18", {"age": 17}, {}, [False] * 4),
        ("item.price * 2 <= context.budget", {}, {"budget": 8}, [True, True, True, False]),
        ("context.time - item.made < 3", {}, {"time": 10}, [True, True, False, False]),
        ("item.region in ('eu', 'item.stock') or item.stock = 5", {}, {}, [True, False, True, True]),
        ("1 = 1", {}, {}, [True] * 4),
    ],
)
def test_conditions(sql: str, user: dict[str, Any], context: dict[str, Any], expected: list[bool]) -> None:
    found = condition(sql)(small_stages.visitor(user=user, context=context), EVERY)
    assert found.tolist() == expected
    some = np.array([3, 1])
    assert condition(sql)(small_stages.visitor(user=user, context=context), some).tolist() == [expected[3], expected[1]]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("item.stok > 0", "the table of items has no column stok; did you mean stock?"),
        ("item.stock > user.limit", "the table of users has no column limit"),
        ("context.device = 'phone'", "context has no column device"),
        ("stock > 0", "stock has no table; write item.stock"),
        ("item.stock >", "cannot be read at character 13"),
        ("item.stock = = 3", "cannot be read at character 14"),
        ("item.stock > 0 and (item.price", "cannot be read at character 31"),
        ("item.region = 'eu", "cannot be read at character 15"),
        ("item.stock + 1", "is Int64, not a condition"),
        ("nosuch(item.stock)", "nosuch is not one of its functions"),
        ("item.price > AVG(item.price)", "must read one row at a time"),
        ("item.stock in (select a from read_csv('none.csv'))", "at character 16: a query has no place"),
    ],
)
def test_mistakes_of_conditions(sql: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        condition(sql)
    assert str(caught.value).startswith(f"filters.mine.sql: {sql!r}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p_click", [0.5, 0.25, 1.0, 0.0]),
        ("p_click * p_buy ** 0.5 * item.price", [0.5 * 0.5, 0.25 * 1.0 * 2, 1.0 * 0.5 * 4, 0.0]),
        ("-p_click + max(p_buy, 0.5) / 2", [-0.25, 0.25, -0.75, 0.5]),
        ("log1p(p_click) - context.budget", [np.log(1.5) - 2, np.log(1.25) - 2, np.log(2) - 2, -2.0]),
        ("log(p_click)", [np.log(0.5), np.log(0.25), 0.0, -np.inf]),
        ("3", [3.0] * 4),
    ],
)
def test_formulas(text: str, expected: list[float]) -> None:
    predictions = {"p_click": np.array([0.5, 0.25, 1.0, 0.0]), "p_buy": np.array([0.25, 1.0, 0.25, 1.0])}
    formula = Formula(text, "score.formula", list(predictions), RESOURCES)
    found = formula(small_stages.visitor(context={"budget": 2}), EVERY, predictions)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p_clik", "character 1: there is no p_clik; did you mean p_click?"),
        ("p_click * item.prise", "the table of items has no column prise; did you mean price?"),
        ("p_click * item.region", "item.region is String, not a number"),
        ("p_click * (", "cannot be read at character 11"),
        ("__import__('os')", "character 1: a formula has numbers, names"),
        ("p_click.real", "character 1: a formula has"),
        ("log(p_click, 2)", "log takes 1 values"),
        ("[p_click]", "character 1: a formula has"),
        ("True", "character 1: a formula has"),
        ("context.device", "context has no column device"),
        ("-" * 5000 + "1", "cannot be read: " if sys.version_info < (3, 13) else "has 10,001 parts, more than 300"),
        ("1" + "+1" * 20_000, "cannot be read: "),
        ("1" + "+1" * 300, "has 901 parts, more than 300; shorten it"),
        ("\ud800", "cannot be read: "),
    ],
)
def test_mistakes_of_formulas(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Formula(text, "score.formula", ["p_click"], RESOURCES)
    assert message in str(caught.value) and str(caught.value).startswith("score.formula: ")


@pytest.mark.parametrize("text", ["user.age", "0 / 0", "log(-1)", "p_click * 1e400", "context.budget"])
def test_formulas_without_a_number(text: str) -> None:
    formula = Formula(text, "score.formula", ["p_click"], RESOURCES)
    with pytest.raises(UserError, match="is not a finite number for any of 4 items"):
        formula(small_stages.visitor(context={"budget": "much"}), EVERY, {"p_click": np.ones(4)})
    nobody = np.zeros(0, np.int64)
    assert formula(small_stages.visitor(), nobody, {"p_click": np.zeros(0)}).tolist() == []
