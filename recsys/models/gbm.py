"""Gradient-boosted decision trees: Friedman, Greedy Function Approximation: A Gradient Boosting Machine, 2001,
https://doi.org/10.1214/aos/1013203451.

The baseline that a deep ranking model must beat. The libraries are in models/common/boosters.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.base.ranges import MAX_GRADE
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import BinaryLabel, Label, NumberLabel
from recsys.models.common.boosters import BoosterSettings, Fitting, GroupOrder, TreeColumns, TreeRows, Trees, booster_of
from recsys.models.protocols import Batches, FittedRankingModel

Library = Literal["lightgbm", "xgboost", "catboost"]
Count = Annotated[int, Field(ge=1, le=2**20)]
Part = Annotated[float, Field(gt=0, le=1)]


class GBM(nn.Module, FittedRankingModel):
    """Boosted trees, fitted to each label by itself.

    A tree reads the dense columns and the ids of single-valued sparse features. Ids of a table with at most
    `max_categories` rows are categories, 0 (unknown values) among them. Other ids are numbers: a vocabulary is ordered
    by frequency, so that a split divides frequent from rare values. A multi-valued feature has three columns: the
    number of its ids, the first and the last of them (0 if it has none).

    With loss=pairwise, LightGBM fits the order of the rows of groups: LambdaMART (Burges, 2010), for binary labels and
    whole numbers of 0 to 30. Labels of classes are fitted as always.

    Args:
        library: the library that fits the trees.
        trees: number of trees of a label at most; for classes, of each class.
        leaves: number of leaves of a tree at most.
        learning_rate: share of each tree that is added to the sum.
        min_rows: least number of rows of a leaf. XGBoost counts second derivatives of the loss instead, p (1 - p) of a
            row whose probability is p.
        l2: regularisation of the values of leaves.
        row_share: share of the rows that each tree sees, drawn by the run's seed.
        column_share: share of the columns that each tree sees.
        max_categories: largest table whose ids are categories.
        patience: stop after this many trees without a lower loss of the validation rows, and keep the trees up to the
            lowest one; None fits all trees.
    """

    orders_groups = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        library: Library = "lightgbm",
        trees: Count = 2000,
        leaves: Annotated[int, Field(ge=2, le=2**17)] = 63,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.05,
        min_rows: Count = 20,
        l2: NonNegativeFloat = 0.0,
        row_share: Part = 1.0,
        column_share: Part = 1.0,
        max_categories: Annotated[int, Field(ge=0, le=2**24)] = 10_000,
        patience: Count | None = 50,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.booster = booster_of(library, load=device is None or device.type != "meta")
        self._settings = BoosterSettings(
            *(trees, leaves, learning_rate, min_rows, l2, row_share, column_share, patience),
            classes=0,
            seed=0,
            threads=1,
        )
        self.columns = columns_of(features, max_categories)
        self.fitted: list[Any] = []  # of each label, in the library's own class
        self._contents: list[bytes] = []

    def order_groups(self, order: GroupOrder) -> None:
        self._settings = replace(self._settings, order=order)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, L)."""
        matrix, threads = self.matrix(dense, sparse), torch.get_num_threads()
        scores = [self.booster.scores(trees, self.columns, matrix, threads) for trees in self.fitted]
        parts = [np.asarray(x, np.float32).reshape(len(matrix), -1) for x in scores]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def fit(self, training: Batches, validation: Batches | None, *, seed: int, threads: int) -> None:
        """Fit trees to each label, with the rows that have it.

        Args:
            validation: rows that decide when to stop; None fits all trees.
            seed: seed of the rows and columns that each tree sees.
        """
        multi = [f.name for f in self.features.sparse if f.multi_valued]
        if multi:
            say(f"multi-valued features enter as their number of ids, first and last id: {', '.join(multi)}")
        rows = self._read(training, "train")
        held_out = None if validation is None else self._read(validation, "validation")
        self.fitted, self._contents = [], []
        for i, label in enumerate(self.features.labels):
            is_number, several = isinstance(label, NumberLabel), label.width if label.width > 1 else 0
            settings = replace(self._settings, classes=None if is_number else several, seed=seed, threads=threads)
            settings = replace(settings, order=None) if several else settings
            ordered = settings.order is not None
            label_rows = rows.of_label(i, label, ordered=ordered)
            own_held_out = None if held_out is None else held_out.of_label(i, label, unsampled=True, ordered=ordered)
            if label_rows is None:
                raise UserError(f"data.labels.{label.name}: no training row has this label; leave the label out")
            trees = self._fit_label(label, label_rows, own_held_out, settings)
            self._contents.append(trees.content)
            self.fitted.append(self.booster.load(trees.content))

    def _fit_label(
        self, label: Label, training: TreeRows, validation: TreeRows | None, settings: BoosterSettings
    ) -> Trees:
        """Fit trees to one label, and say how many there are."""
        several_labels = len(self.features.labels) > 1
        title = f"fitting {label.name}" if several_labels else "fitting"
        best, watched = ("lowest", "loss") if settings.order is None else ("highest", settings.order.metric)
        try:
            with bar(title, settings.trees, "trees") as shown:

                def on_tree(loss: float | None) -> None:
                    shown.note = "" if loss is None else f"validation {watched} {loss:.5f}"
                    shown.advance(1)

                trees = self.booster.fit(Fitting(self.columns, training, validation, settings, on_tree))
        except Exception as e:
            if isinstance(e, UserError) or not type(e).__module__.startswith(("lightgbm", "xgboost", "_catboost")):
                raise
            raise UserError(f"model: {label.name}: {str(e).strip().splitlines()[0]}") from e
        why = "no validation row has this label, so that nothing limits their number"
        if validation is not None:
            why = "all of them" if settings.patience is None else f"the {best} {watched} of the validation rows"
        loss = "" if trees.loss is None else f" {trees.loss:.5f}"
        say(f"{label.name}: {trees.count:,} of at most {settings.trees:,} trees ({why}{loss})")
        return trees

    def _read(self, batches: Batches, split: str) -> "_TreeTable":
        """Read all rows into one matrix."""
        table = _TreeTable.empty(batches.rows, self.columns, self.features)
        first = 0
        with bar(f"reading {split}", batches.rows, "samples") as shown:
            for batch in batches:
                table.put(first, self.matrix(batch.dense, batch.sparse), batch)
                first += batch.rows
                shown.advance(batch.rows)
        return table

    def matrix(self, dense: Tensor, sparse: KeyedJaggedTensor) -> np.ndarray:
        """Return the trees' input, the columns of `columns`: dense (B, D), F keys of B bags -> (B, C) float32."""
        out = np.empty((len(dense), len(self.columns.names)), np.float32)
        width = self.features.dense_width
        out[:, :width] = dense.numpy()
        bags = sparse.to_dict()
        parts: list[np.ndarray] = []
        for f in self.features.sparse:
            values = bags[f.name].values().numpy()
            if not f.multi_valued:
                parts.append(values)
                continue
            lengths = bags[f.name].lengths().numpy()
            stops = np.cumsum(lengths)
            padded = np.append(values, 0)  # an empty bag at the end starts after the last value
            first, last = (np.where(lengths > 0, padded[at], 0) for at in (stops - lengths, stops - 1))
            parts += [lengths, first, last]
        for i, part in enumerate(parts):
            out[:, width + i] = part
        return out

    def save(self, folder: Path) -> None:
        """Write the trees of each label to a file in the library's own format."""
        for i, content in enumerate(self._contents):
            self._file(folder, i).write_bytes(content)

    def load(self, folder: Path) -> None:
        """Read the trees of each label."""
        self._contents = [self._file(folder, i).read_bytes() for i in range(len(self.features.labels))]
        self.fitted = [self.booster.load(content) for content in self._contents]

    def _file(self, folder: Path, label: int) -> Path:
        return folder / f"label_{label}.{self.booster.suffix}"


