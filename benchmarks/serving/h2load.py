"""gRPC and HTTP requests of recsys.serve from a client in C++, h2load (Debian: nghttp2-client), over 16 connections.

    python benchmarks/serving/h2load.py artefact [rounds=5] [requests=4000]

Both protocols send the same raw columns of a ranking model in binary form. h2load does not read the status of gRPC, so
that the server's own counters are compared with the number of requests. Writes benchmarks/results/serving_h2load.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from loads import HERE, Server, arguments
from steady import Claim, Sample, measure
from tritonclient.grpc import service_pb2 as pb

from recsys.export.artefact import load
from recsys.server.v2_tensors import to_bytes

PORT, GRPC = 8330, 8331
INFER = "inference.GRPCInferenceService/ModelInfer"


def bodies(artefact: Path, rows: int) -> dict[str, tuple[bytes, str, list[str]]]:
    """Return the body, the URL and the headers of a request, by protocol."""
    model, examples = load(artefact), json.loads((artefact / "examples.json").read_text())["rows"]
    inputs, blobs = [], []
    for name in [s.name for s in model.inputs]:
        values = ["" if (v := examples[i % len(examples)].get(name)) is None else str(v) for i in range(rows)]
        blobs.append(to_bytes(np.array(values, object)))
        inputs.append({"name": name, "datatype": "BYTES", "shape": [rows]})
    message = pb.ModelInferRequest(model_name=model.name, raw_input_contents=blobs)
    for given in inputs:
        message.inputs.add(**given)
    content = message.SerializeToString()
    sizes = [{**i, "parameters": {"binary_data_size": len(b)}} for i, b in zip(inputs, blobs, strict=True)]
    head = json.dumps({"inputs": sizes, "parameters": {"binary_data_output": True}}).encode()
    grpc_headers = ["content-type: application/grpc", "te: trailers"]
    http_headers = [f"inference-header-content-length: {len(head)}"]
    return {
        "gRPC": (b"\0" + len(content).to_bytes(4, "big") + content, f"http://127.0.0.1:{GRPC}/{INFER}", grpc_headers),
        "HTTP": (head + b"".join(blobs), f"http://127.0.0.1:{PORT}/v2/models/{model.name}/infer", http_headers),
    }


def answered(server: Server) -> int:
    """Return the number of requests that the server has answered well."""
    page = urllib.request.urlopen(f"{server.url}/metrics").read().decode()  # nosec B310 (http only)
    return int(sum(map(float, re.findall(r'^recsys_requests_total\{[^}]*"200"[^}]*\} (\S+)$', page, re.M))))


def contestant(
    server: Server, name: str, rows: int, request: tuple[bytes, str, list[str]], n: int
) -> Callable[[], Sample]:
    """Return a round of n requests."""
    body, url, headers = request

    def run() -> Sample:
        with tempfile.NamedTemporaryFile() as file:
            file.write(body)
            file.flush()
            command = ["h2load", f"-n{n}", "-c16", "-m1", f"-d{file.name}", *(f"-H{h}" for h in headers), url]
            before, good = server.cpu(), answered(server)
            said = subprocess.run(
                command + (["--h1"] if name == "HTTP" else []), check=True, capture_output=True, text=True
            )
            cpu = server.cpu() - before
        if answered(server) - good != n:
            sys.exit(f"{name}: {answered(server) - good} of {n} requests were answered well\n{said.stdout}")
        [rate] = re.findall(r"finished in .*, ([\d.]+) req/s", said.stdout)
        return Sample(n * rows, n / float(rate), cpu)

    return run


def main() -> None:
    artefact, options = arguments(__doc__)
    n = int(options.get("requests", "4000"))
    server = Server(HERE, artefact, PORT, GRPC)
    try:
        contestants = {
            f"{name}, {rows} rows": contestant(server, name, rows, request, n if rows == 1 else n // 4)
            for rows in (1, 64)
            for name, request in bodies(artefact, rows).items()
        }
        claims = [Claim(f"gRPC, {rows} rows", f"HTTP, {rows} rows") for rows in (1, 64)]
        about = "binary tensors from h2load over 16 connections; CPU seconds of the server"
        measure("serving_h2load", about, contestants, claims, int(options.get("rounds", "5")), "rows")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
