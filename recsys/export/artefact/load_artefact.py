"""Load the model of an artefact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recsys.export.artefact.apply_delta import applied, is_delta
from recsys.export.artefact.compare_examples import check_examples
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.served_ranking import ServedRanking
from recsys.export.artefact.served_retrieval import ServedRetrieval
from recsys.export.artefact.session import providers
from recsys.files import manifest

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.online.servable import Servable

SERVABLES: dict[str, type[ServedRanking | ServedRetrieval]] = {
    model.kind: model for model in (ServedRanking, ServedRetrieval)
}


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
