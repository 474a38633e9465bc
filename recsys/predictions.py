"""Turn the logits of ranking models into predictions of labels."""

import math

import torch
from torch import Tensor

from recsys.features import Label


def label_slices(labels: tuple[Label, ...]) -> list[slice]:
    """Return the columns of each label in the logits (B, L)."""
    slices, at = [], 0
    for label in labels:
        slices.append(slice(at, at + label.width))
        at += label.width
    return slices


def predict(logits: Tensor, labels: tuple[Label, ...]) -> Tensor:
    """Return predictions in the units of the labels: (B, L) logits -> (B, L).

    A binary label's prediction is a probability, corrected for negatives that training has left out. A regression's is
    the number itself. Both are calibrated if the label says how. A label of classes has the probability of each class.

    >>> predict(torch.tensor([[0.0, 3.5]]), (Label("click"), Label("watched", kind="regression")))
    tensor([[0.5000, 3.5000]])
    """
    parts = zip(logits.float().split([label.width for label in labels], dim=1), labels, strict=True)
    return torch.cat([_predict(part, label) for part, label in parts], dim=1)


def _predict(logits: Tensor, label: Label) -> Tensor:
    if label.kind == "classes":
        return torch.softmax(logits, dim=1)
    if label.kind == "regression":
        value = logits * label.std + label.mean
        value = torch.expm1(value) if label.log else value
        if label.platt is not None:
            value = label.platt[0] * value + label.platt[1]
            return value.clamp(min=0) if label.log else value
        return value if label.isotonic is None else _interpolate(value, *label.isotonic)
    # with a share r of the negatives, the odds are 1 / r times as high (King & Zeng 2001; He et al. 2014, section 6.3)
    logits = logits + math.log(label.sampled) if label.sampled < 1 else logits
    if label.platt is not None:
        return torch.sigmoid(label.platt[0] * logits + label.platt[1])
    probability = torch.sigmoid(logits)
    return probability if label.isotonic is None else _interpolate(probability, *label.isotonic)


def _interpolate(x: Tensor, at: tuple[float, ...], values: tuple[float, ...]) -> Tensor:
    """Interpolate linearly between points in ascending order; beyond them, the first and last values apply."""
    xs, ys = x.new_tensor(at), x.new_tensor(values)
    i = torch.searchsorted(xs, x.contiguous()).clamp(1, max(len(at) - 1, 1))
    if len(at) == 1:
        return ys.expand_as(x)
    width = (xs[i] - xs[i - 1]).clamp(min=1e-12)
    share = ((x - xs[i - 1]) / width).clamp(0, 1)
    return ys[i - 1] + share * (ys[i] - ys[i - 1])


def targets(labels: Tensor, label: Label) -> Tensor:
    """Return the targets of a label's logits: (B,) labels in the units of the data -> (B,)."""
    if label.kind != "regression":
        return labels
    return ((torch.log1p(labels) if label.log else labels) - label.mean) / label.std


def columns(labels: tuple[Label, ...]) -> list[str]:
    """Return the names of the columns (L,) of predictions: `probability` for one binary label, else the labels' names.

    A label of classes has a column NAME_CLASS for each class.

    >>> columns((Label("click"), Label("stars", kind="classes", classes=("1", "2"))))
    ['click', 'stars_1', 'stars_2']
    """
    if len(labels) == 1 and labels[0].kind == "binary":
        return ["probability"]
    return [n for x in labels for n in ([f"{x.name}_{c}" for c in x.classes] if x.kind == "classes" else [x.name])]
