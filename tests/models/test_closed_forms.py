"""The models fitted without gradients against dense NumPy references, and on real data."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from examples import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from recsys.base.errors import UserError
from recsys.data.loader.training_rows import training_lists
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.export.artefact.scorers import SCORER_STATE, SCORERS
from recsys.export.retrieval_graph import options_of
from recsys.interface.batch import CandidateIds, ItemLists, ItemRows
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.models import ease, item_knn, slim
from recsys.models.chebycf import ChebyCF
from recsys.models.common import co_occurrence as interactions
from recsys.models.ease import EASE
from recsys.models.gf_cf import GFCF
from recsys.models.ials import IALS
from recsys.models.item_knn import ItemKNN
from recsys.models.popularity import Popularity
from recsys.models.session_knn import SessionKNN
from recsys.models.slim import SLIM
from recsys.models.transition import Transition
from recsys.schema.data_schema import DataConfig, GroupConfig, LabelConfig, SequenceConfig, SplitConfig
from recsys.schema.source_schema import SourceConfig
from recsys.training import fitted_retrieval

Array = NDArray[np.float64]
Ids = list[list[int]]
MODELS = (Popularity, EASE, GFCF, ChebyCF, ItemKNN, SessionKNN, Transition, IALS, SLIM)
N = 9
lists_of_ids = st.lists(st.lists(st.integers(0, N - 1), max_size=7), min_size=1, max_size=12)


def spec(n: int = N) -> FeatureSpec:
    return FeatureSpec(dense=(), sparse=(SparseFeature("item", n, "item"),), item="item")


def to_lists(ids: Ids) -> ItemLists:
    values = torch.tensor([i for row in ids for i in row], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in ids], dtype=torch.int64)
    return ItemLists(ItemRows(CandidateIds(values)), lengths)


def score(model: nn.Module, fitted: Ids, history: Ids) -> Array:
    model.fit(to_lists(fitted))
    scores = model.score(to_lists(history))
    assert scores.dtype == torch.float32 and scores.shape == (len(history), model.rows)
    return scores.double().numpy()[:, 1:]


def binary(ids: Ids) -> Array:
    """(B, N), 1 where a list has the item; the unknown item's column is 0."""
    x = np.zeros((len(ids), N))
    for row, items in zip(x, ids, strict=True):
        row[items] = 1
    x[:, 0] = 0
    return x


@settings(max_examples=50, deadline=None)
@given(fitted=lists_of_ids, history=lists_of_ids)
def test_popularity(fitted: Ids, history: Ids) -> None:
    counts = [sum(row.count(i) for row in fitted) for i in range(1, N)]
    np.testing.assert_array_equal(score(Popularity(spec()), fitted, history), [counts] * len(history))


@settings(max_examples=50, deadline=None)
@given(fitted=lists_of_ids, history=lists_of_ids, l2=st.sampled_from([0.5, 10.0, 250.0]))
def test_ease(fitted: Ids, history: Ids, l2: float) -> None:
    """Column by column, the ridge regression of an item from all others."""
    x = binary(fitted)
    weights = np.zeros((N, N))
    for j in range(N):
        others = [i for i in range(N) if i != j]
        z = x[:, others]
        weights[others, j] = np.linalg.solve(z.T @ z + l2 * np.eye(N - 1), z.T @ x[:, j])
    wanted = (binary(history) @ weights)[:, 1:]
    np.testing.assert_allclose(score(EASE(spec(), l2=l2), fitted, history), wanted, rtol=1e-5, atol=1e-6)


