"""Which raw columns a ranking model needs: shuffle each among the held-out rows, and measure again.

Breiman, Random Forests, 2001, section 10, https://doi.org/10.1023/A:1010933404324; Fisher, Rudin & Dominici, All Models
are Wrong, but Many are Useful, 2019, https://arxiv.org/abs/1801.01489.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.base.console import bar, results, say
from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.alike import columns_alike
from recsys.data.features.arrays import Arrays
from recsys.data.features.batch_tensors import RowTensors, arrays_of
from recsys.data.raw.derive import features_by_column
from recsys.evaluation.group_metrics import group_values
from recsys.evaluation.metrics import CLASSES, NUMBERS
from recsys.evaluation.metrics_table import lower_is_better, main_k
from recsys.evaluation.resampling import Difference, Groups, Means, Measured, Predictions, deviations, difference
from recsys.files.atomic import write_json
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import BinaryLabel, Label, ScalarLabel, label_slices
from recsys.schema.evaluate_schema import ImportanceConfig
from recsys.training.evaluate_run import BATCH, Member
from recsys.training.run_dir import choose_checkpoint, open_run

SHOWN = ("auc", "ne", "rmse", "accuracy", "logloss")  # the metrics of a label, those that it has
RESAMPLES = 100  # of the rows


@dataclass(frozen=True)
class ColumnImportance:
    """By how much metrics are worse where the columns are shuffled, by metric, the main one first.

    features: what is made of the columns
    shuffled: share of the rows that could get another row's values: lists are shuffled among those of equal length
    """

    columns: tuple[str, ...]
    features: tuple[str, ...]
    loss: dict[str, Difference]
    shuffled: float

    @property
    def main(self) -> Difference:
        return next(iter(self.loss.values()))


@dataclass(frozen=True)
class HeldOutRows:
    """The features of R rows, their labels (R, T), weights (R,) and groups (R,), or None."""

    arrays: Arrays
    labels: np.ndarray
    weight: np.ndarray | None
    group: np.ndarray | None

    @classmethod
    def read(cls, member: Member, features: FeatureSpec, most: int) -> HeldOutRows:
        """Read every n-th batch, so that there are about `most` rows."""
        parts: list[Arrays] = []
        more: dict[str, list[np.ndarray]] = {"labels": [], "weight": [], "group": []}
        step = -(-member.loader.rows // most)
        with bar("reading", member.loader.rows, "samples") as shown:
            for i, batch in enumerate(member.loader):
                shown.advance(batch.rows)
                if i % step:
                    continue
                parts.append(arrays_of(batch, features).take(np.arange(batch.rows)))  # a copy
                for name, own in more.items():
                    if (x := getattr(batch, name)) is not None:
                        own.append(x.numpy().copy())
        labels, weight, group = (np.concatenate(own) if own else None for own in more.values())
        assert labels is not None
        return cls(Arrays.concatenated(parts), labels, weight, group)


def importance(run: str, split: str, checkpoint: str, cfg: ImportanceConfig) -> dict[str, list[ColumnImportance]]:
    """Return the importance of each raw column for each label, the greatest first.

    Raises:
        UserError: the model does not score rows, or the data has no such column or no rows of the split.
    """
    trained, path = open_run(run)
    if not trained.kind.scores_rows:
        raise UserError(f"importance: is measured for models that score rows, and that of {path} retrieves items")
    choose_checkpoint(path, checkpoint)  # before anything is read
    member = Member.load(run, split, checkpoint)
    fitted = member.fitted
    made = features_by_column(fitted.data, fitted.features)
    groups = _groups_of(cfg.together, made)
    rows = HeldOutRows.read(member, fitted.features, cfg.rows)
    say(f"shuffling {len(groups)} columns, {cfg.repeats} times each, among {rows.arrays.rows:,} {split} rows")
    ks = [main_k(tuple(trained.metrics.k))] if rows.group is not None else []
    before = _measured(member, rows, rows.arrays, ks)
    draws = np.random.default_rng(cfg.seed)
    found: dict[str, list[ColumnImportance]] = {label: [] for label in before}
    with bar("measuring", len(groups) * cfg.repeats, "shuffles") as shown:
        for columns, names in groups.items():
            after, share = list[dict[str, Measured]](), 1.0
            for _ in range(cfg.repeats):
                shuffled, share = rows.arrays.shuffled(fitted.features, names, draws)
                after.append(_measured(member, rows, shuffled, ks))
                shown.advance(1)
            for label, base in before.items():
                loss = _losses(base, [of[label] for of in after], cfg.seed)
                found[label].append(ColumnImportance(columns, names, loss, share))
    for own in found.values():
        own.sort(key=lambda c: -c.main.value)
    for alike in columns_alike(rows.arrays, fitted.features, groups):
        why = "move together, so that each seems less needed; shuffle them at once by"
        say(f"{', '.join(alike)}: {why} importance.together=[[{','.join(alike)}]]")
    return found


def _groups_of(
    together: Sequence[Sequence[str]], made: Mapping[str, tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the features of each column, and of each group of columns, by the columns."""
    groups: dict[tuple[str, ...], tuple[str, ...]] = {}
    for columns in together:
        for column in columns:
            if column not in made:
                near = did_you_mean(column, made)
                raise UserError(f"importance.together: no feature of the model is made of column {column}{near}")
        groups[tuple(columns)] = tuple(dict.fromkeys(name for column in columns for name in made[column]))
    for column, names in made.items():
        if not any(column in columns for columns in together):
            groups[(column,)] = names
    return groups


