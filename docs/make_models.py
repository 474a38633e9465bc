"""python docs/make_models.py [rounds=5]: measure the ranking models on this machine and write docs/reference/models.md.

All models read the same made-up rows, with the number of columns of Criteo: 13 numbers, 26 ids of tables with 10,000
rows and, if the model needs them, a history of 50 items with their categories, or a second label. AUCs come from
experiments/*/results.csv.
"""

import csv
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.config.compose import compose
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.job.build import build_model
from recsys.job.run_config import RunConfig
from recsys.losses.task import Task
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.sharding.tables import tables
from recsys.sweep.model_list import Entry, entries
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "models.md"
ROWS, TABLE, HISTORY = 2048, 10_000, 50
SINGLES = tuple(SparseFeature(f"c{i}", TABLE, f"c{i}") for i in range(26))
LISTS = tuple(SparseFeature(f"seen_{f.name}", TABLE, f.table, multi_valued=True, sequence=True) for f in SINGLES[:2])
PLAIN = FeatureSpec(tuple(DenseFeature(f"n{i}") for i in range(13)), SINGLES, (BinaryLabel("click"),))
FEATURES = {
    "rows with a label": PLAIN,
    "rows with two labels or more": replace(PLAIN, labels=(BinaryLabel("click"), BinaryLabel("buy"))),
    "rows with a label, and a history": replace(PLAIN, sparse=(*SINGLES, *LISTS)),
    "rows with a label, and a history with categories": replace(PLAIN, sparse=(*SINGLES, *LISTS)),
}
EXPERIMENTS = {
    "frappe_ctr": ("Frappe", "test_auc"),
    "census_income": ("Census-Income", "test_auc_income"),
    "movielens_100k_ctr": ("MovieLens 100K", "test_auc_liked"),
}


@dataclass(frozen=True)
class Costs:
    """Costs of a model.

    parameters: number of weights without tables
    flops: floating-point operations of the forward pass for one row, matrix products only, in millions
    bytes: bytes of table rows that one row reads
    samples: rows trained in a second, forward, backward and update
    """

    parameters: int
    flops: float
    bytes: int
    samples: float


def batch(features: FeatureSpec) -> Batch:
    """Return random rows; all histories are full."""
    generator = torch.Generator().manual_seed(0)
    lengths = [torch.full((ROWS,), HISTORY if f.multi_valued else 1) for f in features.sparse]
    ids = [
        torch.randint(1, f.cardinality, (int(n.sum()),), generator=generator)
        for f, n in zip(features.sparse, lengths, strict=True)
    ]
    sparse = KeyedJaggedTensor(
        [f.name for f in features.sparse], torch.cat(ids).int(), lengths=torch.cat(lengths).int()
    )
    labels = torch.randint(0, 2, (ROWS, len(features.labels)), generator=generator).float()
    return Batch(torch.randn(ROWS, features.dense_width, generator=generator), sparse, labels)


def costs(entry: Entry, rounds: int) -> Costs | None:
    """Measure a model; None if it is not trained step by step, or needs names of features."""
    cfg = RunConfig.of(compose("train", [f"model={entry.name}"]))
    if cfg.kind.fitted_at_once or entry.needs not in FEATURES:
        return None
    features = FEATURES[entry.needs]
    rows = batch(features)
    plain = build_model(cfg, features, torch.device("cpu"))
    found = tables(plain)
    own = {i.parameter for i in found.values()}
    parameters = sum(p.numel() for n, p in plain.named_parameters() if n not in own)
    read = {
        c.name: sum(HISTORY if f.multi_valued else 1 for f in features.sparse if f.table == c.vocabulary)
        for c in found.values()
    }
    with FlopCounterMode(display=False) as counter:
        plain.eval()(rows.dense, rows.sparse)
    module = RecsysModule(
        lambda: Task(build_model(cfg, features, torch.device("meta")), labels=features.labels),
        Placement(ShardingConfig(types=["table_wise"]), SparseOptimConfig(name="rowwise_adagrad", lr=0.1), ROWS, 1),
        Updates(make_optimizer=lambda params: torch.optim.Adam(params, lr=0.001)),
    )
    module.setup_model(torch.device("cpu"))
    assert module.dmp is not None
    optimizer = module.configure_optimizers()
    seconds = []
    for _ in range(2 + rounds):
        start = time.perf_counter()
        optimizer.zero_grad()
        module.dmp(rows)[0].backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    size = sum(read[i.name] * 4 * i.dim for i in found.values())
    return Costs(parameters, counter.get_total_flops() / ROWS / 1e6, size, ROWS / statistics.median(seconds[2:]))


def aucs() -> Iterator[tuple[str, str, str]]:
    """Yield experiment, model and mean test AUC with the deviation over the seeds."""
    for folder, (title, column) in EXPERIMENTS.items():
        file = ROOT / "experiments" / folder / "results.csv"
        found: dict[str, list[float]] = defaultdict(list)
        with file.open() as lines:
            for row in csv.DictReader(lines):
                if row.get("history") == "no":  # the same model without what it is for
                    continue
                found[row["model"]].append(float(row[column]))
        for model, values in found.items():
            deviation = f" ± {statistics.stdev(values):.5f}" if len(values) > 1 else ""
            yield title, model, f"{statistics.mean(values):.5f}{deviation} ({len(values)})"


def table(measured: dict[str, tuple[Entry, Costs | None]]) -> Iterator[str]:
    """Yield the lines of the table."""
    by_model: dict[str, dict[str, str]] = defaultdict(dict)
    for title, model, value in aucs():
        by_model[model][title] = value
    titles = [title for title, _ in EXPERIMENTS.values()]
    head = ["model", "needs", "dense weights", "MFLOP", "KB of rows", "samples/s", *(f"AUC, {t}" for t in titles)]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for name, (entry, c) in measured.items():
        cells = (
            ["-"] * 4
            if c is None
            else [f"{c.parameters:,}", f"{c.flops:.2f}", f"{c.bytes / 1e3:.1f}", f"{c.samples:,.0f}"]
        )
        own = [by_model[name].get(t, "") for t in titles]
        yield f"| `{name}` | {entry.needs} | {' | '.join([*cells, *own])} |"


def main() -> None:
    """Measure all ranking models, and put the table into the page."""
    rounds = int(sys.argv[1].partition("=")[2]) if len(sys.argv) > 1 else 5
    measured = {}
    with process_group("cpu", None):
        for entry in entries():
            if entry.kind == "ranking":
                measured[entry.name] = entry, costs(entry, rounds)
                print(entry.name, measured[entry.name][1], flush=True)
    before, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of the table -->\n")
    PAGE.write_text(f"{before}<!-- table -->\n" + "\n".join(table(measured)) + f"\n<!-- end of the table -->\n{after}")


if __name__ == "__main__":
    main()
