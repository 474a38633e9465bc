"""Write a model repository for NVIDIA Triton.

Ranking models: the transforms, the graph, and an ensemble of both. Retrieval models: one model of the Python backend.

    REPOSITORY/
        NAME_transforms/     Python backend: raw columns -> the graph's inputs
        NAME_model/          onnxruntime, pytorch or Python backend: the graph
        NAME/                the ensemble, or the retrieval model, which clients call
        requirements.txt     packages that the Python models import

Boosted trees with dense_backend=fil: NAME_columns, NAME_trees_0 and so on (one a label) and NAME_outputs in place of
NAME_model. Only the trees run in the backend FIL.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import recsys
from recsys.base.errors import UserError
from recsys.base.packages import DISTRIBUTION
from recsys.export.artefact.folder import FIL, GRAPH, PIPELINE, Artefact
from recsys.export.triton import recommend, transforms
from recsys.files.atomic import link_or_copy
from recsys.online.row_transforms import RowTransforms
from recsys.online.servable import TensorSpec

MAX_ROWS = 65_536  # of a batch
BATCHING = [  # batches that Triton forms if it can, and how long a request waits for others
    "dynamic_batching {",
    "  preferred_batch_size: [ 64, 512, 4096 ]",
    "  max_queue_delay_microseconds: 7000",
    "}",
]
BUNDLE = "bundle"  # instead of a folder: the repository carries recsys
TYPES = {"BOOL": "BOOL", "INT32": "INT32", "INT64": "INT64", "FP32": "FP32", "FP64": "FP64", "BYTES": "STRING"}
Step = tuple[str, dict[str, str], dict[str, str]]  # of an ensemble: a model, and the names of its inputs and outputs
MODEL = '''"""Triton runs this file; the model itself is part of recsys."""

import json
import sys
from importlib import import_module
from pathlib import Path

PACKAGES = {packages}  # module: what pip installs


def import_all():
    """Import what requests need, so that a missing package is told when the model is loaded."""
    try:
        import_module("recsys")  # first: it turns off what onnxruntime reports to its maker
    except ImportError as e:
        fix = "export with python_path=bundle, or install recsys's wheel there with pip install --no-deps"
        raise RuntimeError(f"recsys cannot be imported in Triton's Python ({e}); {fix}") from None
    errors = {}
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as e:
            errors[name] = e
    if errors:
        wanted = " ".join(f"'{PACKAGES[name]}'" for name in errors)
        why = f"{', '.join(errors)} cannot be imported in Triton's Python ({next(iter(errors.values()))})"
        fix = f"pip install {wanted}; all packages are in this repository's requirements.txt"
        raise RuntimeError(f"{why}; run: {fix}")


class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["python_path"]["string_value"]
        if folder:
            sys.path.insert(0, str(Path(__file__).parent) if folder == "bundle" else folder)
        import_all()
        from recsys.export.triton.{module} import TritonPythonModel as Model

        self.model = Model()
        self.model.initialize(args)

    def execute(self, requests):
        return self.model.execute(requests)
'''
REQUIREMENTS = "requirements.txt"  # in the repository; Triton reads only its folders
ALWAYS = ("numpy", "polars", "pyarrow", "pydantic", "rich", "xxhash", "filelock")
RUNTIME = "onnxruntime"
INDEXES = {"ivf": "faiss-cpu", "ivf_pq": "faiss-cpu", "hnsw": "faiss-cpu", "usearch": "usearch", "milvus": "pymilvus"}
MODULES = {"faiss-cpu": "faiss"}  # of packages whose module has another name
HEAD = """\
# What the models of this repository import. Install it into the Python that Triton's Python backend runs:
#     pip install -r requirements.txt
"""
# Some builds of Triton pin numpy 1: with it, pyarrow imports below version 20 only, which runs with numpy 2 as well.
ANY_NUMPY = {"numpy": "", "pyarrow": ">=18,<20"}


@dataclass(frozen=True)
class Options:
    """Options of the repository.

    dense_backend: backend of the graph: onnxruntime, pytorch or python; fil for boosted trees
    python_path: folder from which Triton's Python imports recsys; empty if it is installed there; bundle: the
        repository carries its code
    """

    dense_backend: str = "onnxruntime"
    python_path: str = ""


def write_repository(artefact: Artefact, folder: Path, options: Options) -> None:
    """Write the repository of a complete artefact. Large files are linked, not copied, if the file system can."""
    packages = WRITERS[artefact.kind](artefact, folder, options)
    write_requirements(folder, with_versions(packages))
    if options.python_path == BUNDLE:
        for model in sorted(folder.glob("*/1/model.py")):
            package = Path(recsys.__file__).parent
            shutil.copytree(package, model.parent / package.name, ignore=shutil.ignore_patterns("__pycache__", "conf"))


def _write_retrieval(artefact: Artefact, folder: Path, options: Options) -> list[str]:
    """Write the one model of the Python backend, and return the packages that it imports.

    It takes one history a request: rows are not a batch dimension.
    """
    own = folder / artefact.name
    packages = packages_of(artefact, python_graph=artefact.has_graph)
    inputs = artefact.signature["inputs"]
    types = [(s.name, TYPES[s.datatype]) for s in inputs]
    columns = [f'  {{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] optional: true }}' for name, kind in types]
    lists = [("items", "STRING"), ("scores", "FP32")]
    outputs = [f'  {{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }}' for name, kind in lists]
    lines = _head(artefact.name, "python", 0)
    lines += ["input [", ",\n".join(columns), "]", "output [", ",\n".join(outputs), "]"]
    lines += [_instance("KIND_AUTO"), *_parameter("python_path", options.python_path)]
    _write_model(own, [*lines, *_warm_up(artefact, 0)])
    _write_python(own, "recommend", packages)
    _link(artefact.folder, own / "1" / recommend.FOLDER, leave_out=folder)
    return packages


def _write_ranking(artefact: Artefact, folder: Path, options: Options) -> list[str]:
    """Write the transforms, the graph and their ensemble, and return the packages that the Python models import."""
    name = artefact.name
    first, second = f"{name}_transforms", f"{name}_model"
    signature, backend = artefact.signature, options.dense_backend
    outputs = signature["outputs"]
    lines = [*_head(first, "python"), *_tensors("input", signature["inputs"], optional=True)]
    lines += [*_tensors("output", signature["tensors"]), *BATCHING, _instance()]
    _write_model(folder / first, [*lines, *_parameter("python_path", options.python_path), *_warm_up(artefact)])
    _write_python(folder / first, "transforms", packages_of(artefact, python_graph=False))
    _link(artefact.folder / PIPELINE, folder / first / "1" / transforms.FOLDER)
    steps = [(first, _same(signature["inputs"]), _same(signature["tensors"]))]
    if backend == "fil":
        steps += _write_trees(artefact, folder)
    else:
        numbered = backend == "pytorch"
        lines = [*_head(second, backend), *_tensors("input", signature["tensors"], numbered=numbered)]
        # ONNX and TorchScript outputs are (rows,), which Triton reshapes to the (rows, 1) of the configuration
        reshape = "" if backend == "python" else " reshape { shape: [ ] }"
        lines += _tensors("output", outputs, reshape=reshape, numbered=numbered)
        # TorchScript is frozen with the tables on the CPU
        lines += [*BATCHING, _instance("KIND_CPU" if numbered else "KIND_AUTO")]
        lines += _parameter("python_path", options.python_path) if backend == "python" else []
        _write_model(folder / second, lines)
        for part in ("model.pt",) if numbered else (GRAPH, "tables"):
            _link(artefact.folder / part, folder / second / "1" / part)
        if backend == "python":
            _write_python(folder / second, "graph", packages_of(artefact, python_graph=True))
        steps.append((second, _same(signature["tensors"], numbered), _same(outputs, numbered)))
    _write_model(folder / name, _ensemble(name, artefact, steps))
    return packages_of(artefact, python_graph=backend == "python")


WRITERS = {"ranking": _write_ranking, "retrieval": _write_retrieval}  # by the kind of the artefact


def _write_trees(artefact: Artefact, folder: Path) -> list[Step]:
    """Write the steps of boosted trees, and return them: columns, the trees of each label, and predictions.

    https://github.com/triton-inference-server/fil_backend/blob/main/docs/model_config.md
    """
    name, signature = artefact.name, artefact.signature
    about = artefact.about["fil"]
    matrix = TensorSpec("matrix", "FP32", (-1, about["columns"]))
    scores = [TensorSpec(f"scores_{i}", "FP32", (-1, width)) for i, width in enumerate(about["scores"])]
    graphs = [("columns", signature["tensors"], [matrix]), ("outputs", scores, signature["outputs"])]
    for step, inputs, outputs in graphs:
        model_name = f"{name}_{step}"
        lines = [*_head(model_name, "onnxruntime"), *_tensors("input", inputs), *_tensors("output", outputs)]
        _write_model(folder / model_name, [*lines, *BATCHING, _instance()])
        _link(artefact.folder / FIL / f"{step}.onnx", folder / model_name / "1" / GRAPH)
    steps = [(f"{name}_columns", _same(signature["tensors"]), _same([matrix]))]
    for i, spec in enumerate(scores):
        model_name = f"{name}_trees_{i}"
        input_spec, output_spec = replace(matrix, name="input__0"), replace(spec, name="output__0")
        lines = [*_head(model_name, "fil"), *_tensors("input", [input_spec])]
        lines += [*_tensors("output", [output_spec]), *BATCHING, _instance()]
        lines += _parameter("model_type", "treelite_checkpoint") + _parameter("output_class", "false")
        lines += _parameter("predict_proba", "true" if spec.shape[1] > 1 else "false")
        _write_model(folder / model_name, lines)
        _link(artefact.folder / FIL / f"label_{i}.tl", folder / model_name / "1" / "checkpoint.tl")
        steps.append((model_name, {matrix.name: input_spec.name}, {spec.name: output_spec.name}))
    return [*steps, (f"{name}_outputs", _same(scores), _same(signature["outputs"]))]


def _write_model(folder: Path, config: Iterable[str]) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("\n".join([*config, ""]))


def _write_python(folder: Path, module: str, packages: Iterable[str]) -> None:
    """Write the model.py of a model of the Python backend, which imports one of this package's modules."""
    text = MODEL.replace("{module}", module).replace("{packages}", repr(with_versions(packages)))
    (folder / "1" / "model.py").write_text(text, encoding="utf-8")


