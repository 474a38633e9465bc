"""A training step of every model and loss on a stand-in for a GPU: one device, few waits, and the results of a CPU."""

import copy
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from model_inputs import random_arrays
from stand_in_gpu import GPU, TABLES, OnGpu, as_graph, stand_in_gpu, to_gpu
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.config.compose import compose, conf_dir
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.resolved_data import feature_spec
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch, Interactions
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.job.run_config import RunConfig
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule

ROWS, IDS = 16, 40
FIRST = re.compile(r"# python -m recsys\.train (.*)")
COMMANDS = {
    f"{group}/{p.stem}": shlex.split(FIRST.search(p.read_text())[1])  # type: ignore[index]
    for group in ("model", "loss", "numeric")
    for p in sorted((conf_dir() / group).glob("*.yaml"))
    if FIRST.search(p.read_text())
}
TARGETS = "the number of targets and inputs is the size of a lookup"
LONGEST = "the longest list is the size of a block, within which attention or a GRU runs"
RETRIEVAL = "bert4rec comirec esasrec fuxi_alpha gru4rec hstu mf neumf sasrec transformer ultragcn".split()
WAITS = {  # of a step, with the reason; all others have none
    **{f"model/{m}": (1, LONGEST) for m in ("bst", "dien", "hstu_rank", "target_attention")},
    **{f"model/{m}": (1, TARGETS) for m in RETRIEVAL},
    **{f"loss/{m}": (1, TARGETS) for m in ("bce", "bce_shared", "bpr", "full_softmax", "gbce", "sampled_softmax")},
    "model/sim": (2, "the number of items of the target's category, and of the last k of them, are sizes of blocks"),
    **dict.fromkeys(("model/tiger", "loss/likelihood"), (2, f"{TARGETS}; the longest list of codes, another one")),
    "model/mult_vae": (2, f"{TARGETS}, and so is the number of items that dropout keeps"),
    **dict.fromkeys(("model/simplex", "loss/cosine_contrastive"), (2, f"{TARGETS}; the first batch checks vectors")),
    "model/two_tower": (3, f"{TARGETS}; the features of distinct items are looked up, whose number is one, too"),
    "loss/in_batch_softmax": (3, "as model/two_tower"),
    "loss/pairwise": (4, "the number of pairs of rows within groups is the size of all that is computed of them"),
}


def config(name: str) -> RunConfig:
    return RunConfig.of(compose("train", COMMANDS[name]))


def random_batch(features: FeatureSpec, grouped: bool) -> Batch:
    """A batch as the loader's: the numbers of values of each feature are known on the CPU."""
    tensors = RowTensors.from_arrays(random_arrays(features, ROWS, longest=9), features)
    batch = tensors.batch(np.random.default_rng(0).integers(0, 2, (ROWS, max(1, len(features.labels)))))
    batch.sparse = KeyedJaggedTensor(
        list(tensors.values),
        batch.sparse.values(),
        lengths=batch.sparse.lengths(),
        stride=ROWS,
        length_per_key=[len(v) for v in tensors.values.values()],
    )
    batch.group = torch.arange(ROWS) // 4 if grouped else None
    return batch


def random_candidates(features: FeatureSpec) -> Candidates:
    popularity = torch.rand(IDS) + 0.1
    if features.items is None:
        return Candidates(popularity)
    items = RowTensors.from_arrays(random_arrays(features.items, IDS), features.items)
    offsets = {n: torch.cat([torch.zeros(1, dtype=torch.long), x.long().cumsum(0)]) for n, x in items.lengths.items()}
    return Candidates(popularity, items.dense, items.values, offsets)


def without_dropout(task: nn.Module) -> nn.Module:
    """The masks of a CPU are drawn in another way."""
    for m in task.modules():
        if type(m).__name__ == "Dropout":
            m.p = 0.0  # type: ignore[assignment]
    return task


def loss_and_gradients(task: Any, batch: Batch) -> Tensor:
    torch.manual_seed(0)
    loss, _ = task(batch)
    loss.backward()
    return loss.detach()  # type: ignore[no-any-return]


