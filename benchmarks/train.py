"""python benchmarks/train.py TOPIC [ROUNDS]: recsys.train as a user runs it, bounds and peers.

    dlrm        bottom 64-32-16, top 64-32-1, dim 16, batch 8192
    dlrm_large  bottom 512-256-64, top 1024-1024-512-256-1, dim 64, batch 2048
    dcnv2       3 full-rank crosses, deep 128-64, batch 8192
    deepfm      deep 128-64, Adam for tables too, batch 8192
    din         histories of 10 items, batch 4096
    sasrec      2 blocks, dim 50, lists of MovieLens 1M's lengths up to 200 items, one negative, batch 128
    softmax     2 blocks, dim 64, lists of 50 items, losses over 18,000 items, batch 256; and ranking them
    ranking     the same with 50,000 items

Ranking models train on the built-in samples, with row-wise Adagrad for the tables and Adam for the rest where nothing
else is said. A bound has the model's own dense part and optimizers over one TBE of FBGEMM, in a bare loop over batches
that are tensors in memory before it starts. SASRec's is a loop over padded lists with PyTorch's attention. Each peer
trains on the same rows, in an environment of its own (benchmarks/peers); only training is measured, no start.
"""

import recsys  # noqa: F401 (first: it sets how OpenMP waits, before torch loads OpenMP, so that all wait alike)

# isort: split
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from steady import Claim, Sample, measure, peer, timed
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.memory import keep_freed_memory
from recsys.config.compose import compose
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import prepare
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.job.run_config import RunConfig
from recsys.models.common.behaviour import Behaviour
from recsys.models.dcnv2 import DCNv2
from recsys.models.deepfm import DeepFM
from recsys.models.din import DIN
from recsys.models.dlrm import DLRM

OURS, COMPILED, BOUND = "recsys.train", "recsys.train bf16-mixed compiled", "bare TBE loop"
LOGITS = "padded loop, all logits in memory"
PRODUCT = "queries times all items, and the ranks"


@dataclass(frozen=True)
class Ranking:
    """A ranking model on a built-in sample.

    Args:
        settings: overrides of the model and its optimizers.
        bound: the model for the bare loop; None without one.
        bound_goal: the least ratio to it.
        bags: whether the loop over nn.EmbeddingBag runs too.
        peer: name of a peer and its script.
        compiled: the least ratio of the compiled bfloat16 run to the bound.
    """

    about: str
    settings: tuple[str, ...]
    batch: int = 8192
    rows: int = 500_000
    epochs: int = 2
    data: str = "criteo"
    bound: Callable[[FeatureSpec], nn.Module] | None = None
    bound_goal: float | None = 0.97
    bags: bool = False
    peer: tuple[str, str, float] | None = None
    compiled: float | None = None


PEER_BATCHES = 15
META = torch.device("meta")
RANKING = {
    "dlrm": Ranking(
        "DLRM small, batch 8192, samples of Criteo's shape",
        ("model=dlrm", "model.dim=16", "model.bottom_mlp=[64,32,16]", "model.top_mlp=[64,32]"),
        rows=1_000_000,
        epochs=3,
        bound=lambda f: DLRM(f, dim=16, bottom_mlp=(64, 32, 16), top_mlp=(64, 32), device=META),
        bags=True,
        peer=("FuxiCTR", "dlrm_fuxictr", 6),
        compiled=1.35,
    ),
    "dlrm_large": Ranking(
        "DLRM large, batch 2048, samples of Criteo's shape",
        ("model=dlrm", "model.dim=64", "model.bottom_mlp=[512,256,64]", "model.top_mlp=[1024,1024,512,256]"),
        batch=2048, rows=60_000, epochs=1, compiled=2.5,
        bound=lambda f: DLRM(f, dim=64, bottom_mlp=(512, 256, 64), top_mlp=(1024, 1024, 512, 256), device=META),
    ),
    "dcnv2": Ranking(
        "DCN V2, full-rank crosses, batch 8192, samples of Criteo's shape",
        ("model=dcnv2",),
        rows=250_000,
        bound=lambda f: DCNv2(f, device=META),
        peer=("torch-rechub", "dcnv2_rechub", 3),
    ),
    "deepfm": Ranking(
        "DeepFM, Adam for tables and layers, batch 8192, samples of Criteo's shape",
        ("model=deepfm", "optim=adam"),
        rows=250_000,
        bound=lambda f: DeepFM(f, device=META),
        bound_goal=None,  # FBGEMM has no Adam on CPUs: its row-wise Adagrad takes less time
        peer=("DeepCTR-Torch", "deepfm_deepctr", 3),
    ),
    "din": Ranking(
        "DIN, histories of 10 items, batch 4096, samples of behaviour",
        ("model=din",), batch=4096, rows=300_000, data="sample_behaviour", bound=lambda f: DIN(f, device=META),
    ),
}  # fmt: skip


