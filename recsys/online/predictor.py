"""Predict probabilities for raw rows in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.labels import Label, columns, predict

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.online.raw_rows import RawRows


@dataclass
class Predictor:
    """A run's ranking model and its fitted transforms, loaded into memory."""

    module: Any
    rows: RawRows
    labels: tuple[Label, ...] = ()  # with their calibration; by default, the labels of `rows`

    def __post_init__(self) -> None:
        self.labels = self.labels or self.rows.fitted.labels

    @property
    def fitted(self) -> Fitted:
        return self.rows.fitted

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Predictor:
        """Load a predictor from a run's folder.

        The checkpoint may have been written with any number of processes and any sharding plan.
        """
        from recsys.evaluation.calibration import load as load_calibration
        from recsys.online.raw_rows import RawRows
        from recsys.training.fitted_ranking import restored_ranking
        from recsys.training.run_dir import choose_checkpoint, open_run

        cfg, path = open_run(run)
        if not cfg.kind.scores_rows:
            raise UserError(
                f"run={run}: its model retrieves items and cannot score rows; use recsys.online.recommender.Recommender"
            )
        rows = RawRows.load(path)
        module = restored_ranking(cfg, rows.fitted, choose_checkpoint(path, checkpoint))
        return cls(module, rows, load_calibration(path, rows.fitted.labels))

    def predict(self, raw: pl.DataFrame) -> pl.Series | pl.DataFrame:
        """Return the probabilities of raw rows, (rows,) Float32; null for a row that cannot be read.

        If the rows have several labels, or one that is not binary, return a data frame with a column for each
        prediction: a probability, a number, or NAME_CLASS with the probability of a class.

        Columns are named as in the raw files or as in the YAML. The side tables of training are joined, except for
        joined columns that the frame already has. Columns that no feature needs are ignored. Raises UserError for a
        missing column.
        """
        from recsys.data.features.blocks import LINE

        frame = self.rows.from_frame(raw)
        parsed, _ = self.rows.parse(frame)
        scores, _ = self.score(self.rows.in_context(parsed))
        scores = frame.select(LINE).join(scores, on=LINE, how="left", maintain_order="left").drop(LINE)
        return scores["probability"] if scores.columns == ["probability"] else scores

    def score(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return two data frames: line and predictions of each row, and shares of out-of-vocabulary ids.

        The second has a column for each sparse feature, with the share of its ids that are 0. `frame` has parsed rows
        with group features.
        """
        import torch

        from recsys.data.features.batch_tensors import batch_of
        from recsys.data.features.blocks import LINE

        applied = self.fitted.apply(frame)
        features = self.fitted.features
        if frame.height:
            with torch.no_grad():
                _, logits = self.module.dmp(batch_of(applied, features, self.fitted.matrices))
            values = predict(logits, self.labels).numpy()
        else:
            values = np.zeros((0, features.logits), np.float32)
        unknown = applied.select(
            (pl.col(f.name).explode() if f.multi_valued else pl.col(f.name)).eq(0).mean().alias(f.name)
            for f in features.sparse
        )
        predictions = [pl.Series(name, values[:, i], dtype=pl.Float32) for i, name in enumerate(columns(self.labels))]
        return frame.select(LINE).with_columns(predictions), unknown