def update(task: nn.Module) -> None:
    dense = [p for p in task.parameters() if p.grad is not None]
    torch.nn.utils.clip_grad_norm_(dense, 1.0)
    torch.optim.Adam(dense).step()


@pytest.mark.few(8)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_step(name: str) -> None:
    cfg = config(name)
    if cfg.kind.fitted_at_once:
        pytest.skip("fitted at once, on the CPU")
    if name in ("model/lightgcn", "model/ultragcn", "loss/bce_shared"):
        pytest.skip("the stand-in has no sparse matrices")
    features = feature_spec(cfg.data, lambda *_: IDS)
    torch.manual_seed(1)
    candidates = None if cfg.kind.scores_rows else random_candidates(features)
    task = without_dropout(cfg.kind.build_task(cfg, features, torch.device("cpu"), candidates))
    grouped = cfg.data.group is not None and cfg.data.group.together
    pairs = Interactions(torch.arange(1, IDS), torch.arange(1, IDS).flip(0))
    on_gpu: Any = copy.deepcopy(task)
    if reads := not cfg.kind.scores_rows and task.model.reads_interactions:
        task.model.set_interactions(pairs)
    expected = loss_and_gradients(task, random_batch(features, grouped))
    update(task)
    with stand_in_gpu() as gpu:
        to_gpu(on_gpu)
        if candidates is not None:
            on_gpu.set_candidates(candidates.to(GPU))
        if reads:
            on_gpu.model.set_interactions(pairs.to(GPU))
        batch = random_batch(features, grouped).to(GPU, non_blocking=True)
        gpu.waits.clear()
        found = loss_and_gradients(on_gpu, batch)
        update(on_gpu)
    assert isinstance(found, OnGpu)
    torch.testing.assert_close(found.host, expected)
    for (key, a), b in zip(task.named_parameters(), on_gpu.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), key
        if a.grad is not None:
            torch.testing.assert_close(b.grad.host, a.grad, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")
    waits = [w for w in gpu.waits if not w.startswith(TABLES)]
    allowed, reason = WAITS.get(name, (0, "no wait is needed"))
    assert len(waits) == allowed, f"{reason}: {Counter(waits)}"


@pytest.mark.few(2)
@pytest.mark.parametrize("name", "bert4rec comirec esasrec fuxi_alpha gru4rec hstu sasrec".split())
def test_few_launches_outside_of_graphs(name: str) -> None:
    """A step of lists that are filled up, whose dense part is a graph, waits for nothing and learns what others do."""
    cfg = config(f"model/{name}")
    features = feature_spec(cfg.data, lambda *_: IDS)
    torch.manual_seed(1)
    candidates = random_candidates(features)
    task: Any = without_dropout(cfg.kind.build_task(cfg, features, torch.device("cpu"), candidates))
    on_gpu, rows = copy.deepcopy(task), random_batch(features, False)
    rows.queries = task.queries_ahead(rows, draw=3)
    expected = loss_and_gradients(task, rows)
    on_gpu.rows_of_graphs = ROWS
    rows.queries = on_gpu.queries_ahead(rows, draw=3)
    with stand_in_gpu() as gpu:
        to_gpu(on_gpu)
        on_gpu.set_candidates(candidates.to(GPU))
        batch = rows.to(GPU, non_blocking=True)
        tables = {id(p) for p in on_gpu.model.items.ids.parameters()}
        on_gpu.compare = as_graph(gpu, on_gpu.compare, [p for p in on_gpu.parameters() if id(p) not in tables])
        gpu.waits.clear()
        gpu.launches.clear()
        found: Any = loss_and_gradients(on_gpu, batch)
    torch.testing.assert_close(found.host, expected)
    for (key, a), b in zip(task.named_parameters(), on_gpu.parameters(), strict=True):
        torch.testing.assert_close(b.grad.host, a.grad, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")
    assert gpu.waits == []
    assert len(gpu.launches) <= 30, Counter(gpu.launches)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The numbers of bags and ids of each call of FBGEMM's tables."""
    calls: list[tuple[int, int]] = []
    forward = SplitTableBatchedEmbeddingBagsCodegen.forward

    def noted(self: Any, indices: Tensor, offsets: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append((len(offsets) - 1, len(indices)))
        return forward(self, indices, offsets, *args, **kwargs)

    monkeypatch.setattr(SplitTableBatchedEmbeddingBagsCodegen, "forward", noted)
    return calls


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    with process_group("cpu", None):
        yield


@pytest.mark.few(12)
@pytest.mark.parametrize("name", [n for n in COMMANDS if n.startswith("model/")])
def test_no_lookup_has_few_bags(name: str, one_process: None, lookups: list[tuple[int, int]]) -> None:
    """FBGEMM's CUDA kernels divide their work by bags: one bag of 100,000 ids takes 33 ms on one multiprocessor."""
    cfg = config(name)
    if cfg.kind.fitted_at_once:
        pytest.skip("fitted at once, on the CPU")
    features = feature_spec(cfg.data, lambda *_: IDS)
    candidates = None if cfg.kind.scores_rows else random_candidates(features)
    module = RecsysModule(
        lambda: cfg.kind.build_task(cfg, features, torch.device("meta"), candidates),
        Placement(ShardingConfig(), SparseOptimConfig(name="sgd", lr=0.1), ROWS, local_world_size=1),
    )
    module.setup_model(torch.device("cpu"))
    task = module.dmp.module
    if not cfg.kind.scores_rows and task.model.reads_interactions:
        task.model.set_interactions(Interactions(torch.arange(1, IDS), torch.arange(1, IDS).flip(0)))
    batch = random_batch(features, cfg.data.group is not None and cfg.data.group.together)
    task(batch)[0].backward()
    task.eval()
    with torch.no_grad():
        task(batch)
        if not cfg.kind.scores_rows:
            task.item_vectors(range(IDS), IDS)
    assert lookups or name == "model/tiger"  # its codes are not in tables
    for bags, ids in lookups:
        assert bags >= min(ids, ROWS), f"{ids} ids in {bags} bags"


def test_the_stand_in_sees_mistakes() -> None:
    x = torch.randn(4, 2)
    with stand_in_gpu() as gpu:
        y = x.to(GPU)
        gpu.waits.clear()
        with pytest.raises(RuntimeError, match=r"add.Tensor: tensors are on cuda:0 and on the CPU, of shape \(2,\)"):
            y + torch.ones(2)
        assert float(y.sum()) == pytest.approx(float(x.sum())) and bool((y > -9).all())
        y[y > 0], y.nonzero(), y.tolist(), y[[0, 1]], torch.tensor([1], device=GPU)
        torch.repeat_interleave(y[:, 0], torch.ones(4, dtype=torch.long, device=GPU), output_size=4)
    assert [w.partition(": ")[2] for w in gpu.waits] == [
        *("aten._local_scalar_dense", "aten._local_scalar_dense", "index by a mask", "aten.nonzero"),
        *("copies to the cpu", "copies to the cuda", "copies to the cuda"),
    ]


def test_tables_of_several_dims_and_frozen_ones_wait_for_nothing() -> None:
    sparse = (SparseFeature("a", 9, "a", dim=4), SparseFeature("b", 9, "b"), SparseFeature("c", 9, "c", frozen=True))
    for users in (sparse, sparse[1:]):
        features = FeatureSpec(dense=(), sparse=users, labels=())
        embeddings = PooledEmbeddings(features, 8)
        batch = random_batch(features, False)
        expected = embeddings(batch.sparse)
        with stand_in_gpu() as gpu:
            to_gpu(embeddings)
            batch = random_batch(features, False).to(GPU, non_blocking=True)
            gpu.waits.clear()
            found = embeddings(batch.sparse)
        assert torch.equal(found.host, expected)
        assert [w for w in gpu.waits if not w.startswith(TABLES)] == []
