"""Probabilities for raw rows in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.errors import UserError

if TYPE_CHECKING:
    from recsys.data.transforms import Fitted


@dataclass
class Predictor:
    """A run's model and transforms, in this process."""

    module: Any
    fitted: Fitted

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Predictor:
        """From a run's folder, whatever world size and plan wrote its checkpoint."""
        from recsys.config.kinds import kind_of
        from recsys.data.transforms import Fitted
        from recsys.training.run_dir import choose_checkpoint, open_run
        from recsys.training.trainer import restored_module

        cfg, path = open_run(run)
        if not kind_of(cfg).scores_rows:
            raise UserError(
                f"run={run}: its model retrieves items, and scores no rows; use recsys.serving.recommender.Recommender"
            )
        fitted = Fitted.load(path)
        return cls(restored_module(cfg, fitted, choose_checkpoint(path, checkpoint)), fitted)

    def predict(self, raw: pl.DataFrame) -> pl.Series:
        """(rows,) probabilities of raw rows; null where a number cannot be read. Extra columns are ignored."""
        from recsys.data.group_features import add_group_features
        from recsys.data.raw.blocks import LINE, Block
        from recsys.data.transforms import parse_rows

        frame = raw.with_row_index(LINE).cast({LINE: pl.Int64})
        rows, _ = parse_rows(self.fitted.data, Block(Path("frame"), frame), labelled=False)
        scores, _ = self.score(add_group_features(self.fitted.data, rows))
        scored = frame.select(LINE).join(scores, on=LINE, how="left", maintain_order="left")
        return scored["probability"]

    def score(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Of typed rows: their line and probability, how many of each sparse feature's ids are 0."""
        import torch

        from recsys.data.loader import batch_of
        from recsys.data.raw.blocks import LINE

        applied = self.fitted.apply(frame)
        features = self.fitted.features
        if frame.height:
            with torch.no_grad():
                _, logits = self.module.dmp(batch_of(applied, features, self.fitted.matrices))
            probability = torch.sigmoid(logits[:, 0]).numpy()
        else:
            probability = np.zeros(0, np.float32)
        unknown = applied.select(
            (pl.col(f.name).explode() if f.multi_valued else pl.col(f.name)).eq(0).mean().alias(f.name)
            for f in features.sparse
        )
        return frame.select(LINE).with_columns(pl.Series("probability", probability, dtype=pl.Float32)), unknown
