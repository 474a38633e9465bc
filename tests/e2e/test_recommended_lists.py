"""Lists of items from runs of models that retrieve, on the built-in sample of sequences."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import recsys
from recsys import predict
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose, parsed
from recsys.online.recommender import Recommender, recommend_files, top_k
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train

SMALL = ["data=sample_sequences", "data.sample.rows=3000", "trainer.threads=1"]
TRAINED = ("sasrec", "bert4rec", "comirec", "gru4rec", "hstu", "transformer", "two_tower", "mf", "neumf", "mult_vae")
CLOSED_FORMS = ("ease", "item_knn", "session_knn", "popularity", "slim", "ials", "transition")
# one of each family for every day: next item, masked item, features, factors, reconstruction, neighbours, counts
EVERY_DAY = ("sasrec", "bert4rec", "two_tower", "mf", "mult_vae", "item_knn", "popularity")


class Runs:
    """Small runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, model: str, *overrides: str) -> str:
        path = self.folder / "-".join([model, *overrides]).translate(str.maketrans("={}[]: '>\"", "-" * 10))
        if not path.exists():
            more = [] if model in CLOSED_FORMS else ["trainer.max_epochs=1"]
            prepared = f"data.prepared={self.folder / 'prepared'}"
            train(compose("train", [f"model={model}", *SMALL, *more, prepared, f"run_dir={path}", *overrides]))
        return str(path)

    @property
    def log(self) -> pl.DataFrame:
        [file] = (self.folder / "prepared").glob("sample-sequences-*/log.csv")
        return pl.read_csv(file, infer_schema=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def held_out(log: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """All rows but the last one of each user, who has three or more; and that one's item."""
    log = log.filter(pl.len().over("user") >= 3)
    last = log.with_row_index().filter(pl.col("index") == pl.col("index").max().over("user"))
    return log.with_row_index().join(last, on="index", how="anti").drop("index"), dict(
        zip(last["user"], last["item"], strict=True)
    )


def test_sampled_ranks_do_not_depend_on_how_the_full_protocol_ranks_repeats(runs: Runs) -> None:
    sampled = "protocol.candidates=[uniform]"
    found = [evaluate(runs.of("item_knn", sampled, f"protocol.rank_repeats={x}")) for x in ("false", "true")]
    assert found[0]["test"] == found[1]["test"]
    assert found[0]["protocol"]["ranking"] == found[1]["protocol"]["ranking"]  # so that a report compares them


def test_a_user_without_items_has_a_list(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of an unknown item, as from a server, without an error of unknown items; with the user's other rows."""
    recommender = Recommender.load(runs.of("two_tower"))
    log = runs.log.head(3)
    for item in (None, ""):
        alone = pl.DataFrame({c: [None] * 20 for c in log.columns}, schema=log.schema).with_columns(
            pl.lit(item, pl.String).alias("item"), (pl.lit("new") + pl.int_range(20).cast(pl.String)).alias("user")
        )
        found = recommender.recommend(pl.concat([alone, log]), k=5)
        assert found.height == 20 + log["user"].n_unique()
        unknown = alone.with_columns(pl.lit("?").alias("item"), pl.lit(log["time"][0]).alias("time"))
        assert (
            found["items"][:20].to_list() == recommender.recommend(unknown, k=5, allow_unknown=True)["items"].to_list()
        )
        assert recommender.recommend(alone, k=5).height == 20
    capsys.readouterr()
    mixed = pl.concat(
        [log, log.head(1).with_columns(pl.lit(None, pl.String).alias("item"))]
    )  # a row of a user with items
    assert recommender.recommend(mixed, k=5).equals(recommender.recommend(log, k=5))
    assert "1 of 4 rows of the data frame cannot be read" in capsys.readouterr().err
    kept = Recommender.load(runs.of("two_tower", "data.where=\"time > '1'\""))  # which does not say it of them
    assert kept.recommend(alone, k=5).height == 20
    assert kept.recommend(alone.with_columns(pl.lit("0").alias("time")), k=5).height == 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model", [m if m in EVERY_DAY else pytest.param(m, marks=pytest.mark.slow) for m in (*TRAINED, *CLOSED_FORMS)]
)
def test_lists_agree_with_evaluation(model: str, runs: Runs) -> None:
    """Given what came before, validation's item too, hits and gains of the held-out items are evaluation's."""
    run = runs.of(model)
    metrics = evaluate(run)["test"]
    so_far, wanted = held_out(runs.log)
    found = Recommender.load(run).recommend(so_far, k=10)
    assert found.columns == ["user", "items", "scores"]
    assert found["user"].to_list() == so_far["user"].unique(maintain_order=True).to_list()
    listed = dict(zip(found["user"].to_list(), found["items"].to_list(), strict=True))
    ranks = [listed[u].index(item) if item in listed[u] else None for u, item in wanted.items()]
    assert found.height == metrics["rows"]
    hits = [r is not None for r in ranks]
    gains = [0.0 if r is None else 1 / math.log2(2 + r) for r in ranks]
    # ties, which models that count have, are broken here and averaged there
    tolerance = 0.02 if model in CLOSED_FORMS else 1e-6
    assert np.mean(hits) == pytest.approx(metrics["hr@10"], abs=tolerance)
    assert np.mean(gains) == pytest.approx(metrics["ndcg@10"], abs=tolerance)
    scores = np.array(found["scores"].to_list())
    assert (np.diff(scores, axis=1) <= 0).all()


def test_history_is_left_out_unless_told_otherwise(runs: Runs) -> None:
    recommender, log = Recommender.load(runs.of("sasrec")), runs.log
    had = dict(log.group_by("user").agg("item").iter_rows())

    def share(**how: Any) -> float:
        rows = recommender.recommend(log, **how).select("user", "items").iter_rows()
        return float(np.mean([bool(set(items) & set(had[user])) for user, items in rows]))

    assert share(k=20) == 0
    assert share(k=20, filter_history=False) > 0.5
    assert Recommender.load(runs.of("sasrec", "protocol.filter_history=false")).filter_history is False


def test_blocks_and_batches_change_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    recommender, log = Recommender.load(runs.of("sasrec")), runs.log
    whole = recommender.recommend(log, k=5)
    monkeypatch.setattr("recsys.online.recommender.BLOCK", 1000)
    recommender.batch_size = 7
    parts = recommender.recommend(log.sample(fraction=1, shuffle=True, seed=1), k=5)  # in any order: they have times
    assert parts["user"].to_list() != whole["user"].to_list()
    both = whole.join(parts, on="user", suffix="_parts")
    assert both["items"].to_list() == both["items_parts"].to_list()
    np.testing.assert_allclose(both["scores"].to_list(), both["scores_parts"].to_list(), rtol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize("model", ["sasrec", "two_tower", "ease", "item_knn", "popularity"])
def test_groups_of_unknown_items_get_an_answer(model: str, runs: Runs) -> None:
    raw = pl.DataFrame({"user": ["new", "u0", "new"], "item": ["?", "i1", "!"], "time": [3, 2, 1]})
    found = Recommender.load(runs.of(model)).recommend(raw)
    assert found["user"].to_list() == ["new", "u0"]
    assert found["items"].list.len().to_list() == [20, 20]
    assert found["items"].explode().str.contains(r"^i\d+$").all()
    assert Recommender.load(runs.of(model)).recommend(raw.clear()).is_empty()


def test_equal_scores_fall_by_place() -> None:
    scores = torch.tensor([[0.0, 2, 1, 2, 1, 1], [0, 0, 0, 0, 0, 0], [-torch.inf, 1, -torch.inf, 0, 5, -torch.inf]])
    places, best = top_k(scores, 4)
    assert places.tolist() == [[1, 3, 2, 4], [0, 1, 2, 3], [4, 1, 3, 0]]
    assert best[2].tolist() == [5, 1, 0, -math.inf]
    every, _ = top_k(scores, 6)
    assert every[0].tolist() == [1, 3, 2, 4, 5, 0]
    dense = torch.rand(50, 300)
    assert torch.equal(top_k(dense, 20)[1], torch.topk(dense, 20).values)


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["recsys.predict", *arguments])
    status = command_line.status("predict", predict._command)
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_command(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group may be spread over files; rows that cannot be read are told and left out."""
    run = runs.of("item_knn")
    log = runs.log
    log[::2].write_csv(tmp_path / "a.csv")
    log[1::2].write_csv(tmp_path / "b.csv")
    with (tmp_path / "b.csv").open("a") as f:
        f.write("u1,i3\nu1,,1\nu1,i2,noon\nnobody,i0x,5\n")
    output = tmp_path / "top.parquet"
    status, said = command(monkeypatch, capsys, f"run={run}", f"input={tmp_path}/*.csv", f"output={output}", "k=7")
    assert status == 0, said
    assert f"1 of {log['user'].n_unique() + 1} groups have no known item in their history" in said
    assert pl.read_csv(tmp_path / "top.bad_rows.csv").height == 3
    found = pl.read_parquet(output)
    wanted = Recommender.load(run).recommend(log, k=7)
    both = wanted.join(found, on="user", suffix="_found")
    assert both.height == wanted.height
    assert both["items"].to_list() == both["items_found"].to_list()


def test_one_user(runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of Python, and one command, give the list that all rows of the run's files give."""
    run, user = runs.of("item_knn"), runs.log["user"][-1]
    [items] = recsys.load(run).recommend(runs.log, k=3).filter(pl.col("user") == user)["items"]
    found = recsys.recommend(run, user=user, k=3)
    assert found.columns == ["item", "score"]
    assert found["item"].to_list() == items.to_list()
    status, said = command(monkeypatch, capsys, f"run={run}", f"user={user}", "k=3")
    assert status == 0, said
    assert re.findall(r"│ \d+ +│ (\S+) ", said) == items.to_list()

    with pytest.raises(UserError, match="recommend: give either rows, a data frame of histories, or user"):
        recsys.load(run).recommend()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("input=no_time.csv", "data.group.order: no_time.csv has no column time"),
        ("input=bad.csv", "input: none of the 1 rows can be read"),
        ("input=header.csv", "^error: input: holds no rows$"),
        ("input=log.csv batch_size=0", "batch_size=0: "),
        ("input=none.csv", "none.csv: no such file"),
        ("user=nobody", r'user=nobody: no row has this user in \S*log.csv; keys look like "u\d+"'),
        ("k=5", "input: name files of raw rows to predict, .*; or one user"),
        ("user=u1 run=[{run},{run}]", "name one run to list items for user=u1"),
        ("user=u1 k=0", "k=0: must be at least 1"),
    ],
)
def test_mistakes(
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    run, log = runs.of("popularity"), runs.log
    monkeypatch.chdir(tmp_path)
    log.write_csv("log.csv")
    log.drop("time").write_csv("no_time.csv")
    Path("bad.csv").write_text("user,item,time\nu1,i1,noon\n")
    Path("header.csv").write_text("user,item,time\n")
    output = [] if "user=" in arguments else ["output=top.parquet"]
    status, said = command(monkeypatch, capsys, f"run={run}", *output, *arguments.format(run=run).split())
    [line] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert status == 2 and re.search(message, line), line


LINES = """
name: lines
source: {format: lists, separator: " ", columns: [item]}
group: {by: list}
sequences: {max_length: 20}
split: {by: hash, column: list, validation: 0.1, test: 0.1}
sparse: {item: {}}
"""
TABLE = """
name: table
source: {format: parquet}
where: "rating >= 4"
group: {by: user, order: at, gap: 60}
sequences: {max_length: 20}
split: {by: order, validation: 0.1, test: 0.1}
sparse: {item: {}}
"""


def of_cycles(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, yaml: str) -> None:
    """Run in a folder with a data set of its own; after item i its sessions go on with i + 1 of 9."""
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / f"{name}.yaml").write_text(yaml)
    monkeypatch.chdir(folder)


def test_lines_are_named_by_file_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_cycles(tmp_path, monkeypatch, "lines", LINES)
    lines = [" ".join(str((i + j) % 9) for j in range(4)) for i in range(300)]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "s.txt").write_text("\n".join(lines) + "\n")
    common = ["data=lines", "data.root=raw", "model=item_knn", "run_dir=run", "trainer.threads=1"]
    train(compose("train", common))
    (tmp_path / "new.txt").write_text("3 4\n\n8\n?\n")
    found = predict_rows("new.txt", k=1)
    assert found["list"].to_list() == ["new.txt:1", "new.txt:3", "new.txt:4"]
    assert found["items"].to_list()[0] == ["5"] or found["items"].to_list()[0] == ["2"]


