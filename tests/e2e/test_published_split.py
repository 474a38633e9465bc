"""A published split of users' items: what validates, and recall and NDCG against NumPy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from torch import Tensor

from recsys.config.compose import compose
from recsys.data.features.blocks import HISTORY, TARGETS
from recsys.data.loader.training_rows import training_lists, training_pairs
from recsys.data.prepare.engine import OneMachine
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.online.recommender import Recommender
from recsys.training.run import train

USERS = 1000

Lists = dict[str, list[str]]


def read(file: Path) -> Lists:
    rows = [line.split() for line in file.read_text().splitlines()]
    return {user: items for user, *items in rows}


@pytest.fixture
def part(real_data: Callable[[str], Path], tmp_path: Path) -> Path:
    """The first users of Gowalla."""
    folder = tmp_path / "gowalla"
    folder.mkdir()
    for name in ("train.txt", "test.txt"):
        lines = (real_data("gowalla") / name).read_text().splitlines()[:USERS]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_recall_and_ndcg_are_those_of_the_literature(part: Path, tmp_path: Path) -> None:
    """The 20 best of all items without the user's training items; recall divides by the number of test items."""
    wanted = ["experiment=gowalla_gf_cf", f"data.root={part}", "data.split.validation=0", "model.k=16"]
    more = [f"run_dir={tmp_path / 'run'}", f"data.prepared={tmp_path / 'prepared'}", "trainer.threads=1"]
    test = train(compose("train", [*wanted, *more])).metrics["test"]
    trained, held_out = read(part / "train.txt"), read(part / "test.txt")
    raw = pl.DataFrame([{"user": u, "item": i} for u, items in trained.items() for i in items])
    top = Recommender.load(str(tmp_path / "run")).recommend(raw, k=20)
    lists = dict(zip(top["user"].to_list(), top["items"].to_list(), strict=True))
    gains = 1 / np.log2(np.arange(2, 22))
    recall, ndcg = [], []
    for user, items in held_out.items():
        assert not set(lists[user]) & set(trained[user])
        hits = np.isin(lists[user], items)
        recall.append(hits.sum() / len(items))
        ndcg.append(gains[hits].sum() / gains[: len(items)].sum())
    assert test["rows"] == USERS and test["targets"] == sum(map(len, held_out.values()))
    # items that the same users chose have equal scores: metrics are means over their orders, and a list has one order
    assert test["recall@20"] == pytest.approx(np.mean(recall), abs=1e-3)
    assert test["ndcg@20"] == pytest.approx(np.mean(ndcg), abs=1e-3)
    assert test["recall@20"] > 0.05


def prepared(name: str, part: Path, tmp_path: Path, *overrides: str) -> Prepared:
    from recsys.job.check_config import check_config

    words = [f"data={name}", "model=mf", f"data.root={part}", f"data.prepared={tmp_path / 'prepared'}"]
    cfg = check_config(compose("train", [*words, *overrides]))
    return prepare(cfg.data, OneMachine())


def test_validation_is_drawn_from_the_training_items_of_each_user(part: Path, tmp_path: Path) -> None:
    found = prepared("gowalla_lists", part, tmp_path)
    frames = {s: pl.concat([pl.read_parquet(f) for f in found.files(s)]) for s in ("train", "validation", "test")}
    counts = {s: f.select("user", pl.col(TARGETS).list.len()) for s, f in frames.items()}
    trained = {user: len(items) for user, items in read(part / "train.txt").items()}
    share = counts["validation"][TARGETS].sum() / sum(trained.values())
    assert 0.08 < share < 0.12 and len(frames["train"]) > 0.99 * USERS
    own = dict(frames["train"].select("user", HISTORY).iter_rows())
    for user, history, targets in frames["validation"].select("user", HISTORY, TARGETS).iter_rows():
        assert history == own[user] and not set(history) & (set(targets) - {0})
    for user, history in frames["test"].select("user", HISTORY).iter_rows():
        assert history[: len(own[user])] == own[user]
    assert sum(len(h) for h in frames["test"][HISTORY]) == sum(trained.values())


def test_lists_and_pairs_have_the_same_interactions(part: Path, tmp_path: Path) -> None:
    lists, pairs = prepared("gowalla_lists", part, tmp_path), prepared("gowalla_pairs", part, tmp_path)
    one, other = training_pairs(lists, "user"), training_pairs(pairs, "user")
    assert len(one.users) == len(training_lists(lists).values) == pairs.rows("train")

    def values(found: Prepared, feature: str, ids: Tensor) -> list[str]:
        return found.fitted.vocabularies[feature]["value"].gather(ids.numpy() - 1).to_list()

    sets = [
        set(zip(values(found, "user", x.users), values(found, "item", x.items), strict=True))
        for found, x in ((lists, one), (pairs, other))
    ]
    assert sets[0] == sets[1] and len(sets[0]) == len(one.users)
