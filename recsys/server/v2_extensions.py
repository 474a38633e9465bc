"""List the protocol extensions that this server supports, and refuse requests for any other extension.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recsys.online.query_parameters import check_keys
from recsys.server.request_error import RequestError
from recsys.server.v2_tensors import bad

EXTENSIONS = [
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "parameters", "statistics",
]  # fmt: skip
LOAD_KEYS = ("version", "unload_dependents")
TAKEN = ("timeout", "binary_data_output", "triton_enable_empty_final_response")
NO_STATE = "this server keeps nothing from one request to the next"
REFUSED = {  # parameters of inference requests, and why they have no effect; 0 and false ask for nothing
    "sequence_id": NO_STATE,
    "sequence_start": NO_STATE,
    "sequence_end": NO_STATE,
    "priority": "this server answers requests in the order in which they come",
}
NO_SHARED_MEMORY = "this server has no shared memory; leave shared_memory_region out, and send the values"
MISSING = {  # beginnings of paths, and of gRPC's methods in lower case -> extensions
    "systemsharedmemory": "system_shared_memory",
    "cudasharedmemory": "cuda_shared_memory",
    "trace": "trace",
    "log": "logging",
}


def check_parameters(parameters: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Raise UserError for a parameter of an inference request that would have no effect.

    known: names of parameters that the model reads
    """
    for key, why in REFUSED.items():
        if parameters.get(key):
            raise bad(f"parameters.{key}: {why}; leave it out")
    check_keys(parameters, known, "parameters.", (*TAKEN, *REFUSED))


def check_load(parameters: Mapping[str, Any]) -> None:
    """Raise UserError for a parameter with which a model cannot be loaded."""
    for key in parameters:
        if key == "config" or key.startswith("file:"):
            why = "a model is loaded as it was exported; leave config and files out, and serve another export instead"
            raise bad(f"parameters.{key[:80]}: {why}")
    check_keys(parameters, LOAD_KEYS, "parameters.")


def check_outputs(parameters: Iterable[Mapping[str, Any]]) -> None:
    """Raise RequestError if an output asks for an extension that this server does not have."""
    for own in parameters:
        if "classification" in own:
            raise bad("outputs: the extension classification is not supported; leave classification (class_count) out")
        if "shared_memory_region" in own:
            raise bad(f"outputs: {NO_SHARED_MEMORY}")


def check_supported(name: str) -> None:
    """Raise RequestError (501) if a path below /v2, or a method of gRPC, belongs to an extension that is missing."""
    for beginning, extension in MISSING.items():
        if name.lower().startswith(beginning):
            raise RequestError(501, f"{name[:80]}: the extension {extension} is not supported by this server")
