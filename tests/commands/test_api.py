"""`import recsys`: train, load, predict, evaluate, export and report in a line each."""

import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

import recsys
from recsys.base.console import say_once
from recsys.export.artefact.folder import is_artefact

RAW = pl.DataFrame({"int_1": [1, 2], "cat_1": ["68fd1e64", None]})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> recsys.TrainedRun:
    folder = tmp_path_factory.mktemp("api")
    return recsys.train(
        [
            *("model=dlrm", "data=criteo", "data.sample.rows=3000", "trainer.max_epochs=1", "trainer.threads=1"),
            *(f"data.prepared={folder}/prepared", f"run_dir={folder}/a run"),
        ]
    )


def test_a_run(run: recsys.TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    say_once.cache_clear()
    loaded = recsys.load(run.path)
    assert repr(loaded) == f"TrainedRun({str(run.path)!r})"
    assert loaded.metrics == run.metrics
    assert run.evaluate()["auc"] == pytest.approx(run.metrics["test"]["auc"], abs=1e-6)
    found = run.predict(RAW)
    assert isinstance(found, pl.Series) and found.is_between(0, 1).all()
    assert "the data frame lacks columns, whose values are missing: cat_10, " in capsys.readouterr().err
    wide = RAW.with_columns(pl.lit(None, pl.String).alias(f"cat_{i}") for i in range(2, 27))
    assert run.predict(wide).equals(found)
    assert run.predict(RAW.lazy()).equals(found)
    assert run.predict(RAW.to_dicts()).equals(found)
    of_pandas = run.predict(RAW.to_pandas())
    assert isinstance(of_pandas, pd.Series) and of_pandas.tolist() == found.to_list()


@pytest.mark.slow
def test_export_and_report(run: recsys.TrainedRun, tmp_path: Path) -> None:
    assert is_artefact(run.export(tmp_path / "out", ["tables=int8"]))
    assert "<html" in run.report(tmp_path / "report.html").read_text()


def test_mistakes(run: recsys.TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(recsys.UserError, match=r"^model=dlmr: no such choice; did you mean dlrm\?") as raised:
        recsys.train("model=dlmr")
    assert raised.value.__cause__ is None and len(raised.traceback) < 6  # no frames of Hydra
    with pytest.raises(recsys.UserError, match="the data frame has no column cat_1; did you mean cat1"):
        run.predict(RAW.rename({"cat_1": "cat1"}))
    with pytest.raises(recsys.UserError, match="the data frame has no column cat_1"):
        run.predict(pl.DataFrame({"click": [1]}))
    with pytest.raises(recsys.UserError, match="rows: must be a data frame of polars or pandas, not int"):
        run.predict(3)
    with pytest.raises(recsys.UserError, match="nothing"):
        recsys.load(tmp_path / "nothing")


@pytest.mark.slow
def test_a_scripts_traceback_is_pythons_own(run: recsys.TrainedRun) -> None:
    """torch.distributed writes [rank0]: before each line of a traceback, also after its group has ended."""
    code = f"import recsys\nr = recsys.load({str(run.path)!r})\nr.evaluate()\nr.predict(3)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "[rank0]" not in said
    assert said.splitlines()[-1].startswith("recsys.base.errors.UserError: rows: must be a data frame")


SHOP = pl.DataFrame(
    {
        "member": [i % 3 == 0 for i in range(600)],
        "visits": [i % 7 for i in range(600)],
        "seen": [datetime(2024, 1, 1, i % 24) + timedelta(days=i // 24) for i in range(600)],
        "price": [(i * 37 % 100) / 10 for i in range(600)],
        "click": [int((i % 3 == 0) + (i * 31 % 10) / 10 > 0.8) for i in range(600)],
    }
)
QUICK = ["model=dlrm", "trainer.max_epochs=2", "trainer.threads=1", "trainer.batch_size=64", "trainer.compile=false"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> recsys.TrainedRun:
    """A run that was trained on a data frame of pandas."""
    folder = tmp_path_factory.mktemp("frame")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = recsys.train([*QUICK, "run_dir=a"], rows=SHOP.to_pandas())
    return recsys.load(folder / run.path)


def test_a_frame_trains(shop: recsys.TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.path.parent)
    found = recsys.new(SHOP, label="click")
    assert found.name in shop.path.joinpath("config.yaml").read_text() and not found.questions
    assert "label: {column: click}  # as you asked" in found.yaml and str(found) == found.yaml
    again = recsys.train([*QUICK, "run_dir=b"], rows=found)
    assert again.metrics["test"] == shop.metrics["test"]
    assert len(list(Path("outputs/frames").iterdir())) == 1  # the same rows are written once
    Path("conf/data").mkdir(parents=True)
    Path("conf/data/mine.yaml").write_text(found.yaml.replace(found.name, "mine").replace("parquet", "csv"))
    mine = recsys.train([*QUICK, "data=mine", "run_dir=c"], rows=SHOP)  # read as the YAML says
    assert mine.metrics["test"] == shop.metrics["test"]
    with pytest.raises(recsys.UserError, match=r"^data: rows= is what recsys\.new found"):
        recsys.train(["data=mine"], rows=found)
    with pytest.raises(
        recsys.UserError, match=r"^rows: is price the label\?.*; pass recsys\.new\(rows, .* label=price or "
    ):
        recsys.train(QUICK, rows=SHOP.drop("click", "member"))
    with pytest.raises(
        recsys.UserError, match=r"^label=nope: no such column; valid: click, member, price, seen, visits$"
    ):
        recsys.new(SHOP, label="nope")
    states = SHOP.rename({"click": "status"}).with_columns(pl.col("status").replace_strict({0: "lost", 1: "won"}))
    assert "positive: [won]" in recsys.new(states, label="status", positive="won").yaml
    with pytest.raises(recsys.UserError, match=r"^rows: the frame has no rows$"):
        recsys.train(QUICK, rows=SHOP.clear())


def test_a_run_goes_on_from_python(shop: recsys.TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the commands do: with the run's own config, not the defaults."""
    monkeypatch.chdir(shop.path.parent)
    on = recsys.train(["start_from=a", "run_dir=d", "trainer.max_epochs=1"])
    assert "starting from a/" in (on.path / "train.log").read_text()
    longer = recsys.train(["resume=d", "trainer.max_epochs=2"])
    assert longer.path == on.path and "resuming from d/" in (on.path / "train.log").read_text()


def test_frames_of_pandas(shop: recsys.TrainedRun) -> None:
    frame, expected = SHOP.to_pandas(), shop.predict(SHOP).to_list()
    cheap = frame[frame.price < 5].sort_values("price")
    predicted = shop.predict(cheap)
    assert predicted.index.equals(cheap.index) and predicted.name == "probability"
    frame["p"] = predicted
    known = [x for x, price in zip(expected, frame.price, strict=True) if price < 5]
    assert [x for x in frame.p if x == x] == pytest.approx(known, rel=1e-6)  # products of fewer rows round otherwise
    frame = frame.drop(columns="p")
    text = [str(v) for v in frame.member]
    for kind, columns in {
        "nullable": {"visits": frame.visits.astype("Int64"), "member": frame.member.astype("boolean")},
        "category": {"visits": frame.visits.astype("category"), "member": frame.member.astype("category")},
        "floats": {"visits": frame.visits.astype(float)},
        "text": {"visits": frame.visits.astype(str), "member": text},
        "mixed": {"visits": [str(v) if i % 2 else float(v) for i, v in enumerate(frame.visits)]},
        "zone": {"seen": frame.seen.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")},
        "arrow": {n: frame[n].convert_dtypes(dtype_backend="pyarrow") for n in frame},
    }.items():
        assert shop.predict(frame.assign(**columns)).tolist() == expected, kind
    several = frame.set_index([frame.index, frame.index + 1])
    assert shop.predict(several).index.nlevels == 2
    assert len(shop.predict(frame.head(0))) == 0 and shop.predict(SHOP.clear()).is_empty()
    twice = pd.concat([frame, frame[["visits"]]], axis=1)
    with pytest.raises(recsys.UserError, match=r"^rows: two columns are named visits; rename one of them, or drop it$"):
        shop.predict(twice)
    with pytest.raises(recsys.UserError, match=r"^the data frame: column visits holds Struct"):
        shop.predict(frame.assign(visits=[{"a": 1}] * len(frame)))
