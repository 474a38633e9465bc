"""Ask how much of an item's popularity the lists of a run lack: add a weight times the logarithm of its training pairs.

    python experiments/gowalla/popularity.py RUN 0,0.001,0.002,0.004

prints recall@20 and NDCG@20 of the validation and of the test pairs for each weight, and how many pairs of a split
there are for each training pair of items that are more and more popular. The run is only read.
"""

import json
import sys
from pathlib import Path

import torch

from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.online.recommender import Recommender

K = 20
POPULAR = (1, 20, 40, 100, 200, 400, 800)  # training pairs of an item


def main(run: str, weights: list[float]) -> None:
    recommender = Recommender.load(run)
    prepared = Prepared(Path(json.loads((Path(run) / "data.json").read_text())["prepared"]))
    vocabulary = recommender.fitted.item_vocabulary
    counts = torch.ones(1 + int(vocabulary["id"].max()))
    counts[vocabulary["id"].to_torch().long()] = vocabulary["count"].to_torch().float()
    popularity, range_of = counts.log(), torch.bucketize(counts, torch.tensor(POPULAR), right=True) - 1
    discount = 1 / torch.log2(torch.arange(2.0, K + 2))
    for split in ("validation", "test"):
        sums = torch.zeros(len(weights), 2)
        queries, pairs = 0, torch.zeros(len(counts))
        for batch in ParquetLoader(prepared.files(split), recommender.fitted.features, batch_size=512):
            with torch.no_grad():
                scores = recommender.score_batch(batch)(0, batch.rows)
            targets, history = batch.targets, batch.history
            chosen = torch.zeros_like(scores, dtype=torch.bool)
            chosen[targets.segment_ids, targets.values] = True
            numbers = chosen.sum(1).float()
            ideal = discount.cumsum(0)[numbers.long().clamp(1, K) - 1]
            for i, weight in enumerate(weights):
                ranked = scores + weight * popularity
                ranked[history.segment_ids, history.values] = -torch.inf
                ranked[:, 0] = -torch.inf
                hits = chosen.gather(1, ranked.topk(K).indices).float()
                sums[i] += torch.stack([(hits.sum(1) / numbers).sum(), (hits @ discount / ideal).sum()])
            queries += batch.rows
            pairs += torch.bincount(targets.values, minlength=len(counts))
        for weight, (recall, ndcg) in zip(weights, (sums / queries).tolist(), strict=True):
            print(f"{split}: weight {weight:g}: recall@{K} {recall:.4f}, NDCG@{K} {ndcg:.4f}")
        for i, least in enumerate(POPULAR):
            items = range_of == i
            print(f"{split}: items of {least} training pairs and more: {pairs[items].sum() / counts[items].sum():.3f}")


if __name__ == "__main__":
    main(sys.argv[1], [float(w) for w in sys.argv[2].split(",")])
