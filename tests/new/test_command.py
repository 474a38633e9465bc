"""The command writes files that train at once, never overwrites one, and explains mistakes in one line."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from file_shapes import clicks, lines
from small_csv import Commands

from recsys.config.compose import compose
from recsys.new import write_config
from recsys.new.questions import MARK
from recsys.new.write_config import skeleton
from recsys.training.run import train

LIMITS = ["data.sample.rows=2000", "trainer.batch_size=256"]


def test_data(run: Commands, tmp_path: Path) -> None:
    status, said = run.said("data=mine", "files=log.csv")
    assert status == 0, said
    text = (tmp_path / "conf" / "data" / "mine.yaml").read_text()
    assert text.startswith("# python -m recsys.train data=mine trainer=until_best trainer.batch_size=256\n")
    assert "root: ." in text and "files: [log.csv]" in text
    assert "checked on the first 400 rows" in said and "train with: python -m recsys.train data=mine" in said
    assert all(len(line) <= 120 for line in text.splitlines())
    error = "conf/data/mine.yaml: exists already, and is never overwritten; choose another name, or remove it"
    assert run("data=mine", "files=log.csv") == (2, [error])
    assert (tmp_path / "conf" / "data" / "mine.yaml").read_text() == text


def test_files_that_are_left_out_are_said(run: Commands, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "log.csv").write_text(lines(clicks()))
    (raw / "test.csv").write_text(lines(clicks(1).drop("clicked")))
    for i in range(12):
        (raw / f"other{'abcdefghijkl'[i]}.csv").write_text("q,r\n1,x\n2,y\n")
    status, said = run.said("data=mine", "files=raw")
    said = " ".join(said.split())
    assert status == 0, said
    assert "left out: test.csv: it has other columns; predict its rows with recsys.predict" in said
    assert "left out: othera.csv: it has other columns than the rows" in said and "left out: 3 more files" in said


def test_the_command_asks_and_takes_answers(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(lines(clicks().rename({"clicked": "zeta", "user": "who", "item": "what"})))
    path = tmp_path / "conf" / "data" / "mine.yaml"
    status, said = run.said("data=mine", "files=log.csv")
    flat = " ".join(said.split())
    assert status == 3 and "question: is zeta the label?" in flat and "answer by label=zeta" in flat
    assert path.read_text().startswith(f"{MARK}: is zeta the label?")
    assert run.said("data=mine", "files=log.csv", "label=zeta")[0] == 0
    assert not path.read_text().startswith(MARK) and path.with_suffix(".draft").is_file()
    status, said = run.said("data=other", "files=log.csv", "yes=true")
    assert status == 0 and "guessed: is zeta the label?" in said


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "type exactly one of data=NAME, model=NAME and experiment=NAME"),
        (("data=a", "model=b"), "not data= and model="),
        (("data=mine",), "files: missing; type files='logs/*.csv'"),
        (("data=../a", "files=log.csv"), "must be letters, digits, _ and -"),
        (("data=", "files=log.csv"), "must be letters"),
        (("data=criteo", "files=log.csv"), "recsys has a data of this name; choose another name, such as my_criteo"),
        (("data=mine", "files=nowhere/*.csv"), "no such file"),
        (("data=mine", "files=lag.csv"), "holds log.csv"),
        (("data=mine", "files=s3://a/b"), "must be files of this machine"),
        (("data=mine", "files=log.csv", "label=clickd"), "no such column; did you mean clicked?"),
        (("model=class",), "must be a Python name"),
        (("model=Mine",), "must be a Python name in small letters"),
        (("model=json",), "Python has a module json already"),
        (("model=dlrm",), "recsys has a model of this name"),
        (("model=mine", "files=log.csv"), "applies only to data=NAME"),
        (("experiment=mine", "label=x"), "applies only to data=NAME"),
        (("model=mine", "kind=ranker"), "kind=ranker: must be ranking or retrieval"),
        (("data=mine", "files=log.csv", "kind=retrieval"), "kind=retrieval: applies only to model=NAME; for retrieval"),
        (("dat=mine",), "no such key; did you mean data?"),
        (("data=inf", "files=log.csv"), "data=inf: is a value, not a name; type one, such as my_data"),
        (("data=NaN", "files=log.csv"), "data=NaN: is a value, not a name"),
        (("data=true", "files=log.csv"), "data=true: is a value, not a name"),
        (("data=1e5", "files=log.csv"), "data=1e5: must be letters, digits, _ and -, and begin with a letter"),
    ],
)
def test_mistakes(run: Commands, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    status, [error] = run(*(arguments or ("",)))
    assert status == 2 and message in error
    assert not (tmp_path / "conf").exists()


def test_nothing_to_learn(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("To be, or not to be.\nThat is the question.\n")
    assert "no separator divides its lines into columns" in run("data=mine", "files=prose.txt")[1][0]
    (tmp_path / "noise.csv").write_text(lines(clicks().select(pl.col("price").alias("x"), "city")))
    status, [error] = run("data=mine", "files=noise.csv")
    assert status == 3 and "type label=city, or, if each row is a choice of an item, label=null with user=NAME" in error
    (tmp_path / "one.csv").write_text(lines(clicks().select("clicked").with_row_index("id")))
    assert "no column but the label can be a feature; id: every row" in run("data=mine", "files=one.csv")[1][0]


def test_several_files(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "more logs").mkdir()
    (tmp_path / "more logs" / "b [1].csv").write_text(lines(clicks(1)))
    assert run.said("data=mine", "files=[log.csv,'more logs/b [1].csv']")[0] == 0
    rows = train(compose("train", ["data=mine", "trainer.batch_size=64", "data.prepared=p"]))
    assert rows


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mine", "ranking"),
        ("my_retriever", "retrieval"),
        pytest.param("my_model", "ranking", marks=pytest.mark.slow),
    ],
)
def test_model_trains_at_once(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    status, said = run.said(f"model={name}", f"kind={kind}")
    data = "" if kind == "ranking" else " data=sample_sequences"
    assert status == 0 and f"train with: python -m recsys.train model={name}{data}" in said
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (tmp_path / f"{name}.py").is_file()
    assert train(compose("train", [f"model={name}", *data.split(), *LIMITS, "trainer.max_epochs=1"]))
    assert "exists already" in run(f"model={name}")[1][0]


@pytest.mark.parametrize("kind", ["ranking", "retrieval"])
def test_model_in_a_checkout(run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(write_config, "_is_checkout", lambda: True)
    assert run.said("model=mine", f"kind={kind}")[0] == 0
    code = (tmp_path / "recsys" / "models" / "mine.py").read_text()
    assert "_target_: recsys.models.mine.Mine\n" in (tmp_path / "conf" / "model" / "mine.yaml").read_text()
    names: dict[str, Any] = {}
    exec(compile(code, "mine.py", "exec"), names)  # the skeleton and its test, side by side
    test = (tmp_path / "tests" / "models" / "test_mine.py").read_text()
    exec(compile(test.replace("from recsys.models.mine import Mine\n", ""), "test_mine.py", "exec"), names)
    [compares] = [names[n] for n in names if n.startswith("test_")]
    compares()


def test_the_skeletons_are_what_the_page_shows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "add" / "model.md").read_text()
    shown = page[page.index("class MyModel(nn.Module):") : page.index("Create embedding tables only")]
    body = skeleton("ranking.py", "mymodel", title="MyModel").partition("class MyModel(nn.Module):\n")[2]
    without_docs = [line for line in body.splitlines() if '"""' not in line and line.strip()]
    assert all(line.strip() in shown for line in without_docs)
    names = {"name": "myretriever", "module": "recsys.models.myretriever", "title": "MyRetriever"}
    assert f"```python\n{skeleton('retrieval.py', **names).partition(chr(10) * 2)[2]}```" in page
    assert f"```yaml\n{skeleton('retrieval.yaml', **names)}```" in page