class Tables(nn.Module):
    """All tables of a model in one TBE with fused row-wise Adagrad, or in nn.EmbeddingBag tables, in place of its own.

    forward: (ids, offsets) -> (B, F, dim)
    """

    def __init__(self, rows: Sequence[int], dim: int, fbgemm: bool) -> None:
        super().__init__()
        self.dim = dim
        self.bags: Any
        if fbgemm:
            self.bags = SplitTableBatchedEmbeddingBagsCodegen(
                [(n, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
                optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
                learning_rate=0.05,
                eps=1e-8,
            )
            weights = self.bags.split_embedding_weights()
        else:
            self.bags = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum", sparse=True) for n in rows)
            weights = [t.weight.data for t in self.bags]
        for table, n in zip(weights, rows, strict=True):
            table.uniform_(-(n**-0.5), n**-0.5)

    def forward(self, sparse: tuple[Tensor, Tensor]) -> Tensor:
        ids, offsets = sparse
        if isinstance(self.bags, nn.ModuleList):
            of_feature = ids.view(len(self.bags), -1)
            at = offsets[: of_feature.shape[1]]
            return torch.stack([t(i, at) for t, i in zip(self.bags, of_feature, strict=True)], dim=1)
        vectors: Tensor = self.bags(ids, offsets)
        return vectors.view(-1, len(self.bags.embedding_specs), self.dim)


class BehaviourTables(nn.Module):
    """All tables of DIN in one TBE without pooling, in place of its BehaviourEmbeddings."""

    def __init__(self, features: FeatureSpec, pairs: Mapping[str, str], dim: int) -> None:
        super().__init__()
        tables = list(features.tables)
        # FBGEMM wants the features of a table together
        self.names = [f.name for t in tables for f in features.tables[t]]
        self.pairs = dict(pairs)
        self.others = [n for n in self.names if n not in (*pairs, *pairs.values())]
        self.bags = SplitTableBatchedEmbeddingBagsCodegen(
            [(features.tables[t][0].cardinality, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for t in tables],
            feature_table_map=[tables.index(features.feature(name).table) for name in self.names],
            pooling_mode=PoolingMode.NONE,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=0.05,
            eps=1e-8,
        )
        for table in self.bags.split_embedding_weights():
            table.uniform_(-(len(table) ** -0.5), len(table) ** -0.5)

    def inputs(self, sparse: KeyedJaggedTensor) -> tuple[Any, ...]:
        """Return what `forward` takes."""
        ordered = sparse.permute([sparse.keys().index(name) for name in self.names])
        lengths = ordered.lengths().view(len(self.names), -1)
        history = lengths[self.names.index(next(iter(self.pairs.values())))].long()
        return ordered.values().long(), ordered.offsets().long(), lengths.sum(1).tolist(), history

    def forward(self, dense: Tensor, sparse: tuple[Any, ...]) -> Behaviour:
        values, offsets, counts, lengths = sparse
        of = dict(zip(self.names, self.bags(values, offsets).split(counts), strict=True))
        target, history = ([of[n] for n in names] for names in (self.pairs, self.pairs.values()))
        others = torch.cat([dense, *(of[n] for n in self.others)], dim=1)
        return Behaviour(torch.cat(target, dim=1), torch.cat(history, dim=1), lengths, others)


Inputs = tuple[Tensor, Any, Tensor]


def in_memory(model: Any, batches: list[Batch]) -> list[Inputs]:
    """Return the batches as the tensors that a bare loop takes."""
    if isinstance(model.embeddings, BehaviourTables):
        return [(b.dense, model.embeddings.inputs(b.sparse), b.labels) for b in batches]
    return [(b.dense, (b.sparse.values().long(), b.sparse.offsets().long()), b.labels) for b in batches]


def bare(make: Callable[[FeatureSpec], nn.Module], features: FeatureSpec, fbgemm: bool) -> nn.Module:
    """Return a model whose tables are replaced by bare ones."""
    model: Any = make(features)
    own = model.embeddings
    rows = [f.cardinality for f in features.sparse]
    model.embeddings = (
        BehaviourTables(features, own.pairs, 16) if hasattr(own, "pairs") else Tables(rows, own.dim, fbgemm)
    )
    if hasattr(model, "wide"):
        model.wide = Tables(rows, model.wide.dim, fbgemm)
    return cast(nn.Module, model)


def bare_loop(model: nn.Module, batches: list[Batch], epochs: int) -> Callable[[], None]:
    """Return an epoch of a loop over tensors in memory."""
    dense = [p for n, p in model.named_parameters() if not n.startswith(("embeddings", "wide"))]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=0.005)]
    if bags := [p for n, p in model.named_parameters() if ".bags" in n and p.requires_grad]:
        optimizers.append(torch.optim.Adagrad(bags, lr=0.05))
    inputs = in_memory(model, batches)

    def train() -> None:
        for x, sparse, labels in inputs * epochs:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, sparse), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


