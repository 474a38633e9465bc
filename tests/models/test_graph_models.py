"""The models of collaborative filtering over the graph of users and items, against dense NumPy references."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch, Interactions
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses import BCE, BPR, CosineContrastive, SampledSoftmax, sampling
from recsys.losses.retrieval import RetrievalLoss
from recsys.losses.task import RetrievalTask
from recsys.models.common.co_occurrence import item_neighbours, normalised_adjacency
from recsys.models.lightgcn import LightGCN
from recsys.models.mf import MF
from recsys.models.neumf import NeuMF
from recsys.models.protocols import RetrievalModel
from recsys.models.simplex import SimpleX
from recsys.models.ultragcn import UltraGCN

Array = NDArray[np.float64]
USERS, ITEMS, DIM = 5, 7, 4
PAIRS = FeatureSpec(
    dense=(), sparse=(SparseFeature("user", USERS, "user"), SparseFeature("item", ITEMS, "item")), item="item"
)
LISTS = FeatureSpec(
    dense=(),
    sparse=(
        SparseFeature("user", USERS, "user"),
        SparseFeature("item", ITEMS, "item", multi_valued=True, sequence=True),
    ),
    item="item",
)
graphs = st.sets(st.tuples(st.integers(1, USERS - 1), st.integers(1, ITEMS - 1)), min_size=1)


def interactions(pairs: set[tuple[int, int]]) -> Interactions:
    users, items = torch.tensor(sorted(pairs)).T
    return Interactions(users, items)


def dense(pairs: set[tuple[int, int]]) -> Array:
    x = np.zeros((USERS, ITEMS))
    for user, item in pairs:
        x[user, item] = 1
    return x


def batch(users: list[int], items: list[list[int]]) -> Batch:
    values = torch.tensor(users + [i for one in items for i in one], dtype=torch.int32)
    lengths = torch.tensor([1] * len(users) + [len(one) for one in items], dtype=torch.int32)
    sparse = KeyedJaggedTensor(["user", "item"], values, lengths=lengths)
    return Batch(torch.zeros(len(users), 0), sparse, torch.zeros(len(users), 0))


def test_an_item_without_a_row_is_refused() -> None:
    """The kernels of sparse matrices would read and write behind their memory."""
    beyond = interactions({(1, 2), (2, ITEMS)})
    with pytest.raises((RuntimeError, IndexError)):
        normalised_adjacency(beyond, USERS, ITEMS)
    with pytest.raises((RuntimeError, IndexError)):
        item_neighbours(beyond, USERS, ITEMS, 2)


def table(module: torch.nn.Module) -> Array:
    [weight] = module.parameters()
    return weight.detach().double().numpy()


def adjacency(pairs: set[tuple[int, int]]) -> Array:
    x = dense(pairs)
    whole = np.block([[np.zeros((USERS, USERS)), x], [x.T, np.zeros((ITEMS, ITEMS))]])
    scale = np.divide(1, np.sqrt(whole.sum(1)), out=np.zeros(len(whole)), where=whole.sum(1) > 0)
    result: Array = scale[:, None] * whole * scale
    return result


@settings(max_examples=50, deadline=None)
@given(graphs)
def test_the_normalised_graph(pairs: set[tuple[int, int]]) -> None:
    found = normalised_adjacency(interactions(pairs), USERS, ITEMS).to_dense()
    np.testing.assert_allclose(found.numpy(), adjacency(pairs), rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(graphs, st.integers(1, ITEMS))
def test_neighbours_of_items(pairs: set[tuple[int, int]], k: int) -> None:
    g = dense(pairs).T @ dense(pairs)
    ids, weights = item_neighbours(interactions(pairs), USERS, ITEMS, k)
    for i in range(ITEMS):
        wanted = {
            j: g[i, j] / (g[i].sum() - g[i, i]) * np.sqrt(g[i].sum() / g[j].sum())
            for j in range(ITEMS)
            if j != i and g[i, j] > 0
        }
        best = sorted(wanted.values(), reverse=True)[:k]
        np.testing.assert_allclose(weights[i], np.pad(best, (0, k - len(best))), rtol=1e-6)
        for j, weight in zip(ids[i].tolist(), weights[i].tolist(), strict=True):
            assert weight == pytest.approx(wanted[j]) if weight else j == 0


def propagated(pairs: set[tuple[int, int]], start: Array, layers: int) -> Array:
    a, layer, total = adjacency(pairs), start, start
    for _ in range(layers):
        layer = a @ layer
        total = total + layer
    return total / (layers + 1)


@settings(max_examples=20, deadline=None)
@given(graphs, st.integers(0, 4))
def test_lightgcn_and_its_gradients(pairs: set[tuple[int, int]], layers: int) -> None:
    """The loss and the gradients of all embeddings, by autograd over dense matrices."""
    torch.manual_seed(0)
    model = LightGCN(PAIRS, dim=DIM, layers=layers, l2=0.5, init_std=1.0)
    model.set_interactions(interactions(pairs))
    task = RetrievalTask(model, BPR(count=2), Candidates(torch.ones(ITEMS)))
    users, items = [1, 3, 1], [2, 5, 6]
    torch.manual_seed(1)
    loss, _ = task(batch(users, [[i] for i in items]))
    loss.backward()
    torch.manual_seed(1)
    negatives = BPR(count=2).sample(torch.tensor(items), task.popularity).ids
    tables = [
        t.detach().double().requires_grad_() for t in (*model.items.users.parameters(), *model.items.table.parameters())
    ]
    start, a = torch.cat(tables), torch.from_numpy(adjacency(pairs))
    total = layer = start
    for _ in range(layers):
        layer = a @ layer
        total = total + layer
    total = total / (layers + 1)
    user, target, negative = total[users], total[USERS:][items], total[USERS:][negatives]
    margin = ((target - negative.transpose(0, 1)) * user).sum(2).T
    same = negatives == torch.tensor(items)[:, None]
    wanted = torch.nn.functional.softplus(-margin).masked_fill(same, 0).mean()
    read = [start[users], start[USERS:][items], start[USERS:][negatives.flatten()]]
    wanted = wanted + 0.5 / 2 * sum(x.square().sum() for x in read) / len(users)
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    for given_, expected in zip(
        (*model.items.users.parameters(), *model.items.table.parameters()), tables, strict=True
    ):
        np.testing.assert_allclose(given_.grad, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalise", [False, True])
def test_lightgcn_evaluates_with_the_vectors_of_its_last_refresh(normalise: bool) -> None:
    pairs = {(1, 2), (1, 3), (2, 3), (4, 6)}
    model = LightGCN(PAIRS, dim=DIM, layers=3, normalise=normalise, init_std=1.0)
    model.set_interactions(interactions(pairs))
    model.refresh()
    trained = model.items(torch.arange(ITEMS)).detach()
    torch.testing.assert_close(model.items.item_vectors, trained)
    model.eval()
    start = np.concatenate([table(model.items.users), table(model.items.table)])
    wanted = propagated(pairs, start, 3)
    wanted = unit(wanted) if normalise else wanted
    wanted[0] = wanted[[1, 2, 4]].mean(axis=0)  # a user without items
    query = model.encode(rows := batch([1, 4, 0], [[2], [6], [6]]), model.make_queries(rows), torch.zeros(0, DIM))
    np.testing.assert_allclose(query.detach(), wanted[[1, 4, 0]], rtol=1e-5, atol=1e-6)
    ids = torch.arange(ITEMS + 1)  # the last one is not in the table
    np.testing.assert_allclose(model.items(ids), wanted[USERS:][[*range(ITEMS), 0]], rtol=1e-5, atol=1e-6)
    restored = LightGCN(PAIRS, dim=DIM, layers=3)  # without the graph
    restored.load_state_dict(model.state_dict())
    restored.refresh()  # changes nothing
    torch.testing.assert_close(restored.eval().items(ids), model.items(ids))


@pytest.mark.parametrize("shared", [True, False])
def test_ultragcn(shared: bool) -> None:
    pairs = {(1, 2), (1, 3), (2, 3), (2, 5), (3, 5), (3, 2), (4, 6)}
    weights, k, pull = (0.1, 0.7, 0.2, 0.9), 2, 0.3
    torch.manual_seed(0)
    model = UltraGCN(
        PAIRS, dim=DIM, pair_weights=weights, negative_weight=4.0, neighbours=k, neighbour_weight=pull, init_std=1.0
    )
    model.set_interactions(interactions(pairs))
    loss_module = BCE(count=3, shared=shared)
    task = RetrievalTask(model, loss_module, Candidates(torch.ones(ITEMS)))
    users, items = [1, 3], [2, 5]
    torch.manual_seed(1)
    loss, _ = task(batch(users, [[i] for i in items]))
    torch.manual_seed(1)
    negatives = loss_module.sample(torch.tensor(items), task.popularity).ids.numpy()
    negatives = np.tile(negatives, (2, 1)) if shared else negatives
    u, v, x = table(model.users), table(model.items), dense(pairs)
    of_user, of_item = x.sum(1), x.sum(0)
    ids, near = (t.numpy() for t in item_neighbours(interactions(pairs), USERS, ITEMS, k))
    total = 0.0
    for user, item, others in zip(users, items, negatives, strict=True):

        def beta(j: int, user: int = user) -> float:
            return float(np.sqrt((of_user[user] + 1) / (of_item[j] + 1)) / of_user[user])

        total += (weights[0] + weights[1] * beta(item)) * np.logaddexp(0, -u[user] @ v[item])
        for j in others:
            if j != item:
                total += 4.0 / 3 * (weights[2] + weights[3] * beta(j)) * np.logaddexp(0, u[user] @ v[j])
        for j, weight in zip(ids[item], near[item], strict=True):
            total += pull * weight * np.logaddexp(0, -u[user] @ v[j])
    assert loss.item() == pytest.approx(total / 2, rel=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (lambda: MF(PAIRS, dim=DIM, normalise=True), CosineContrastive(count=6, weight=1.0)),
        (lambda: NeuMF(PAIRS, dim=DIM, mlp=[8]), BCE(count=6)),
        (lambda: SimpleX(LISTS, dim=DIM, own=0.9), CosineContrastive(count=6, weight=1.0)),
        (lambda: UltraGCN(PAIRS, dim=DIM), BCE(count=6)),
    ],
)
def test_an_unknown_user_is_recommended_what_most_users_chose(
    model: Callable[[], RetrievalModel], loss: RetrievalLoss
) -> None:
    """As often as any user, items 2 and 3 are chosen; without rows of unknown users, their vector stays random."""
    torch.manual_seed(0)
    pairs = [(u, i) for u in (1, 2, 3, 4) for i in (2, 3)] + [(1, 4), (2, 5), (3, 6), (4, 1)]
    trained = model()
    if trained.reads_interactions:
        trained.set_interactions(interactions(set(pairs)))
    task = RetrievalTask(trained, loss, Candidates(torch.ones(ITEMS)))
    optimizer = torch.optim.Adam(task.parameters(), lr=0.02)
    users, items = zip(*pairs, strict=True)
    rows = batch([0 if n % 37 == 0 else u for n, u in enumerate([*users] * 20)], [[i] for i in items] * 20)
    for _ in range(150):
        optimizer.zero_grad()
        task(rows)[0].backward()
        optimizer.step()
    trained.eval()
    asked = batch([0], [[2, 3, 1]])
    queries = trained.make_queries(asked)
    query = trained.encode(asked, queries, trained.items(queries.inputs))
    scores = trained.scorer.score_all(query, trained.items(torch.arange(1, ITEMS)))[0]
    assert set((1 + scores.topk(2).indices).tolist()) == {2, 3}


@pytest.mark.parametrize(
    ("model", "loss", "scored"),
    [
        (lambda: MF(PAIRS, dim=DIM, normalise=True), CosineContrastive(count=6, shared=False, margin=-1.0), True),
        (lambda: MF(PAIRS, dim=DIM), SampledSoftmax(count=6, shared=False), True),
        (lambda: MF(PAIRS, dim=DIM), SampledSoftmax(count=6, shared=False, negatives="popularity"), False),
        (lambda: UltraGCN(PAIRS, dim=DIM), BCE(count=6), True),
        (lambda: NeuMF(PAIRS, dim=DIM, mlp=[8]), BCE(count=6), False),  # scores of pairs, by an MLP
        (lambda: LightGCN(PAIRS, dim=DIM, l2=0.1), BPR(count=6), False),  # its penalty is on what is looked up
    ],
)
def test_scores_of_all_candidates_train_as_a_sample_does(
    model: Callable[[], RetrievalModel], loss: RetrievalLoss, scored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, results = [], []
    for often in (sampling.MIN_SAMPLES, 10**9):
        monkeypatch.setattr(sampling, "MIN_SAMPLES", often)
        torch.manual_seed(0)
        trained = model()
        if trained.reads_interactions:
            trained.set_interactions(interactions({(1, 2), (2, 3), (3, 1), (4, 5)}))
        task = RetrievalTask(trained, loss, Candidates(torch.ones(ITEMS)))
        trained.items.register_forward_pre_hook(lambda _, given: looked_up.append(len(given[0])))
        value, _ = task(batch([1, 2, 3, 4] * 4, [[2], [3], [1], [5]] * 4))
        value.backward()
        results.append((value, *(p.grad for p in task.parameters() if p.grad is not None)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert looked_up[1] - looked_up[0] == (16 * 6 - (ITEMS - 1) if scored else 0)


def test_losses_that_cannot_weigh_pairs_say_so() -> None:
    with pytest.raises(UserError, match="UltraGCN weighs its pairs, which BPR does not support; use loss=bce"):
        RetrievalTask(UltraGCN(PAIRS), BPR())


@pytest.mark.parametrize(("given", "message"), [((1.0, 1.0), "pair_weights=.*: must be four numbers")])
def test_ultragcn_checks_its_weights(given: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UltraGCN(PAIRS, pair_weights=given)


def unit(x: Array) -> Array:
    result: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return result


@pytest.mark.parametrize(("shared", "count"), [(True, 2), (True, 3), (False, 3)])
def test_simplex(shared: bool, count: int) -> None:
    """3 of 6 candidates are half of them, so that all are taken."""
    torch.manual_seed(0)
    model = SimpleX(LISTS, dim=DIM, own=0.3, dropout=0.0, init_std=1.0)
    loss_module = CosineContrastive(count=count, margin=0.1, weight=2.5, shared=shared)
    task = RetrievalTask(model, loss_module, Candidates(torch.ones(ITEMS)))
    users, items = [1, 3], [[2, 5, 0], [6]]
    torch.manual_seed(1)
    loss, _ = task(batch(users, items))
    known = [2, 5, 6]
    torch.manual_seed(1)
    negatives = loss_module.sample(torch.tensor(known), task.popularity).ids.numpy()
    assert not shared or len(negatives) == (6 if count == 3 else 2)
    negatives = np.tile(negatives, (3, 1)) if shared else negatives
    u, v, matrix = unit(table(model.users)), unit(table(model.items)), table(model.map)
    total = 0.0
    for row, item, others in zip([0, 0, 1], known, negatives, strict=True):
        query = unit(0.3 * u[users[row]] + 0.7 * matrix @ v[items[row]].mean(0))
        total += 1 - query @ v[item] + 2.5 * np.maximum(0, v[others] @ query - 0.1).mean()
    assert loss.item() == pytest.approx(total / 3, rel=1e-5)
    model.eval()  # the last item of a held-out row is the one to predict
    rows = batch(users, [[2, 5, 4], [6, 1]])
    query_batch = model.make_queries(rows)
    queries = model.encode(rows, query_batch, model.items(query_batch.inputs)).detach()
    for query, user, history in zip(queries, users, [[2, 5], [6]], strict=True):
        wanted = unit(0.3 * u[user] + 0.7 * matrix @ v[history].mean(0))
        np.testing.assert_allclose(query, wanted, rtol=1e-5, atol=1e-6)


def test_cosine_contrastive_needs_cosines() -> None:
    rows = batch([1, 3], [[2], [6]])

    def loss(normalise: bool) -> Tensor:
        model = MF(PAIRS, user="user", dim=DIM, normalise=normalise, init_std=1.0)
        return RetrievalTask(model, CosineContrastive(count=3), Candidates(torch.ones(ITEMS)))(rows)[0]  # type: ignore[no-any-return]

    with pytest.raises(UserError, match=r"loss=cosine_contrastive: needs cosines.*set model.normalise=true"):
        loss(normalise=False)
    assert float(loss(normalise=True)) > 0


def test_products_beside_a_limit_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more threads than OMP_THREAD_LIMIT, which holds in this process, MKL's sparse products are wrong."""
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    with process_group("cpu", 4):
        assert torch.get_num_threads() == 1
        matrix, x = torch.eye(12).flip(0), torch.randn(12, 4)
        torch.testing.assert_close(matrix.to_sparse_csr() @ x, matrix @ x)


def test_models_of_lists_say_so() -> None:
    with pytest.raises(ValueError, match=r"SimpleX reads lists of items: set data.sequences.max_length"):
        SimpleX(PAIRS, user="user")
