"""Compare the outputs of a loaded model for recorded raw rows with those that the run's own model gave."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recsys.base.errors import UserError
from recsys.export.artefact.folder import EXAMPLES, Artefact
from recsys.files import manifest

if TYPE_CHECKING:
    from recsys.export.artefact.served_ranking import ServedRanking
    from recsys.export.artefact.served_retrieval import ServedRetrieval


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
