"""Read what a request for items asks for: the same names, types and messages in recsys.serve and in Triton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recsys.base.errors import UserError, did_you_mean
from recsys.files.text_values import text_of
from recsys.online.row_error import RowError
from recsys.online.servable import Query

QUERY_KEYS = ("k", "filter_history", "exclude", "candidates")
SIMILAR_KEYS = ("item", "k", "exclude", "candidates")


def check_keys(given: Iterable[str], known: Sequence[str], where: str = "", allowed: Sequence[str] = ()) -> None:
    """Raise UserError for a key that is not known. allowed: further keys, which messages do not name"""
    if unknown := next((k for k in given if k not in known and k not in allowed), None):
        raise UserError(f"{where}{unknown[:80]}: no such key{did_you_mean(unknown[:80], known)}")


def make_query(history: list[Any], parameters: Mapping[str, Any], where: str = "") -> Query:
    """Return a request for items. where: the place of the query in the body, for messages. Raises UserError."""
    k, keep = parameters.get("k"), parameters.get("filter_history")
    if k is not None and (type(k) is not int or not 0 < k < 2**31):
        raise UserError(f"{where}k: must be a whole number from 1 to 2147483647")
    if keep is not None and type(keep) is not bool:
        raise UserError(f"{where}filter_history: must be true or false")
    candidates = _items(parameters.get("candidates"), f"{where}candidates")
    return Query(history, k, keep, _items(parameters.get("exclude"), f"{where}exclude") or [], candidates)


def make_similar(parameters: Mapping[str, Any], where: str = "") -> Query:
    """Return a request for the items most like one. where: as for `make_query`. Raises UserError."""
    item = parameters.get("item")
    if type(item) not in (str, int, float) or item == "":
        raise UserError(f'{where}item: must be an item, such as {{"item": "42", "k": 10}}')
    return replace(make_query([], parameters, where), item=item)


def unknown_item(item: object, names: Sequence[object]) -> UserError:
    """Return the error for an item that the model has not learned. names: some that it has"""
    return UserError(f"item={str(item)[:80]}: the model has not learned this item; items look like {names[0]!r}")


NOT_RELATED = "this model neither has vectors of items nor relates them; use a retrieval model other than popularity"


def _items(given: object, key: str) -> list[str] | None:
    """Return a list of items, or None. Parameters of the protocol are text, separated by commas."""
    if given is None:
        return None
    if given == "":
        raise UserError(f"{key}: names no item; write items separated by commas, or leave it out")
    items = given.split(",") if isinstance(given, str) else given
    if type(items) is not list or any(type(i) not in (str, int, float) or i != i for i in items):
        raise UserError(f"{key}: must be a list of items")
    return [text_of(i) or "" for i in items]


def unknown_candidates(candidates: Sequence[Any]) -> UserError:
    """Return the error for candidates of which the model knows none; single ones that it does not know are left out."""
    return UserError(
        f"candidates: the model knows none of them, such as {str(candidates[0])[:80]!r}; leave it out to rank all items"
    )


def of_history(error: UserError) -> UserError:
    """Return the error of a row with the name that rows have in a query."""
    if not isinstance(error, RowError):
        return error
    return RowError(error.column, error.value, error.why, error.row, "history")
