"""Conditions in SQL and formulas, over columns of items, of the user, and of the request.

item.region = user.region and item.stock > 0          a condition: `Condition`
p_click * p_buy ** 0.3 * item.price                   a formula: `Formula`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.raw.row_sql import FAILURES, check_sql
from recsys.stages.catalogue import Catalogue
from recsys.stages.open_models import Resources
from recsys.stages.visitor import Visitor

SCOPES = ("item", "user", "context")
NAME = re.compile(rf"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\b({'|'.join(SCOPES)})\.(\w+)")
SELECT = "SELECT ("
MAX_PARTS = 300  # numbers, names, operators of a formula, which is computed recursively
AT = re.compile(r" at Line: (\d+), Column: (\d+)")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log": np.log,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
}
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}


class Condition:
    """SQL that is true or false for each item and visitor; NULL counts as false.

    Args:
        sql: the condition.
        key: the config key that holds it, for messages.
        resources: the items, and the names of the columns of users and requests.

    Raises UserError for a mistake, with its place.
    """

    def __init__(self, sql: str, key: str, resources: Resources) -> None:
        self.sql, self.key, self._catalogue = sql, key, resources.catalogue
        names = [(m[1], m[2]) for m in NAME.finditer(sql) if m[1]]
        columns = self._catalogue.columns
        known = {"item": columns.columns, "user": resources.user, "context": resources.context}
        for scope, name in names:
            if name not in known[scope]:
                where = {"item": "the table of items", "user": "the table of users", "context": "context"}[scope]
                hint = did_you_mean(name, known[scope])
                raise UserError(f"{key}: {sql!r}: {where} has no column {name}{hint}")
        self._item = list(dict.fromkeys(name for scope, name in names if scope == "item"))
        self._other = list(dict.fromkeys((scope, name) for scope, name in names if scope != "item"))
        self._expr = _parsed(sql, key)
        rest = [n for n in self._expr.meta.root_names() if n.partition(".")[0] not in SCOPES or "." not in n]
        if rest:
            raise UserError(f"{key}: {sql!r}: {rest[0]} has no table; write item.{rest[0]}, user. or context.{rest[0]}")
        self._items_alone = self._evaluated(columns, {}) if not self._other else None

    def __call__(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        """Return whether the condition is true for each item, (n,) numbers -> (n,) bool."""
        if self._items_alone is not None:
            return self._items_alone[items]
        rows = {"user": visitor.user, "context": visitor.context}
        values = {f"{scope}.{name}": rows[scope].get(name) for scope, name in self._other}
        columns = self._catalogue.columns.select(self._item)
        return self._evaluated(columns[items] if self._item else columns, values, len(items))

    def _evaluated(self, columns: pl.DataFrame, values: Mapping[str, Any], rows: int | None = None) -> np.ndarray:
        frame = columns.select(pl.col(n).alias(f"item.{n}") for n in self._item)
        rows = columns.height if rows is None else rows
        if not self._item:
            frame = pl.DataFrame({"__row__": pl.repeat(0, rows, eager=True)})
        try:
            frame = frame.with_columns(pl.lit(v).alias(n) for n, v in values.items())
            result = frame.select(self._expr.alias("__result__")).to_series()
        except FAILURES as e:
            raise UserError(f"{self.key}: {self.sql!r}: {_line(e)}") from e
        if result.dtype not in (pl.Boolean, pl.Null):
            raise UserError(f"{self.key}: {self.sql!r}: is {result.dtype}, not a condition")
        found: np.ndarray = result.cast(pl.Boolean).fill_null(False).to_numpy()
        return np.broadcast_to(found, rows) if len(found) != rows else found


def _parsed(sql: str, key: str) -> pl.Expr:
    """Return the expression, with columns named item.NAME. Raises UserError with the place of the mistake."""
    check_sql(sql, key)
    quoted = NAME.sub(lambda m: f'"{m[0]}"' if m[1] else m[0], sql)
    try:
        return pl.sql_expr(quoted)
    except pl.exceptions.PolarsError as e:
        first = e
    try:  # this parser says where it stopped, unless that is the end
        pl.SQLContext().execute(f"{SELECT}{quoted})")
        why, where = _line(first), ""
    except pl.exceptions.PolarsError as e:
        why = _line(e)
        where = f" at character {len(sql) + 1}" if "EOF" in why else ""
        if m := AT.search(why):
            line, column = int(m[1]), int(m[2]) - (len(SELECT) if int(m[1]) == 1 else 0)
            before = quoted.splitlines()[line - 1][: column - 1] if line <= len(quoted.splitlines()) else ""
            column -= 2 * sum(1 for m in NAME.finditer(before.replace('"', "")) if m[1])
            column = min(column, len(sql) + 1)
            why, where = AT.sub("", why), f" at character {column}"
            if column > len(sql):
                why = why.replace("found: )", "found: its end")
        why = why.removeprefix("sql parser error: ").replace("found: EOF", "found: its end")
    raise UserError(f"{key}: {sql!r}: cannot be read{where}: {why}")


def _line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Formula:
    """Arithmetic over predictions (p_LABEL) and numeric columns of items (item.NAME), the user and the request.

    Python's operators + - * / ** and the functions log, log1p, exp, sqrt, abs, min and max are known.

    Args:
        text: the formula.
        key: the config key that holds it, for messages.
        predictions: names of the predictions.
        resources: the items, and the names of the columns of users and requests.

    Raises UserError for a mistake, with its place; a call, if no item has a finite value.
    """

    def __init__(self, text: str, key: str, predictions: Sequence[str], resources: Resources) -> None:
        self.text, self.key = text, key
        self._known = {"user": resources.user, "context": resources.context}
        self._columns: dict[str, np.ndarray] = {}
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as e:
            raise UserError(f"{key}: {text!r}: cannot be read at character {e.offset or 1}: {e.msg}") from e
        except (RecursionError, MemoryError, ValueError) as e:  # ValueError: half of a surrogate pair
            raise UserError(f"{key}: {text[:40]!r}...: cannot be read: {e}") from e
        if (parts := sum(1 for _ in ast.walk(self._tree))) > MAX_PARTS:
            raise UserError(f"{key}: {text[:40]!r}...: has {parts:,} parts, more than {MAX_PARTS}; shorten it")
        self._check(self._tree, predictions, resources.catalogue)

    def __call__(self, visitor: Visitor, items: np.ndarray, predictions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the value of each item, (n,) numbers -> (n,) float64; -inf where it is not a number."""
        with np.errstate(all="ignore"):
            values = np.broadcast_to(self._value(self._tree, visitor, items, predictions), items.shape)
        finite = np.isfinite(values)
        if len(items) and not finite.any():
            raise UserError(f"{self.key}: {self.text!r}: is not a finite number for any of {len(items):,} items")
        return np.where(finite, values, -np.inf)

    def _fail(self, node: ast.AST, why: str) -> UserError:
        return UserError(f"{self.key}: {self.text!r}: character {getattr(node, 'col_offset', 0) + 1}: {why}")

    def _check(self, node: ast.AST, predictions: Sequence[str], catalogue: Catalogue) -> None:
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                return
            case ast.Name(id=name):
                if name not in predictions:
                    raise self._fail(node, f"there is no {name}{did_you_mean(name, predictions)}")
            case ast.Attribute(value=ast.Name(id="item"), attr=name):
                column = catalogue.column(name, f"{self.key}: {self.text!r}")
                if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
                    raise self._fail(node, f"item.{name} is {column.dtype}, not a number")
                self._columns[name] = column.cast(pl.Float64).to_numpy()
            case ast.Attribute(value=ast.Name(id=("user" | "context") as scope), attr=name):
                if name not in self._known[scope]:
                    raise self._fail(node, f"{scope} has no column {name}{did_you_mean(name, self._known[scope])}")
            case ast.BinOp(left=left, right=right) if type(node.op) in OPERATORS:
                self._check(left, predictions, catalogue)
                self._check(right, predictions, catalogue)
            case ast.UnaryOp(operand=operand) if type(node.op) in OPERATORS:
                self._check(operand, predictions, catalogue)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                if len(arguments) != (2 if name in ("min", "max") else 1):
                    raise self._fail(node, f"{name} takes {2 if name in ('min', 'max') else 1} values")
                for argument in arguments:
                    self._check(argument, predictions, catalogue)
            case _:
                known = ", ".join(FUNCTIONS)
                raise self._fail(node, f"a formula has numbers, names, + - * / ** and the functions {known}")

    def _value(self, node: ast.AST, visitor: Visitor, items: np.ndarray, predictions: Mapping[str, np.ndarray]) -> Any:
        match node:
            case ast.Constant(value=value):
                return float(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return predictions[name].astype(np.float64)
            case ast.Attribute(value=ast.Name(id="item"), attr=name):
                return self._columns[name][items]
            case ast.Attribute(value=ast.Name(id=scope), attr=name):
                return _number((visitor.user if scope == "user" else visitor.context).get(name))
            case ast.BinOp(left=left, right=right):
                sides = (self._value(side, visitor, items, predictions) for side in (left, right))
                return OPERATORS[type(node.op)](*sides)
            case ast.UnaryOp(operand=operand):
                return OPERATORS[type(node.op)](self._value(operand, visitor, items, predictions))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return FUNCTIONS[name](*(self._value(a, visitor, items, predictions) for a in arguments))
        raise AssertionError(ast.dump(node))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
