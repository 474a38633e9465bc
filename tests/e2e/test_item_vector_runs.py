"""Runs with vectors of items and semantic ids, on the built-in sample: cold items, lists, artefacts."""

import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.config.compose import compose
from recsys.data.samples.sequences import ITEMS, World, write_sample
from recsys.export.artefact import load
from recsys.online.recommender import Recommender
from recsys.online.servable import Query
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train

ROWS = 3000
IDS = "{vectors: {file: vectors.parquet, key: item}, levels: 2, size: 24}"
TIGER = ["model=tiger", "model.encoder_layers=1", "model.decoder_layers=1", f"data.semantic_ids={IDS}"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sample's log and a vector of each item: its kind, and its price; and of one item that nobody chose."""
    folder = tmp_path_factory.mktemp("raw")
    write_sample(folder, rows=ROWS, seed=0)
    items = pl.read_csv(folder / "items.csv", infer_schema=False)
    kinds = items["kind"].unique().sort()
    vectors = (items["kind"].to_numpy()[:, None] == kinds.to_numpy()).astype(np.float32)
    vectors += 0.1 * np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    names = [*items["item"], "never-chosen"]
    frame = pl.DataFrame({"item": names, "vector": np.concatenate([vectors, vectors[:1]]).tolist()})
    frame.write_parquet(folder / "vectors.parquet")
    return folder


def run_of(raw: Path, name: str, *overrides: str) -> Path:
    path = raw.parent / name
    settings = ["data=sample_sequences", f"data.root={raw}", f"data.prepared={raw.parent / 'prepared'}"]
    settings += ["data.items.file=null", "~data.items.dense.price", "~data.items.sparse.kind", "trainer.threads=1"]
    train(compose("train", [*settings, f"run_dir={path}", "metrics.slices=[user]", *overrides]))
    return path


VECTORS = ["data.items.vectors={text: {file: vectors.parquet, key: item}}", "data.sparse.item.min_count=8"]


@pytest.fixture(scope="module")
def vectors_run(raw: Path) -> Path:
    rates = ["trainer.max_epochs=6", "optim.dense.lr=0.01", "optim.sparse.lr=0.01"]
    return run_of(raw, "vectors", "model=sasrec", "loss=full_softmax", *rates, *VECTORS)


@pytest.mark.slow
def test_cold_targets_are_measured_beside_warm_ones(vectors_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = json.loads((vectors_run / "metrics.json").read_text())
    cold, warm = metrics["slices"]["test"]["targets"]
    test = metrics["test"]
    assert (cold["value"], warm["value"]) == ("cold", "warm") and list(metrics["slices"]["test"]) == ["targets", "user"]
    assert cold["targets"] == test["cold_targets"] > 10 and warm["targets"] == test["targets"] - test["cold_targets"]
    both = (cold["targets"] * cold["ndcg@10"] + warm["targets"] * warm["ndcg@10"]) / test["targets"]
    assert both == pytest.approx(test["ndcg@10"])
    chance = 10 / test["candidates"]
    assert cold["hr@10"] > 2 * chance  # its vector says what kind a cold item is of
    capsys.readouterr()
    assert evaluate(str(vectors_run))["slices"]["test"]["targets"] == [cold, warm]


@pytest.mark.slow
def test_cold_items_are_recommended_and_exported(vectors_run: Path, raw: Path, tmp_path: Path) -> None:
    """An item that nobody chose is listed for a user of its kind, by the run as by its artefact."""
    world = World(0)
    items = pl.read_csv(raw / "items.csv", infer_schema=False)
    twin = items["item"][0]
    same_kind = items.filter(pl.col("kind") == items["kind"][0])["item"].to_list()
    history = [{"user": "u", "item": item, "time": str(t)} for t, item in enumerate(same_kind[:4])]
    found = Recommender.load(str(vectors_run)).recommend(pl.DataFrame(history), k=ITEMS)["items"][0].to_list()
    assert len(world.kinds) == ITEMS
    assert twin not in found and found.index("never-chosen") < len(found) / 2
    recsys.load(vectors_run).export(tmp_path / "artefact")
    model = load(tmp_path / "artefact")
    [(listed, _)] = model.recommend([Query(history, ITEMS)])
    assert listed == found


@pytest.fixture(scope="module")
def wide_run(raw: Path) -> Path:
    """Its beam is as wide as the catalogue, and so finds every item that has codes."""
    small = ["model.dim=8", "model.heads=2", "model.hidden=8", "model.beam=300", "trainer.max_epochs=1"]
    return run_of(raw, "wide", *TIGER, *small, "data.sequences.max_length=5")


WHOLE = [{"user": "u", "item": f"i{i}", "time": str(i)} for i in range(4)]


def whole_list(run: Path) -> list[str]:
    found = Recommender.load(str(run))
    listed: list[str] = found.recommend(pl.DataFrame(WHOLE), k=found.nameable, filter_history=False)["items"][
        0
    ].to_list()
    return listed


def test_tiger_lists_the_candidates_that_it_is_evaluated_on(wide_run: Path) -> None:
    """Also those of no training row."""
    metrics = json.loads((wide_run / "metrics.json").read_text())["test"]
    listed = whole_list(wide_run)
    assert "never-chosen" in listed and len(listed) == metrics["candidates"]


@pytest.mark.slow
def test_the_artefact_of_tiger_lists_them_too(wide_run: Path, tmp_path: Path) -> None:
    recsys.load(wide_run).export(tmp_path / "artefact")
    model, expected = load(tmp_path / "artefact"), whole_list(wide_run)
    [(listed, _)] = model.recommend([Query(WHOLE, len(expected), filter_history=False)])
    assert sorted(listed) == sorted(expected) == sorted(model.names)


@pytest.fixture(scope="module")
def tiger_run(raw: Path) -> Path:
    more = ["trainer.max_epochs=8", "optim.dense.lr=0.005", "trainer.batch_size=16", "data.sequences.max_length=20"]
    return run_of(raw, "tiger", *TIGER, "model.dim=32", "model.hidden=64", *more)


@pytest.mark.slow
def test_tiger_learns_and_its_artefact_is_quick(tiger_run: Path, tmp_path: Path, raw: Path) -> None:
    metrics = json.loads((tiger_run / "metrics.json").read_text())
    assert metrics["test"]["hr@10"] > 2 * 10 / metrics["test"]["candidates"]
    assert metrics["protocol"]["beam"] == 50
    log = pl.read_csv(raw / "log.csv", infer_schema=False)
    history = log.filter(pl.col("user") == log["user"][0])
    expected = Recommender.load(str(tiger_run)).recommend(history, k=10)
    recsys.load(tiger_run).export(tmp_path / "artefact")
    model = load(tmp_path / "artefact")
    query = Query(history.to_dicts(), 10)
    [(items, scores)] = model.recommend([query])
    assert items == expected["items"][0].to_list()
    np.testing.assert_allclose(scores, expected["scores"][0].to_list(), atol=1e-4)
    assert set(items) <= set(model.names) and not set(items) & set(history["item"])
    times = []
    for _ in range(20):
        start = time.perf_counter()
        model.recommend([query])
        times.append(time.perf_counter() - start)
    assert np.median(times) < 0.25  # seconds; a few milliseconds on an idle machine
