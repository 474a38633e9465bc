"""Train SASRec and HSTU on one GPU: jagged lists, as recsys has them, against padded ones in PyTorch's attention.

    PYTHONPATH=benchmarks python benchmarks/gpu/sequences_gpu.py                        # minutes, on a GPU
    PYTHONPATH=benchmarks python benchmarks/gpu/sequences_gpu.py --device cpu --small   # a test of the script

sasrec_ml1m: MovieLens 1M's lengths up to 200, 3,417 items, 2 blocks, dim 50, one negative, batch 1,024; sasrec_200 and
sasrec_1024, hstu_200 and hstu_1024: 100,000 items, 2 blocks of 4 heads, dim 256, lengths from an eighth of the longest
to the longest. The padded loop is benchmarks/train.py's, for SASRec.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from contestants import Arguments, Contestants, folder, measure
from in_memory import DEFAULTS, NOTHING, WARM, draw_lists, features_of, fitted_for, synchronize, trained
from steady import Clock, Sample
from train import Padded

from recsys.interface.batch import Batch


@dataclass(frozen=True)
class Lists:
    """Lists of items to train on.

    model: sasrec or hstu
    longest: most items of a list
    rows: lists of a batch
    """

    model: str
    longest: int
    rows: int
    items: int = 100_000
    dim: int = 256
    heads: int = 4
    shortest: int = 8

    def lengths(self) -> np.ndarray:
        """Return the lengths of a batch's lists (rows,), more short ones than long ones."""
        random = np.random.default_rng(0)
        drawn = self.longest * random.power(0.5, self.rows)
        return np.clip(drawn, self.shortest, self.longest).astype(np.int64)


TOPICS = {
    "sasrec_ml1m": Lists("sasrec", 200, 1024, items=3417, dim=50, heads=1, shortest=18),
    "sasrec_200": Lists("sasrec", 200, 512, shortest=25),
    "sasrec_1024": Lists("sasrec", 1024, 64, shortest=128),
    "hstu_200": Lists("hstu", 200, 512, shortest=25),
    "hstu_1024": Lists("hstu", 1024, 64, shortest=128),
}
JAGGED, HALF, PADDED = "recsys", "recsys, bf16-mixed", "padded loop, bfloat16 on GPUs"
GRAPHS = "recsys, bf16-mixed, compile and CUDA graphs"


def padded_loop(lists: Lists, batches: Sequence[Batch], steps: int, device: torch.device) -> Callable[[], Sample]:
    """Return a round of SASRec over lists that are padded to the longest one."""

    def run() -> Sample:
        model = Padded(lists.items, lists.longest, lists.dim).to(device)
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        given = []
        for batch in batches:
            ids, lengths = batch.sparse.values().long(), batch.sparse.lengths().long()
            block = torch.zeros(len(lengths), lists.longest, dtype=torch.long)
            block[torch.arange(lists.longest) >= lists.longest - lengths[:, None]] = ids  # padded before the first item
            given.append(block.to(device))
        clock = Clock()
        for i in range(WARM + steps):
            if i == WARM:
                synchronize()
                clock = Clock()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(given[i % len(given)])
            adam.zero_grad()
            loss.backward()
            adam.step()
        synchronize()
        return clock.sample(steps * lists.rows)

    return run


def measure_topic(given: Arguments, topic: str, share: float) -> None:
    """Measure one of TOPICS in a share of the time that is left."""
    device = torch.device(given.device, *([0] if given.device == "cuda" else []))
    lists = TOPICS[topic]
    if given.small:
        lists = Lists(lists.model, 12, 16, items=50, dim=8, heads=1, shortest=4)
    steps = 2 if given.small else 50
    settings = [
        f"model={lists.model}", "data=movielens_1m", "data.root=none", f"model.dim={lists.dim}", "model.blocks=2",
        f"model.heads={lists.heads}", f"model.max_length={lists.longest}", "loss=bce", "trainer.max_epochs=1",
        f"trainer.batch_size={lists.rows}",
    ]  # fmt: skip
    features = features_of(given.config(*settings), lists.items)
    batches = draw_lists(features, lists.lengths(), lists.items, 2 if given.small else 4)

    def ours(name: str, typed: Sequence[str]) -> Callable[[], Sample]:
        cfg = given.config(*settings, *typed)
        rounds = iter([folder() / f"trace-{topic}-{name}.json.gz"])  # of the first round
        fitted = fitted_for(features, lists.items)
        return lambda: trained(cfg, fitted, batches, steps, next(rounds, None))

    plain = [*NOTHING, "trainer.pipeline=auto", "trainer.threads=1"]  # retrieval models have a pipeline of their own
    half = [*plain, "trainer.precision=bf16-mixed"]
    contestants: Contestants = {
        HALF: ours("bf16-mixed", half),
        GRAPHS: ours("graphs", [*half, "trainer.compile=true", "trainer.cuda_graphs=true"]),
    }
    if lists.model == "sasrec":
        contestants[PADDED] = padded_loop(lists, batches, steps, device)
    contestants |= {JAGGED: ours("float32", plain), DEFAULTS: ours("defaults", [])}
    about = f"{topic} on {given.device}, {lists.rows:,} lists a batch, {steps} steps a round"
    measure(given, topic, about, contestants, "lists", share=share)


def main() -> None:
    given = Arguments.parse(__doc__ or "")
    for i, topic in enumerate(TOPICS):
        measure_topic(given, topic, 1 / (len(TOPICS) - i))


if __name__ == "__main__":
    main()
