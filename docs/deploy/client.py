"""python docs/deploy/client.py ARTEFACT [HTTP_ADDRESS] [GRPC_ADDRESS] [MODEL]: score rows of an artefact's examples.

RECSYS_TOKEN=... python docs/deploy/client.py exported/my_model 127.0.0.1:8000 127.0.0.1:8001

`predict` needs the standard library alone; `infer` uses the open inference protocol through tritonclient. Each uses one
connection for all its requests, as callers should. MODEL may be left out if the server has one model.
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


def post(connection: http.client.HTTPConnection, path: str, body: Any = None) -> Any:
    """Return the server's answer. Raises RuntimeError with its message, or with why there is none."""
    try:
        connection.request("POST", path, json.dumps(body), headers())
        with connection.getresponse() as response:
            answer = json.load(response)
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise RuntimeError(f"{connection.host}:{connection.port}: gives no answer in JSON over HTTP ({e})") from e
    if response.status != 200:
        hint = "; set RECSYS_TOKEN" if response.status == 401 else ""
        raise RuntimeError(f"{response.status}: {answer['error']}{hint}")
    return answer


def predict(connection: http.client.HTTPConnection, model: str, rows: list[Row]) -> list[float]:
    """Return the predictions of raw rows. Raises RuntimeError with the server's message."""
    predictions: list[float] = post(connection, f"/models/{model}/predict", {"rows": rows})["predictions"]
    return predictions


def only_model(connection: http.client.HTTPConnection) -> str:
    """Return the name under which the server offers its only model. Raises RuntimeError if it has several."""
    names = sorted({m["name"] for m in post(connection, "/v2/repository/index")})
    if len(names) != 1:
        raise RuntimeError(f"the server has the models {', '.join(names)}; add one after both addresses")
    return str(names[0])


def infer(client: Any, model: str, rows: list[Row]) -> list[float]:
    """Return the same predictions over gRPC. client: a tritonclient.grpc.InferenceServerClient"""
    import numpy as np
    import tritonclient.grpc as triton

    inputs = []
    for spec in client.get_model_metadata(model, headers=headers()).inputs:  # cache these in a client of your own
        values = [[row.get(spec.name)] for row in rows]
        if spec.datatype == "BYTES":
            array = np.array([["" if v is None else str(v)] for [v] in values], dtype=object)  # empty: missing
        elif spec.datatype == "FP64":
            array = np.array(values, np.float64)  # None becomes NaN: missing
        elif all(v is not None for [v] in values):
            array = np.array(values, {"INT64": np.int64, "BOOL": np.bool_}[spec.datatype])
        elif any(v is not None for [v] in values):
            array = np.array(values, np.float64)  # recsys.serve takes it; for Triton, send such rows on their own
        else:
            continue  # missing in all rows
        datatype = "FP64" if array.dtype == np.float64 else spec.datatype
        tensor = triton.InferInput(spec.name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answer = client.infer(model, inputs, headers=headers(), client_timeout=TIMEOUT)
    predictions: list[float] = answer.as_numpy(answer.get_response().outputs[0].name).ravel().tolist()
    return predictions


def main(arguments: list[str]) -> None:
    """Score three rows over both protocols."""
    if not 1 <= len(arguments) <= 4:
        raise RuntimeError("name an artefact: python client.py ARTEFACT [HTTP_ADDRESS] [GRPC_ADDRESS] [MODEL]")
    given = dict(zip(("folder", "http", "grpc", "model"), arguments, strict=False))
    examples = Path(given["folder"], "examples.json")
    if not examples.is_file():
        raise RuntimeError(f"{examples}: no such file; name the folder of an exported model")
    rows = json.loads(examples.read_text())["rows"][:3]
    if isinstance(rows[0], list):
        raise RuntimeError(f"{examples}: has histories, for which POST /recommend lists items; this client scores rows")
    connection = http.client.HTTPConnection(given.get("http", "127.0.0.1:8000"), timeout=TIMEOUT)
    model = given.get("model") or only_model(connection)
    print("HTTP", predict(connection, model, rows))
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(given.get("grpc", "127.0.0.1:8001")) as client:
        print("gRPC", infer(client, model, rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as e:  # also those of tritonclient, which is imported late
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
