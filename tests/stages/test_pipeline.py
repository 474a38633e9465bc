"""A pipeline of real models: its lists, its evaluation, and every mistake in one line."""

from __future__ import annotations

import json
import shutil
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import requests
from forks import ok, run_forked
from served import serving

import recsys
from recsys.base.errors import UserError
from recsys.config.compose import compose, compose_file, conf_dir
from recsys.data.samples.interactions import write_next, write_sample
from recsys.export.artefact import load as load_artefact
from recsys.online.servable import Query
from recsys.server.served_models import _signature
from recsys.stages.assemble import load
from recsys.stages.catalogue import Catalogue, Categories
from recsys.stages.evaluate.measure_stages import Collected, exposure
from recsys.stages.score import Ranking, moved
from recsys.stages.served_pipeline import PipelineServable, write_folder
from recsys.stages.served_pipeline import load as load_servable
from recsys.stages.sources import Similar
from recsys.stages.staged import StagedRecommender
from recsys.stages.visitor import Visitor
from recsys.store.definition import load_views
from recsys.store.materialise import materialise
from recsys.store.stores import open_store
from recsys.training.run import train

ROWS = 20_000
FILE = conf_dir() / "pipeline" / "sample.yaml"
SMALL = ["trainer.threads=1", "trainer.max_epochs=1", "trainer.batch_size=512"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the demo, smaller."""
    folder = tmp_path_factory.mktemp("world")
    data = folder / "data"
    data.mkdir()
    write_sample(data, rows=ROWS, seed=0)
    write_next(data, rows=ROWS, seed=0)
    log = ["data.sample=null", f"data.root={data}", f"data.prepared={folder / 'prepared'}"]
    clicks = ["data=sample_interactions_retrieval", *log, *SMALL]
    train(compose("train", ["model=two_tower", *clicks, "model.out=16", f"run_dir={folder / 'two_tower'}"]))
    train(compose("train", ["model=popularity", *clicks, f"run_dir={folder / 'popularity'}"]))
    train(compose("train", ["model=dlrm", "data=sample_behaviour", *log, *SMALL, f"run_dir={folder / 'ranker'}"]))
    loaded(folder)  # exports the three
    return folder


def loaded(world: Path, *overrides: str) -> StagedRecommender:
    return load(compose_file(FILE, [f"root={world}", *overrides]))


def queries(world: Path, users: int = 20, **parameters: Any) -> list[Query]:
    asked = pl.read_csv(world / "data" / "requests.csv").head(users)
    return [Query([], context=row, **parameters) for row in asked.iter_rows(named=True)]


def test_lists(world: Path) -> None:
    pipeline = loaded(world)
    answers = pipeline.answers(queries(world))
    assert len(pipeline.catalogue) == 300
    for answer in answers:
        assert len(answer.items) == 10 == len(set(answer.items.tolist()))
        assert set(answer.items) <= set(answer.trace.merged) and answer.propensities is None
        assert (np.diff(answer.trace.scored.scores) <= 0).all()
    assert len({tuple(a.items) for a in answers}) > 10  # not the same list for all
    one_by_one = [pipeline.answers([q])[0] for q in queries(world)]
    for a, b in zip(answers, one_by_one, strict=True):
        assert a.items.tolist() == b.items.tolist() and a.scores == pytest.approx(b.scores, abs=1e-6)


def test_opened_from_python(world: Path) -> None:
    pipeline = recsys.open_pipeline(FILE, [f"root={world}"])
    [query] = queries(world, 1)
    assert query.context is not None
    [answer] = pipeline.answers([query])
    explained = pipeline.explain(query.context)
    assert explained["item"].head(10).to_list() == pipeline.names(answer.items)
    assert explained["score"].count() == len(answer.trace.kept)
    with pytest.raises(recsys.UserError, match=r"no.yaml"):
        recsys.open_pipeline(world / "no.yaml")


def test_scores_are_those_of_the_ranker(world: Path) -> None:
    """Features of the past and of items, computed apart, are those of whole rows after the user's history."""
    pipeline = loaded(world, "order=none")
    ranker: Any = load_artefact(world / "ranker" / "artefact")
    log = pl.read_csv(world / "data" / "log.csv")
    for query in queries(world, 5):
        assert query.context is not None
        [answer] = pipeline.answers([query])
        history = log.filter(pl.col("user") == query.context["user"]).to_dicts()
        for item, score in zip(pipeline.names(answer.items[:3]), answer.scores[:3], strict=True):
            arrays = ranker.pipeline.arrays([{**query.context, "item": item}], history)
            [[expected]] = [x.tolist() for x in ranker.run_arrays(arrays).values()]
            assert score == pytest.approx(expected, abs=1e-6)


def test_the_first_source_is_the_model_alone(world: Path) -> None:
    only = ["~sources.similar", "~sources.popular", "~filters.price", "~filters.kinds", "score=null", "order=none"]
    pipeline = loaded(world, *only)
    model: Any = load_artefact(world / "two_tower" / "artefact")
    log = pl.read_csv(world / "data" / "log.csv")
    for query in queries(world, 5):
        assert query.context is not None
        [answer] = pipeline.answers([query])
        history = log.filter(pl.col("user") == query.context["user"]).to_dicts()
        [(expected, _)] = model.recommend([Query(history, k=10, filter_history=False)])
        assert pipeline.names(answer.items) == expected


SWAPS = [
    "merge=weighted",
    "order=dpp",
    "score=null",
    "order=epsilon",
    "sources.cheap={_target_:recsys.stages.sources.Items,by:price,descending:false,where:'item.kind = \\'k3\\''}",
]
MORE_SWAPS = [
    *("merge=round_robin", "order=none", "k=3", "~sources.popular", "order=thompson", "order.mmr.relevance=0.5"),
    "score.formula='p_click * item.price ** 0.5'",
    "filters.seen={_target_:recsys.stages.filters.Seen,where:'click = 1'}",
    "order.first={_target_:recsys.stages.order.Slot,position:1,item:i7}",
]


@pytest.mark.parametrize("override", [*SWAPS, *(pytest.param(o, marks=pytest.mark.slow) for o in MORE_SWAPS)])
def test_one_override_swaps_a_stage(override: str, world: Path) -> None:
    pipeline = loaded(world, override)
    answers = pipeline.answers(queries(world, 3))
    assert all(len(a.items) == pipeline.settings.k for a in answers)
    drawn = override in ("order=epsilon", "order=thompson")
    assert all((a.propensities is not None) == drawn for a in answers)
    if drawn:
        assert all(((a.propensities > 0) & (a.propensities <= 1)).all() for a in answers)  # type: ignore[operator]


def test_calibrated_lists_have_the_historys_kinds(world: Path) -> None:
    overrides = ["order=calibrated", "order.calibrated.column=kind", "order.calibrated.calibration=1"]
    pipeline, plain = loaded(world, *overrides), loaded(world, "order=none")
    kinds = pipeline.catalogue.categories("kind", None, "")
    distance = []
    for p in (pipeline, plain):
        found = p.answers(queries(world, 20))
        seen = [kinds.shares(p.visitor(q).seen).mean(0) for q in queries(world, 20)]
        distance.append(
            np.mean([np.abs(kinds.shares(a.items).mean(0) - s).sum() for a, s in zip(found, seen, strict=True)])
        )
    assert distance[0] < 0.8 * distance[1]


def test_stored_features_of_users(world: Path, tmp_path: Path) -> None:
    """A rule reads a column that only the store has, as of the last materialise."""
    limits = pl.DataFrame({"user": ["u0", "u1"], "time": [1, 1], "limit": [20.0, 1e9]})
    limits.write_parquet(tmp_path / "limits.parquet")
    view = f"limits: {{files: ['{tmp_path}/limits.parquet'], key: user, time: time, columns: [limit]}}"
    (tmp_path / "features.yaml").write_text(view)
    store = f"sqlite:///{tmp_path}/features.db"
    materialise(load_views(tmp_path / "features.yaml"), open_store(store, write=True))
    rule = "filters.limit={_target_:recsys.stages.filters.Where,sql:'item.price < user.limit'}"
    lines = f"definition: {tmp_path}/features.yaml\n  store: {store}"
    (tmp_path / "mine.yaml").write_text(f"defaults: [sample, _self_]\nfeatures:\n  {lines}\n")
    pipeline = load(compose_file(tmp_path / "mine.yaml", [f"root={world}", rule, "k=5"]))
    prices = dict(pl.read_csv(world / "data" / "items.csv").select("item", "price").iter_rows())
    shown = [[prices[i] for i in pipeline.names(a.items)] for a in pipeline.answers(queries(world, 3))]
    assert shown[0] and max(shown[0]) < 20  # u0
    assert max(shown[1]) > 20 and shown[2] == []  # u2 has no limit: NULL counts as false


def stored(folder: Path, views: str) -> list[str]:
    """Materialise views, and return the overrides that name them."""
    (folder / "features.yaml").write_text(views)
    store = f"sqlite:///{folder}/features.db"
    materialise(load_views(folder / "features.yaml"), open_store(store, write=True))
    return [f"features.definition={folder}/features.yaml", f"features.store={store}"]


def test_histories_from_the_store(world: Path, tmp_path: Path) -> None:
    """Users get the lists that their events give, without the table of events."""
    log = pl.read_csv(world / "data" / "log.csv").with_columns(pl.col("item").cast(pl.String))
    log.write_parquet(tmp_path / "log.parquet")
    view = f"""
log:
  files: {tmp_path}/log.parquet
  key: user
  time: time
  aggregates: {{recent: {{last: item, number: 200}}}}
"""
    pipeline, wanted = loaded(world, *stored(tmp_path, view), "features.history=recent"), loaded(world)
    assert pipeline.events is None
    for query in queries(world, 5):
        kept, full = pipeline.visitor(query), wanted.visitor(query)
        assert kept.seen.tolist() == full.seen.tolist() and len(kept.seen)
        assert [e["item"] for e in kept.events] == [str(e["item"]) for e in full.events]
    lists = [pipeline.names(a.items) for a in pipeline.answers(queries(world, 5))]
    assert lists != [pipeline.names(a.items) for a in pipeline.answers([Query([], context={"user": "nobody"})] * 5)]
    with pytest.raises(UserError, match=r"features\.history=recnt: is not a list of a view of users .*mean recent"):
        loaded(world, *stored(tmp_path, view), "features.history=recnt")


def test_a_request_follows_its_events(world: Path) -> None:
    """Events of its own time are not before it; a request without a time, and one of events without, sees them all."""
    ranking = loaded(world).score
    assert isinstance(ranking, Ranking)
    timed = [{"item": "i1", "time": 5}, {"item": "i2", "time": 7}, {"item": "i3", "time": 7}]
    for events, given, seen, time in (
        (timed, None, [5, 7, 7], 8),
        (timed, 7, [5], 7),
        (timed, 9, [5, 7, 7], 9),
        ([{"item": "i1"}, {"item": "i2"}], 9, [8, 8], 9),
    ):
        shared = {} if given is None else {"time": given}
        past = ranking._past(Visitor("u1", {}, {}, events, np.zeros(0, np.int64), 5), shared)
        assert [e["time"] for e in past] == seen and shared == {"time": time}


@pytest.mark.parametrize(
    ("moment", "later"),
    [
        (7, 8),
        (0.5, 1.5),
        ("7", "8"),
        ("2024-02-29 23:59:59", "2024-03-01 00:00:00"),
        (datetime(2024, 1, 1, 1), datetime(2024, 1, 1, 1, 0, 1)),
        (date(2024, 2, 29), date(2024, 3, 1)),
        ("soon", "soon"),
    ],
)
def test_moved(moment: object, later: object) -> None:
    assert moved(moment, 1) == later and moved(later, -1) == moment and moved(moment, 0) == moment


SHOWN = """
name: shown
source: {format: parquet, files: [shown.parquet]}
label: {column: click}
split: {by: order, validation: 0.1, test: 0.1}
dense: {price: {transform: [log, standardise]}}
sparse: {item: {}, device: {}}
"""


@pytest.mark.slow
def test_the_ranker_reads_stored_features_of_items(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that leaves the table of items for the store gives the same scores."""
    items = pl.read_csv(world / "data" / "items.csv").with_columns(pl.lit(1).alias("time"))
    items.write_parquet(tmp_path / "i.parquet")
    pl.read_csv(world / "data" / "log.csv").join(items, on="item").write_parquet(tmp_path / "shown.parquet")
    items.drop("price").write_csv(tmp_path / "items.csv")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "shown.yaml").write_text(SHOWN)
    monkeypatch.chdir(tmp_path)
    run = f"run_dir={tmp_path / 'run'}"
    train(compose("train", ["model=dlrm", "data=shown", "data.root=.", f"data.prepared={tmp_path}/p", *SMALL, run]))
    ranker = ["filters.price=null", f"score.run={tmp_path / 'run'}"]
    wanted = loaded(world, *ranker).answers(queries(world, 3))
    without = [*ranker, f"items.file={tmp_path}/items.csv"]
    with pytest.raises(UserError, match="the model reads the column price, which no table and no request has"):
        loaded(world, *without)
    views = f"prices: {{files: '{tmp_path}/i.parquet', key: item, time: time, columns: [price]}}"
    found = loaded(world, *without, *stored(tmp_path, views)).answers(queries(world, 3))
    for a, b in zip(found, wanted, strict=True):
        assert a.items.tolist() == b.items.tolist()
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-5)


def test_a_changed_table_is_another_signature(world: Path, tmp_path: Path) -> None:
    """So SIGHUP, or POST .../load, makes a server load the pipeline again."""
    data = tmp_path / "data"
    shutil.copytree(world / "data", data)
    folder = tmp_path / "served"
    folder.mkdir()
    write_folder(conf_dir() / "pipeline" / "sample.yaml", [f"root={world}", f"data_root={tmp_path}"], folder)
    before = _signature(folder)
    assert _signature(folder) == before and len(before) > 4
    lines = (data / "items.csv").read_text().splitlines()
    (data / "items.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert _signature(folder) != before


def test_runs_are_exported_before_workers_start(world: Path, tmp_path: Path) -> None:
    """Workers that export the same run at the same time would refuse each other."""
    shutil.copytree(world / "popularity", tmp_path / "popularity")
    shutil.rmtree(tmp_path / "popularity" / "artefact")
    folder = tmp_path / "served"
    folder.mkdir()
    runs = [f"sources.{source}.run={world / 'two_tower'}" for source in ("two_tower", "similar")]
    overrides = [f"root={tmp_path}", f"data_root={world}", *runs, f"score.run={world / 'ranker'}"]
    write_folder(FILE, overrides, folder)
    before = (tmp_path / "popularity" / "artefact" / "manifest.json").stat()
    load_servable(folder)
    after = (tmp_path / "popularity" / "artefact" / "manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_served_pipeline(world: Path) -> None:
    """A user without events, and a history in the request."""
    pipeline = PipelineServable(loaded(world), "sample", ["device"])
    assert pipeline.context == ("user", "time", "device")
    [known, unknown, history] = pipeline.recommend(
        [
            *queries(world, 1, k=4),
            Query([], k=5, context={"user": "nobody"}),
            Query([{"user": "u1", "item": "i3", "click": 1}, {"user": "u1", "item": "i4", "click": 1}], k=6),
        ]
    )
    assert [len(x) for x, _ in (known, unknown, history)] == [4, 5, 6]
    assert all(item.startswith("i") for items, _ in (known, unknown, history) for item in items)


def test_a_server_of_an_exploring_pipeline(world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its samples have what off-policy evaluation needs; requests without a user are told what to send."""
    folder = tmp_path / "served"
    folder.mkdir()
    write_folder(FILE, [f"root={world}", "order=epsilon"], folder)
    samples = tmp_path / "samples"
    context = {"user": "u1", "time": 1, "device": "phone"}
    with serving(folder, loader_function=load_servable, sample=1.0, sample_dir=str(samples)) as served:
        url = f"{served.url}/recommend"
        answer = requests.post(url, json={"context": context, "k": 3}).json()
        both = requests.post(url, json={"queries": [{"context": context, "k": k} for k in (2, 4)]}).json()
        wrong = requests.post(url, json={})
        assert wrong.status_code == 400 and wrong.json()["error"].startswith("context: is missing")
        odd: list[Any] = [*(None, True, -1, 1e300, 2**63, "", "x" * 100_000), [], [1], {}, {"a": 1}, "nan", "\u0000"]
        for key in ("user", "time", "device"):
            for value in odd:
                assert requests.post(url, json={"context": {**context, key: value}}).status_code in (200, 400)
        for key in ("k", "exclude", "candidates", "filter_history", "history", "context", "queries", "weights"):
            for value in odd:
                assert requests.post(url, json={"context": context, key: value}).status_code in (200, 400)
    rows = pl.concat([pl.read_parquet(f) for f in samples.glob("*.parquet")]).head(3).to_dicts()
    lists = [answer, *both["recommendations"]]
    assert [(r["items"], r["scores"], r["propensities"]) for r in rows] == [
        (x["items"], x["scores"], x["propensities"]) for x in lists
    ]
    assert [json.loads(r["context"]) for r in rows] == [context] * 3 and [r["request_row"] for r in rows] == [0, 0, 1]
    assert "raceback" not in capfd.readouterr().err


def test_items_like_those_that_a_user_saw_without_vectors() -> None:
    """The items of each seen one, in turns, as the model lists them."""
    likes = {"a": "bcd", "b": "ade", "c": "ba", "d": "", "e": ""}  # best first
    names = pl.Series([*likes])
    place = {name: i for i, name in enumerate(names)}

    def find(asked: list[Query]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = [likes[str(query.item)][: query.k] for query in asked]
        return [(np.array([place[x] for x in own], int), -np.arange(len(own), dtype=float)) for own in found]

    source = Similar("run", k=2)
    source._model = SimpleNamespace(names=names, vectors=None, find=find)  # type: ignore[assignment]
    source.bind(SimpleNamespace(catalogue=Catalogue(names[::-1], pl.DataFrame())), "s")  # type: ignore[arg-type]
    seen = [np.array(x) for x in ([4], [4, 3], [1, 2])]  # numbers in the catalogue: a; a, b; d, c
    lists = source.retrieve([SimpleNamespace(seen=x) for x in seen], 2)  # type: ignore[misc]
    assert [[names[::-1][int(i)] for i in items] for items, _ in lists] == [["b", "c"], ["d", "c"], ["b", "a"]]


MISTAKES = r"""
~sources.two_tower ~sources.similar ~sources.popular | sources: is empty
sources.two_tower.run=nosuch | sources.two_tower.run=nosuch: no such folder
sources.two_tower.run=ranker | sources.two_tower.run=ranker: its model scores rows and cannot retrieve
score.run=two_tower | score.run=two_tower: its model retrieves items and cannot score rows
sources.similar.run=popularity | this model neither has vectors of items nor relates them
sources.two_tower.kk=3 | sources.two_tower.kk: recsys.stages.sources.Model has no such parameter
sources.two_tower._target_=recsys.stages.filters.Where | must be a subclass of recsys.stages.sources.Source
filters.price.sql='item.prise > 3' | did you mean price?
filters.price.sql='item.price >' | cannot be read at character 13
score.formula=p_clik | did you mean p_click?
context=[] | the model reads the column device, which no table and no request has
items.file=data/nosuch.csv | items.file=data/nosuch.csv: no such file in
events.file=data/items.csv | has no column user
order.mmr.vectors=popular | order.mmr.vectors=popular: is not a source whose model has item vectors
order=calibrated | order.calibrated.column: must be set
order=none order.mmr.relevance=0.5 | order.mmr: has no _target_; write its class
time=when | events: has no column when
order=epsilon order.more={_target_:recsys.stages.order.MMR} | order.explore: explores, and its probabilities hold only
"""


@pytest.mark.parametrize("line", MISTAKES.split("\n")[1:-1])
def test_mistakes(line: str, world: Path) -> None:
    overrides, message = line.split(" | ")
    given = [overrides] if ".sql=" in overrides else overrides.split(" ")
    with pytest.raises(UserError) as caught:
        loaded(world, *given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_items_that_the_ranker_does_not_know(world: Path, tmp_path: Path) -> None:
    items = pl.read_csv(world / "data" / "items.csv")
    more = pl.concat([items, items.with_columns(pl.format("new_{}", "item").alias("item"))])
    more.write_csv(tmp_path / "items.csv")
    with pytest.raises(UserError, match=r"does not know 300 of the 600 items .* such as new_i0"):
        loaded(world, f"items.file={tmp_path / 'items.csv'}")
    other = items.with_columns(pl.format("x{}", "item").alias("item"))
    other.write_csv(tmp_path / "other.csv")
    with pytest.raises(UserError, match=r"sources.two_tower: lists items such as \w+, and the table of items has none"):
        loaded(world, f"items.file={tmp_path / 'other.csv'}")
    assert len(loaded(world, f"items.file={tmp_path / 'items.csv'}", "score.unknown=0.5").catalogue) == 600


def test_exposure_of_categories() -> None:
    """Items 0 to 3 of a and b, b, a, and nothing; places and choices count for each category of their item."""
    kinds = Categories(pl.Series(["a", "b"]), np.array([0, 1, 1, 0]), np.array([0, 2, 3, 4, 4]))
    lists = Collected(retriever=[np.array([3, 3])], final=[np.array([0, 1]), np.array([1, 3])])
    a, b = exposure(lists, kinds, np.array([1.0, 0, 2, 1]))
    assert a == {"value": "a", "items": 2, "chosen": 0.75, "retriever": 0, "final": 0.25, "lift": pytest.approx(1 / 3)}
    assert b == {"value": "b", "items": 2, "chosen": 0.25, "retriever": 0, "final": 0.75, "lift": 3}


@pytest.mark.slow
def test_the_command_writes_lists_and_an_evaluation(world: Path, tmp_path: Path) -> None:
    asked = world / "data" / "requests.csv"
    pl.read_csv(asked).head(150).write_csv(tmp_path / "few.csv")
    run = [f"run={FILE}", f"root={world}"]
    few, lists_file = f"input={tmp_path / 'few.csv'}", f"output={tmp_path / 'lists.parquet'}"
    ok(run_forked("recsys.pipeline", *run, few, lists_file, cwd=tmp_path))
    lists = pl.read_parquet(tmp_path / "lists.parquet")
    assert lists.height == 150 and lists["items"].list.len().unique().to_list() == [10]
    assert lists.columns == ["user", "time", "device", "items", "scores", "sources"]
    small = ["evaluate.users=100", "evaluate.resamples=100", "evaluate.group=country", "evaluate.exposure=[kind]"]
    evaluate = ["evaluate", *run, f"input={asked}", *small, f"output={tmp_path / 'evaluation'}"]
    ok(run_forked("recsys.pipeline", *evaluate, cwd=tmp_path))
    found = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert found["counts"]["users"] == 100
    ndcg = {n: found[n]["ndcg@10"] for n in ("popularity", "retriever", "ranker", "final", "best_possible")}
    assert ndcg["popularity"] < ndcg["best_possible"] and ndcg["final"] < ndcg["best_possible"]
    assert ndcg["final"] > ndcg["retriever"]  # the teacher's clicks, by a ranker of one epoch
    funnel = found["funnel"]
    steps = [funnel[n]["recall"] for n in ("retrieved", "merged", "filtered", "ranked")]
    assert steps == sorted(steps, reverse=True)
    assert len(found["calibration"]) == 8 and sum(r["users"] for r in found["calibration"]) == 100
    [kinds] = found["exposure"].values()
    assert [sum(p[n] for p in kinds) for n in ("items", "chosen", "final")] == pytest.approx([300, 1, 1])
    again = run_forked("recsys.pipeline", *evaluate, cwd=tmp_path)
    assert again.returncode == 2 and "already has an evaluation.json" in again.stderr


def test_the_config_is_printed(tmp_path: Path) -> None:
    """Hydra's options have values, which are no actions; overrides may lie on both sides of them."""
    printed = ok(run_forked("recsys.pipeline", f"run={FILE}", "k=7", "--cfg", "job", cwd=tmp_path)).stdout
    assert "k: 7" in printed and "recsys.stages.sources.Model" in printed
    wrong = run_forked("recsys.pipeline", f"run={FILE}", "evaluate.relevant=clik = 1", cwd=tmp_path)
    assert wrong.returncode == 2 and "in quotes: \"evaluate.relevant='clik = 1'\"" in wrong.stderr
