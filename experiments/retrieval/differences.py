"""Train SASRec and BERT4Rec with one difference from the original implementations at a time.

    python experiments/retrieval/differences.py beauty DIR base,every_row 0,1,2   # DIR has Beauty.txt
    python experiments/retrieval/differences.py movielens DIR base,every_row 0,1,2   # DIR has ml-1m.txt
    python experiments/retrieval/differences.py movielens_bert4rec DIR base,bert4rec_published 0,1,2

Runs are short, so that a core trains one in one to two minutes: 15 epochs of the last 21 (Beauty) or 51 (MovieLens)
training items of each user. Each run appends a line to differences.csv; runs that it has already are skipped.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from time import time

OUTPUT = Path(__file__).with_name("differences.csv")
COMMON = [
    "trainer.threads=1",
    "trainer.max_epochs=15",
    "trainer.validate_every=15",
    "trainer.early_stopping.patience=null",
    "protocol.candidates=[full,uniform]",
    "protocol.lists=[]",
    "protocol.k=[10]",
]
DATA = {
    "beauty": ["experiment=beauty_sasrec_bce", "data.sequences.max_length=20"],
    "movielens": ["model=sasrec", "data=movielens_1m", "data.sequences.max_length=50"],
    "movielens_bert4rec": ["model=bert4rec", "data=movielens_1m", "data.sequences.max_length=50"],
}
SASREC: dict[str, list[str]] = {
    "every_row": ["optim.sparse.every_row=true"],
    "beta2": ["+optim.dense.betas=[0.9,0.98]", "optim.sparse.beta2=0.98"],
    "weight_dropout": ["model.attention_dropout=${model.dropout}"],
    "no_projection": ["model.projection=false", "model.attention_dropout=${model.dropout}"],
    "glorot": ["model.init=glorot"],
    "outside_history": ["loss.outside_history=true"],
    "norm_before": ["model.norm=before"],
    "norm_after": ["model.norm=after"],
}
BERT4REC: dict[str, list[str]] = {
    "bert4rec_weight_dropout": ["model.attention_dropout=${model.dropout}"],
    "bert4rec_exact_mask": ["model.exact_mask=true"],
    "bert4rec_output_bias": ["model.output_bias=true"],
    "bert4rec_start": ["model.positions=start"],
    "bert4rec_normal": ["model.init=normal"],
}
PUBLISHED = ("every_row", "beta2", "no_projection", "glorot", "outside_history")  # of SASRec, all together
VARIANTS: dict[str, list[str]] = {
    "base": [],
    **SASREC,
    **{f"every_row+{name}": SASREC["every_row"] + options for name, options in SASREC.items() if name != "every_row"},
    "published": [option for name in PUBLISHED for option in SASREC[name]],
    **BERT4REC,
    "bert4rec_published": [option for options in BERT4REC.values() for option in options],
}
METRICS = ["hr@10", "ndcg@10", "hr@10_uniform", "ndcg@10_uniform"]


def run(data: str, root: str, variant: str, seed: str, folder: Path) -> dict[str, str | float]:
    """Train one variant and return its metrics."""
    run_dir = folder / f"{data}_{variant}_{seed}"
    arguments = [*DATA[data], *COMMON, *VARIANTS[variant], f"seed={seed}", f"data.root={root}", f"run_dir={run_dir}"]
    start = time()
    subprocess.run([sys.executable, "-m", "recsys.train", *arguments], check=True, stdout=subprocess.DEVNULL)
    metrics = json.loads((run_dir / "metrics.json").read_text())
    figures = {f"{split}/{m}": round(metrics[split][m], 5) for split in ("validation", "test") for m in METRICS}
    return {"data": data, "variant": variant, "seed": seed, "minutes": round((time() - start) / 60, 1)} | figures


def main() -> None:
    data, root, variants, seeds = sys.argv[1:5]
    folder = Path(os.environ.get("RUNS", "outputs/differences"))
    for seed in seeds.split(","):
        for variant in variants.split(","):
            rows = list(csv.DictReader(OUTPUT.open())) if OUTPUT.exists() else []
            if any((r["data"], r["variant"], r["seed"]) == (data, variant, seed) for r in rows):
                continue
            row = run(data, root, variant, seed, folder)
            with OUTPUT.open("a") as file:
                writer = csv.DictWriter(file, list(row))
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
