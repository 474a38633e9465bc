"""python benchmarks/list_metrics.py [QUERIES] [CANDIDATES] [ROUNDS]: ranking with and without metrics of lists.

Histories of 20 items, vectors of 64 floats, batches of 512 queries, one thread;
all metrics of lists, k = 5, 10, 20. Seconds of CPU time, which other processes disturb less than wall time.
"""

import sys

import numpy as np
import torch
from steady import Claim, measure, timed
from torch import Tensor

from recsys.evaluation.metrics_table import LISTS
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import JaggedIds

BATCH, HISTORY, DIM = 512, 20, 64


def evaluate(queries: Tensor, items: Tensor, lists: tuple[str, ...]) -> None:
    """Rank one target for each of the queries (Q, DIM) among the items (N, DIM)."""
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(1, len(items), (len(queries), HISTORY + 1)))
    metrics = RetrievalMetrics(Protocols(lists=lists), rng.integers(1, 100, len(items)))
    for first in range(0, len(queries), BATCH):
        batch, chosen = queries[first : first + BATCH], ids[first : first + BATCH]
        one = torch.ones(len(batch), dtype=torch.int64)
        metrics.update(
            batch, lambda q, a, b: q @ items[a:b].T, JaggedIds(chosen[:, 0], one),
            JaggedIds(chosen[:, 1:].flatten(), one * HISTORY), first, vectors=items,
        )  # fmt: skip
    metrics.compute()


def main() -> None:
    numbers = [int(x) for x in sys.argv[1:]]
    rows, candidates, rounds = [*numbers, *(20_000, 50_000, 5)[len(numbers) :]]
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, DIM, generator=generator) for n in (rows, candidates + 1))
    measure(
        "list_metrics",
        f"Ranking {rows:,} queries among {candidates:,} items: metrics of ranks, and of lists too, one thread",
        {
            "ranks": timed(lambda: evaluate(queries, items, ()), rows),
            "ranks and lists": timed(lambda: evaluate(queries, items, LISTS), rows),
        },
        [Claim("ranks and lists", "ranks")],
        rounds,
        "queries",
    )


if __name__ == "__main__":
    main()
