"""Train sequence models with one recipe at a time, and write a line for each run to results.csv.

    python experiments/sequence_recipes/recipes.py beauty DIR sasrec+1x1+drop.5+ss2048 0,1,2   # DIR has Beauty.txt
    python experiments/sequence_recipes/recipes.py movielens_1m DIR esasrec+2x1+drop.1+ss256 0   # DIR has ml-1m.txt

A recipe is a model and options of this file, joined by +. Runs that results.csv has already are skipped. Each run takes
one core.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

OUTPUT = Path(__file__).with_name("results.csv")
COMMON = ["trainer.threads=1", "protocol.lists=[]"]
DATA = {
    "beauty": [
        *("data=amazon_beauty_sequences", "model.max_length=50", "trainer.batch_size=256"),
        *("trainer.max_epochs=200", "trainer.validate_every=2", "trainer.early_stopping.patience=5"),
    ],
    "movielens_1m": [
        *("data=movielens_1m", "model.max_length=200"),
        *("trainer.max_epochs=100", "trainer.validate_every=5", "trainer.early_stopping.patience=6"),
    ],
    "movielens_100k": [
        *("data=movielens_100k_sequences", "model.max_length=200"),
        *("trainer.max_epochs=200", "trainer.validate_every=2", "trainer.early_stopping.patience=8"),
    ],
}
LOSSES = {
    "bce1": ["loss=bce"],
    "bce256": ["loss=gbce", "loss.calibration=0"],
    "gbce256": ["loss=gbce"],
    "full": ["loss=full_softmax"],
    **{f"ss{n}": ["loss=sampled_softmax", f"loss.count={n}"] for n in (256, 512, 1024, 2048)},
    "own256": ["loss=sampled_softmax", "loss.count=256", "loss.shared=false"],
    "popular": ["loss.negatives=popularity"],
}
OPTIONS = {
    **LOSSES,
    **{f"{b}x{h}": [f"model.blocks={b}", f"model.heads={h}"] for b in (1, 2, 3, 4) for h in (1, 2, 4)},
    **{f"drop.{n}": [f"model.dropout=0.{n}"] for n in range(1, 8)},
    **{f"dim{n}": [f"model.dim={n}"] for n in (32, 50, 64, 128, 256)},
    **{f"batch{n}": [f"trainer.batch_size={n}"] for n in (32, 64, 128, 256, 512)},
    **{f"lr{n}": [f"optim.dense.lr={n}", f"optim.sparse.lr={n}"] for n in ("3e-4", "5e-4", "2e-3")},
    "before": ["model.norm=before"],
    "every_row": ["optim.sparse.every_row=true"],
    "bf16": ["trainer.precision=bf16-mixed"],
}
METRICS = ("hr@10", "ndcg@10", "hr@20", "ndcg@20", "recall@20")


def run(data: str, root: str, recipe: str, seed: str, folder: Path) -> dict[str, str | float]:
    """Train with a recipe and return the run's metrics."""
    model, *options = recipe.split("+")
    run_dir = folder / f"{data}_{recipe}_{seed}"
    if not (run_dir / "metrics.json").exists():
        arguments = [f"model={model}", *DATA[data], *COMMON, *(o for name in options for o in OPTIONS[name])]
        arguments += [f"seed={seed}", f"data.root={root}", f"run_dir='{run_dir}'"]
        subprocess.run([sys.executable, "-m", "recsys.train", *arguments], check=True, stdout=subprocess.DEVNULL)
    found = json.loads((run_dir / "metrics.json").read_text())
    train = {"epochs": found["train"]["epochs"], "minutes": round(found["train"]["seconds"] / 60, 1)}
    figures = {
        f"{split}/{m}": round(found[split][m], 5)
        for split in ("validation", "test")
        for m in METRICS
        if m in found[split]
    }
    return {"data": data, "recipe": recipe, "seed": seed} | train | figures


def main() -> None:
    data, root, recipes, seeds = sys.argv[1:5]
    folder = Path(os.environ.get("RUNS", "outputs/recipes"))
    for seed in seeds.split(","):
        for recipe in recipes.split(","):
            rows = list(csv.DictReader(OUTPUT.open())) if OUTPUT.exists() else []
            if any((r["data"], r["recipe"], r["seed"]) == (data, recipe, seed) for r in rows):
                continue
            row = run(data, root, recipe, seed, folder)
            with OUTPUT.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