def by_command(
    arguments: Sequence[str], folders: Iterator[Path], validations: list[Sample] | None = None
) -> Callable[[], Sample]:
    """Return a round of python -m recsys.train, of which the training counts, without its start.

    validations: gets the samples of the validations during training, of as many rows as are trained
    """

    def run() -> Sample:
        folder = next(folders)
        command = [sys.executable, "-m", "recsys.train", *arguments, f"run_dir={folder}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        train = json.loads((folder / "metrics.json").read_text())["train"]
        if validations is not None:
            seconds = train["validation_seconds"], train["validation_cpu_seconds"]
            validations.append(Sample(train["samples"], *seconds))
        return Sample(train["samples"], train["seconds"], train["cpu_seconds"])

    return run


def write_rows(target: Path, batches: list[Batch], features: FeatureSpec) -> None:
    """Write rows for peers, see peers/one_round.py."""
    np.savez(
        target,
        dense=torch.cat([b.dense for b in batches]).numpy(),
        ids=torch.cat([b.sparse.values().view(len(features.sparse), -1).T.long() for b in batches]).numpy(),
        labels=torch.cat([b.labels for b in batches]).numpy(),
        cardinalities=np.array([f.cardinality for f in features.sparse]),
    )


def rank(name: str, rounds: int, folder: Path) -> None:
    """Measure a ranking model."""
    topic = RANKING[name]
    arguments = [
        *topic.settings, f"data={topic.data}", f"data.sample.rows={topic.rows}", f"data.prepared={folder}/prepared",
        f"trainer.batch_size={topic.batch}", f"trainer.max_epochs={topic.epochs}",
        "trainer.early_stopping.patience=null",
    ]  # fmt: skip
    prepared = prepare(RunConfig.of(compose("train", arguments)).data)
    features = prepared.fitted.features
    folders = (folder / f"run-{i}" for i in itertools.count())
    contestants = {OURS: by_command(arguments, folders)}
    claims = []
    loader = ParquetLoader(prepared.files("train"), features, batch_size=topic.batch, training=True, shuffle=True)
    batches = [b for b in loader if b.rows == topic.batch]
    if topic.bound:
        units = len(batches) * topic.epochs * topic.batch
        for label, fbgemm in ((BOUND, True), *([("nn.EmbeddingBag loop", False)] if topic.bags else [])):
            train = bare_loop(bare(topic.bound, features, fbgemm), batches, topic.epochs)
            contestants[label] = timed(train, units)
            claims.append(Claim(OURS, label, topic.bound_goal if fbgemm else 2.5))
    if topic.peer:
        label, script, goal = topic.peer
        rows = [
            np.concatenate([x.numpy() for x in xs]) for xs in zip(*((b.dense, b.labels) for b in batches), strict=True)
        ]
        ids = np.concatenate([b.sparse.values().view(-1, topic.batch).T.numpy() for b in batches]).astype(np.int64)
        ids, rows = ids[:163_840], [x[:163_840] for x in rows]
        cardinalities = np.array([f.cardinality for f in features.sparse])
        np.savez(folder / "rows.npz", dense=rows[0], labels=rows[1], ids=ids, cardinalities=cardinalities)
        contestants[label] = peer(script, folder / "rows.npz", topic.batch, 1)
        claims += [Claim(OURS, label, goal), Claim(COMPILED, label)]
        claims += [Claim(BOUND, label)] if topic.bound else []
    contestants[COMPILED] = by_command([*arguments, "trainer.precision=bf16-mixed", "trainer.compile=true"], folders)
    contestants[COMPILED]()  # compiles once
    claims.append(Claim(COMPILED, BOUND if topic.bound else OURS, topic.compiled))
    measure(name, topic.about, contestants, claims, rounds, "samples")


class Padded(nn.Module):
    """SASRec over padded lists, with scaled_dot_product_attention. (B, L) -> loss

    full: whether the loss is a softmax over all items, not one negative a place
    """

    def __init__(self, items: int, length: int, dim: int = 50, blocks: int = 2, full: bool = False) -> None:
        super().__init__()
        self.blocks: Any
        self.full = full
        self.items, self.places = nn.Embedding(items + 1, dim, padding_idx=0), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(dim), "between": nn.LayerNorm(dim),
                    "query": nn.Linear(dim, dim), "key_value": nn.Linear(dim, 2 * dim), "out": nn.Linear(dim, dim),
                    "feed_forward": nn.Sequential(
                        nn.Linear(dim, dim), nn.Dropout(0.2), nn.ReLU(), nn.Linear(dim, dim), nn.Dropout(0.2)
                    ),
                }
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(0.2)

    def forward(self, lists: Tensor) -> Tensor:
        inputs, targets = lists[:, :-1], lists[:, 1:]
        x = self.dropout(self.items(inputs) * self.items.embedding_dim**0.5 + self.places.weight[-inputs.shape[1] :])
        for block in self.blocks:
            queries = block["before"](x)
            keys, values = block["key_value"](x).chunk(2, dim=-1)
            heads = (block["query"](queries), keys, values)
            q, k, v = (h[:, None] for h in heads)
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = block["between"](queries + self.dropout(block["out"](attended[:, 0])))
            x = x + block["feed_forward"](x)
        states = self.norm(x)
        if self.full:
            real = targets > 0
            return nn.functional.cross_entropy(states[real] @ self.items.weight.T, targets[real])
        negatives = torch.randint(1, self.items.num_embeddings, targets.shape, device=targets.device)
        right, wrong = ((states * self.items(i)).sum(-1) for i in (targets, negatives))
        loss = -(nn.functional.logsigmoid(right) + nn.functional.logsigmoid(-wrong))
        return (loss * (targets > 0)).sum() / (targets > 0).sum()