def _link(source: Path, target: Path, leave_out: Path | None = None) -> None:
    """Link a file, or the files of a folder without those in `leave_out`; copy where links are impossible."""
    pairs = [(source, target)]
    if source.is_dir():
        files = [f for f in sorted(source.rglob("*")) if f.is_file() and leave_out not in f.parents]
        pairs = [(f, target / f.relative_to(source)) for f in files]
    for file, place in pairs:
        place.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(file, place)


def _ensemble(name: str, artefact: Artefact, steps: Sequence[Step]) -> list[str]:
    lines = [f'name: "{name}"', 'platform: "ensemble"', f"max_batch_size: {MAX_ROWS}"]
    lines += _tensors("input", artefact.signature["inputs"], optional=True)
    lines += _tensors("output", artefact.signature["outputs"])
    lines += ["ensemble_scheduling {", "  step ["]
    shown = []
    for model, inputs, outputs in steps:
        own = ["    {", f'      model_name: "{model}"', "      model_version: -1"]
        own += [f'      input_map {{ key: "{own_name}" value: "{n}" }}' for n, own_name in inputs.items()]
        own += [f'      output_map {{ key: "{own_name}" value: "{n}" }}' for n, own_name in outputs.items()]
        shown.append("\n".join([*own, "    }"]))
    return [*lines, ",\n".join(shown), "  ]", "}"]


