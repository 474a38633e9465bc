"""Compare an artefact's outputs for recorded raw rows with those that the run's own model gave."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from recsys.base.errors import UserError
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


def verify(folder: Path, examples: Path | None = None) -> Verified:
    """Load an artefact and compare its outputs with recorded ones.

    examples: a JSON file of rows and outputs; by default, the artefact's own

    Raises UserError if an output differs by more than the artefact's tolerance.
    """
    artefact = Artefact.open(folder)
    model = model_of(artefact, exact=True)  # an index finds most of the items, of which the manifest says the share
    differences = check_examples(model, artefact, examples)
    return Verified(len(differences), float(max(differences, default=0.0)), float(artefact.about["tolerance"]))


def main() -> None:
    """Verify the artefact in sys.argv[1], with the examples in sys.argv[2] if given, and print the result as JSON."""
    examples = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        result = verify(Path(sys.argv[1]), examples)
    except UserError as e:
        sys.stderr.write(f"{e}\n")
        sys.exit(2)
    loaded = [m for m in MODULES if m in sys.modules]
    sys.stdout.write(json.dumps({"rows": result.rows, "difference": result.difference, "imported": loaded}) + "\n")


if __name__ == "__main__":
    main()