def padded_loop(
    lists: Sequence[Sequence[int]], items: int, length: int, batch: int, dim: int = 50, full: bool = False
) -> Callable[[], None]:
    """Return an epoch of a bare loop over padded lists in memory."""
    rows = torch.zeros(len(lists), length + 1, dtype=torch.int64)
    for row, values in zip(rows, lists, strict=True):
        kept = values[-length - 1 :]
        row[-len(kept) :] = torch.tensor(kept)
    model = Padded(items, length, dim, full=full)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def train() -> None:
        for chosen in rows[torch.randperm(len(rows))].split(batch):
            optimizer.zero_grad()
            model(chosen).backward()
            optimizer.step()

    return train


def write_lists(file: Path, users: int, items: int, lengths: Callable[[], int]) -> list[list[int]]:
    """Write lists of items, as ml-1m.txt has them, and return them."""
    random = np.random.default_rng(0)
    lists = [(random.permutation(items)[: lengths()] + 1).tolist() for _ in range(users)]
    file.write_text("".join(f"{u} {i}\n" for u, values in enumerate(lists, 1) for i in values))
    return lists


def sequence_arguments(folder: Path, batch: int) -> list[str]:
    """Return the arguments of SASRec on lists that `write_lists` wrote to ml-1m.txt."""
    return [
        "model=sasrec", "model.dim=50", "loss=bce", "data=movielens_1m", f"data.root={folder}",
        f"data.prepared={folder}/prepared",
        f"trainer.batch_size={batch}", "trainer.early_stopping.patience=null",
    ]  # fmt: skip


