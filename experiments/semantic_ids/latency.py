"""Measure how long an artefact takes to recommend 20 items for a history of tiger_beauty.

python experiments/semantic_ids/latency.py ARTEFACT DIR/interactions.txt
"""

import sys
import time
from pathlib import Path

import numpy as np

from recsys.export.artefact import load
from recsys.online.servable import Query

REQUESTS = 256


def main(artefact: str, interactions: str) -> None:
    """Print the median and the 99th percentile of single requests and of batches of 16, on one thread."""
    model = load(Path(artefact))
    lines = [line.split() for line in Path(interactions).read_text().splitlines()[: 2 * REQUESTS]]
    queries = [Query([{"user": user, "item": item} for item in items], 20) for user, *items in lines]
    model.recommend(queries[-3:])  # the first calls allocate memory
    for size in (1, 16):
        times = []
        for at in range(0, REQUESTS, size):
            start = time.perf_counter()
            model.recommend(queries[at : at + size])
            times.append(1e3 * (time.perf_counter() - start))
        print(f"{size} at once: p50 {np.median(times):.1f} ms, p99 {np.quantile(times, 0.99):.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
