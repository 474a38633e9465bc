"""Load the model of an artefact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recsys.export.artefact.applied_versions import applied
from recsys.export.artefact.apply_delta import is_delta
from recsys.export.artefact.compare_examples import check_examples
from recsys.export.artefact.folder import GRAPH, SCORER, Artefact
from recsys.export.artefact.session import providers
from recsys.files import manifest
from recsys.online.servable import Query

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.online.servable import Servable


def load(
    folder: str | Path,
    *,
    threads: int = 1,
    digests: bool = True,
    before: Servable | None = None,
    device: str = "auto",
) -> Servable:
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
) -> Servable:
    """Load the model of an artefact whose files have been checked.

    Args:
        artefact: the artefact.
        threads: number of threads of one call.
        before: transforms whose tables are shared where they are equal.
        exact: whether a retrieval model compares queries with all items, even if the artefact has an index.
        device: auto | cpu | cuda, as for `load`.
    """

    def made(exact: bool) -> Servable:
        if artefact.kind == "ranking":
            from recsys.export.artefact.served_ranking import ServedRanking

            return ServedRanking(artefact, threads, before, device=device)
        from recsys.export.artefact.served_retrieval import ServedRetrieval

        return ServedRetrieval(artefact, threads, before, exact=exact, device=device)

    with manifest.from_elsewhere(artefact.folder):
        model = _tried(made(exact))
    has_graph = any((artefact.folder / name).is_file() for name in (GRAPH, SCORER))
    if device != "cpu" and has_graph and len(providers(device)) > 1:
        check_examples(made(exact=True) if artefact.about.get("index") and not exact else model, artefact)
    return model


def _tried(model: Servable) -> Servable:
    """Return a model after one call with its recorded example. Raises ValueError if its graph does not fit."""
    if model.kind == "retrieval":
        model.recommend([Query(model.example)])
    elif model.example:
        features = model.features(model.example)
        for name, values in model.run(features).items():
            if values.dtype.kind != "f" or len(values) != features.rows:
                raise ValueError(f"{name} has shape {list(values.shape)} for {features.rows} rows")
    return model
