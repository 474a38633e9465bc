"""Definitions of features of entities: one YAML file, which the online store and training sets share.

users:
  files: logs/users/*.parquet    # rows of (key, time, columns), one for each change
  key: user                      # in these files, and in the rows that the features are joined to
  time: updated
  columns: [age, country]
  max_age: 30d                   # optional: older values are missing

clicks:                          # what the user did, as features
  files: logs/clicks/*.parquet   # a row for each event
  stream: logs/clicks.jsonl      # optional: events that come before their files; or kafka://HOST:PORT/TOPIC
  key: user
  time: at
  aggregates:
    clicks_1h: {count: "*", window: 1h}
    spent_7d: {sum: price, window: 7d}
    shops_30d: {distinct: shop, window: 30d}
    history: {last: item, number: 50}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from recsys.base.errors import UserError, did_you_mean
from recsys.files.input_files import problem_of
from recsys.store.aggregates import EVENTS, FUNCTIONS, Aggregate
from recsys.store.durations import is_number, seconds_of_age
from recsys.store.views import View

MOST = 100_000  # values of a list


def load_views(file: str | Path) -> dict[str, View]:
    """Read a definition. Raises UserError for a mistake."""
    if problem := problem_of(file):
        raise UserError(f"definition={file}: {problem}")
    found = read_yaml(file)
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{file}: must map names to views; see docs/how_to/serve/stored_features.md")
    return {str(name): _view(str(name), value, file) for name, value in found.items()}


def read_yaml(file: str | Path) -> Any:
    """Return what a YAML file holds. Raises UserError with the place of a mistake."""
    try:
        return yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark, problem = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        where = f"{file}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(file)
        raise UserError(f"{where}: is not YAML: {problem or str(e).splitlines()[0]}; correct the file") from e


def _view(name: str, value: Any, file: str | Path) -> View:
    where = f"{file}: {name}"
    if not name.strip() or set(name) & set("#:"):  # a store has VIEW#events and, in Redis, recsys:VIEW:KEY
        raise UserError(f"{file}: {name!r}: cannot be the name of a view; write one without # and :")
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: must have the keys files, key, time and columns")
    known = [f.name for f in fields(View) if f.name != "name"]
    optional = ("max_age", "columns", "aggregates", "stream")
    if wrong := next((k for k in value if k not in known), None):
        raise UserError(f"{where}.{wrong}: no such key{did_you_mean(str(wrong), known)}")
    if missing := next((k for k in known if k not in value and k not in optional), None):
        raise UserError(f"{where}.{missing}: is missing")
    for one in ("key", "time"):
        if isinstance(value[one], list | dict):
            raise UserError(f"{where}.{one}={value[one]}: must be the name of one column")
    files = _texts(value["files"])
    columns = _texts(value.get("columns", []))
    if twice := next((c for i, c in enumerate(columns) if c in columns[:i]), None):
        raise UserError(f"{where}.columns: {twice} occurs twice; list it once")
    if reserved := next((c for c in columns if c in (str(value["key"]), str(value["time"]))), None):
        raise UserError(f"{where}.columns: {reserved} is the view's key or time, which is not a feature; leave it out")
    if not columns and "aggregates" not in value:
        raise UserError(f"{where}.columns: is {'empty' if 'columns' in value else 'missing'}; list the features")
    given = value.get("aggregates", {})
    if not isinstance(given, Mapping) or any(not isinstance(v, Mapping) for v in given.values()):
        hint = "clicks_1d: {count: '*', window: 1d}"
        raise UserError(f"{where}.aggregates: must map names to aggregates, such as {hint}")
    made = tuple(_aggregate(f"{where}.aggregates.{n}", str(n), a) for n, a in given.items())
    for read in (value["key"], value["time"], *columns, *(a.name for a in made), *(a.column for a in made)):
        if str(read).startswith("__"):
            raise UserError(f"{where}: {read}: names that begin with __ are reserved; rename the column")
    if twice := next((a.name for a in made if a.name in columns), None):
        raise UserError(f"{where}.aggregates.{twice}: is also one of the columns; give it another name")
    if of_key := next((a.name for a in made if a.column == str(value["key"])), None):
        why = f"reads {value['key']}, the key of the view, which all events of an entity share"
        raise UserError(f"{where}.aggregates.{of_key}: {why}; count events with count: '*', or name another column")
    age = value.get("max_age")
    try:
        seconds_of_age(None if age is None else str(age))
    except ValueError as e:
        hint = "write a number and a unit, such as 30d or 12h"
        raise UserError(f"{where}.max_age={age}: {e}; {hint}") from e
    max_age, stream = (None if v is None else str(v) for v in (age, value.get("stream")))
    return View(name, files, str(value["key"]), str(value["time"]), columns, max_age, made, stream)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value if isinstance(value, list) else [value]))


def _aggregate(where: str, name: str, given: Mapping[Any, Any]) -> Aggregate:
    known = (*FUNCTIONS, "window", "number")
    if wrong := next((k for k in given if k not in known), None):
        raise UserError(f"{where}.{wrong}: no such key{did_you_mean(str(wrong), known)}")
    functions = [f for f in FUNCTIONS if f in given]
    if len(functions) != 1:
        raise UserError(f"{where}: must have one of {', '.join(FUNCTIONS)}")
    [function] = functions
    column, window, number = str(given[function]), given.get("window"), given.get("number")
    if column == EVENTS and function != "count":
        raise UserError(f"{where}.{function}={EVENTS}: names no column; only count takes {EVENTS}")
    if number is not None and (function != "last" or isinstance(number, bool) or not isinstance(number, int)):
        raise UserError(f"{where}.number={number}: must be a whole number, and applies to last")
    if number is not None and not 1 <= number <= MOST:
        raise UserError(f"{where}.number={number}: must be from 1 to {MOST:,}")
    text = None if window is None else str(window)
    try:
        seconds = seconds_of_age(text)
    except ValueError as e:
        raise UserError(f"{where}.window={window}: {e}; write a number and a unit, such as 1h or 7d") from e
    return Aggregate(name, function, column, seconds, number, unitless=text is not None and is_number(text))
