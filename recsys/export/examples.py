"""Raw rows and the outputs that they must have: what proves that an artefact does what its run does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays
from recsys.data.features.blocks import LINE, ORDER
from recsys.data.raw import read_sources
from recsys.files.atomic import finite
from recsys.interface.labels import Label, ScalarLabel, columns, predict
from recsys.online.raw_rows import RawRows

ROUNDING, STEADY = 1e-6, 5e-6  # relative, of logits and of predictions
RECORDED, COMPARED = 256, 10_000  # rows that an artefact holds, and rows that are compared when it is exported


@dataclass(frozen=True)
class Examples:
    """Raw rows, and the output of each: for ranking, numbers by name; for retrieval, one list a group of rows."""

    rows: list[Any]
    outputs: Any
    more: Mapping[str, Any]
    dependent: bool = False  # whether the output of a row depends on the rows before it

    @property
    def recorded(self) -> Examples:
        """The examples that an artefact holds."""
        return self._part(0, RECORDED)

    @property
    def compared(self) -> Examples:
        """The other examples, which are compared once; all if rows depend on those before them."""
        return self if self.dependent else self._part(RECORDED, None)

    def _part(self, start: int, stop: int | None) -> Examples:
        if isinstance(self.outputs, dict):
            outputs: Any = {name: x[start:stop] for name, x in self.outputs.items()}
        else:
            outputs = self.outputs[start:stop]
        return Examples(self.rows[start:stop], outputs, self.more)

    def write(self, file: Path) -> None:
        """Write the examples as JSON; times and other values that JSON lacks are text."""
        value = finite({"rows": self.rows, "outputs": self.outputs, **self.more})
        file.write_text(json.dumps(value, default=str) + "\n", encoding="utf-8")


def raw_frame(rows: RawRows, files: list[Path], most: int) -> pl.DataFrame:
    """Return the first rows of the files, at most `most`, with the raw columns that features read."""
    data, frames, have = rows.fitted.data, list[pl.DataFrame](), 0
    for file in files:
        source = read_sources.prediction_source(data, file)
        for block in read_sources.read_blocks(source, file, unlabelled=True, complete=lambda frame: frame):
            frame = block.frame.select(n for n in rows.types if n in block.frame.columns)
            frames.append(frame.head(most - have))
            have += frames[-1].height
            if have >= most:
                return pl.concat(frames, how="diagonal_relaxed")
    if not have:
        raise UserError("the run's raw files hold no rows; name files with rows=FILES")
    return pl.concat(frames, how="diagonal_relaxed")


def scored(rows: RawRows, raw: pl.DataFrame, logits: Callable[[Arrays], Tensor], labels: tuple[Label, ...]) -> Examples:
    """Return the rows that can be read and their predictions, by the run's own transforms and model.

    logits: the model, from the features of B rows to logits (B, L)
    """
    parsed, _ = rows.parse_frame(raw)
    if dependent := rows.fitted.data.group is not None:  # the first of them must not depend on others
        parsed = parsed.sort(ORDER, maintain_order=True)
    raw = raw[parsed[LINE]]
    applied = rows.fitted.apply(rows.in_context(parsed))
    arrays = Arrays.from_frame(applied, rows.fitted.features, rows.fitted.matrices)
    with torch.no_grad():
        scores = logits(arrays)
    is_isotonic = any(isinstance(label, ScalarLabel) and label.isotonic for label in labels)
    if is_isotonic and not (steady := is_steady(scores, labels)).all():
        return scored(rows, raw.filter(steady.numpy()), logits, labels)  # again: others may depend on these rows
    predictions = predict(scores, labels).numpy()
    outputs = {name: predictions[:, i].tolist() for i, name in enumerate(columns(labels))}
    return Examples(raw.to_dicts(), outputs, {}, dependent=dependent)


def is_steady(logits: Tensor, labels: tuple[Label, ...]) -> Tensor:
    """Return which rows' predictions rounding does not decide, (B,): an isotonic calibration may rise steeply."""
    noise = ROUNDING * (1 + logits.abs())
    low, high = predict(logits - noise, labels), predict(logits + noise, labels)
    return ((high - low).abs() <= STEADY * (1 + high.abs())).all(dim=1)
