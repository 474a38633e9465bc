"""Retrieval on data where candidates outnumber the rows of the item table: min_count and a table of items."""

import math
from pathlib import Path

import polars as pl
import pytest

import recsys
from recsys.config.compose import compose
from recsys.data.samples.sequences import write_sample
from recsys.export.artefact import load
from recsys.index.protocol import equal_rows
from recsys.models.popularity import Popularity
from recsys.online.recommender import Recommender
from recsys.online.servable import Query
from recsys.training.run import train

COUNTED = ("popularity", "item_knn", "ease", "slim", "ials", "gf_cf", "chebycf", "transition", "session_knn")
BY_ID = ("mf", "neumf", "simplex", "mult_vae", "lightgcn", "ultragcn")
BY_FEATURES = ("two_tower", "sasrec", "esasrec", "bert4rec", "gru4rec", "comirec", "hstu", "fuxi_alpha", "transformer")
EVERY_DAY = ("popularity", "item_knn", "ease", "session_knn", "mf", "lightgcn", "ultragcn", "sasrec")
CORE = "data.k_core={user: 3, item: 5}"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_sample(folder, rows=1000, seed=0)
    return folder


def recommender(raw: Path, model: str, *overrides: str) -> Recommender:
    """Train a model, check that its metrics are finite, and return it."""
    settings = ["data=sample_sequences", f"data.root={raw}", f"data.prepared={raw.parent / 'prepared'}"]
    settings += ["data.sparse.item.min_count=12", "trainer.threads=1", f"run_dir={raw.parent / model}{len(overrides)}"]
    steps = [] if model in COUNTED else ["trainer.max_epochs=1"]
    run = train(compose("train", [f"model={model}", *settings, *steps, *overrides]))
    assert all(math.isfinite(x) for x in run.metrics["test"].values() if isinstance(x, float))
    found = Recommender.load(str(run.path))
    assert run.metrics["test"]["candidates"] == len(found.fitted.candidates) > 2 * found.fitted.item_vocabulary.height
    return found


@pytest.mark.parametrize(
    "model",
    [m if m in EVERY_DAY else pytest.param(m, marks=pytest.mark.slow) for m in (*COUNTED, *BY_ID, *BY_FEATURES)],
)
def test_every_model_trains_and_lists_what_it_can_rank(model: str, raw: Path) -> None:
    found = recommender(raw, model)
    log = pl.read_csv(raw / "log.csv", infer_schema=False)
    listed = set(found.recommend(log, k=found.nameable, filter_history=False)["items"].explode())
    can = found.fitted.candidates if model in BY_FEATURES else found.fitted.item_vocabulary["value"]
    assert listed == set(can)


@pytest.mark.parametrize("overrides", [(), (CORE,)])
def test_rare_items_count_for_no_other(raw: Path, overrides: tuple[str, ...]) -> None:
    found = recommender(raw, "popularity", *overrides)
    assert isinstance(found.model, Popularity)
    assert found.model.counts.tolist() == [0, *found.fitted.item_vocabulary["count"]]
    assert min(found.fitted.item_vocabulary["count"]) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sasrec", "comirec"])
def test_items_of_equal_features_come_in_the_order_of_candidates(model: str, raw: Path, tmp_path: Path) -> None:
    """Rare items of one kind have equal vectors: at every door, of many queries and of one, with an index or without."""
    found = recommender(raw, model, "~data.items.dense.price")
    log = pl.read_csv(raw / "log.csv", infer_schema=False)
    names, k = found.fitted.candidates.to_list(), 60
    lists = dict(found.recommend(log, k=k, filter_history=False).select("user", "items").iter_rows())
    later, first = equal_rows(found.items.numpy()[1:])
    assert len(later) > 50
    first_of = dict(zip(later.tolist(), first.tolist(), strict=True))
    members: dict[int, list[int]] = {}
    for place in range(len(names)):
        members.setdefault(first_of.get(place, place), []).append(place)
    for folder, options in ((tmp_path / "all", []), (tmp_path / "exact", ["index=exact"])):
        served = load(recsys.load(str(raw.parent / f"{model}1")).export(folder, options))
        for user, listed in lists.items():
            rows = log.filter(pl.col("user") == user)
            alone = found.recommend(rows, k=k, filter_history=False)["items"][0].to_list()
            [(items, _)] = served.recommend([Query(rows.to_dicts(), k, filter_history=False)])
            for one in (listed, alone, items):
                same: dict[int, list[int]] = {}
                for place in [names.index(item) for item in one]:
                    same.setdefault(first_of.get(place, place), []).append(place)
                assert all(places == members[first][: len(places)] for first, places in same.items())
