"""Write what explains the metrics of a split: curves, slices and predictions."""

from pathlib import Path
from typing import Any

from recsys.config.run_config import RunConfig
from recsys.data.loader import ParquetLoader
from recsys.data.transforms import Fitted
from recsys.evaluation.evaluators import Evaluator
from recsys.files.atomic import write_json


def write_details(
    cfg: RunConfig, fitted: Fitted, evaluator: Evaluator, loader: ParquetLoader, split: str, run: Path | None
) -> tuple[dict[str, Any], dict[str, list[Any]] | None]:
    """Return the metrics of slices and, if `run` is a folder, write curves and predictions to it and return the curves.

    All describe the rows that the evaluator has measured last.

    Args:
        cfg: the run's config.
        fitted: has the vocabularies, which name values.
        evaluator: has measured the split.
        loader: the loader of the split.
        split: validation or test.
        run: the run's folder; None writes nothing.
    """
    names = list(cfg.metrics.slices)
    sliced = evaluator.slices(names, loader, fitted, cfg.metrics.slice_values) if names else {}
    if run is None:
        return sliced, None
    if (curves := evaluator.curves(cfg.metrics.bins)) is not None:
        write_json(run / "curves.json", {split: curves})
    if cfg.metrics.predictions:
        evaluator.write(run, split)
    return sliced, curves