def predict_rows(file: str, k: int) -> pl.DataFrame:
    how: dict[str, Any] = {"checkpoint": "best", "filter_history": None, "batch_size": 2}
    recommend_files("run", [Path(file)], Path("top.parquet"), k=k, **how)
    return pl.read_parquet("top.parquet")


def test_numbers_stay_numbers_and_the_last_session_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users and items have the types of the raw files; rows that data.where leaves out were never there."""
    of_cycles(tmp_path, monkeypatch, "table", TABLE)
    (tmp_path / "raw").mkdir()
    table = [{"user": u, "item": (u + j) % 9, "rating": 5, "at": j} for u in range(300) for j in range(4)]
    pl.DataFrame(table).write_parquet(tmp_path / "raw" / "t.parquet")
    train(compose("train", ["data=table", "data.root=raw", "model=session_knn", "run_dir=run", "trainer.threads=1"]))
    recommender = Recommender.load("run")
    rows = pl.DataFrame({"user": [7, 7, 7, 8], "item": [1, 4, 8, 2], "rating": [5, 5, 1, 4], "at": [0, 500, 501, 3]})
    found = recommender.recommend(rows, k=9, filter_history=True)
    assert found.schema == {"user": pl.Int64, "items": pl.List(pl.Int64), "scores": pl.List(pl.Float32)}
    assert found["user"].to_list() == [7, 8]
    first, second = found["items"].to_list()
    assert set(first) == set(range(9)) - {4}  # item 1 was of the session before, 8 was rated too low
    assert {*first[:2]} & {3, 5}
    assert len(second) == 8
    rows.write_parquet("rows.parquet")
    assert predict_rows("rows.parquet", k=9).equals(found)
    low = rows.with_columns(rating=pl.lit(1))
    low.write_parquet("low.parquet")
    with pytest.raises(UserError, match=r"input: data.where filters out all rows"):
        predict_rows("low.parquet", k=1)
    assert recommender.recommend(low, k=1).is_empty()


@pytest.mark.parametrize("model", ["mf", "popularity"])
def test_slices_add_up(model: str, runs: Runs) -> None:
    """Each query belongs to one user: counts of the slices sum to those of the split, and so do the hits."""
    run = runs.of(model, "metrics.slices=[user]", "metrics.slice_values=3")
    metrics = json.loads((Path(run) / "metrics.json").read_text())
    sliced, whole = metrics["slices"]["test"]["user"], metrics["test"]
    assert [s["value"] for s in sliced[3:]] == [f"({whole['rows'] - 3:,} others)"]
    for name in ("rows", "targets"):
        assert sum(s[name] for s in sliced) == whole[name]
    hits = sum(s["hr@10"] * s["rows"] for s in sliced)
    assert hits / whole["rows"] == pytest.approx(whole["hr@10"])
    assert evaluate(run)["slices"] == metrics["slices"]


def test_histories_of_unknown_items_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids with leading zeros are text, which 7 is not; of each door the same is said."""
    rng = np.random.default_rng(0)
    log = pl.DataFrame(
        {
            "user": [f"u{i // 8}" for i in range(800)],
            "item": [f"{i:04}" for i in rng.integers(0, 40, 800)],
            "ts": range(800),
        }
    )
    log.write_csv(tmp_path / "log.csv")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "shop.yaml").write_text(
        f"name: shop\nroot: {tmp_path}\nsource: {{format: csv, files: [log.csv]}}\ngroup: {{by: user, order: ts}}\n"
        "sequences: {max_length: 20}\nsplit: {by: leave_one_out}\nsparse: {item: {}}\n"
    )
    monkeypatch.chdir(tmp_path)
    run = recsys.train(["model=item_knn", "data=shop", "trainer.threads=1", "run_dir=run"])
    known = log.filter(pl.col("user").is_in(["u1", "u2"]))
    assert run.recommend(known, k=3).height == 2
    assert "no known item" not in capsys.readouterr().err
    numbers = known.with_columns(pl.col("item").cast(pl.Int64))
    with pytest.raises(UserError, match=r"^item: 16 of 16 values, such as '\d+', are not in the training rows, which"):
        run.recommend(numbers, k=3)
    run.recommend(numbers, k=3, allow_unknown=True)
    assert "2 of 2 groups have no known item in their history" in capsys.readouterr().err
    numbers.write_csv(tmp_path / "numbers.csv")
    command = ["predict", f"run={run.path}", f"input={tmp_path}/numbers.csv", f"output={tmp_path}/top.parquet", "k=3"]
    assert command_line.call(lambda: predict._command(parsed(command[0], command[1:])), *command[:1], command[1:]) == 2
    assert "error: item: 16 of 16 values" in capsys.readouterr().err and not (tmp_path / "top.parquet").exists()
    with pytest.raises(UserError, match=r'^user=7: no row has this user in .*; keys look like "u0"$'):
        run.recommend(user=7)
