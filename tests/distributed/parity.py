"""Training a small model sharded, and the same in plain torch on the whole batch, to be compared."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.optimizers import sparse_optimizer
from recsys.sharding.planner import make_planner, this_machine, topology
from recsys.sharding.sharded_model import Placement
from recsys.sharding.tables import lay_out_tables
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

STEPS, ROWS = 3, 12  # rows a step, over all ranks
SPEC = FeatureSpec(
    dense=(DenseFeature("x"),),
    sparse=(
        SparseFeature("a", 3, "a"),  # fewer rows than four ranks
        SparseFeature("b", 50, "b"),
        SparseFeature("c", 17, "c", pooling="mean", multi_valued=True),
        SparseFeature("d", 23, "d", pooling="sum", multi_valued=True),
        SparseFeature("e", 23, "d", pooling="mean", multi_valued=True),  # shares a table, pooled otherwise
    ),
)
SEQUENCES = FeatureSpec(dense=(), sparse=(SparseFeature("s", 19, "s", multi_valued=True),))
FEATURES = (*SPEC.sparse, *SEQUENCES.sparse)
DECAY = {"rowwise_adagrad": 0.1, "adagrad": 0.0, "adam": 0.1, "partial_rowwise_adam": 0.1, "sgd": 0.0}
MIXED: dict[str, Any] = {
    "types": ["row_wise"],
    "per_table": {"b": {"types": ["data_parallel"]}, "d": {"types": ["table_wise"]}, "s_s": {"types": ["column_wise"]}},
}


@dataclass(frozen=True)
class Case:
    """types: of the pooled tables; "mixed" gives each table another one. decay: the optimizer's own in DECAY."""

    types: str
    optimizer: str
    dim: int = 8
    padding: str = "16"
    decay: bool = True
    kernels: tuple[str, ...] = ()
    every_row: bool = False
    dedup: bool = False

    def __str__(self) -> str:
        more = [*self.kernels, *["every_row"] * self.every_row, *["dedup"] * self.dedup]
        more += [f"{self.dim}-padded-{self.padding}"] * (self.dim != 8)
        return "-".join([self.types, self.optimizer, *more])

    @property
    def sharding(self) -> ShardingConfig:
        given = {**MIXED} if self.types == "mixed" else {"types": [self.types]}
        block = 4 if self.types == "grid_shard" else None  # on one node it would be row-wise
        given |= {"kernels": list(self.kernels), "cache_load_factor": 0.1, "column_block": block}
        return ShardingConfig(**given, padding=self.padding, dedup=self.dedup)

    @property
    def optim(self) -> SparseOptimConfig:
        decay = DECAY[self.optimizer] if self.decay else 0.0
        lr = 0.03 if "adam" in self.optimizer else 0.1
        return SparseOptimConfig(name=self.optimizer, lr=lr, eps=1e-4, weight_decay=decay, every_row=self.every_row)