@settings(max_examples=examples(100), deadline=None)
@given(fitted=lists_of_ids, history=lists_of_ids, k=st.integers(1, N + 2), low_pass=st.sampled_from([0.0, 0.3, 2.0]))
@example([[2], [1, 3], [1, 4], [1, 2, 3]], [[1]], 4, 0.3)  # a singular value that is zero, but not in single precision
def test_gf_cf(fitted: Ids, history: Ids, k: int, low_pass: float) -> None:
    """The dense formula, with NumPy's singular vectors; equal singular values have no order, so they are kept together."""
    x = binary(fitted)
    of_user, of_item = x.sum(axis=1, keepdims=True), x.sum(axis=0)
    r = x / np.sqrt(np.maximum(of_user, 1) * np.maximum(of_item, 1))
    _, values, vectors = np.linalg.svd(r, full_matrices=False)
    last = min(k, len(values))
    if last < len(values):
        assume(values[last - 1] - values[last] > 1e-3 or values[last - 1] < 1e-9)
    v = vectors[:last][values[:last] > 1e-9].T
    root = np.sqrt(of_item)
    low = binary(history) @ (np.divide(1, root, out=np.zeros(N), where=root > 0)[:, None] * v) @ (v.T * root)
    wanted = binary(history) @ r.T @ r + low_pass * low
    scores = score(GFCF(spec(), k=k, low_pass=low_pass), fitted, history)
    np.testing.assert_allclose(scores, wanted[:, 1:], rtol=1e-4, atol=1e-5)


@settings(max_examples=examples(100), deadline=None)
@given(
    fitted=lists_of_ids,
    history=lists_of_ids,
    order=st.integers(1, 9),
    flatness=st.sampled_from([1.0, 1.5, 15.0]),
    degree=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_chebycf(fitted: Ids, history: Ids, order: int, flatness: float, degree: float) -> None:
    """The filter by the eigenvalues of the dense matrix, with the polynomial that NumPy interpolates."""
    x = binary(fitted)
    of_user, of_item = x.sum(axis=1, keepdims=True), x.sum(axis=0)
    r = x / np.sqrt(np.maximum(of_user, 1) * np.maximum(of_item, 1))
    points = np.cos((order - np.arange(order + 1)) / order * np.pi)
    values = np.where(points < 0, 0.5 + 0.5 * np.abs(points) ** flatness, 0.5 - 0.5 * np.abs(points) ** flatness)
    roots = np.cos((order + 0.5 - np.arange(order + 1)) / (order + 1) * np.pi)
    frequencies, basis = np.linalg.eigh(np.eye(N) - 2 * r.T @ r)
    wanted = np.polynomial.Polynomial.fit(roots, values, order)(frequencies)
    signal = binary(history) * np.where(of_item > 0, np.maximum(of_item, 1) ** -degree, 0)
    scores = score(ChebyCF(spec(), low_pass=0, order=order, flatness=flatness, degree=degree), fitted, history)
    expected = (signal @ (basis * wanted) @ basis.T) * np.where(of_item > 0, of_item**degree, 0)
    np.testing.assert_allclose(scores, expected[:, 1:], rtol=1e-4, atol=1e-5)
    if flatness == 1.5:  # the low-pass filter, with all vectors
        v = np.linalg.svd(r, full_matrices=False)
        v = v[2][v[1] > 1e-9].T
        low = (signal @ v @ v.T) * np.where(of_item > 0, of_item**degree, 0)
        both = score(ChebyCF(spec(), low_pass=0.5, order=order, degree=degree), fitted, history)
        np.testing.assert_allclose(both, (expected + 0.5 * low)[:, 1:], rtol=1e-4, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3))), st.integers(1, 4))
def test_best_of_rows(pairs: list[tuple[int, int]], k: int) -> None:
    pairs = sorted(pairs, key=lambda p: p[0])
    row, value = (torch.tensor([p[i] for p in pairs], dtype=torch.int64) for i in (0, 1))
    kept, rank = interactions.best_of_rows(row, value, k)
    wanted = [
        (at, place)
        for r in range(5)
        for place, at in enumerate(
            sorted((i for i, p in enumerate(pairs) if p[0] == r), key=lambda i: -pairs[i][1])[:k]
        )
    ]
    assert list(zip(kept.tolist(), rank.tolist(), strict=True)) == wanted