def _same(specs: Iterable[TensorSpec], numbered: bool = False) -> dict[str, str]:
    """Return the name of each tensor in the model that has it: NAME, or NAME__INDEX as the PyTorch backend wants it."""
    return {s.name: f"{s.name}__{i}" if numbered else s.name for i, s in enumerate(specs)}


def _head(name: str, backend: str, most_rows: int = MAX_ROWS) -> list[str]:
    versions = "version_policy: { latest: { num_versions: 2 } }"
    return [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {most_rows}", versions]


def _tensors(
    kind: str, specs: Sequence[TensorSpec], *, optional: bool = False, reshape: str = "", numbered: bool = False
) -> list[str]:
    """Return inputs or outputs; the first dimension, the rows, is left out."""
    shown, names = [], _same(specs, numbered)
    for s in specs:
        dims = ", ".join(str(n) for n in s.shape[1:]) or "1"
        more = reshape + (" optional: true" if optional and s.optional else "")
        shown.append(f'  {{ name: "{names[s.name]}" data_type: TYPE_{TYPES[s.datatype]} dims: [ {dims} ]{more} }}')
    return [f"{kind} [", ",\n".join(shown), "]"]


def _instance(kind: str = "KIND_CPU") -> str:
    """Return the one instance. kind: KIND_AUTO for a graph: on each GPU that Triton has, otherwise on the CPU"""
    return f"instance_group [ {{ count: 1 kind: {kind} }} ]"


def _parameter(key: str, value: str) -> list[str]:
    return [f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}']


def _warm_up(artefact: Artefact, batch_size: int = 1) -> list[str]:
    """Return a request that Triton sends before it reports the model as ready: zeros, and missing text.

    Without one if the transforms refuse it, as those of a column of times do, because Triton does not load a model
    whose warm-up fails.
    """
    specs = artefact.signature["inputs"]
    row = {s.name: ["" if s.datatype == "BYTES" else 0] for s in specs}
    try:
        RowTransforms.load(artefact.folder / PIPELINE).arrays_of_columns(row, 1)
    except UserError:
        return []
    inputs = [
        f'    inputs {{ key: "{s.name}" value: {{ data_type: TYPE_{TYPES[s.datatype]} dims: [ 1 ] zero_data: true }} }}'
        for s in specs
    ]
    return ["model_warmup [", "  {", '    name: "one row"', f"    batch_size: {batch_size}", *inputs, "  }", "]"]


def packages_of(artefact: Artefact, python_graph: bool) -> list[str]:
    """Return the names of the packages that the Python models of a repository import.

    python_graph: whether a graph runs in the Python backend
    """
    index = INDEXES.get((artefact.about.get("index") or {}).get("kind", ""))
    return [*ALWAYS, *([RUNTIME] if python_graph else []), *([] if index is None else [index])]


def with_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return module -> requirement, as pip reads it, for each package; without a version if recsys is not installed."""
    try:
        asked = [re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*([^;\s]*)", line) for line in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:
        asked = []
    versions = {m[1]: m[2] for m in asked if m is not None} | ANY_NUMPY
    return {MODULES.get(name, name): f"{name}{versions.get(name, '')}" for name in packages}


def write_requirements(folder: Path, requirements: Mapping[str, str]) -> None:
    """Write what pip installs. requirements: what `with_versions` returned"""
    (folder / REQUIREMENTS).write_text(HEAD + "".join(f"{line}\n" for line in requirements.values()))
