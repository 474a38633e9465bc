"""Model of Triton's Python backend: the graph of an artefact, run by ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recsys.export.artefact.folder import GRAPH
from recsys.export.artefact.graph_io import open_session


class TritonPythonModel:
    """Runs the graph once for all rows of the requests that Triton has batched."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph from the version's folder."""
        config = json.loads(args["model_config"])
        self._inputs = [i["name"] for i in config["input"]]
        self._outputs = [o["name"] for o in config["output"]]
        file = Path(args["model_repository"]) / args["model_version"] / GRAPH
        self._session = open_session(file, device=device_of(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request."""
        import triton_python_backend_utils as pb

        feeds = [{n: pb.get_input_tensor_by_name(r, n).as_numpy() for n in self._inputs} for r in requests]
        sizes = [len(next(iter(feed.values()))) for feed in feeds]
        feed = {}
        for n in self._inputs:  # (B, L) of each request; lists are padded with -1 to the longest
            blocks = [f[n] for f in feeds]
            if len(blocks) > 1:
                widest = max(b.shape[1] for b in blocks)
                blocks = [np.pad(b, ((0, 0), (0, widest - b.shape[1])), constant_values=-1) for b in blocks]
            feed[n] = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        found = self._session.run(self._outputs, feed)
        parts = [np.split(x, np.cumsum(sizes)[:-1]) for x in found]
        return [
            pb.InferenceResponse(
                output_tensors=[pb.Tensor(n, x[i][:, None]) for n, x in zip(self._outputs, parts, strict=True)]
            )
            for i in range(len(requests))
        ]


def device_of(args: Mapping[str, str]) -> str:
    """Return the device for `recsys.export.artefact.load`.

    An instance on a GPU whose Python has no CUDA provider serves on the CPU. args: what Triton passes to `initialize`
    """
    if args.get("model_instance_kind") != "GPU":
        return "cpu"
    return f"auto:{args['model_instance_device_id']}"