def cosines(fitted: Ids, shrink: float, weigh_lists: bool) -> Array:
    x = binary(fitted)
    if weigh_lists:
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    norms = np.linalg.norm(x, axis=0)
    together = x.T @ x
    np.fill_diagonal(together, 0)
    scale = np.outer(norms, norms) + shrink
    return np.divide(together, scale, out=np.zeros_like(scale), where=together > 0)


@settings(max_examples=examples(100), deadline=None)
@given(
    fitted=lists_of_ids,
    history=lists_of_ids,
    k=st.integers(1, N + 2),
    shrink=st.sampled_from([0.0, 2.0]),
    weigh_lists=st.booleans(),
    normalise=st.booleans(),
    chunk=st.integers(1, N),
)
def test_item_knn(
    fitted: Ids, history: Ids, k: int, shrink: float, weigh_lists: bool, normalise: bool, chunk: int
) -> None:
    kept = cosines(fitted, shrink, weigh_lists).astype(np.float32)
    for row in kept:
        row[np.argsort(-row, kind="stable")[k:]] = 0
    if normalise:
        kept /= np.maximum(kept.sum(axis=1, keepdims=True), 1e-30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_knn, "_CHUNK", chunk)
        scores = score(
            ItemKNN(spec(), k=k, shrink=shrink, weigh_lists=weigh_lists, normalise=normalise), fitted, history
        )
    np.testing.assert_allclose(scores, (binary(history) @ kept)[:, 1:], rtol=1e-5, atol=1e-6)


def session_scores(fitted: Ids, current: list[int], k: int, sample: int, linear: bool, cosine: bool) -> Array:
    current = [i for i in current if i != 0]
    weights = np.zeros(N)
    for p, item in enumerate(current, start=1):
        weights[item] = p / len(current) if linear else 1
    x = binary(fitted)
    recent = [s for s in reversed(range(len(fitted))) if x[s][weights > 0].any()][:sample]
    near = {s: x[s] @ weights for s in recent}
    if cosine:
        near = {s: dot / (np.linalg.norm(weights) * np.linalg.norm(x[s])) for s, dot in near.items()}
    # rounded, since equals are told apart by their age
    nearest = sorted(recent, key=lambda s: (-round(near[s], 9), -s))[:k]
    return np.sum([near[s] * x[s] for s in nearest], axis=0) if nearest else np.zeros(N)


@settings(max_examples=examples(200), deadline=None)
@given(
    fitted=lists_of_ids,
    history=lists_of_ids,
    k=st.integers(1, 5),
    more=st.integers(0, 5),
    linear=st.booleans(),
    cosine=st.booleans(),
)
def test_session_knn(fitted: Ids, history: Ids, k: int, more: int, linear: bool, cosine: bool) -> None:
    model = SessionKNN(
        spec(),
        k=k,
        sample_size=k + more,
        weighting="linear" if linear else "none",
        similarity="cosine" if cosine else "dot",
    )
    wanted = [session_scores(fitted, row, k, k + more, linear, cosine)[1:] for row in history]
    np.testing.assert_allclose(score(model, fitted, history), wanted, rtol=1e-5, atol=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(
    fitted=lists_of_ids,
    history=lists_of_ids,
    items=st.integers(1, 3),
    hops=st.integers(1, 4),
    backward=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_transition(fitted: Ids, history: Ids, items: int, hops: int, backward: float) -> None:
    """Powers of the dense matrix of shares."""
    counts = np.zeros((N, N))
    for row in fitted:
        known = [i for i in row if i]
        for one, other in itertools.pairwise(known):
            counts[one, other] += one != other
            counts[other, one] += backward * (one != other)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-9)
    wanted = np.zeros((len(history), N))
    for scores, row in zip(wanted, history, strict=True):
        for back, item in enumerate([i for i in row if i][::-1][:items]):
            scores += sum(0.5**back * 0.3**h * np.linalg.matrix_power(shares, h + 1)[item] for h in range(hops))
    model = Transition(spec(), items=items, hops=hops, backward=backward)
    np.testing.assert_allclose(score(model, fitted, history), wanted[:, 1:], rtol=1e-5, atol=1e-7)


def test_transition_with_items_of_like_features() -> None:
    """The two items of the largest cosines, of (0, 1) vectors times ln(N / count), count as half a transition."""
    about = [[], [1, 2], [2], [1, 2], [3], [0, 3, 1], [3, 3, 2], *[[] for _ in range(N - 7)]]
    values = torch.tensor([v for one in about for v in one], dtype=torch.int32)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, about))])
    model = Transition(spec(), items=1, hops=1, similar=2, similar_weight=0.5)
    model.set_candidates(Candidates(torch.ones(N), torch.zeros(N, 0), {"tags": values}, {"tags": offsets}))
    scores = score(model, [[1, 2, 3], [2, 3], [4, 1]], [[i] for i in range(1, N)])
    has = np.array([[v in one for v in (1, 2, 3)] for one in about], float)
    vectors = has * np.log(N / has.sum(axis=0))
    lengths = np.linalg.norm(vectors, axis=1)
    for item, row in enumerate(scores, start=1):
        wanted = np.zeros(N)
        for one, other in [(1, 2), (2, 3), (2, 3), (4, 1)]:
            wanted[other] += one == item
        norm = lengths * lengths[item]
        cosine = np.divide(vectors @ vectors[item], norm, out=np.zeros(N), where=norm > 0)
        cosine[item] = 0
        best = np.argsort(-cosine, kind="stable")[:2]
        wanted[best] += 0.5 * cosine[best] / max(cosine[best].sum(), 1e-9)
        np.testing.assert_allclose(row, wanted[1:] / max(wanted.sum(), 1e-9), rtol=1e-5, atol=1e-7)


