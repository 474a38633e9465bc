"""How far the outputs of a model are from those that were recorded."""

from typing import Any

import numpy as np


def apart(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the differences of numbers, relative to wanted numbers above 1; infinity for NaN."""
    differences = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)
    return np.where(np.isnan(differences), np.inf, differences)


def same_items(items: list[Any], expected: list[Any], scores: np.ndarray) -> bool:
    """Return whether two lists hold the same items; items of (nearly) equal scores may have another order."""
    if [str(i) for i in items] == [str(i) for i in expected]:
        return True
    if len(items) != len(expected):
        return False
    last = scores[-1]
    sure = {str(i) for i, s in zip(expected, scores, strict=True) if s > last + 1e-4}
    return sure <= {str(i) for i in items}