def columns_of(features: FeatureSpec, max_categories: int) -> TreeColumns:
    """Return the columns that trees read: dense ones, then one of each single-valued feature and three of others."""
    names = [f"{f.name}_{i}" if f.width > 1 else f.name for f in features.dense for i in range(f.width)]
    rows: list[int | None] = [None] * len(names)
    for f in features.sparse:
        of_ids = [f"{f.name}_first", f"{f.name}_last"] if f.multi_valued else [f.name]
        count = [f"{f.name}_count"] if f.multi_valued else []
        names += [*count, *of_ids]
        rows += [*(None for _ in count), *(f.cardinality if f.cardinality <= max_categories else None for _ in of_ids)]
    return TreeColumns(tuple(names), tuple(rows))


class _TreeTable:
    """Rows in memory: matrix (R, C), labels (R, T) and weight (R,) or None, float32, and group (R,) int64 or None."""

    def __init__(
        self, matrix: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, group: np.ndarray | None
    ) -> None:
        self.matrix, self.labels, self.weight, self.group = matrix, labels, weight, group

    @classmethod
    def empty(cls, rows: int, columns: TreeColumns, features: FeatureSpec) -> "_TreeTable":
        matrix = np.empty((rows, len(columns.names)), np.float32)
        labels = np.empty((rows, len(features.labels)), np.float32)
        weight = np.empty(rows, np.float32) if features.weighted else None
        return cls(matrix, labels, weight, np.empty(rows, np.int64) if features.grouped else None)

    def put(self, first: int, matrix: np.ndarray, batch: Batch) -> None:
        """Set rows from `first` on."""
        at = slice(first, first + len(matrix))
        self.matrix[at], self.labels[at] = matrix, batch.labels.numpy()
        if self.weight is not None:
            assert batch.weight is not None
            self.weight[at] = batch.weight.numpy()
        if self.group is not None:
            assert batch.group is not None
            self.group[at] = batch.group.numpy()

    def of_label(self, index: int, label: Label, *, unsampled: bool = False, ordered: bool = False) -> TreeRows | None:
        """Return the rows that have a label, or None; numbers are standardised.

        unsampled: weight negatives as if they had been sampled like the negatives of the training rows, so that losses
            are comparable
        ordered: return rows with their groups, and labels as they are

        Raises UserError if `ordered` is set and a label is not a grade.
        """
        values = np.ascontiguousarray(self.labels[:, index])
        has = np.isfinite(values)
        if not has.any():
            return None
        matrix, weight, group = self.matrix, self.weight, self.group
        if not has.all():
            matrix, values = matrix[has], values[has]
            weight, group = (None if x is None else x[has] for x in (weight, group))
        if ordered:
            if len(odd := values[(values < 0) | (values > MAX_GRADE) | (values % 1 != 0)]):
                why = f"trees order rows by grades, whole numbers of 0 to {MAX_GRADE}, and one is {odd[0]:g}"
                raise UserError(f"data.labels.{label.name}: {why}; write other grades, or leave loss= out")
            return TreeRows(matrix, values, weight, group)
        if unsampled and isinstance(label, BinaryLabel) and label.sampled < 1:
            share = np.where(values > 0, 1.0, label.sampled).astype(np.float32)
            weight = share if weight is None else share * weight
        return TreeRows(matrix, label.targets(torch.from_numpy(values)).numpy(), weight)
