"""python benchmarks/sequences.py DIR [ROUNDS]: SASRec as a user trains it against a loop over padded lists.

MovieLens 1M in DIR (ml-1m.txt), the paper's model (dim 50, 2 blocks, 1 head, lists of 200, batch 128, one negative), an
epoch. The loop has PyTorch's fused attention, nn.Embedding and Adam, and its padded lists as a tensor in memory.
"""

import recsys  # noqa: F401 (first: it sets how OpenMP waits, before torch loads OpenMP, so that all wait alike)

# isort: split
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from steady import Sample, measure
from torch import Tensor, nn
from torch.nn import functional
from train import by_command

from recsys.memory import keep_freed_memory

BATCH, LENGTH, DIM = 128, 200, 50


class Block(nn.Module):
    """A block of SASRec over padded lists."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, eps=1e-8) for _ in range(2))
        self.query, self.key_value, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.feed_forward = nn.Sequential(
            nn.Linear(DIM, DIM), nn.Dropout(0.2), nn.ReLU(), nn.Linear(DIM, DIM), nn.Dropout(0.2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform states: (B, L, DIM) -> (B, L, DIM)."""
        queries = self.norms[0](x)
        q, (k, v) = self.query(queries), self.key_value(x).chunk(2, dim=2)
        mixed = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        x = self.norms[1](queries + functional.dropout(self.out(mixed), 0.2))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]


class Padded(nn.Module):
    """SASRec over lists that are padded on the right with item 0."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, DIM, padding_idx=0), nn.Embedding(LENGTH, DIM)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(DIM, eps=1e-8)

    def forward(self, lists: Tensor, negatives: Tensor) -> Tensor:
        """Return the loss of lists (B, L + 1) and a negative item for each of their targets (B, L)."""
        x = functional.dropout(self.items(lists[:, :-1]) * DIM**0.5 + self.places.weight, 0.2)
        states, targets = self.norm(self.blocks(x)), lists[:, 1:]
        good, bad = ((states * self.items(of)).sum(2) for of in (targets, negatives))
        losses = functional.softplus(-good) + functional.softplus(bad)
        return losses[targets > 0].mean()


def padded_loop(path: Path) -> Callable[[], Sample]:
    """Return a round of an epoch over the lists of a file of lines 'user item', without their last two items."""
    lists: dict[str, list[int]] = {}
    for user, item in (line.split() for line in path.read_text().splitlines()):
        lists.setdefault(user, []).append(int(item))
    rows = [torch.tensor(one[:-2][-LENGTH - 1 :]) for one in lists.values()]
    block = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    block = functional.pad(block, (0, LENGTH + 1 - block.shape[1]))
    model = Padded(int(block.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    def run() -> Sample:
        wall, cpu = time.perf_counter(), time.process_time()
        for part in torch.randperm(len(block)).split(BATCH):
            negatives = torch.randint(1, model.items.num_embeddings, (len(part), LENGTH))
            optimizer.zero_grad()
            model(block[part], negatives).backward()
            optimizer.step()
        return Sample(len(block), time.perf_counter() - wall, time.process_time() - cpu)

    return run


def main() -> None:
    root, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["model=sasrec", "data=movielens_1m", f"data.root={root}", f"data.prepared={folder}/prepared"]
        arguments += ["trainer.max_epochs=1", f"trainer.batch_size={BATCH}"]
        folders = (Path(folder, f"run-{i}") for i in range(1000))
        contestants = {
            "padded loop": padded_loop(root / "ml-1m.txt"),
            "recsys.train": by_command(arguments, folders),
            "recsys.train precision=auto": by_command([*arguments, "trainer.precision=auto"], folders),
        }
        measure("sequences", contestants, "padded loop", rounds, "sequences")


if __name__ == "__main__":
    main()
