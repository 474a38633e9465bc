"""Fit, save, load and evaluate closed-form models in one process: popularity, nearest neighbours, EASE."""

from pathlib import Path
from typing import Any

import torch

from recsys.base.console import bar, say
from recsys.base.errors import NotFinite, UserError
from recsys.base.memory import GIB, available_memory
from recsys.data.features import Fitted
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.loader.training_rows import training_lists
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.evaluators import retrieval_details, write_ranks
from recsys.evaluation.retrieval_counts import Score
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.files import manifest
from recsys.interface.batch import CandidateLists
from recsys.job.build import build_model
from recsys.job.kinds import protocol_of
from recsys.job.run_config import RunConfig
from recsys.sharding.sharded_checkpoint import all_finite
from recsys.sharding.stored_checkpoint import load_plain
from recsys.training.checkpoints import write_fitted_checkpoint
from recsys.training.loaders import loader_on_cpu
from recsys.training.trainer import as_counts

MODEL_STATE = "model.pt"


def fit_model(cfg: RunConfig, prepared: Prepared) -> Any:
    """Return the model, fitted to all training items of each group."""
    model = build_model(cfg, prepared.fitted.features, torch.device("cpu"))
    check_memory(model)
    model.set_candidates(candidates_of(prepared.fitted))
    lists = training_lists(prepared, model.ageing).in_table(model.rows)
    with bar("fitting", model.rows, "items") as shown:
        model.advance = shown.advance
        model.fit(lists)
        del model.advance
    if odd := next((n for n, x in model.state_dict().items() if not all_finite(x)), None):
        raise NotFinite(
            f"the fitted {odd} is NaN or infinite, so no checkpoint was written; try other values of model.*"
        )
    return model


def check_memory(model: Any) -> None:
    """Print the memory of the model's large matrices. Raise UserError if it is not available."""
    matrices = model.memory()
    if not matrices:
        return
    needed, free = sum(matrices.values()), available_memory()
    parts = " + ".join(f"{size / GIB:,.2f} GiB ({name})" for name, size in matrices.items())
    room = "unknown" if free is None else f"{free / GIB:,.2f} GiB"
    say(f"memory: {parts}; available: {room}")
    if free is not None and needed > free:
        raise UserError(
            f"model: fitting needs {needed / GIB:,.2f} GiB, but {free / GIB:,.2f} GiB are available; drop rare items "
            "(data.sparse.ITEM.min_count), lower model.dim if the model has it, or use model=gf_cf or item_knn, whose "
            "matrices are sparse"
        )


def save(model: Any, path: Path) -> Path:
    """Write the model as a checkpoint of the run, and return its folder."""
    return write_fitted_checkpoint(path, lambda folder: torch.save(model.state_dict(), folder / MODEL_STATE))


def load(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> Any:
    """Load the model that `save` wrote. Raises DamagedFile if it is not as it was written."""
    manifest.check(checkpoint)
    model = build_model(cfg, fitted.features, torch.device("cpu"))
    model.load_state_dict(load_plain(checkpoint / MODEL_STATE))
    return model


def measure_split(
    model: Any, cfg: RunConfig, prepared: Prepared, split: str, run: Path, *, write: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of a split's queries, and what `Evaluator.details` returns.

    write: write the ranks of the targets to the run's folder
    """
    popularity = candidates_of(prepared.fitted).popularity.numpy()
    metrics, n = RetrievalMetrics(protocol_of(cfg), popularity), len(popularity)
    loader = loader_on_cpu(cfg, prepared, split)
    with bar(f"ranking {split}", loader.rows, "samples") as shown, torch.no_grad():
        for batch in loader:
            targets, history = batch.targets, batch.history
            assert targets is not None and history is not None
            rows, score = torch.arange(batch.rows), scores(model, history, n)
            metrics.update(rows, score, targets, history, batch.first_row, batch.weight)
            shown.advance(batch.rows)
    measured = as_counts(metrics.compute())
    if metrics.not_finite:
        raise NotFinite(f"{split}: the scores of some items are NaN or infinite; try other values of model.*")
    names, most = list(cfg.metrics.slices), cfg.metrics.slice_values
    details = retrieval_details(metrics, names, loader, prepared.fitted, most)
    if write and cfg.metrics.predictions:
        write_ranks(metrics, run / f"{split}_ranks.parquet")
    return measured, details


def scores(model: Any, history: CandidateLists, n: int) -> Score:
    """Return a function that scores consecutive rows of the history.

    Candidates that the model was not fitted to (of `n` in total) score -inf.
    """

    def score(rows: torch.Tensor, first: int, stop: int) -> torch.Tensor:
        known = history.slice(int(rows[0]), int(rows[-1]) + 1).in_table(model.rows)
        return torch.nn.functional.pad(model.score(known), (0, n - model.rows), value=-torch.inf)[:, first:stop]

    return score
