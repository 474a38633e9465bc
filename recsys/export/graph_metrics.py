"""Metrics of a graph on the prepared test rows, to compare with the metrics of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from recsys.batch import Batch
from recsys.cli.console import bar
from recsys.config.run_config import RunConfig
from recsys.data.arrays import Arrays, single_valued
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import Ranks
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.export.artefact.inputs import graph_inputs
from recsys.features import FeatureSpec, Label
from recsys.training.trainer import split_loader


def measure(session: Any, cfg: RunConfig, prepared: Prepared, labels: tuple[Label, ...]) -> dict[str, float]:
    """Return the metrics of the graph's predictions for all rows of the test split.

    Args:
        session: session of the graph.
        cfg: the run's config.
        prepared: the data that the run is measured on.
        labels: the labels with their calibration, which the graph applies.
    """
    plain = tuple(label.uncalibrated() for label in labels)
    evaluator = LabelsEvaluator(plain, cfg.metrics.exact_rows, cfg.metrics.bins)
    loader = split_loader(cfg, prepared, "test", Ranks(0, 0, 1, 1))
    features = prepared.fitted.features
    names = [o.name for o in session.get_outputs()]
    with bar("measuring the graph", loader.rows, "samples") as shown:
        for batch in loader:
            inputs = graph_inputs(_arrays_of(batch, features), features)
            predictions = np.stack(session.run(names, inputs.feed), axis=1)
            evaluator.add(torch.from_numpy(predictions), batch)
            shown.advance(batch.rows)
    return evaluator.compute()


def _arrays_of(batch: Batch, features: FeatureSpec) -> Arrays:
    """Return the features of a batch as arrays."""
    columns = batch.sparse.to_dict()
    singles = [columns[n].values().int().numpy() for n in single_valued(features)]
    ids = np.stack(singles, axis=1) if singles else np.zeros((batch.rows, 0), np.int32)
    lists = [f.name for f in features.sparse if f.multi_valued]
    values = {n: columns[n].values().int().numpy() for n in lists}
    lengths = {n: columns[n].lengths().int().numpy() for n in lists}
    return Arrays(batch.dense.numpy(), ids, values, lengths)
