"""Interface between servers and models: raw rows or columns in, arrays out.

`recsys.export.artefact` loads a model that implements it.

A server calls `features` once for all rows that wait, then `run`, and divides the outputs among the requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Datatype = Literal["BOOL", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"]
Row = Mapping[str, Any]
Outputs = dict[str, np.ndarray]
Features = Any  # the features of some rows, ready for `run`; `rows` is their number


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output, in the words of the open inference protocol; -1 is the number of rows."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Query:
    """One request for items.

    rows: raw rows of the user's history, oldest first, named as in the data's YAML
    k: length of the list; None for the model's default
    filter_history: whether to leave out the items of the history; None for the model's default
    exclude: further items to leave out
    candidates: the only items to rank; None for all
    context: columns of the request itself, such as the user and the device, for pipelines of stages
    item: list the items most like this one instead, whatever the history
    """

    rows: Sequence[Row]
    k: int | None = None
    filter_history: bool | None = None
    exclude: Sequence[str] = ()
    candidates: Sequence[str] | None = None
    context: Row | None = None
    item: object = None


class Servable(Protocol):
    """A loaded model. Its methods may be called from several threads."""

    name: str
    version: str

    @property
    def kind(self) -> Literal["ranking", "retrieval"]:
        """ranking: scores rows; retrieval: lists items for a history."""

    inputs: tuple[TensorSpec, ...]  # the raw columns
    tensors: tuple[TensorSpec, ...]  # the features, for clients that transform rows themselves
    outputs: tuple[TensorSpec, ...]
    context: tuple[str, ...]  # columns that a request for items has of its own (Query.context); none for a model alone

    @property
    def columns(self) -> frozenset[str]:
        """The keys of rows that are read; `inputs` has one name for each column."""

    @property
    def example(self) -> Sequence[Row]:
        """One row or, for retrieval, a history, which the documentation shows."""

    @property
    def rows_depend_on_others(self) -> bool:
        """True if the features of a row depend on other rows of the call, so that requests must not be merged."""

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> Features:
        """Transform raw rows. Raises RowError (row, column, value, reason) for the first row that cannot be read.

        shared: values that all rows have, too, such as the values of one user with many candidates; transformed once
        """

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Features:
        """Transform raw columns (rows,), named like `inputs`; those that are missing have no values."""

    def run(self, features: Features) -> Outputs:
        """Return the outputs of all rows, (rows, ...) each."""

    def run_tensors(self, tensors: Mapping[str, np.ndarray]) -> Outputs:
        """Return the outputs for arrays named like `tensors`. Raises UserError if a shape or a type does not fit."""

    def unknown_shares(self, features: Features) -> dict[str, float]:
        """Return the share of out-of-vocabulary ids of each sparse feature."""

    def known_items(self, query: Query) -> tuple[int, int] | None:
        """Return the number of items of a history that the model knows, and of all; None for models without one."""

    def recommend(self, queries: Sequence[Query]) -> Sequence[tuple[list[Any], ...]]:
        """Return the lists of each query that `outputs` names: items, best first, and scores.

        Raises UserError if the model scores rows.
        """
