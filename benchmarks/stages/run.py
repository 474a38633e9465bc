"""python benchmarks/stages/run.py DIR [SECONDS]: search, requests and updates of the pipeline that world.py made.

    search    recall@100 and queries per CPU second of the index, for queries of users that it was not tuned with; for
              the first 10,000, 100,000 and all items
    requests  p50 and p99 of single requests, and requests a second of as many processes as there are cores:
              history and features of the user (SQLite), 500 candidates, filter, DLRM, MMR to 20
    update    the time in which 1 % of the items get new vectors, and the slowest search meanwhile

Writes results/stages.json. Every process has one thread.
"""

import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl

from recsys.config.compose import compose_file
from recsys.export.artefact import load as load_artefact
from recsys.export.artefact.served_retrieval import ServedRetrieval
from recsys.index import build
from recsys.index.build_index import least_products, measure
from recsys.online.queries import in_batches
from recsys.online.servable import Query
from recsys.stages.assemble import load
from recsys.stages.staged import StagedRecommender

NOW, K, TUNED, TESTED = 1_600_000_000, 100, 1000, 1000


def memory_gib() -> float:
    """Return the largest resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def query_vectors(model: ServedRetrieval, folder: Path, users: np.ndarray) -> np.ndarray:
    """Return the vectors of users' queries, from their clicks."""
    clicks = pl.read_parquet(folder / "data" / "clicks.parquet").filter(pl.col("user").is_in(users.tolist()))
    rows = model._frames.rows
    parsed, _ = rows.parse_frame(clicks, past=True)
    scorer: Any = model._scorer
    return np.concatenate([scorer.vectors(part) for part in in_batches(model.fitted, parsed, 1024)])


def search(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure searches of the first n items."""
    model: Any = load_artefact(folder / "two_tower", digests=False)
    vectors = np.array(model.vectors)
    users = pl.read_parquet(folder / "data" / "clicks.parquet", columns=["user"])["user"].unique().sort().to_numpy()
    users = np.random.default_rng(1).permutation(users)[: TUNED + TESTED]
    queries = query_vectors(model, folder, users)
    tuned, tested = queries[:TUNED], queries[TUNED:]
    found = []
    for n in sorted({min(n, len(vectors)) for n in (10_000, 100_000, len(vectors))}):
        started = time.process_time()
        index = build(vectors[:n], queries=tuned, k=K, recall_target=0.98)
        built = time.process_time() - started
        least = least_products(index, tested, K)
        ours = [measure(index, tested, least, K, index.about.effort) for _ in range(rounds)]
        found.append(
            {
                "items": n, "kind": index.about.kind, "effort": index.about.effort, "build_cpu_s": round(built, 1),
                "recall@100": round(ours[0].recall, 4),
                "queries_per_cpu_s": round(median(m.per_cpu_second for m in ours)),
            }
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def requests(pipeline: StagedRecommender, seconds: float, seed: int) -> list[float]:
    """Return the seconds of requests that are answered one after another."""
    rng, took = np.random.default_rng(seed), []
    for i in range(20):
        pipeline.answers([Query([], context=context(rng, i))])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        query = Query([], context=context(rng, int(rng.integers(0, 20_000))))
        started = time.perf_counter()
        [answer] = pipeline.answers([query])
        took.append(time.perf_counter() - started)
        assert len(answer.items) == 20
    return took


def context(rng: np.random.Generator, user: int) -> dict[str, Any]:
    return {"user": user, "time": NOW, "device": int(rng.integers(0, 3)), "budget": float(rng.integers(30, 200))}


def worker(folder: Path, seconds: float, seed: int, ready: Any, out: Any) -> None:
    """Load the pipeline, wait for the others, and put the seconds of requests into `out`."""
    os.chdir(folder)
    pipeline = load(compose_file(folder / "pipeline.yaml", [f"root={folder}"]))
    requests(pipeline, 1, seed)
    ready.wait()
    out.put((requests(pipeline, seconds, seed), memory_gib()))


def end_to_end(folder: Path, seconds: float) -> dict[str, Any]:
    """Measure whole requests in one process, then in one for each core."""
    found: dict[str, Any] = {}
    cores = len(os.sched_getaffinity(0))
    for processes in sorted({1, cores}):
        spawn = multiprocessing.get_context("spawn")
        out, ready = spawn.Queue(), spawn.Barrier(processes)
        workers = [spawn.Process(target=worker, args=(folder, seconds, i, ready, out)) for i in range(processes)]
        for w in workers:
            w.start()
        results = [out.get(timeout=600 + seconds) for _ in workers]
        for w in workers:
            w.join()
        took = np.concatenate([np.array(t) for t, _ in results]) * 1e3
        found[f"{processes} processes"] = {
            "p50_ms": round(float(np.percentile(took, 50)), 2), "p99_ms": round(float(np.percentile(took, 99)), 2),
            "requests_per_s": round(sum(len(t) / sum(t) for t, _ in results), 1),
            "gib_each": round(max(m for _, m in results), 2),
        }  # fmt: skip
        print(found, flush=True)
    return found


def update(folder: Path) -> dict[str, Any]:
    """Give 1 % of the items new vectors while another thread searches."""
    model: Any = load_artefact(folder / "two_tower", digests=False)
    vectors = np.array(model.vectors)
    index, rng = build(vectors, k=K, recall_target=0.98), np.random.default_rng(0)
    some = rng.choice(len(vectors), len(vectors) // 100, replace=False)
    slowest, done = [0.0], threading.Event()

    def searching() -> None:
        while not done.is_set():
            started = time.perf_counter()
            index.search(vectors[:1], K)
            slowest[0] = max(slowest[0], time.perf_counter() - started)

    thread = threading.Thread(target=searching)
    thread.start()
    started = time.perf_counter()
    index.add(some, vectors[rng.permutation(some)])
    took = time.perf_counter() - started
    done.set()
    thread.join()
    return {"items": len(some), "seconds": round(took, 3), "slowest_search_ms": round(slowest[0] * 1e3, 1)}


def main() -> None:
    folder, seconds = Path(sys.argv[1]).resolve(), float((sys.argv[2:] or ["20"])[0])
    found = {"search": search(folder, 3), "requests": end_to_end(folder, seconds), "update": update(folder)}
    print(found["update"])
    (Path(__file__).parent.parent / "results" / "stages.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
