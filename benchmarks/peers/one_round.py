"""What the scripts of peers share: `PEER.py ROWS.npz BATCH EPOCHS` trains and prints what it did, as JSON."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

DIM = 16


def arguments() -> tuple[Any, int, int]:
    """Return the rows, the batch size and the number of epochs.

    The rows have arrays dense (N, D), ids (N, F), labels (N, 1) and cardinalities (F,).
    """
    return np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def by_name(rows: Any) -> dict[str, Any]:
    """Return the columns of the rows."""
    dense = {f"dense_{i}": np.ascontiguousarray(column) for i, column in enumerate(rows["dense"].T)}
    return dense | {f"id_{i}": np.ascontiguousarray(column) for i, column in enumerate(rows["ids"].T)}


def run(train: Callable[[], object], units: int) -> None:
    """Train, and print the number of units and the seconds that they took."""
    wall, cpu = time.perf_counter(), time.process_time()
    train()
    print(json.dumps({"units": units, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))
