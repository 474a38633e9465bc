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
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from recsys.base.durations import Duration, is_number, seconds_of_age
from recsys.base.errors import UserError
from recsys.base.parsing import StrictSettings, parse
from recsys.files.user_files import problem_of
from recsys.schema.fields import Texts
from recsys.store.aggregates import EVENTS, FUNCTIONS, Aggregate
from recsys.store.views import View

MAX_LIST = 100_000  # values of a list


class AggregateConfig(StrictSettings, coerce_numbers_to_str=True):
    """An aggregate: one of FUNCTIONS with the column that it reads, and `number` for a list of the last values."""

    count: str | None = None
    sum: str | None = None
    mean: str | None = None
    min: str | None = None
    max: str | None = None
    distinct: str | None = None
    last: str | None = None
    window: Duration | None = None
    number: Annotated[int, Field(ge=1, le=MAX_LIST)] | None = None


class ViewConfig(StrictSettings, coerce_numbers_to_str=True):
    """A view, as the definition has it; `View` explains the keys."""

    files: Texts
    key: str
    time: str
    columns: Texts = Field(default_factory=list)
    max_age: Duration | None = None
    aggregates: dict[str, AggregateConfig] = Field(default_factory=dict)
    stream: str | None = None


def load_views(file: str | Path) -> dict[str, View]:
    """Read a definition. Raises UserError for a mistake."""
    if problem := problem_of(file):
        raise UserError(f"definition={file}: {problem}")
    found = read_yaml(file)
    if not isinstance(found, Mapping) or not found:
        raise UserError(f"{file}: must map names to views; see docs/how_to/serve/stored_features.md")
    views = parse(dict[str, ViewConfig], found, file=str(file))
    return {name: _view(name, value, file) for name, value in views.items()}


def read_yaml(file: str | Path) -> Any:
    """Return what a YAML file holds. Raises UserError with the place of a mistake."""
    try:
        return yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark, problem = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        where = f"{file}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(file)
        raise UserError(f"{where}: is not YAML: {problem or str(e).splitlines()[0]}; correct the file") from e


def _view(name: str, given: ViewConfig, file: str | Path) -> View:
    where = f"{file}: {name}"
    if not name.strip() or set(name) & set("#:"):  # a store has VIEW#events and, in Redis, recsys:VIEW:KEY
        raise UserError(f"{file}: {name!r}: cannot be the name of a view; write one without # and :")
    columns = tuple(given.columns)
    if twice := next((c for i, c in enumerate(columns) if c in columns[:i]), None):
        raise UserError(f"{where}.columns: {twice} occurs twice; list it once")
    if reserved := next((c for c in columns if c in (given.key, given.time)), None):
        raise UserError(f"{where}.columns: {reserved} is the view's key or time, which is not a feature; leave it out")
    if not columns and not given.aggregates:
        raise UserError(f"{where}.columns: is empty; list the features")
    made = tuple(_aggregate(f"{where}.aggregates.{n}", n, a) for n, a in given.aggregates.items())
    for read in (given.key, given.time, *columns, *(a.name for a in made), *(a.column for a in made)):
        if read.startswith("__"):
            raise UserError(f"{where}: {read}: names that begin with __ are reserved; rename the column")
    if twice := next((a.name for a in made if a.name in columns), None):
        raise UserError(f"{where}.aggregates.{twice}: is also one of the columns; give it another name")
    if of_key := next((a.name for a in made if a.column == given.key), None):
        why = f"reads {given.key}, the key of the view, which all events of an entity share"
        raise UserError(f"{where}.aggregates.{of_key}: {why}; count events with count: '*', or name another column")
    return View(name, tuple(given.files), given.key, given.time, columns, given.max_age, made, given.stream)


def _aggregate(where: str, name: str, given: AggregateConfig) -> Aggregate:
    functions = [f for f in FUNCTIONS if getattr(given, f) is not None]
    if len(functions) != 1:
        raise UserError(f"{where}: must have one of {', '.join(FUNCTIONS)}")
    [function] = functions
    column, window = getattr(given, function), given.window
    if column == EVENTS and function != "count":
        raise UserError(f"{where}.{function}={EVENTS}: names no column; only count takes {EVENTS}")
    if given.number is not None and function != "last":
        raise UserError(f"{where}.number={given.number}: applies to last only")
    unitless = window is not None and is_number(window)
    return Aggregate(name, function, column, seconds_of_age(window), given.number, unitless=unitless)
