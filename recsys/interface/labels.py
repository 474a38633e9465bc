"""The labels that ranking models predict: what logits say of them, and the targets of logits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

if TYPE_CHECKING:
    from torch import Tensor

LabelKind = Literal["binary", "regression", "classes"]
CALIBRATIONS = ("platt", "isotonic")
SMALLEST = 1e-7  # calibrated probabilities are at least this far from 0 and 1
MAX_LOGIT = math.log((1 - SMALLEST) / SMALLEST)
# in files, labels of all kinds have these
IN_FILES = {"classes": (), "log": False, "mean": 0.0, "std": 1.0, "known": 1.0, "sampled": 1.0}


@dataclass(frozen=True)
class Label(ABC):
    """A label: a column of a Batch's labels, which is NaN in rows that have none.

    known: the share of training rows, by weight, that have this label
    """

    kind: ClassVar[LabelKind]
    name: str
    known: float = field(default=1.0, kw_only=True)

    @property
    def width(self) -> int:
        """The number of logits that predict the label."""
        return 1

    @property
    def columns(self) -> list[str]:
        """The names of its predictions."""
        return [self.name]

    @property
    def is_calibrated(self) -> bool:
        """True if predictions are calibrated."""
        return False

    def uncalibrated(self) -> Self:
        """Return the label without its calibration."""
        return self

    @abstractmethod
    def predict(self, logits: Tensor) -> Tensor:
        """Return the predictions of logits, (B, width) both."""

    def targets(self, labels: Tensor) -> Tensor:
        """Return the targets of the logits: (B,) labels in the units of the data -> (B,)."""
        return labels

    def to_json(self) -> str | dict[str, Any]:
        """Return the name of a binary label that has no other property, else all properties but the calibration."""
        if self == BinaryLabel(self.name):
            return self.name
        own = {k: v for k, v in asdict(self).items() if k not in CALIBRATIONS}
        return {"name": self.name, "kind": self.kind, **IN_FILES, **own}

    @staticmethod
    def from_json(value: str | dict[str, Any]) -> Label:
        if isinstance(value, str):
            return BinaryLabel(value)
        kind = LABELS[value["kind"]]
        given = value | {"classes": tuple(value["classes"])}
        return kind(**{f.name: given[f.name] for f in fields(kind) if f.name in given})


@dataclass(frozen=True)
class ScalarLabel(Label):
    """A label that is predicted by one number, which can be calibrated.

    platt: (a, b), if probabilities are calibrated as sigmoid(a x logit + b), and numbers as a x number + b
    isotonic: (predictions, calibrated ones), ascending, between which calibrated predictions are interpolated
    """

    platt: tuple[float, float] | None = field(default=None, kw_only=True)
    isotonic: tuple[tuple[float, ...], tuple[float, ...]] | None = field(default=None, kw_only=True)

    @property
    def is_calibrated(self) -> bool:
        return self.platt is not None or self.isotonic is not None

    def uncalibrated(self) -> Self:
        return replace(self, platt=None, isotonic=None)

    def _interpolated(self, x: Tensor) -> Tensor:
        """Interpolate linearly between the points of `isotonic`; beyond them, the first and last values apply."""
        if self.isotonic is None:
            return x
        import torch

        xs, ys = (x.new_tensor(points) for points in self.isotonic)
        if len(xs) == 1:
            return ys.expand_as(x)
        i = torch.zeros_like(x, dtype=torch.int64)  # the number of xs below x, bit by bit: ONNX has no searchsorted
        for bit in reversed(range(len(xs).bit_length())):
            more = i + (1 << bit)
            below = (more <= len(xs)) & (xs[more.clamp(max=len(xs)) - 1] < x)
            i = torch.where(below, more, i)
        i = i.clamp(1, len(xs) - 1)
        width = (xs[i] - xs[i - 1]).clamp(min=1e-12)
        share = ((x - xs[i - 1]) / width).clamp(0, 1)
        return ys[i - 1] + share * (ys[i] - ys[i - 1])


@dataclass(frozen=True)
class BinaryLabel(ScalarLabel):
    """0 or 1, predicted by the probability of 1.

    sampled: the share of negatives that were kept for training, for which predictions are corrected
    """

    kind = "binary"
    sampled: float = 1.0

    def predict(self, logits: Tensor) -> Tensor:
        # with a share r of the negatives, the odds are 1 / r times as high (King & Zeng 2001; He et al. 2014, 6.3)
        logits = logits + math.log(self.sampled) if self.sampled < 1 else logits
        if self.platt is not None:  # which was fitted to logits of probabilities that a float tells from 0 and 1
            return (self.platt[0] * logits.clamp(-MAX_LOGIT, MAX_LOGIT) + self.platt[1]).sigmoid()
        return self._interpolated(logits.sigmoid())


@dataclass(frozen=True)
class NumberLabel(ScalarLabel):
    """A number.

    log: the model predicts ln(1 + label)
    mean, std: of the label, after `log`, in the training rows; the model predicts (label - mean) / std
    """

    kind = "regression"
    log: bool = False
    mean: float = 0.0
    std: float = 1.0

    def predict(self, logits: Tensor) -> Tensor:
        value = logits * self.std + self.mean
        value = value.expm1() if self.log else value
        if self.platt is not None:
            value = self.platt[0] * value + self.platt[1]
            return value.clamp(min=0) if self.log else value
        return self._interpolated(value)

    def targets(self, labels: Tensor) -> Tensor:
        return ((labels.log1p() if self.log else labels) - self.mean) / self.std


@dataclass(frozen=True)
class ClassLabel(Label):
    """The index of one of `classes`, predicted by the probability of each.

    >>> ClassLabel("rating", ("1", "2", "3")).columns
    ['rating_1', 'rating_2', 'rating_3']
    """

    kind = "classes"
    classes: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.classes)

    @property
    def columns(self) -> list[str]:
        return [f"{self.name}_{c}" for c in self.classes]

    def predict(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)


LABELS: dict[str, type[Label]] = {k.kind: k for k in (BinaryLabel, NumberLabel, ClassLabel)}


def label_slices(labels: Sequence[Label]) -> list[slice]:
    """Return the columns of each label in the logits (B, L)."""
    slices, at = [], 0
    for label in labels:
        slices.append(slice(at, at + label.width))
        at += label.width
    return slices


def kept_negatives(labels: Sequence[Label]) -> float:
    """Return the share of the negatives that training rows have; 1 unless data.sample_negatives has left some out."""
    return next((label.sampled for label in labels if isinstance(label, BinaryLabel)), 1.0)


def predict(logits: Tensor, labels: Sequence[Label]) -> Tensor:
    """Return predictions in the units of the labels: (B, L) logits -> (B, L).

    A binary label's prediction is a probability, corrected for negatives that training has left out. A regression's is
    the number itself. Both are calibrated if the label says how. A label of classes has the probability of each class.

    >>> import torch
    >>> predict(torch.tensor([[0.0, 3.5]]), (BinaryLabel("click"), NumberLabel("watched")))
    tensor([[0.5000, 3.5000]])
    """
    import torch

    parts = zip(logits.float().split([label.width for label in labels], dim=1), labels, strict=True)
    return torch.cat([label.predict(part) for part, label in parts], dim=1)


def columns(labels: Sequence[Label]) -> list[str]:
    """Return the names of the columns (L,) of predictions: `probability` for one binary label, else the labels' names.

    A label of classes has a column NAME_CLASS for each class.

    >>> columns((BinaryLabel("click"), ClassLabel("stars", ("1", "2"))))
    ['click', 'stars_1', 'stars_2']
    """
    if is_one_binary(labels):
        return ["probability"]
    return [column for label in labels for column in label.columns]


def is_one_binary(labels: Sequence[Label]) -> bool:
    """Return whether there is one label, which is binary."""
    return len(labels) == 1 and isinstance(labels[0], BinaryLabel)