@settings(max_examples=examples(30), deadline=None)
@given(fitted=lists_of_ids, history=lists_of_ids, power=st.sampled_from([0.0, 0.5, 1.0]))
def test_ials_is_where_the_gradients_vanish(fitted: Ids, history: Ids, power: float) -> None:
    """Of the objective over all pairs, for the vector of a history, given those of the items."""
    model = IALS(spec(), dim=3, epochs=2, unobserved_weight=0.2, l2=0.1, power=power)
    scores = score(model, fitted, history)
    vectors, x = model.vectors.double().numpy(), binary(history)
    for row, wanted in zip(scores, x, strict=True):
        chosen, count = vectors[wanted > 0], wanted.sum()
        if not count:
            assert not row.any()
            continue
        left = 0.2 * vectors.T @ vectors + chosen.T @ chosen + 0.1 * (count + 0.2 * (N - 1)) ** power * np.eye(3)
        best = np.linalg.solve(left, chosen.sum(axis=0))
        np.testing.assert_allclose(row, (vectors @ best)[1:], rtol=1e-3, atol=1e-5)
    assert not vectors[binary(fitted).sum(axis=0) == 0].any()


def test_the_weight_of_pairs_that_ials_did_not_observe() -> None:
    """All pairs together have three times the weight of the observed ones, each of which counts once."""
    model = IALS(spec(), dim=2)
    model.fit(to_lists([[1, 2, 3, 3], [1, 2], [5]]))
    np.testing.assert_allclose(model.weight, 3 * 6 / (3 * (N - 1)))
    assert "weight" not in IALS(spec(), unobserved_weight=0.1).state_dict()  # those of earlier versions have none