class Model(nn.Module):
    """Pooled tables, and one whose rows are added up, each times its place in the sequence."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        meta = torch.device("meta")
        self.embeddings = PooledEmbeddings(SPEC, case.dim, device=meta)
        self.sequences = SequenceEmbeddings(SEQUENCES, case.dim, ["s"], device=meta)
        self.linear = nn.Linear(1 + len(FEATURES) * case.dim, 1)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        by_place = added(self.sequences(sparse)["s"], len(dense))
        return self.linear(torch.cat([dense, self.embeddings(sparse).flatten(1), by_place], dim=1))


@torch.fx.wrap
def added(rows: JaggedTensor, batch_size: int) -> Tensor:
    bag = torch.repeat_interleave(torch.arange(batch_size, device=rows.lengths().device), rows.lengths())
    place = 1 + torch.arange(len(bag), device=bag.device) - rows.offsets()[bag]
    zeros = rows.values().new_zeros(batch_size, rows.values().shape[1])
    return zeros.index_add(0, bag, rows.values() * place[:, None])


def weights(dim: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {f.table: torch.randn(f.cardinality, dim, generator=g) * 0.3 for f in FEATURES}


def linear(dim: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2)
    # small: where a logit saturates, FBGEMM touches rows whose gradient is exactly 0, and RowOptimizer does not
    return {"weight": torch.randn(1, 1 + len(FEATURES) * dim, generator=g) * 0.2, "bias": torch.randn(1, generator=g)}


def bags(step: int) -> tuple[list[list[list[int]]], Tensor, Tensor]:
    """Per feature, ROWS bags of ids; dense; labels. Some bags are empty; at step 1 the last
    rows, which are the last rank's, have no id at all for d."""
    g = torch.Generator().manual_seed(100 * step)
    ids: list[list[list[int]]] = []
    for f in FEATURES:
        sizes = torch.randint(0, 4, (ROWS,), generator=g).tolist() if f.multi_valued else [1] * ROWS
        sizes = [0 if (f.name, step) == ("d", 1) and r >= ROWS // 2 else n for r, n in enumerate(sizes)]
        ids.append([torch.randint(0, f.cardinality, (n,), generator=g).tolist() for n in sizes])
    return ids, torch.randn(ROWS, 1, generator=g), torch.randint(0, 2, (ROWS, 1), generator=g).float()


def batch(step: int, rank: int, world_size: int) -> Batch:
    """This rank's rows of the step's."""
    ids, dense, labels = bags(step)
    mine = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    flat = [bag for feature in ids for bag in feature[mine]]
    kjt = KeyedJaggedTensor(
        [f.name for f in FEATURES],
        torch.tensor([i for bag in flat for i in bag], dtype=torch.int32),
        lengths=torch.tensor([len(bag) for bag in flat], dtype=torch.int32),
    )
    return Batch(dense[mine], kjt, labels[mine])


def reference(case: Case, blocks: list[dict[str, int]]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Logits of each step and the tables after the last. blocks: of columns, by step and table, with a number of
    their own in row-wise state: for those that change, the mean over a new block's columns."""
    config, dim = case.optim, case.dim
    tables = {k: v.clone().requires_grad_() for k, v in weights(dim).items()}
    lin = {k: v.clone().requires_grad_() for k, v in linear(dim).items()}
    state: dict[Any, dict[str, Tensor]] = {}
    logits = []
    for step in range(len(blocks)):
        ids, dense, labels = bags(step)
        rows = []
        for r in range(ROWS):
            pooled = [dense[r]]
            for f, feature in zip(FEATURES, ids, strict=True):
                count = len(feature[r])
                factors = torch.arange(count) + 1.0 if f.name == "s" else torch.ones(count)
                total = (tables[f.table][feature[r]] * factors[:, None]).sum(0)
                pooled.append(total / factors.sum() if f.pooling == "mean" and len(factors) else total)
            rows.append(torch.cat(pooled))
        out = torch.stack(rows) @ lin["weight"].T + lin["bias"]
        logits.append(out.detach())
        loss = nn.functional.binary_cross_entropy_with_logits(out, labels)
        grads = torch.autograd.grad(loss, [*tables.values(), *lin.values()], allow_unused=True)
        with torch.no_grad():
            for (name, w), grad in zip(tables.items(), grads, strict=False):
                touched = {i for f, bs in zip(FEATURES, ids, strict=True) if f.table == name for b in bs for i in b}
                touched = set(range(len(w))) if case.every_row else touched
                n = blocks[step][name]
                if n != blocks[max(step - 1, 0)][name]:
                    for (table, _), own in state.items():
                        for part in own["second"].view(n, -1) if table == name and "rowwise" in config.name else ():
                            part[:] = part.mean()
                for i in sorted(touched):
                    own = state.setdefault((name, i), {"first": torch.zeros(dim), "second": torch.zeros(dim)})
                    for block in range(n):
                        cols = slice(block * dim // n, (block + 1) * dim // n)
                        part = {k: v[cols] for k, v in own.items()}
                        w[i, cols] = rule(config, w[i, cols], grad[i, cols], part, step + 1)
            for (_, w), grad in zip(lin.items(), grads[len(tables) :], strict=True):
                w -= 0.1 * grad
    return logits, {k: v.detach() for k, v in tables.items()}


def rule(c: SparseOptimConfig, w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    """FBGEMM's update of one row (of one column block), from its documentation; s is changed in place."""
    if c.name == "sgd":
        return w - c.lr * g
    g = g + c.weight_decay * w if "adagrad" in c.name else g
    rowwise = "rowwise" in c.name
    second = g.square().mean() if rowwise else g.square()
    before = s["second"].mean() if rowwise else s["second"]
    if "adagrad" in c.name:
        s["second"][:] = before + second
        return w - c.lr * g / (s["second"].sqrt() + c.eps)
    s["first"][:] = c.beta1 * s["first"] + (1 - c.beta1) * g
    s["second"][:] = c.beta2 * before + (1 - c.beta2) * second
    step = (s["first"] / (1 - c.beta1**t)) / ((s["second"] / (1 - c.beta2**t)).sqrt() + c.eps)
    return w - c.lr * (step + c.weight_decay * w)


def blocks_of(plan: list[dict[str, Any]]) -> dict[str, int]:
    """Column blocks of each table."""
    return {e["table"].partition("_")[2]: len({s["offsets"][1] for s in e["shards"]}) or 1 for e in plan}


class Trained:
    """The model of a case, sharded over the default group as training does it, filled with known weights."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case, self.device = case, torch.device(device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        module = RecsysModule(
            lambda: Task(Model(case)),
            Placement(case.sharding, case.optim, ROWS // self.world_size, self.world_size),
            Updates(make_optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
        )
        module.setup_model(self.device)
        self.module, self.dmp, self.optimizer = module, module.dmp, module.configure_optimizers()
        self.fill(weights(case.dim))

    @torch.no_grad()
    def fill(self, full: dict[str, Tensor]) -> None:
        for name, value in self.dmp.state_dict().items():
            if ".embedding" not in name:
                value.copy_(linear(self.case.dim)[name.rpartition(".")[2]])
                continue
            table = full[name.split(".")[-2].partition("_")[2]]
            table = nn.functional.pad(table, (0, 64))  # what lies beyond dim is padding
            for piece, (r, c) in pieces(value):
                piece.copy_(table[r : r + piece.shape[0], c : c + piece.shape[1]])

    def step(self, number: int) -> Tensor:
        """Train on the rows of a step; this rank's logits."""
        self.optimizer.zero_grad()
        loss, out = self.dmp(batch(number, self.rank, self.world_size).to(self.device))
        loss.backward()
        self.optimizer.step()
        return out.detach().cpu()

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Logits of the same rows on every rank."""
        return self.dmp(batch(9, 0, 1).to(self.device))[1].cpu()

    def bytes(self) -> tuple[int, int]:
        """This rank's bytes of the tables' weights, and of their optimizer's states, as they are allocated."""
        lookups = [m._lookups for m in self.dmp.modules() if hasattr(m, "_lookups")]
        kernels = [m for each in lookups for lookup in each for m in lookup.modules()]
        tensors = [(n, t) for m in kernels for n, t in [*m.named_parameters(), *m.named_buffers()]]
        sizes: dict[str, dict[int, int]] = {"weights": {}, "momentum": {}}
        tensors = [(n.rpartition(".")[2], t) for n, t in tensors]
        if (rows := self.module.step.optimizers.rows) is not None:
            tensors += [("momentum", t) for own in rows.state.values() for t in own.values()]
        for name, t in tensors:
            kind = next((k for k in sizes if name.startswith(k)), None)
            if kind and isinstance(t, Tensor) and t.is_floating_point():  # not FBGEMM's offsets and places
                sizes[kind][t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return sum(sizes["weights"].values()), sum(sizes["momentum"].values())

    def tables(self) -> dict[str, list[tuple[Tensor, tuple[int, int]]]]:
        state = self.dmp.state_dict().items()
        return {n: [(p.cpu().clone(), at) for p, at in pieces(v)] for n, v in state if ".embedding" in n}


def pieces(value: Any) -> list[tuple[Tensor, tuple[int, int]]]:
    if isinstance(value, ShardedTensor):
        return [(s.tensor, tuple(s.metadata.shard_offsets)) for s in value.local_shards()]  # type: ignore[misc]
    return [(value, (0, 0))]


def train_all(rank: int, world_size: int, cases: list[Case], on: str = "cpu") -> list[Any]:
    """Each case: logits of each step, this rank's pieces of the tables after the last one, and the plan."""
    results = []
    for case in cases:
        trained = Trained(case, on)
        logits = [trained.step(step) for step in range(STEPS)]
        assert trained.module.not_finite() is None  # every checkpoint asks this; a rank may hold no shard of a table
        found = {"logits": logits, "tables": trained.tables(), "bytes": trained.bytes()}
        results.append(found | {"plan": trained.module.sharded.plan})
        dist.barrier()
    return results


def assert_equal(ranks: list[Any], case: Case) -> None:
    """What the ranks of one case have found equals plain torch; column blocks have a row-wise state each."""
    logits, tables = reference(case, [blocks_of(ranks[0]["plan"])] * STEPS)
    for step in range(STEPS):
        torch.testing.assert_close(
            torch.cat([r["logits"][step] for r in ranks]),
            logits[step],
            rtol=1e-4,
            atol=1e-5,
            msg=lambda m: f"step {step}: {m}",
        )
    for name, full in tables.items():
        got = nn.functional.pad(torch.full_like(full, torch.nan), (0, 64))
        for r in ranks:
            [key] = [k for k in r["tables"] if k.split(".")[-2].partition("_")[2] == name]
            for piece, (row, column) in r["tables"][key]:
                got[row : row + piece.shape[0], column : column + piece.shape[1]] = piece
        torch.testing.assert_close(got[:, : case.dim], full, rtol=1e-4, atol=1e-5, msg=lambda m: f"table {name}: {m}")
        assert not got[:, case.dim :].any(), "padding that is not zero"


def planned_bytes(case: Case, world_size: int) -> list[tuple[int, int]]:
    """Each rank's bytes of weights and of states, as the planner counts them, which must fit the ranks."""
    module = Task(Model(case))
    lay_out_tables(module, case.sharding.padding)
    optim = sparse_optimizer(case.optim)
    planner, sharders = make_planner(
        module, case.sharding, optim, topology(this_machine("cpu", world_size)), ROWS // world_size
    )
    planner.plan(module, sharders)
    options = planner._best_plan or []
    with_states = {(o.name, i): s.storage for o in options for i, s in enumerate(o.shards)}
    enumerator = EmbeddingEnumerator(planner._topology, ROWS // world_size, planner._constraints)
    enumerator.enumerate(module, sharders)
    enumerator.populate_estimates(options)  # by TorchRec alone, which knows of no optimizer here
    found = [(0, 0)] * world_size
    for o in options:
        for i, s in enumerate(o.shards):
            weights, states = found[s.rank]
            size = math.prod(s.size) * o.tensor.element_size()
            found[s.rank] = (weights + size, states + with_states[o.name, i].ddr - s.storage.ddr)
    return found


def initial_tables(rank: int, world_size: int, kinds: list[str]) -> list[dict[str, list[tuple[Tensor, Any]]]]:
    """This rank's pieces of each table, as training under each sharding type starts."""
    found = []
    for kind in kinds:
        torch.manual_seed(7)
        case = Case(kind, "rowwise_adagrad")
        module = RecsysModule(
            lambda case=case: Task(Model(case)), Placement(case.sharding, case.optim, ROWS // world_size, world_size)
        )
        module.setup_model(torch.device("cpu"))
        state = module.dmp.state_dict().items()
        found.append({n: [(p.clone(), at) for p, at in pieces(v)] for n, v in state if ".embedding" in n})
    return found
