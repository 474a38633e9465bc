"""python docs/deploy/client.py ARTEFACT [HTTP_ADDRESS] [GRPC_ADDRESS]: score the rows of an artefact's examples.

RECSYS_TOKEN=... python docs/deploy/client.py exported/my_model 127.0.0.1:8000 127.0.0.1:8001

`predict` needs the standard library alone; `infer` uses the open inference protocol through tritonclient. Each uses one
connection for all its requests, as callers should.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
TIMEOUT = 2.0  # seconds


def headers() -> dict[str, str]:
    """Return the header with the token, if the server has one."""
    token = os.environ.get("RECSYS_TOKEN")
    return {} if token is None else {"authorization": f"Bearer {token}"}


def predict(connection: http.client.HTTPConnection, model: str, rows: list[Row]) -> list[float]:
    """Return the predictions of raw rows. Raises RuntimeError with the server's message."""
    body = json.dumps({"rows": rows})
    connection.request("POST", f"/models/{model}/predict", body, headers())
    with connection.getresponse() as response:
        answer = json.load(response)
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {answer['error']}")
    predictions: list[float] = answer["predictions"]
    return predictions


def infer(client: Any, model: str, rows: list[Row]) -> list[float]:
    """Return the same predictions over gRPC. client: a tritonclient.grpc.InferenceServerClient"""
    import numpy as np
    import tritonclient.grpc as triton

    inputs = []
    for spec in client.get_model_metadata(model, headers=headers()).inputs:  # cache these in a client of your own
        values = [row.get(spec.name) for row in rows]
        if spec.datatype == "BYTES":
            array = np.array(["" if v is None else str(v) for v in values], dtype=object)  # empty: missing
        elif all(v is not None for v in values):
            array = np.array(values, {"FP64": np.float64, "INT64": np.int64}[spec.datatype])
        else:
            array = np.array([np.nan if v is None else v for v in values], np.float64)
        tensor = triton.InferInput(spec.name, list(array.shape), "FP64" if array.dtype == np.float64 else spec.datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answer = client.infer(model, inputs, headers=headers(), client_timeout=TIMEOUT)
    predictions: list[float] = answer.as_numpy(answer.get_response().outputs[0].name).ravel().tolist()
    return predictions


def main() -> None:
    from tritonclient.grpc import InferenceServerClient

    folder, http_address, grpc_address = [*sys.argv[1:], *("127.0.0.1:8000", "127.0.0.1:8001")[len(sys.argv) - 2 :]]
    model = json.loads(Path(folder, "manifest.json").read_text())["artefact"]["name"]
    rows = json.loads(Path(folder, "examples.json").read_text())["rows"][:3]
    print("HTTP", predict(http.client.HTTPConnection(http_address, timeout=TIMEOUT), model, rows))
    with InferenceServerClient(grpc_address) as client:
        print("gRPC", infer(client, model, rows))


if __name__ == "__main__":
    main()
