"""Serve an exported model with KServe's own server, to compare with.

    python benchmarks/serving/kserve_model.py serve ARTEFACT environment=DIR [http=8200] [grpc=8201]

Creates a virtual environment in DIR with kserve and what an exported model needs, once, and runs KServe's server there
until Ctrl-C or SIGTERM. The model takes raw columns, and neither batches requests nor runs them in threads, as KServe
has it by default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

PACKAGES = ("kserve==0.21.0", "onnxruntime", "polars", "xxhash", "orjson", "rich", "omegaconf")
KEYS = {"environment": "", "http": "8200", "grpc": "8201"}
ROOT = Path(__file__).resolve().parents[2]


def create_environment(folder: Path) -> Path:
    """Create the environment if it does not exist, and return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {PACKAGES[0]} into {folder}, once", flush=True)
        subprocess.run(["uv", "venv", "--quiet", "--python", "3.11", folder], check=True)  # nosec B607
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, *PACKAGES], check=True)  # nosec B607
    return python


def make_model(artefact: Path) -> Any:
    """Return the exported model as a kserve.Model."""
    from kserve import InferOutput, InferRequest, InferResponse, Model

    from recsys.export.artefact.load_artefact import load

    servable = load(artefact)

    class ExportedModel(Model):  # type: ignore[misc]
        """Raw columns in, predictions out."""

        async def get_input_types(self) -> list[dict[str, Any]]:
            return [{"name": s.name, "datatype": s.datatype, "shape": list(s.shape)} for s in servable.inputs]

        async def get_output_types(self) -> list[dict[str, Any]]:
            return [{"name": s.name, "datatype": s.datatype, "shape": list(s.shape)} for s in servable.outputs]

        async def predict(self, payload: InferRequest, *_: Any, **__: Any) -> InferResponse:
            columns = {i.name: _values(i) for i in payload.inputs}
            count = payload.inputs[0].shape[0]
            outputs = servable.run(servable.features_of_columns(columns, count))
            answer = []
            for spec in servable.outputs:
                tensor = InferOutput(spec.name, list(outputs[spec.name].shape), spec.datatype)
                tensor.set_data_from_numpy(outputs[spec.name], binary_data=False)
                answer.append(tensor)
            return InferResponse(payload.id or "", self.name, answer)  # it does not take None

    model = ExportedModel(servable.name)
    model.ready = True
    return model


def _values(tensor: Any) -> list[Any]:
    """Return the values of an input; empty texts are missing values."""
    values = tensor.as_numpy().ravel().tolist()
    if tensor.datatype != "BYTES":
        return values
    return [(v.decode() if isinstance(v, bytes) else v) or None for v in values]


def run_server(artefact: Path, http: int, grpc: int) -> None:
    """Run KServe's server in this process, which the environment's Python runs."""
    from kserve import ModelServer

    ModelServer(http_port=http, grpc_port=grpc, workers=1, enable_docs_url=False).start([make_model(artefact)])


def run_in_environment(artefact: Path, settings: dict[str, str]) -> NoReturn:
    """Become the server: run this script with the environment's Python."""
    python = create_environment(Path(settings["environment"]).absolute())
    # -P: the folder of this script holds triton.py, which must not stand in for the package triton
    line = [str(python), "-P", __file__, "run", str(artefact), *(f"{k}={v}" for k, v in settings.items())]
    os.execve(python, line, os.environ | {"PYTHONPATH": str(ROOT)})  # nosec B606


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    words = [a for a in arguments if "=" not in a]
    settings = KEYS | dict(a.split("=", 1) for a in arguments if "=" in a)
    if unknown := next((key for key in settings if key not in KEYS), None):
        print(f"error: {unknown}: no such key; valid: {', '.join(KEYS)}", file=sys.stderr)
        return 2
    if len(words) != 2 or words[0] not in ("serve", "run") or not settings["environment"]:
        print(__doc__, file=sys.stderr)
        return 2
    if words[0] == "run":
        run_server(Path(words[1]), int(settings["http"]), int(settings["grpc"]))
        return 0
    if not Path(words[1]).is_dir():
        print(f"error: {words[1]}: no such folder; name an exported model", file=sys.stderr)
        return 2
    return run_in_environment(Path(words[1]), settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