def sequences(name: str, rounds: int, folder: Path) -> None:
    """Measure SASRec on lists of MovieLens 1M's lengths and number of items."""
    users, items, length, batch, steps = 1500, 3416, 200, 128, 8
    random = np.random.default_rng(1)
    text = folder / "ml-1m.txt"
    lists = write_lists(text, users, items, lambda: min(20 + random.geometric(1 / 145), 1500))
    arguments = [*sequence_arguments(folder, batch), "trainer.max_epochs=4"]
    folders = (folder / f"run-{i}" for i in itertools.count())
    contestants = {
        OURS: by_command(arguments, folders),
        "padded loop": timed(padded_loop(lists, items, length, batch), users),
        "RecBole": peer("sasrec_recbole", text, batch, steps),
    }
    claims = [Claim(OURS, "padded loop", 2), Claim(OURS, "RecBole", 3)]
    about = "SASRec, lists of MovieLens 1M's lengths, batch 128, one negative (RecBole: one target a row, others all)"
    measure(name, about, contestants, claims, rounds, "sequences")


def softmax(name: str, rounds: int, folder: Path) -> None:
    """Measure SASRec with losses over many items, and the ranking of all items in validations."""
    users, items, length, batch, dim = (4000, 18_000, 50, 256, 64) if name == "softmax" else (4000, 50_000, 50, 256, 64)
    lists = write_lists(folder / "ml-1m.txt", users, items, lambda: length + 2)
    arguments = sequence_arguments(folder, batch)
    arguments += [f"data.sequences.max_length={length}", f"model.dim={dim}", "trainer.max_epochs=2"]
    folders = (folder / f"run-{i}" for i in itertools.count())
    ranking: list[Sample] = []
    full = [*arguments, "loss=full_softmax"]
    sampled = by_command([*arguments, "loss=sampled_softmax", "loss.count=256"], folders, ranking)
    contestants = {
        f"{OURS}, all items": by_command(full, folders),
        f"{OURS}, all items, bf16-mixed": by_command([*full, "trainer.precision=bf16-mixed"], folders),
        f"{OURS}, 256 items": sampled,
        "validation": lambda: ranking.pop(),
    }
    queries, vectors = torch.randn(batch, dim), torch.randn(items, dim)

    def product() -> None:
        for _ in range(users // batch):
            scores = queries @ vectors.T
            (scores > scores[:, :1]).sum(1)

    contestants[PRODUCT] = timed(product, users // batch * batch)
    losses = list(contestants)[:3]
    claims = [*(Claim("validation", name) for name in losses), Claim("validation", PRODUCT), Claim(PRODUCT, losses[2])]
    if name == "softmax":
        loop = padded_loop([values[:-1] for values in lists], items, length, batch, dim, full=True)
        contestants[LOGITS] = timed(loop, users)
        claims += [Claim(name, LOGITS, 3) for name in losses]
    about = f"SASRec, {items:,} items, lists of {length}, batch {batch}: losses, and ranking of all items"
    measure(name, about, contestants, claims, rounds, "sequences")


def main() -> None:
    name, *rest = sys.argv[1:] or ["dlrm"]
    rounds = int(rest[0]) if rest else 3
    topics = dict.fromkeys(RANKING, rank) | {"sasrec": sequences, "softmax": softmax, "ranking": softmax}
    if name not in topics:
        sys.exit(f"{name}: must be one of {', '.join(topics)}")
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        topics[name](name, rounds, Path(folder))


if __name__ == "__main__":
    main()
