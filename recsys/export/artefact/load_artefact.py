"""Load the model of an artefact, and compare its outputs for recorded raw rows with those of the run's own model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recsys.base.errors import UserError
from recsys.base.printable import escaped
from recsys.export.artefact.apply_delta import applied, is_delta
from recsys.export.artefact.folder import EXAMPLES, Artefact
from recsys.export.artefact.graph_io import providers
from recsys.export.artefact.served_ranking import ServedRanking
from recsys.export.artefact.served_retrieval import ServedRetrieval
from recsys.files import manifest

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.online.servable import Servable

SERVABLES: dict[str, type[ServedRanking | ServedRetrieval]] = {
    model.kind: model for model in (ServedRanking, ServedRetrieval)
}
MODULES = ("torch", "pytorch_lightning", "torchrec")  # which the process that verifies must not have loaded


def load(
    folder: str | Path,
    *,
    threads: int = 1,
    digests: bool = True,
    before: Servable | None = None,
    device: str = "auto",
) -> ServedRanking | ServedRetrieval:
    """Load the model of an artefact.

    Args:
        folder: a folder that `python -m recsys.export` wrote. A delta is applied to its base, which must be beside it.
        threads: number of threads of one call.
        digests: whether to read every file and compare its digest; otherwise only sizes are compared.
        before: the version of the model that answers now; what is equal in the vocabularies is shared.
        device: auto | cpu | cuda. On a GPU, the recorded examples are compared, as those of an export are on its CPU.

    Raises:
        UserError: the folder is not an artefact of this version, onnxruntime cannot load it, or a GPU gives other
            outputs than the run.
        DamagedFile: a file is missing or is not as it was written.
    """
    place = Path(folder)
    if is_delta(place):
        place, digests = applied(place), False  # they were compared when it was applied
    fitted = getattr(before, "fitted", None)
    return model_of(Artefact.open(place, digests=digests), threads, fitted, device=device)


def model_of(
    artefact: Artefact,
    threads: int = 1,
    before: Fitted | None = None,
    *,
    exact: bool = False,
    device: str = "auto",
) -> ServedRanking | ServedRetrieval:
    """Load the model of an artefact whose files have been checked; threads and device are those of `load`.

    before: transforms whose tables are shared where they are equal
    exact: whether a retrieval model compares queries with all items, even if the artefact has an index
    """
    kind = SERVABLES[artefact.kind]
    with manifest.from_elsewhere(artefact.folder):
        model = kind(artefact, threads, before, exact=exact, device=device)
        model.check_example()
    if device != "cpu" and artefact.has_graph and len(providers(device)) > 1:
        searches = artefact.about.get("index") and not exact
        check_examples(kind(artefact, threads, before, exact=True, device=device) if searches else model, artefact)
    return model


def check_examples(
    model: ServedRanking | ServedRetrieval, artefact: Artefact, examples: Path | None = None
) -> np.ndarray:
    """Return the difference of each recorded row or query, (n,).

    model: the artefact's model, without an index of items
    examples: a JSON file of rows and outputs; by default, the artefact's own

    Raises UserError if an output differs by more than the artefact's tolerance.
    """
    file = examples or artefact.folder / EXAMPLES
    recorded = manifest.read_json(file, "rows", "outputs")
    with manifest.from_elsewhere(artefact.folder):
        differences = model.differences(recorded)
    tolerance = float(artefact.about["tolerance"])
    worst = int(differences.argmax()) if len(differences) else 0
    if len(differences) and not differences[worst] <= tolerance:  # a NaN is a difference too
        raise UserError(
            f"{artefact.folder}: {model.unit} {worst} of {file.name} gives an output that differs by "
            f"{differences[worst]:.2g} from the run's, more than {tolerance:g}; the artefact must not be served"
        )
    return differences


@dataclass(frozen=True)
class Verified:
    """The result: the number of rows (or queries) compared, and the largest difference of an output."""

    rows: int
    difference: float
    tolerance: float


def verify(folder: Path) -> Verified:
    """Load an artefact and compare its outputs with its own recorded ones.

    Raises UserError if an output differs by more than the artefact's tolerance.
    """
    return next(_verified(folder, None))


def _verified(folder: Path, *files: Path | None) -> Iterator[Verified]:
    """Yield the comparison with each JSON file of rows and outputs. None stands for the artefact's own file."""
    artefact = Artefact.open(folder)
    model = model_of(artefact, exact=True)  # an index finds most of the items, of which the manifest says the share
    for file in files:
        differences = check_examples(model, artefact, file)
        yield Verified(len(differences), float(max(differences, default=0.0)), float(artefact.about["tolerance"]))


def print_verified() -> None:
    """Verify the artefact in sys.argv[1], also with the examples in sys.argv[2:], and print the results as JSON."""
    try:
        results = [(v.rows, v.difference) for v in _verified(Path(sys.argv[1]), None, *map(Path, sys.argv[2:]))]
    except UserError as e:
        sys.stderr.write(f"{escaped(str(e))}\n")
        sys.exit(2)
    sys.stdout.write(json.dumps([results, [m for m in MODULES if m in sys.modules]]) + "\n")