def _measured(member: Member, rows: HeldOutRows, arrays: Arrays, ks: Sequence[int]) -> dict[str, Measured]:
    """Return the rows' predictions with their labels, by label, as they are resampled."""
    predictions = np.concatenate([*_predicted(member, rows, arrays)])
    found: dict[str, Measured] = {}
    for i, (label, columns) in enumerate(zip(member.labels, label_slices(member.labels), strict=True)):
        has = np.isfinite(rows.labels[:, i])
        p, y = predictions[has][:, columns], rows.labels[has, i]
        weight, group = (None if x is None else x[has] for x in (rows.weight, rows.group))
        found[label.name] = _of_label(label, p, y, weight, group, ks)
    return found


def _predicted(member: Member, rows: HeldOutRows, arrays: Arrays) -> Iterator[np.ndarray]:
    for start in range(0, arrays.rows, BATCH):
        part = arrays.take(np.arange(start, min(start + BATCH, arrays.rows)))
        batch = RowTensors.from_arrays(part, member.fitted.features).batch(rows.labels[start : start + BATCH])
        with torch.no_grad():
            predictions: Tensor = member.predictions(batch)
        yield predictions.numpy()


def _of_label(
    label: Label,
    p: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    group: np.ndarray | None,
    ks: Sequence[int],
) -> Measured:
    if not isinstance(label, ScalarLabel):
        return Means.of_rows(CLASSES, p, y, weight)
    single: Measured = Means.of_rows(NUMBERS, p[:, 0], y, weight)
    if isinstance(label, BinaryLabel):
        single = Predictions(p[:, 0], y, weight)
    if group is None or not ks:
        return single
    values, own = group_values(group, p[:, 0], y, ks, weight)
    owner = np.unique(group, return_inverse=True)[1]
    return Groups(single, owner, tuple(values), np.stack([*values.values()], 1), np.stack([own] * len(values), 1))


def _losses(base: Measured, after: Sequence[Measured], seed: int) -> dict[str, Difference]:
    """Return by how much each metric is worse, with an interval for these rows and these shuffles."""
    ones = np.ones(len(base))
    shown = [n for n in SHOWN if n != "logloss" or "ne" not in base.names]  # ne is logloss in other units
    names = [n for n in base.names if n in shown or n.startswith("gndcg@")]
    names.sort(key=lambda n: not n.startswith("gndcg@"))  # the order within groups, if there are any
    points = np.stack([m.weighted(ones) for m in (base, *after)])
    moved = deviations([base, *after], RESAMPLES, seed)
    found = {}
    for name in names:
        i, sign = base.names.index(name), 1 if lower_is_better(name) else -1
        each = sign * (points[1:, i] - points[0, i])
        of_rows = float(np.nanvar(moved[:, 1:, i].mean(1) - moved[:, 0, i]))
        parts = [(of_rows, float("inf"))]
        if len(each) > 1:
            parts.append((float(each.var(ddof=1)) / len(each), len(each) - 1.0))
        found[name] = difference(float(each.mean()), parts)
    return found


def show(found: Mapping[str, Sequence[ColumnImportance]], path: Path, split: str) -> None:
    """Print the importance of the columns, and write importance-SPLIT.json to the run's folder."""
    from rich.table import Table

    for label, columns in found.items():
        title = f"{label}: worse by (± 95 %), where a column of the {split} rows is shuffled"
        table = Table("column", *columns[0].loss, "", title=title, title_justify="left")
        largest = max((c.main.value for c in columns), default=0.0)
        for c in columns:
            cells = [f"{d.value:.5f} ± {d.high - d.value:.5f}" for d in c.loss.values()]
            table.add_row(", ".join(c.columns), *cells, "█" * round(20 * max(c.main.value, 0) / (largest or 1)))
        results.print(table)
        for c in columns:
            if c.shuffled < 1:
                say(f"{', '.join(c.columns)}: {1 - c.shuffled:.0%} of the rows keep their list: no other is as long")
        if idle := [", ".join(c.columns) for c in columns if all(d.low <= 0 for d in c.loss.values())]:
            say(f"{label}: can be left out, each by itself: {'; '.join(idle)} (train without, and compare)")
    written = {
        label: [{**asdict(c), "loss": {name: asdict(d) for name, d in c.loss.items()}} for c in columns]
        for label, columns in found.items()
    }
    write_json(path / f"importance-{split}.json", {"split": split, "labels": written})
    say(f"written to {path / f'importance-{split}.json'}")
