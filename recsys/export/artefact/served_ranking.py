"""A ranking model of an artefact: raw rows in, predictions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from recsys.base.errors import UserError
from recsys.data.features import Fitted
from recsys.data.features.arrays import Arrays, single_valued
from recsys.export.artefact.folder import GRAPH, Artefact
from recsys.export.artefact.graph_io import GraphInputs, apart, check_feed, graph_inputs, longest_lists, open_session
from recsys.online.row_transforms import RowTransforms, SharedColumns
from recsys.online.servable import Outputs, Query, Row


class ServedRanking:
    """A Servable that predicts the labels of rows. Threads may share it."""

    kind: Literal["ranking"] = "ranking"
    unit = "row"  # of a recorded example
    context: tuple[str, ...] = ()

    def __init__(
        self,
        artefact: Artefact,
        threads: int = 1,
        before: Fitted | None = None,
        *,
        exact: bool = False,
        device: str = "auto",
    ) -> None:
        """exact: has no effect, as all predictions are exact."""
        self.name, self.version = artefact.name, str(artefact.about["version"])
        self.inputs, self.tensors, self.outputs = artefact.specs
        raw_rows = artefact.raw_rows(before)
        self.pipeline, self.fitted = RowTransforms(raw_rows), raw_rows.fitted
        self.columns = self.pipeline.columns
        self.example = artefact.examples()[:1]
        self.shared_columns = SharedColumns(raw_rows, self.pipeline)
        self._features = self.pipeline.features
        self._longest = longest_lists(self.fitted.data)
        self._session = open_session(artefact.folder / GRAPH, threads, device=device)
        self._names = [s.name for s in self.outputs]

    def check_example(self) -> None:
        """Raise ValueError if the outputs of the recorded example have not the form of predictions."""
        if self.example:
            features = self.features(self.example)
            for name, values in self.run(features).items():
                if values.dtype.kind != "f" or len(values) != features.rows:
                    raise ValueError(f"{name} has shape {list(values.shape)} for {features.rows} rows")

    def differences(self, recorded: Mapping[str, Any]) -> np.ndarray:
        """Return the largest difference of each recorded row, (rows,)."""
        outputs = self.run(self.features(recorded["rows"]))
        wanted = {name: np.asarray(values, np.float32) for name, values in recorded["outputs"].items()}
        parts = [apart(outputs[name], x) for name, x in wanted.items()]
        return np.max(np.stack(parts), axis=0) if len(recorded["rows"]) else np.zeros(0)

    @property
    def rows_depend_on_others(self) -> bool:
        """True if a row's features depend on earlier rows of the same call, so that requests must not be merged."""
        return self.fitted.data.group is not None

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> GraphInputs:
        """Transform raw rows. shared: values that all rows have, too; they are transformed once."""
        arrays = self.pipeline.arrays(rows) if shared is None else self.shared_columns.arrays(shared, rows)
        return graph_inputs(arrays, self._features)

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> GraphInputs:
        """Transform raw columns (rows,)."""
        return graph_inputs(self.pipeline.arrays_of_columns(columns, rows), self._features)

    def run(self, features: GraphInputs) -> Outputs:
        """Return the predictions of all rows, (rows,) each."""
        if not features.rows:
            return {name: np.zeros(0, np.float32) for name in self._names}
        return dict(zip(self._names, self._session.run(self._names, features.feed), strict=True))

    def run_arrays(self, arrays: Arrays) -> Outputs:
        """Return the predictions of transformed rows, (rows,) each."""
        return self.run(graph_inputs(arrays, self._features))

    def run_tensors(self, tensors: Mapping[str, np.ndarray]) -> Outputs:
        """Return the predictions for features that the client has computed."""
        return self.run(check_feed(tensors, self.tensors, self._features, self._longest))

    def unknown_shares(self, features: GraphInputs) -> dict[str, float]:
        """Return the share of out-of-vocabulary ids of each feature with a vocabulary."""
        singles = single_valued(self._features)
        known = self.fitted.vocabularies
        shares: dict[str, float] = {}
        for f in self._features.sparse:
            if f.table in known and features.rows:
                ids = features.feed[f.name] if f.multi_valued else features.feed["ids"][:, singles.index(f.name)]
                present = ids >= 0
                shares[f.name] = float((ids == 0).sum() / max(present.sum(), 1))
        return shares

    def known_items(self, query: Query) -> None:
        """Return None: the model scores rows."""

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], list[float]]]:
        """Raise UserError: the model scores rows."""
        raise UserError(f"model {self.name} scores rows and cannot recommend items; send rows to /predict")
