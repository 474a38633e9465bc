"""Model of Triton's Python backend: the raw columns of a history in, the best items out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.errors import UserError
from recsys.export.artefact import load
from recsys.export.triton.graph import device_of
from recsys.export.triton.transforms import parameters_of, raw_columns, refusal
from recsys.online.query_parameters import QUERY_KEYS, make_query, of_history

FOLDER = "artefact"


class TritonPythonModel:
    """Each request is one history; its parameters are named as in recsys.serve's open inference protocol."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artefact from the version's folder."""
        self._inputs = [i["name"] for i in json.loads(args["model_config"])["input"]]
        folder = Path(args["model_repository"]) / args["model_version"] / FOLDER
        self._model = load(folder, device=device_of(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request; one that cannot be read fails alone."""
        import triton_python_backend_utils as pb

        answers = []
        for request in requests:
            try:
                columns, _ = raw_columns(pb, request, self._inputs)
                rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
                query = make_query(rows, parameters_of(request, QUERY_KEYS))
                [(items, scores)] = self._model.recommend([query])
            except UserError as e:
                answers.append(refusal(pb, of_history(e)))
                continue
            names = np.array([str(i) for i in items], dtype=object)
            tensors = [pb.Tensor("items", names), pb.Tensor("scores", np.array(scores, np.float32))]
            answers.append(pb.InferenceResponse(tensors))
        return answers