def test_ials_lowers_its_objective_to_that_of_gradient_descent() -> None:
    fitted = [[1, 2, 3], [1, 2], [2, 3, 4], [5, 6], [5, 6, 7], [1, 3]]
    x = torch.tensor(binary(fitted)[:, 1:])

    def objective(users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        scores = users @ items.T
        of_user, of_item = x.sum(1) + 0.1 * (N - 1), x.sum(0) + 0.1 * len(fitted)
        l2 = (of_user * users.square().sum(1)).sum() + (of_item * items.square().sum(1)).sum()
        return (x * (1 - scores).square()).sum() + 0.1 * scores.square().sum() + 0.05 * l2

    model = IALS(spec(), dim=2, epochs=200, unobserved_weight=0.1, l2=0.05)
    model.fit(to_lists(fitted))
    items = model.vectors.double()
    users = model._solve(interactions.distinct(to_lists(fitted), N), model.vectors, N - 1).double()
    reached = objective(users, items[1:])
    free = [users.clone().requires_grad_(), items[1:].clone().requires_grad_()]
    optimizer = torch.optim.Adam(free, lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        objective(*free).backward()
        optimizer.step()
    assert float(reached) < 1.001 * float(objective(*free))


@settings(max_examples=examples(40), deadline=None)
@given(fitted=lists_of_ids, history=lists_of_ids, l1=st.sampled_from([0.0, 0.5, 1.0]), chunk=st.integers(1, N))
def test_slim(fitted: Ids, history: Ids, l1: float, chunk: int) -> None:
    """The optimality conditions of each weight, and the scores by the dense weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slim, "_CHUNK", chunk)
        model = SLIM(spec(), l1=l1, l2=2.0, sweeps=500, tolerance=1e-7)
        scores = score(model, fitted, history)
    weights = np.zeros((N, N))
    rows = np.repeat(np.arange(N), np.diff(model.item_starts.numpy()))
    weights[rows, model.others.numpy()] = model.weights.numpy()
    np.testing.assert_allclose(scores, (binary(history) @ weights)[:, 1:], rtol=1e-5, atol=1e-6)
    x = binary(fitted)
    slopes = x.T @ (x @ weights - x) + 2.0 * weights + l1
    np.fill_diagonal(slopes, 0)
    assert (weights >= 0).all() and not weights.diagonal().any()
    np.testing.assert_allclose(slopes[weights > 0], 0, atol=1e-3)
    assert (slopes[weights == 0] >= -1e-3).all()


FITTED = [[1, 2, 3], [2, 3, 2, 0], [], [4, 1], [0, 0], [5, 6, 2, 1]]
HISTORY = [[1], [2, 0, 4], [], [0]]


@pytest.mark.parametrize("model", MODELS)
def test_state_round_trip(model: type[nn.Module], tmp_path: Path) -> None:
    one = model(spec())
    scores = score(one, FITTED, HISTORY)
    assert scores[0].any()
    torch.save(one.state_dict(), tmp_path / "state.pt")
    for other in (model(spec()), nn.Sequential(model(spec()))[0]):
        other.fit(to_lists([[7, 8]]))
        other.load_state_dict(torch.load(tmp_path / "state.pt"))
        np.testing.assert_array_equal(other.score(to_lists(HISTORY)).double().numpy()[:, 1:], scores)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model(spec(N + 1)).load_state_dict(one.state_dict())


@pytest.mark.parametrize("model", MODELS)
def test_scores_without_torch(model: type[nn.Module], tmp_path: Path) -> None:
    """What an artefact holds gives the same scores in NumPy, also of items that the model was not fitted to."""
    one = model(spec())
    scores = score(one, FITTED, HISTORY)
    (tmp_path / SCORER_STATE).mkdir()
    for name, value in one.state_dict().items():
        np.save(tmp_path / SCORER_STATE / f"{name}.npy", value.numpy())
    method = SCORERS[model.__name__](tmp_path, options_of(one))
    for wanted, history in zip(scores, HISTORY, strict=True):
        known = np.array([i for i in history if i], np.int64)  # as queries have them
        for ids in (known, np.append(known, N + 5)):
            np.testing.assert_allclose(method(ids)[1:], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_fitting_again_forgets(model: type[nn.Module]) -> None:
    again = model(spec())
    again.fit(to_lists([[7, 8, 1], [1, 5]]))
    np.testing.assert_array_equal(score(again, FITTED, HISTORY), score(model(spec()), FITTED, HISTORY))


@pytest.mark.parametrize("model", MODELS)
def test_nothing_to_fit_or_to_rate(model: type[nn.Module]) -> None:
    assert not score(model(spec()), [[], [0]], HISTORY).any()
    assert score(model(spec()), FITTED, []).shape == (0, N - 1)
    empty = score(model(spec()), FITTED, [[], [0]])
    assert empty.any() == (model is Popularity)


@pytest.mark.parametrize("model", MODELS)
def test_histories_are_rated_apart(model: type[nn.Module]) -> None:
    """A caller may write into the scores of one history, and leave the others and the model as they are."""
    one = model(spec())
    scores = score(one, FITTED, HISTORY)
    written = one.score(to_lists(HISTORY))
    written[0] = -1
    np.testing.assert_array_equal(written[1:].double().numpy()[:, 1:], scores[1:])
    np.testing.assert_array_equal(score(one, FITTED, HISTORY), scores)


@pytest.mark.parametrize("model", MODELS)
def test_mistakes_of_data(model: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=f"^{model.__name__} retrieves items: set data.items.feature"):
        model(FeatureSpec(dense=(), sparse=spec().sparse))
    with pytest.raises(ValueError, match=r"^item 9: the item table has rows 0 to 8$"):
        model(spec()).fit(to_lists([[9]]))
    with pytest.raises(ValueError, match=r"^item -1: "):
        model(spec()).fit(to_lists([[1, -1]]))
    if model is not Popularity:
        with pytest.raises(ValueError, match=r"^item 9: "):
            model(spec()).score(to_lists([[9]]))


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (EASE, {"max_items": 8}, "EASE: 9 items exceed max_items=8 (fitting needs 0.0 GB): raise model.max_items"),
        (SessionKNN, {"k": 10, "sample_size": 5}, "sample_size=5: must be at least k=10"),
    ],
)
def test_mistakes_of_parameters(model: type[nn.Module], given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says)) as e:
        model(spec(), **given)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("model", MODELS)
def test_built_on_meta(model: type[nn.Module]) -> None:
    assert all(b.is_meta for b in model(spec(), device=torch.device("meta")).buffers())


@settings(max_examples=30, deadline=None)
@given(ids=lists_of_ids, chunk=st.integers(1, N))
def test_co_occurrences(ids: Ids, chunk: int) -> None:
    x = binary(ids)
    blocks = interactions.co_occurrences(interactions.distinct(to_lists(ids), N), N, chunk=chunk)
    np.testing.assert_array_equal(torch.cat([b.to_dense() for _, b in blocks]).numpy(), x.T @ x)


def hit_rate(model: nn.Module, histories: Ids, targets: list[int]) -> float:
    """HR@10 among all items but those of the history; an item as good as the target is above it."""
    hits = 0
    for start in range(0, len(histories), 256):
        history = to_lists(histories[start : start + 256])
        scores = model.score(history)
        scores[:, 0] = -torch.inf
        target = torch.tensor(targets[start : start + 256])[:, None]
        wanted = scores.gather(1, target)
        scores[history.segment_ids, history.values] = -torch.inf
        hits += int(((scores >= wanted).sum(dim=1) <= 10).sum())
    return hits / len(histories)


# 10% below what was measured
FLOORS = {Popularity: 0.032, ItemKNN: 0.072, EASE: 0.098, GFCF: 0.07, ChebyCF: 0.07, SessionKNN: 0.088}


@pytest.mark.slow
def test_movielens_1m(real_data: Callable[[str], Path]) -> None:
    """The last item of each user, from all before it; for SessionKNN, which is slower, that of 1,024 users at most."""
    pairs = pl.read_csv(real_data("ml-1m") / "ml-1m.txt", separator=" ", has_header=False).to_numpy()
    users = [u.tolist() for u in np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)]
    histories, targets = [u[:-1] for u in users], [u[-1] for u in users]
    features, reached = spec(int(pairs[:, 1].max()) + 1), {}
    for model, floor in FLOORS.items():
        fitted = model(features)
        fitted.fit(to_lists(histories))
        queries = 1024 if model is SessionKNN else len(users)
        reached[model] = hit_rate(fitted, histories[:queries], targets[:queries])
        assert reached[model] > floor, model.__name__
    assert reached[EASE] > reached[ItemKNN] > 1.5 * reached[Popularity]


@pytest.mark.parametrize(("n", "block"), [(1, 4), (40, 7), (64, 16), (65, 16)])
def test_inverts_in_place(n: int, block: int) -> None:
    """Against NumPy; only the lower triangle is read, both are written."""
    x = np.random.default_rng(n).random((3 * n, n)) < 0.2
    gram = x.T.astype(np.float64) @ x + 2 * np.eye(n)
    a = torch.from_numpy(np.tril(gram)).float()
    ease.invert_in_place(a, block)
    np.testing.assert_allclose(a.numpy(), np.linalg.inv(gram), rtol=2e-4, atol=2e-6)


def test_large_ease_is_ease() -> None:
    """Solved in single precision in its own memory, weights and scores are those of double precision."""
    small = EASE(spec(), l2=10.0)
    small.fit(to_lists(FITTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ease, "_MAX_DOUBLE_ITEMS", 0)
        large = EASE(spec(), l2=10.0)
        large.fit(to_lists(FITTED))
    torch.testing.assert_close(large.weights, small.weights, rtol=1e-4, atol=1e-6)


def test_memory_is_planned_before_a_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    large = EASE(spec(41_000), device=torch.device("meta"))
    assert list(large.memory().values()) == [4 * 41_000**2]
    assert sum(EASE(spec(1000), device=torch.device("meta")).memory().values()) == 20 * 1000**2
    assert ItemKNN(spec()).memory() == {}
    monkeypatch.setattr(fitted_retrieval, "available_memory", lambda: 8 << 30)
    fitted_retrieval.check_memory(large)
    assert "memory: 6.26 GiB (41,000 x 41,000 weights, solved in place); available: 8.00 GiB" in capsys.readouterr().err
    monkeypatch.setattr(fitted_retrieval, "available_memory", lambda: 4 << 30)
    with pytest.raises(
        UserError, match=r"^model: fitting needs 6.26 GiB, but 4.00 GiB are available; drop rare items .*$"
    ):
        fitted_retrieval.check_memory(large)


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_the_most_recent_session_is_the_last_in_time(order: str, tmp_path: Path) -> None:
    """Wherever its lines are: each session has x and then an item of its own; two end at once, at different places."""
    sessions = [("w", -1, ["z0", "z1", "z2", "z3"]), *((f"u{i}", min(i, 18), ["x", f"y{i}"]) for i in range(20))]
    lines = [f"{user},{item},{100 + end * 10 + at}" for user, end, items in sessions for at, item in enumerate(items)]
    if order != "rising":
        lines = lines[::-1] if order == "falling" else np.random.default_rng(0).permutation(lines).tolist()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "log.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    data = DataConfig(
        name="t",
        root=str(tmp_path / "raw"),
        prepared=str(tmp_path / "prepared"),
        source=SourceConfig(),
        label=LabelConfig(column=None),
        group=GroupConfig("user", "time"),
        split=SplitConfig(by="leave_one_out"),
        sequences=SequenceConfig(max_length=5),
        sparse={"item": None},
    )
    check_data(data)
    prepared = prepare(data)
    model = SessionKNN(prepared.fitted.features, k=20, sample_size=20)
    lists = training_lists(prepared).in_table(model.rows)
    model.fit(lists)
    items = ["", *prepared.fitted.candidates]
    found = [items[i] for i in lists.values[lists.lengths.cumsum(0) - 1]]
    last = sorted(("y18", "y19"), key=lambda y: [line.split(",")[1] for line in lines].index(y))
    assert found == ["z1", *(f"y{i}" for i in range(18)), *last]  # the rows behind z1 are held out
    one = SessionKNN(prepared.fitted.features, k=1, sample_size=1)
    one.fit(lists)
    score = one.score(to_lists([[items.index("x")]]))[0]
    assert {items[i] for i in score.nonzero()[:, 0]} == {"x", last[-1]}
