"""Training a small model sharded, and the same in plain torch on the whole batch, to be compared."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch
from recsys.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.lit import RecsysModule
from recsys.models.embeddings import embedding_bags, stack
from recsys.schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.optim import RowOptimizer
from recsys.sharding.plan import describe, make_plan, shard, tables_of
from recsys.task import Task

DIM, STEPS, ROWS = 8, 3, 6  # rows a rank and step
SPEC = FeatureSpec(
    dense=(DenseFeature("x"),),
    sparse=(
        SparseFeature("a", 3, "a"),  # fewer rows than four ranks
        SparseFeature("b", 50, "b"),
        SparseFeature("c", 17, "c", pooling="mean", multi_valued=True),
        SparseFeature("d", 23, "d", pooling="sum", multi_valued=True),
    ),
)
DECAY = {"rowwise_adagrad": 0.1, "adagrad": 0.0, "adam": 0.1, "partial_rowwise_adam": 0.1, "sgd": 0.0}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedding_bags(SPEC, DIM, device=torch.device("meta"))
        self.linear = nn.Linear(1 + len(SPEC.sparse) * DIM, 1)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        return self.linear(torch.cat([dense, stack(self.embeddings(sparse), SPEC).flatten(1)], dim=1))


def weights() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {f.table: torch.randn(f.cardinality, DIM, generator=g) * 0.3 for f in SPEC.sparse}


def linear() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2)
    return {"weight": torch.randn(1, 1 + len(SPEC.sparse) * DIM, generator=g), "bias": torch.randn(1, generator=g)}


def bags(step: int, rank: int) -> tuple[list[list[list[int]]], Tensor, Tensor]:
    """Per feature, ROWS bags of ids; rank 1 has no id at all for d at step 1; some bags are empty."""
    g = torch.Generator().manual_seed(100 * step + rank)
    out = []
    for f in SPEC.sparse:
        feature = []
        for _ in range(ROWS):
            n = int(torch.randint(0, 4, (1,), generator=g)) if f.multi_valued else 1
            n = 0 if (f.name, step, rank) == ("d", 1, 1) else n
            feature.append(torch.randint(0, f.cardinality, (n,), generator=g).tolist())
        out.append(feature)
    return out, torch.randn(ROWS, 1, generator=g), torch.randint(0, 2, (ROWS, 1), generator=g).float()


def batch(step: int, rank: int) -> Batch:
    features, dense, labels = bags(step, rank)
    flat = [bag for feature in features for bag in feature]
    values = torch.tensor([i for bag in flat for i in bag], dtype=torch.int32)
    lengths = torch.tensor([len(bag) for bag in flat], dtype=torch.int32)
    return Batch(dense, KeyedJaggedTensor([f.name for f in SPEC.sparse], values, lengths=lengths), labels)


def reference(optimizer: str, world_size: int, blocks: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Logits of each step (all ranks' rows) and the tables after the last; row-wise state per column block."""
    config = SparseOptimConfig(name=optimizer, lr=0.1, weight_decay=DECAY[optimizer])
    tables = {k: v.clone().requires_grad_() for k, v in weights().items()}
    lin = {k: v.clone().requires_grad_() for k, v in linear().items()}
    state: dict[Any, dict[str, Tensor]] = {}
    logits = []
    for step in range(STEPS):
        rows = []
        for rank in range(world_size):
            features, dense, labels = bags(step, rank)
            for r in range(ROWS):
                pooled = [dense[r]]
                for f, feature in zip(SPEC.sparse, features, strict=True):
                    ids = feature[r]
                    total = tables[f.table][ids].sum(0) if ids else torch.zeros(DIM)
                    pooled.append(total / len(ids) if f.pooling == "mean" and ids else total)
                rows.append((torch.cat(pooled), labels[r]))
        out = torch.stack([x for x, _ in rows]) @ lin["weight"].T + lin["bias"]
        logits.append(out.detach())
        y = torch.stack([label for _, label in rows])
        loss = nn.functional.binary_cross_entropy_with_logits(out, y)
        grads = torch.autograd.grad(loss, [*tables.values(), *lin.values()], allow_unused=True)
        with torch.no_grad():
            for (name, w), grad in zip(tables.items(), grads, strict=False):
                touched = sorted(
                    {
                        i
                        for f, _ in [(f, 0) for f in SPEC.sparse if f.table == name]
                        for rank in range(world_size)
                        for bag in bags(step, rank)[0][[s.name for s in SPEC.sparse].index(f.name)]
                        for i in bag
                    }
                )
                for block in range(blocks):
                    cols = slice(block * DIM // blocks, (block + 1) * DIM // blocks)
                    for i in touched:
                        w[i, cols] = rule(
                            config, w[i, cols], grad[i, cols], state.setdefault((name, i, block), {}), step + 1
                        )
            for (_, w), grad in zip(lin.items(), grads[len(tables) :], strict=True):
                w -= 0.1 * grad
    return logits, {k: v.detach() for k, v in tables.items()}


def rule(c: SparseOptimConfig, w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    """FBGEMM's update of one row (of one column block), from its documentation."""
    if c.name == "sgd":
        return w - c.lr * g
    if c.name.endswith("adagrad"):
        g = g + c.weight_decay * w
        s["s"] = s.get("s", torch.zeros(())) + (g.square().mean() if c.name == "rowwise_adagrad" else g.square())
        return w - c.lr * g / (s["s"].sqrt() + c.eps)
    s["m"] = c.beta1 * s.get("m", torch.zeros_like(w)) + (1 - c.beta1) * g
    second = g.square().mean() if "partial" in c.name else g.square()
    s["v"] = c.beta2 * s.get("v", torch.zeros(())) + (1 - c.beta2) * second
    step = (s["m"] / (1 - c.beta1**t)) / ((s["v"] / (1 - c.beta2**t)).sqrt() + c.eps)
    return w - c.lr * (step + c.weight_decay * w)


def fill(dmp: nn.Module, full: dict[str, Tensor]) -> None:
    for name, value in dmp.state_dict().items():
        if "embedding_bags" in name:
            table = full[name.split(".")[-2].removeprefix("t_")]
            for piece, (r, c) in pieces(value):
                piece.copy_(table[r : r + piece.shape[0], c : c + piece.shape[1]])
        else:
            value.copy_(linear()[name.rpartition(".")[2]])


def pieces(value: Any) -> list[tuple[Tensor, tuple[int, int]]]:
    if isinstance(value, ShardedTensor):
        return [(s.tensor, tuple(s.metadata.shard_offsets)) for s in value.local_shards()]  # type: ignore[misc]
    return [(value, (0, 0))]


def train_all(rank: int, world_size: int, cases: list[tuple[str, str]], on: str = "cpu") -> list[Any]:
    """Each case: logits of each step, this rank's pieces of the tables after the last one, and the plan."""
    device = torch.device(on)
    results = []
    for kind, optimizer in cases:
        config = SparseOptimConfig(name=optimizer, lr=0.1, weight_decay=DECAY[optimizer])
        task = Task(Model())
        tables = tables_of(task)
        plan, sharder = make_plan(
            task,
            ShardingConfig(types=[kind]),
            config,
            device=device,
            batch_size=ROWS,
            local_world_size=world_size,
        )
        dmp = shard(task, plan, sharder, device)
        entries = describe(plan, tables)
        with torch.no_grad():
            fill(dmp, weights())
        dense_kernel = {f"{e['module']}.embedding_bags.{e['table']}.weight" for e in entries if e["kernel"] == "dense"}
        rows = [p for n, p in dmp.named_parameters() if n in dense_kernel and p.dim() == 2]
        others = [p for n, p in dmp.named_parameters() if "embedding_bags" not in n]
        optimizers = [torch.optim.SGD(others, lr=0.1)] + ([RowOptimizer(rows, config)] if rows else [])
        logits = []
        for step in range(STEPS):
            for o in optimizers:
                o.zero_grad()
            loss, out = dmp(batch(step, rank).to(device))
            loss.backward()
            for o in optimizers:
                o.step()
            logits.append(out.detach().cpu())
        found = {
            n: [(p.cpu().clone(), at) for p, at in pieces(v)]
            for n, v in dmp.state_dict().items()
            if "embedding_bags" in n
        }
        results.append({"logits": logits, "tables": found, "plan": entries})
        dist.barrier()
    return results


def assert_equal(ranks: list[Any], optimizer: str, blocks: int = 1) -> None:
    """What the ranks of one case have found equals plain torch; blocks: column blocks with a row-wise state each."""
    logits, tables = reference(optimizer, len(ranks), blocks)
    for step in range(STEPS):
        torch.testing.assert_close(
            torch.cat([r["logits"][step] for r in ranks]),
            logits[step],
            rtol=1e-4,
            atol=1e-5,
            msg=lambda m: f"step {step}: {m}",
        )
    for name, full in tables.items():
        got = torch.full_like(full, torch.nan)
        for r in ranks:
            [key] = [k for k in r["tables"] if k.endswith(f".t_{name}.weight")]
            for piece, (row, column) in r["tables"][key]:
                got[row : row + piece.shape[0], column : column + piece.shape[1]] = piece
        torch.testing.assert_close(got, full, rtol=1e-4, atol=1e-5)


def initial_tables(rank: int, world_size: int, kinds: list[str]) -> list[dict[str, list[tuple[Tensor, Any]]]]:
    """This rank's pieces of each table, as training under each sharding type starts."""
    found = []
    for kind in kinds:
        torch.manual_seed(7)
        module = RecsysModule(
            lambda: Task(Model()),
            ShardingConfig(types=[kind]),
            SparseOptimConfig(),
            batch_size=ROWS,
            local_world_size=world_size,
        )
        module.setup_model(torch.device("cpu"))
        assert module.dmp is not None
        state = module.dmp.state_dict().items()
        found.append({n: [(p.clone(), at) for p, at in pieces(v)] for n, v in state if "embedding_bags" in n})
    return found
