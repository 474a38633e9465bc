"""Train the models of the three pipelines of conf/pipeline, evaluate them, and append a line for each to results.csv.

    python experiments/four_stages/run.py sample 0,1,2
    python experiments/four_stages/run.py movielens_100k 0,1,2 DIR     # the folder of ml-100k.inter, .item and .user
    python experiments/four_stages/run.py movielens_1m 0,1,2 DIR       # the folder of ml-1m.txt

Runs are in outputs/four_stages, or the folder that the variable RUNS names. Steps that a killed run finished are not
repeated, and seeds that results.csv has are skipped.
"""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
LISTS = ("popularity", "retriever", "merged", "ranker", "final", "ranker_all_items", "best_possible")
RANKER = "model=dnn loss=listwise trainer.batch_size=4096"
RETRIEVERS = {  # of each data set: its YAML, and the options of the models that are trained
    "movielens_100k": ("movielens_100k_retrieval", {"ease": "", "item_knn": "", "popularity": "", "two_tower": ""}),
    "movielens_1m": (
        "movielens_1m",
        {
            "ease": "",
            "item_knn": "",
            "popularity": "",
            "sasrec": "model.dim=50 loss=bce data.sequences.max_length=50 trainer.max_epochs=15 "
            "trainer.validate_every=15",
        },
    ),
}
EPOCHS = {"movielens_100k": (20, 4), "movielens_1m": (10, 2)}  # of the ranker, and its patience


def call(command: str, made: Path) -> None:
    """Run a command of recsys unless what it makes is there."""
    if not made.exists():
        print(f"$ python -m recsys.{command}", flush=True)
        subprocess.run([sys.executable, "-m", *shlex.split(f"recsys.{command}")], check=True, stderr=subprocess.DEVNULL)


def sample(seed: int, folder: Path) -> Path:
    """Run the demo."""
    call(f"pipeline demo output={folder} seed={seed}", folder / "evaluation.json")
    return folder / "evaluation.json"


def movielens(name: str, seed: int, folder: Path, data: str) -> Path:
    """Train the sources, write candidates, train the ranker on them, and evaluate."""
    config, models = RETRIEVERS[name]
    prepared = folder.parent / "prepared"
    for model, options in models.items():
        run = folder / model
        where = f"data={config} data.root={data} data.prepared={prepared} run_dir={run}"
        call(f"train model={model} {where} seed={seed} {options}", run / "metrics.json")
    pipeline = f"run=conf/pipeline/{name}.yaml root={folder} data_root={data}"
    rows = folder / "rows" / "candidates.parquet"
    call(f"pipeline candidates {pipeline} evaluate.split=validation output={rows}", rows)
    epochs, patience = EPOCHS[name]
    stop = f"trainer.max_epochs={epochs} trainer.early_stopping.patience={patience} seed={seed}"
    where = f"data={name}_candidates data.root={rows.parent} data.prepared={prepared} run_dir={folder / 'ranker'}"
    call(f"train {RANKER} {where} {stop}", folder / "ranker" / "metrics.json")
    call(f"pipeline evaluate {pipeline} output={folder / 'evaluation'}", folder / "evaluation" / "evaluation.json")
    return folder / "evaluation" / "evaluation.json"


def line(name: str, seed: int, file: Path) -> dict[str, str | float]:
    """Return the figures of an evaluation for results.csv."""
    found = json.loads(file.read_text())
    k, funnel = found["k"], found["funnel"]
    row: dict[str, str | float] = {"data": name, "seed": seed, "users": found["counts"]["users"]}
    row |= {f"ndcg@{k}/{n}": round(found[n][f"ndcg@{k}"], 5) if n in found else "" for n in LISTS}
    gain = found["final_minus"]["retriever"]
    row |= {f"final - retriever, {n}": round(gain[n], 5) for n in ("mean", "low", "high")}
    row |= {f"recall/{n}": round(funnel[n]["recall"], 4) for n in ("retrieved", "merged", "filtered", "final")}
    row |= {f"hr@{k}/{n}": round(found[n][f"hr@{k}"], 5) for n in ("retriever", "final")}
    return row


def main() -> None:
    name, seeds, *data = sys.argv[1:]
    runs = Path(os.environ.get("RUNS", "outputs/four_stages"))
    for seed in map(int, seeds.split(",")):
        rows = list(csv.DictReader(RESULTS.open())) if RESULTS.exists() else []
        if any((r["data"], int(r["seed"])) == (name, seed) for r in rows):
            continue
        folder = runs / name / f"seed_{seed}"
        file = sample(seed, folder) if name == "sample" else movielens(name, seed, folder, data[0])
        row = line(name, seed, file)
        with RESULTS.open("a") as out:
            writer = csv.DictWriter(out, list(row))
            if not out.tell():
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
