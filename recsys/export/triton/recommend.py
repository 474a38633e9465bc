"""Model of Triton's Python backend: the raw columns of a history in, the best items out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from recsys.errors import UserError
from recsys.export.artefact import load
from recsys.export.triton.request_columns import raw_columns
from recsys.online.servable import Query

FOLDER = "artefact"
TYPES = {"k": int, "filter_history": bool, "exclude": str, "candidates": str}


class TritonPythonModel:
    """Each request is one history; its parameters are named as in recsys.serve's open inference protocol."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artefact from the version's folder."""
        self._inputs = [i["name"] for i in json.loads(args["model_config"])["input"]]
        self._model = load(Path(args["model_repository"]) / args["model_version"] / FOLDER)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request; one that cannot be read fails alone."""
        import triton_python_backend_utils as pb

        return [self._answer(pb, request) for request in requests]

    def _answer(self, pb: Any, request: Any) -> Any:
        try:
            [(items, scores)] = self._model.recommend([self._query(pb, request)])
        except UserError as e:
            return pb.InferenceResponse(output_tensors=[], error=pb.TritonError(str(e)))
        names = np.array([str(i) for i in items], dtype=object)
        return pb.InferenceResponse([pb.Tensor("items", names), pb.Tensor("scores", np.array(scores, np.float32))])

    def _query(self, pb: Any, request: Any) -> Query:
        columns, _ = raw_columns(pb, request, self._inputs)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        given = json.loads(request.parameters() or "{}")
        for key, kind in TYPES.items():
            if key in given and type(given[key]) is not kind:
                raise UserError(f"parameter {key}: must be {'true or false' if kind is bool else kind.__name__}")
        lists = {key: given[key].split(",") for key in ("exclude", "candidates") if key in given}
        return Query(rows, given.get("k"), given.get("filter_history"), **lists)
