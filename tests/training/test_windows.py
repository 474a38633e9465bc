"""Windows of training rows in the order of time, each measured before it is trained on; the same by following days."""

import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from following import followed

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.prepare.passes import WINDOW
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.job.check_config import check_config
from recsys.job.run_config import RunConfig
from recsys.training.run import train

GENERATE = Path(__file__).parents[2] / "experiments" / "mlperf_dlrmv4" / "generate.py"
DAYS, DAY, LAST = 6, 86_400, 8
ROWS = {"item_id": 3001, "artist_id": 301, "album_id": 1001, "uid": 51, "history": 3001}
CROSSES = ("user_x_artist", "user_x_album", "user_x_hour", "item_x_hour", "artist_x_hour", "user_x_is_organic")
SMALL = [
    *("experiment=mlperf_dlrmv4", *(f"data.sparse.{name}.rows={rows}" for name, rows in ROWS.items())),
    *(f"data.sparse.{name}.buckets=500" for name in (*CROSSES, "user_x_artist_x_hour")),
    *(f"data.sparse.{name}.last={LAST}" for name in ("history", "history_actions")),
    *("model.dim=8", "model.blocks=1", "model.heads=2", "model.max_length=16", "model.deep_mlp=[8]", "model.dropout=0"),
    *("optim.dense.lr=0.003", "optim.sparse.lr=0.05", "optim.scheduler=null", "optim.interval=validation"),
    *("trainer.batch_size=64", "trainer.precision=32-true", "trainer.threads=1"),
]
WINDOWS = [*SMALL, "data.split.validation=0.15", "data.split.test=0.15"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    runpy.run_path(str(GENERATE))["write"](folder, users=50, days=DAYS)
    return folder


def config(home: Path, name: str, *more: str) -> Any:
    where = [] if any(m.startswith("resume=") for m in more) else [f"run_dir={home / name}"]
    return compose("train", [*WINDOWS, f"data.root={home}", f"data.prepared={home / 'prepared'}", *where, *more])


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    return train(config(home, "run")).path


def measured(run: Path) -> pl.DataFrame:
    """The validations of a run, without the one of the best checkpoint at its end."""
    return pl.read_csv(run / "metrics.csv").filter(pl.col("validation/auc").is_not_null())[:-1]


def test_each_window_is_measured_before_it_is_trained_on(home: Path, run: Path) -> None:
    listens = pl.read_parquet(home / "multi_event.parquet").filter(pl.col("event_type") == "listen")
    by_day = listens.group_by(pl.col("timestamp") // DAY).len().sort("timestamp")["len"].to_list()
    windows = prepare(RunConfig.of(config(home, "run")).data).windows(1)  # the fifth day validates, the last one tests
    assert [sum(pl.scan_parquet(f).select(pl.len()).collect().item() for f in w) for w in windows] == by_day[:4]
    assert measured(run)["validation/rows"].to_list() == by_day[1:5]
    assert not list(run.glob("checkpoints/best-*"))[1:]  # the newest is the best, whatever the day's AUC


def test_histories_reach_back_over_windows_and_events_in_no_split(home: Path, run: Path) -> None:
    """Row by row: the last events of any kind before a listen."""
    prepared = prepare(RunConfig.of(config(home, "run")).data)
    rows = pl.read_parquet(home / "multi_event.parquet")
    item = rows["item_id"].to_list()
    past: dict[int, list[int]] = {}
    expected: dict[int, list[tuple[int, list[int]]]] = {}
    for uid, time, one, kind in zip(rows["uid"], rows["timestamp"], item, rows["event_type"], strict=True):
        if kind == "listen":
            expected.setdefault(time // DAY, []).append((one, past.get(uid, [])[-LAST:]))
        past.setdefault(uid, []).append(one)
    assert any(kind == "like" for kind in rows["event_type"])
    for window, files in enumerate(prepared.windows(1)):
        found = pl.concat([pl.read_parquet(f) for f in files])
        assert [*zip(found["item_id"], found["history"].to_list(), strict=True)] == expected[window]


def test_windows_of_few_rows_join_the_next_ones(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for number, rows in {-1: 1, 0: 2, 3: 5, 4: 1, 5: 1}.items():
        pl.DataFrame({"a": range(rows)}).write_parquet(
            tmp_path / "train" / f"{WINDOW.format(number)}part-00000-000.parquet"
        )
    found = [[int(f.name[7:20]) for f in window] for window in Prepared(tmp_path).windows(2)]
    assert found == [[-1, 0], [3], [4, 5]]
    assert [len(window) for window in Prepared(tmp_path).windows(3)] == [2, 3]


# within the first window, and within the second
@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 13])
def test_a_resumed_run_is_the_whole_one(home: Path, run: Path, steps: int) -> None:
    part = f"part-{steps}"
    train(config(home, part, f"trainer.max_steps={steps}"))
    resumed = train(config(home, part, f"resume={home / part}", "trainer.max_steps=-1")).path
    assert measured(resumed).equals(measured(run))


@pytest.mark.slow
def test_a_run_that_stops_at_the_end_of_a_window_goes_on_with_the_next(home: Path, run: Path) -> None:
    steps = int(measured(run)["step"][0]) + 1
    train(config(home, "end", f"trainer.max_steps={steps}"))
    resumed = measured(train(config(home, "end", f"resume={home / 'end'}", "trainer.max_steps=-1")).path)
    assert resumed.filter(pl.col("step") != steps).equals(measured(run))  # the stopped run was measured at its end


@pytest.mark.slow
def test_two_processes_train_the_same_windows(home: Path, run: Path) -> None:
    two = train(config(home, "two", "trainer.devices=2")).path
    assert measured(two)["validation/rows"].equals(measured(run)["validation/rows"])


@pytest.mark.slow
def test_following_the_days_has_the_same_figures(home: Path, run: Path, tmp_path: Path) -> None:
    settings = {
        "root": str(tmp_path / "root"),
        "name": "music",
        "train": SMALL,
        "partitions": {"folder": str(home / "days"), "context": DAYS},
        "gate": {"change": {"auc": -1.0}, "min_rows": 10},
        "check": {"psi": {"warn": 99, "fail": 99}, "auc": {"warn": 1, "fail": 1}},
        "deltas": {"full_every": 1},
    }
    (tmp_path / "follow.yaml").write_text(yaml.safe_dump(settings))
    cycles = followed(tmp_path / "follow.yaml", cycles=4).state.cycles
    assert [c.outcome for c in cycles] == ["promoted"] * 4
    assert [c.metrics["challenger"]["auc"] for c in cycles] == measured(run)["validation/auc"].to_list()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["trainer.max_epochs=2"], "trainer.max_epochs"),
        (["trainer.validate_every=2"], "trainer.validate_every"),
        (["data.split.by=random", "data.split.window=null", "data.split.fold=1"], "data.split.fold=1"),
        (["~data.sparse.history", "~data.sparse.history_actions"], "data.split.rows"),
        (["data.split.validation=0"], "data.split.validation"),
        (["data.split.by=random"], "data.split.by=time"),
        (["data.split.window=-1"], "data.split.window"),
        (["model=gbm"], "data.split.window"),
        (["data.split.by=files", "data.split.train_files=[a]", "data.split.test_files=[b]"], "data.split.window"),
        (["data.split.context_files=[c]"], "data.split.context_files"),
        (["data.split.origins=3", "data.split.fold=3"], "fold=3"),
        (["data.split.folds=4"], "data.split.origins"),
        (["data.split.origins=6"], "origins=6"),
    ],
)
def test_mistakes_are_named(home: Path, overrides: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_config(compose("train", [*WINDOWS, f"data.root={home}", *overrides]))
