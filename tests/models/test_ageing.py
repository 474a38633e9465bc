"""Interactions that count less, the older they are: weights, models and negatives against dense references."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import recsys
from recsys.base.errors import UserError
from recsys.interface.ageing import Ageing
from recsys.interface.batch import CandidateIds, ItemLists, ItemRows
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses import BPR
from recsys.losses.sampling import Popularity as Choices
from recsys.models.item_knn import ItemKNN
from recsys.models.popularity import Popularity
from recsys.models.transition import Transition

N, DAY, START = 7, 86_400, 1_700_000_000
FEATURES = FeatureSpec(dense=(), sparse=(SparseFeature("item", N, "item"),), item="item")
aged_lists = st.lists(
    st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, 40)), max_size=6), min_size=1, max_size=9
).filter(any)  # items with their age in days


def weighted(lists: list[list[tuple[int, int]]], ageing: Ageing) -> ItemLists:
    pairs = [pair for one in lists for pair in one]
    times = torch.tensor([START - DAY * age for _, age in pairs], dtype=torch.float64)
    values = torch.tensor([item for item, _ in pairs])
    lengths = torch.tensor([len(one) for one in lists])
    return ItemLists(ItemRows(CandidateIds(values)), lengths, ageing.weights(times))


@settings(max_examples=60, deadline=None)
@given(lists=aged_lists, window=st.sampled_from([None, "10d", 5 * DAY]), half_life=st.sampled_from([None, "7d"]))
def test_models_equal_dense_references(
    lists: list[list[tuple[int, int]]], window: str | int | None, half_life: str | None
) -> None:
    ageing = Ageing(window, half_life)
    newest = min(age for one in lists for _, age in one)
    days = {None: np.inf, "10d": 10, 5 * DAY: 5}[window]
    entries = np.zeros((len(lists), N))  # the largest weight of an item in a list
    counts, moves = np.zeros(N), np.zeros((N, N))
    for row, one in zip(entries, lists, strict=True):
        before = 0
        for item, age in one:
            weight = (0.5 ** ((age - newest) / 7) if half_life else 1.0) * (age - newest <= days)
            if not item or not weight:
                continue
            counts[item] += weight
            row[item] = max(row[item], weight)
            moves[before, item] += weight * (before not in (0, item))
            before = item
    fitted = weighted(lists, ageing)
    every = ItemLists(ItemRows(CandidateIds(torch.arange(1, N))), torch.ones(N - 1, dtype=torch.int64))

    popularity = Popularity(FEATURES)
    popularity.fit(fitted)
    np.testing.assert_allclose(popularity.score(every)[0], counts, rtol=1e-6)

    knn = ItemKNN(FEATURES, k=N, shrink=0.3)
    knn.fit(fitted)
    sizes = np.maximum((entries > 0).sum(1, keepdims=True), 1)
    together = np.sqrt(entries / sizes).T @ np.sqrt(entries / sizes)
    root = np.sqrt(np.diag(together))
    wanted = together / (np.outer(root, root) + 0.3)
    np.fill_diagonal(wanted, 0)
    np.testing.assert_allclose(knn.score(every), wanted[1:], atol=1e-6)

    transition = Transition(FEATURES, hops=1, items=1)
    transition.fit(fitted)
    shares = moves / np.maximum(moves.sum(1, keepdims=True), 1e-300)
    np.testing.assert_allclose(transition.score(every), shares[1:], atol=1e-6)


def test_durations_need_times_in_seconds() -> None:
    numbers = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert Ageing(2, 1).weights(numbers).tolist() == [0, 0.25, 1]
    with pytest.raises(UserError, match=r"half_life=1d.*numbers up to 4"):
        Ageing(None, "1d").weights(numbers)


def test_negatives_age_only_by_popularity() -> None:
    with pytest.raises(ValueError, match="set negatives=popularity"):
        BPR(half_life="7d")
    shares = Choices(torch.tensor([0.0, 0.5, 0.25, 0.0])).log_share.exp()
    np.testing.assert_allclose(shares[1:], [2 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_a_run_reads_the_times_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen long ago is popular only without a window; windows and reversed lists count nothing twice."""
    monkeypatch.chdir(tmp_path)
    rows = [
        (u, i, START + DAY * t) for u in range(60) for i, t in [("old", 0), ("x", 1), ("new", 90), ("y", 91), ("z", 92)]
    ]
    rows += [(u, "old", START + DAY * t) for u in range(60, 90) for t in (1, 2, 3, 4, 5)]
    pl.DataFrame(rows, schema=["user", "item", "at"], orient="row").write_parquet(tmp_path / "log.parquet")
    Path("conf/data").mkdir(parents=True)
    Path("conf/data/log.yaml").write_text(
        "name: log\nsource: {format: parquet, files: [log.parquet]}\ngroup: {by: user, order: at}\n"
        "sequences: {max_length: 2, stride: 1, reverse: true}\nsplit: {by: leave_one_out}\nsparse: {item: {}}\n"
    )
    data = ["data=log", f"data.root={tmp_path}", "trainer.threads=1"]
    days = [0] * 60 + [1, 2, 3] * 30  # of "old" in training, whose newest interaction is on day 90
    halved = sum(0.5 ** ((90 - day) / 90) for day in days)
    for place, (keys, wanted) in enumerate([([], 150), (["model.window=30d"], 0), (["model.half_life=90d"], halved)]):
        run = recsys.train([*data, "model=popularity", f"run_dir=run{place}", *keys])
        counts = torch.load(next(Path(run.path).rglob("model.pt")))["counts"]
        items = pl.read_parquet(Path(run.path) / "vocabularies/item.parquet")["value"].to_list()
        assert float(counts[1 + items.index("old")]) == pytest.approx(wanted)
    negatives = ["loss=bpr", "loss.negatives=popularity", "loss.window=30d", "trainer.max_epochs=1"]
    recsys.train([*data, "model=sasrec", "model.dim=8", "model.max_length=2", *negatives, "run_dir=sasrec"])
    with pytest.raises(UserError, match=r"loss.window=30d.*no times"):
        recsys.train([*data, "data.group.order=null", "model=sasrec", *negatives])
