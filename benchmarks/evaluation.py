"""python benchmarks/evaluation.py [MILLIONS] [ROUNDS]: metrics of many predictions, in bounded memory.

Batches of 65,536 predictions as evaluation hands them over, of users with 10 rows each; all metrics with binned scores,
with GAUC, and exactly. The bound reads and sorts the same number of predictions. A round prints its peak memory.
"""

import resource
import sys

import numpy as np
import torch
from steady import Claim, measure, timed

from recsys.evaluation.binary import BinaryMetrics, gauc

BATCH, ROWS_OF_A_USER = 65_536, 10
EXACT = 20_000_000  # the default of BinaryMetrics


def evaluate(millions: int, exact_rows: int, users: bool) -> None:
    """Measure random predictions."""
    rows = millions * 1_000_000
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(BATCH, generator=generator)
    y = (torch.rand(BATCH, generator=generator) < p).float()
    metrics = BinaryMetrics(exact_rows=exact_rows)
    if users:
        metrics.groups = lambda start, stop: np.arange(start, stop) // ROWS_OF_A_USER
    for first in range(0, rows, BATCH):
        metrics.update(p[: rows - first], y[: rows - first], first_row=first)
    metrics.compute()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB", flush=True)


def groups(users: int) -> None:
    """Measure GAUC of users with two rows each, in random order."""
    rng = np.random.default_rng(0)
    p = rng.random(2 * users, np.float32)
    gauc(rng.permutation(2 * users) // 2, p, rng.random(2 * users) < p)


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    few = EXACT // 1_000_000
    random = np.random.default_rng(0).random(EXACT, np.float32)
    measure(
        "evaluation",
        "Metrics of binary predictions, batches of 65,536",
        {
            f"{millions}M rows, binned": timed(lambda: evaluate(millions, EXACT, False), millions * 1e6),
            f"{millions}M rows, binned, GAUC": timed(lambda: evaluate(millions, EXACT, True), millions * 1e6),
            f"{few}M rows, exact": timed(lambda: evaluate(few, EXACT, False), EXACT),
            "GAUC of 10M users, 2 rows each": timed(lambda: groups(10_000_000), EXACT),
            f"argsort of {few}M": timed(lambda: np.argsort(random), EXACT),
        },
        [
            Claim(f"{millions}M rows, binned", f"argsort of {few}M"),
            Claim("GAUC of 10M users, 2 rows each", f"argsort of {few}M"),
        ],
        rounds,
        "rows",
    )


if __name__ == "__main__":
    main()
