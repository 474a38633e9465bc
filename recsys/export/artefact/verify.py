"""Compare an artefact's outputs for recorded raw rows with those that the run's own model gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recsys.base.errors import UserError
from recsys.base.printable import escaped
from recsys.export.artefact.compare_examples import check_examples
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.load_artefact import model_of

MODULES = ("torch", "pytorch_lightning", "torchrec")  # which the process that verifies must not have loaded


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


def main() -> None:
    """Verify the artefact in sys.argv[1], also with the examples in sys.argv[2:], and print the results as JSON."""
    try:
        results = [(v.rows, v.difference) for v in _verified(Path(sys.argv[1]), None, *map(Path, sys.argv[2:]))]
    except UserError as e:
        sys.stderr.write(f"{escaped(str(e))}\n")
        sys.exit(2)
    sys.stdout.write(json.dumps([results, [m for m in MODULES if m in sys.modules]]) + "\n")


if __name__ == "__main__":
    main()
