"""Monolith's comparison of online with batch training (Liu et al. 2022, https://arxiv.org/abs/2209.07663).

    python experiments/continuous_training/monolith.py TRAIN_TXT DIR 10,50,100

TRAIN_TXT is Criteo Kaggle's file, 7 days in the order of time. DeepFM trains on its first 5/7. Then the other rows come
in N shards: the online model predicts each shard and trains on it, the batch model only predicts. Printed: N, and the
AUCs of both over all these rows. Published (online, batch): N=10 .7966, .7942; 50 .7978, .7944; 100 .7980, .7943.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import polars as pl
from sklearn.metrics import roc_auc_score

from recsys.follow.follow_settings import FollowConfig
from recsys.follow.training_config import training_config
from recsys.follow.trainings import PREDICTIONS, measure, train_on

BATCH, TEST = "batch.tsv", "test.tsv"
MODEL = ["model=deepfm", "data=criteo", "trainer.threads=1"]


def write_shards(source: Path, folder: Path, shards: int) -> list[str]:
    """Write the first 5/7 of the lines as BATCH and the others as shards; return the shards' names."""
    folder.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        total = sum(1 for _ in file)
    first = total * 5 // 7
    with source.open("rb") as file:
        (folder / TEST).write_bytes(b"".join(islice(file, 100)))
    with source.open("rb") as file:
        _write(folder / BATCH, islice(file, first))
        names = []
        for i in range(shards):
            rows = (total - first) * (i + 1) // shards - (total - first) * i // shards
            names.append(f"shard-{i:04d}.tsv")
            _write(folder / names[-1], islice(file, rows))
    return names


def _write(path: Path, lines: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(lines)


def compare(source: Path, root: Path, shards: int) -> tuple[float, float]:
    """Return the AUCs of the online and the batch model."""
    names = write_shards(source, root / "log", shards)
    settings = FollowConfig.model_validate({"root": root, "train": MODEL, "partitions": {"folder": root / "log"}})
    prepared = root / "prepared"
    batch = train_on(training_config(settings, prepared, [BATCH], [TEST], []), root / "batch", None).path
    online, found = batch, {"online": list[pl.DataFrame](), "batch": list[pl.DataFrame]()}
    for i, name in enumerate(names):
        for kind, run in (("online", online), ("batch", batch)):
            measure(run, training_config(settings, prepared, [TEST], [name], []), root / "predictions")
            found[kind].append(pl.read_parquet(root / "predictions" / PREDICTIONS))
        cfg = training_config(settings, prepared, [name], [TEST], [])
        online = train_on(cfg, root / f"online-{i:04d}", online).path
    auc = {k: float(roc_auc_score(f["label"], f["probability"])) for k, v in found.items() for f in [pl.concat(v)]}
    return auc["online"], auc["batch"]


def main() -> None:
    source, root = Path(sys.argv[1]), Path(sys.argv[2])
    for n in map(int, sys.argv[3].split(",")):
        online, batch = compare(source, root / str(n), n)
        sys.stdout.write(f"N={n}: online {online:.4f}, batch {batch:.4f}\n")


if __name__ == "__main__":
    main()
