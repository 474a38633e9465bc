"""recsys.report of runs as training leaves them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forks import run_forked

from recsys.data.features import GROUP
from recsys.data.features.blocks import HISTORY, TARGETS
from recsys.data.prepare.prepared import Prepared, parsed_rows
from recsys.evaluation.metrics_table import LISTS
from recsys.report.comparison import compare
from recsys.report.runs import read
from recsys.report.user_lists import UserSection, user_section
from recsys.schema.command_schemas import ReportConfig
from recsys.schema.run_schema import ProtocolConfig
from recsys.training.run_dir import open_run

ITEMS = ["data=sample_sequences", "data.sample.rows=4000"]
SMALL = ["trainer.threads=1", "trainer.batch_size=512", "trainer.log_every_n_steps=2", "trainer.max_epochs=3"]


def recsys(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = run_forked(f"recsys.{command}", *arguments, cwd=cwd, env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    recsys("train", "model=mf", *ITEMS, *SMALL, "model.dim=8", "run_dir=mf", cwd=path)
    recsys("train", "model=popularity", *ITEMS, *SMALL, "run_dir=popularity", cwd=path)
    return path


@pytest.mark.parametrize("name", ["mf", "popularity"])
def test_where_targets_stand_is_kept(home: Path, name: str) -> None:
    """They give metrics.json again, whether the model was trained or fitted at once."""
    from recsys.evaluation.retrieval_metrics import ranking_metrics

    test = json.loads((home / name / "metrics.json").read_text())["test"]
    frame = pl.read_parquet(home / name / "test_ranks.parquet")
    columns = (frame[c].to_numpy() for c in ("query", "greater_full", "ties_full"))
    assert frame["query"].n_unique() == test["rows"] and len(frame) == test["targets"]
    ranked = {name: test[name] for name in test if name == "mrr" or ("@" in name and not name.startswith(LISTS))}
    assert ranking_metrics(*columns, (5, 10, 20)) == pytest.approx(ranked)


@pytest.mark.parametrize("name", ["mf", "popularity"])
def test_lists_of_runs_are_measured(home: Path, name: str) -> None:
    """A model that is fitted at once has no item vectors, and so no diversity."""
    test = json.loads((home / name / "metrics.json").read_text())["test"]
    measured = {metric for metric in test if metric.startswith(LISTS)}
    expected = [metric for metric in ProtocolConfig().lists if metric != "diversity" or name == "mf"]
    assert measured == {f"{metric}@{k}" for metric in expected for k in (5, 10, 20)}
    history = pl.read_csv(home / name / "metrics.csv")
    assert history["validation/coverage@10"].count() == 1 and (history["validation/ndcg@10"].count() > 1) == (
        name == "mf"
    )
    assert 0 < test["coverage@10"] <= 1 and 0 <= test["gini@10"] < 1 and test["novelty@10"] > 0


def section(home: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> UserSection:
    monkeypatch.chdir(home)
    cfg = ReportConfig(runs=["mf", "popularity"], **settings)
    return user_section(cfg, compare(read(cfg.runs).runs, 100, 0))


def events(home: Path) -> dict[str, list[str]]:
    """The items of each user in the order of their times, read without the package."""
    [log] = home.glob("outputs/prepared/sample-sequences-*/log.csv")
    lines = [line.split(",") for line in log.read_text().splitlines()[1:]]
    users: dict[str, list[str]] = {}
    for user, item, _ in sorted(lines, key=lambda line: int(line[2])):
        users.setdefault(user, []).append(item)
    return users


def test_parsed_rows_name_the_user_of_each_test_row(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    cfg, path = open_run("mf")
    rows = pl.concat(frame.filter(pl.Series(split == 2)) for frame, split in parsed_rows(cfg.data))
    prepared = Prepared(Path(json.loads((path / "data.json").read_text())["prepared"]))
    written = pl.concat(pl.read_parquet(f, glob=False) for f in prepared.files("test"))
    ids = prepared.fitted.candidate_ids
    for name in (HISTORY, TARGETS):
        assert [ids(items).to_list() for items in rows[name]] == written[name].to_list()
    of_user = events(home)
    assert len(rows) > 100 and rows[GROUP].n_unique() == len(rows)
    for user, history, [target] in rows.select(GROUP, HISTORY, TARGETS).iter_rows():
        assert [*history, target] == of_user[user]


def test_lists_are_those_that_the_evaluation_ranked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most popular items are counted here from the raw file: each user's last two items are not training rows."""
    of_user = events(home)
    shown = section(home, monkeypatch, k=200, users=list(of_user)[:50])
    assert [u.user for u in shown.users] == list(of_user)[:50] and shown.differing == ""
    counts: dict[str, int] = {}
    for items in of_user.values():
        for item in items[: len(items) - 2 * (len(items) > 2)]:
            counts[item] = counts.get(item, 0) + 1
    for user in shown.users:
        assert [*user.history, *user.targets] == of_user[user.user]
        popular = user.lists[1]
        assert len(popular.items) > 50 and not set(popular.items) & (set(user.history) - set(user.targets))
        ranked = [counts.get(item, 0) for item in popular.items]
        assert ranked == sorted(ranked, reverse=True)
        for of_run in user.lists:
            assert of_run.ranks == of_run.kept and len(of_run.kept) == 1
            [(target, (above, ties))] = of_run.ranks.items()
            assert above <= of_run.items.index(target) <= above + ties


def test_users_are_chosen_by_the_largest_difference(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ndcg(run: str) -> np.ndarray:
        rank = pl.read_parquet(home / run / "test_ranks.parquet")["greater_full"].to_numpy() + 1
        ties = pl.read_parquet(home / run / "test_ranks.parquet")["ties_full"].to_numpy()
        gains = [
            sum((r + i <= 10) / np.log2(1 + r + i) for i in range(t + 1)) / (t + 1)
            for r, t in zip(rank, ties, strict=True)
        ]
        return np.array(gains)

    difference = ndcg("mf") - ndcg("popularity")
    shown = section(home, monkeypatch, users=5)
    found = [difference[user.row] for user in shown.users]
    assert found[::2] == sorted(difference, reverse=True)[:3] and found[1::2] == sorted(difference)[:2]
    assert "extremes" in shown.how
    drawn = [section(home, monkeypatch, users=9, pick="random", seed=seed) for seed in (0, 1)]
    rows = [[user.row for user in s.users] for s in drawn]
    assert rows[0] != rows[1] and all(len(set(r)) == 9 for r in rows) and "random, seed 1" in drawn[1].how


def test_a_page_of_lists(home: Path) -> None:
    recsys("report", "mf", "popularity", "users=[u3,u1]", "k=4", "resamples=100", "output=lists.html", cwd=home)
    page = (home / "lists.html").read_text()
    assert 0 < page.index("User u3") < page.index("User u1")
    failed = run_forked("recsys.report", "mf", "users=[u3,nobody]", "resamples=100", cwd=home)
    assert failed.returncode == 2 and "users=nobody: no test row of sample_sequences has this user" in failed.stderr
