"""Slates: items shown at one time, of which one is clicked by chance; no row sees what was shown beside it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import requests
from forks import ok, run_forked
from served import serving

from recsys.base.errors import UserError
from recsys.config.compose import load_config
from recsys.data.features import Fitted
from recsys.export.artefact import load
from recsys.job.run_config import RunConfig
from recsys.online.predictor import Predictor
from recsys.online.row_transforms import RowTransforms

YAML = """
name: slate
source: {format: csv, files: [log.csv]}
label: {column: click}
group: {by: user, order: ts}
split: {by: time, column: ts, validation: 0.1, test: 0.2}
derive: {c2: click}
dense: {clicked_before: {column: c2, lag: 1, fill: -1}}
sparse:
  item: {}
  history: {column: item, table: item, last: 20, pooling: mean}
  clicked: {column: item, table: item, last: 3, where: "click = '1'", pooling: mean}
  ages: {column: ts, table: age, last: 3, age: true, where: "click = '1'", quantiles: 5, pooling: mean}
"""
USERS, REQUESTS, SHOWN = 2_000, 3, 5
EVENTS = [{"user": "u7", "item": f"i{i}", "ts": 20_000, "click": "1" if i == 3 else "0"} for i in range(5)]
CANDIDATES = [{"user": "u7", "item": "i2", "ts": 20_100}] * 3


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the log, of a run and of its artefact."""
    path = tmp_path_factory.mktemp("slates")
    (path / "conf" / "data").mkdir(parents=True)
    (path / "conf" / "data" / "slate.yaml").write_text(YAML)
    rng, slates = np.random.default_rng(0), USERS * REQUESTS
    clicks = (np.arange(SHOWN) == rng.integers(0, SHOWN, slates)[:, None]).astype(int)
    log = pl.DataFrame(
        {
            "user": [f"u{u}" for u in np.repeat(rng.permutation(slates) % USERS, SHOWN)],
            "item": [f"i{i}" for i in rng.integers(0, 50, slates * SHOWN)],
            "ts": np.repeat(np.arange(slates), SHOWN) + 1_000,
            "click": clicks.ravel(),
        }
    )
    log.write_csv(path / "log.csv")
    arguments = ["data=slate", "data.root=.", "model=dlrm", "trainer.threads=1", "trainer.max_epochs=2", "run_dir=run"]
    done = ok(run_forked("recsys.train", *arguments, cwd=path))
    share = "30,000 of 30,000 rows share their ts with another row of their user: they are one moment"
    assert done.stderr.count(share) == 1
    assert 0.46 < json.loads((path / "run" / "metrics.json").read_text())["test"]["auc"] < 0.54  # clicks by chance
    ok(run_forked("recsys.export", "run=run", "output=artefact", cwd=path))
    return path


def predicted(home: Path, frame: pl.DataFrame, run: str = "run") -> np.ndarray:
    """The predictions for a file with these rows."""
    frame.write_csv(home / "rows.csv")
    ok(run_forked("recsys.predict", f"run={run}", "input=rows.csv", "output=p.parquet", cwd=home))
    return pl.read_parquet(home / "p.parquet")["probability"].to_numpy()


def test_the_order_of_a_slate_in_the_file_changes_nothing(home: Path) -> None:
    """Of the last slate of each user: rows of an earlier moment are listed in the order of the file."""
    log = pl.read_csv(home / "log.csv").with_row_index("row")
    last = pl.col("ts") == pl.col("ts").max().over("user")
    key = pl.struct(pl.when(last).then(pl.col("row").hash(seed=1)).otherwise(pl.col("row")))
    other = log.with_columns(key.alias("key")).sort("ts", "key", maintain_order=True).drop("key")
    assert not other["row"].equals(log["row"])
    one, two = (predicted(home, x.drop("row")) for x in (log, other))
    np.testing.assert_array_equal(two, one[other["row"].to_numpy()])


def test_equal_candidates_have_equal_predictions_everywhere(home: Path) -> None:
    """From a file, a frame, single rows with and without `history`, the artefact, and a server."""
    rows: list[dict[str, Any]] = [*EVENTS, *CANDIDATES]
    frame = pl.DataFrame(rows, schema_overrides={"click": pl.String})
    found = [predicted(home, frame)]
    found.append(Predictor.load(str(home / "run")).predict(frame).to_numpy())
    model = load(home / "artefact")
    found.append(model.run(model.features(rows))["probability"])
    with serving(home / "artefact", loader_function=load) as served:
        answer = requests.post(f"{served.url}/predict", json={"rows": rows}, timeout=20)
        assert answer.status_code == 200, answer.text
        found.append(np.array(answer.json()["predictions"]))
    for predictions in found:
        assert len(set(predictions[5:].tolist())) == 1
        np.testing.assert_allclose(predictions, found[0], rtol=1e-5)
    transforms = RowTransforms.load(home / "run")
    arrays = transforms.arrays(CANDIDATES, EVENTS)
    assert arrays.lengths["history"].tolist() == [5] * 3 and arrays.lengths["clicked"].tolist() == [1] * 3
    [clicked] = {*arrays.values["clicked"].tolist()}
    assert clicked == transforms.fitted.indexes["item"].look_up(pl.Series(["i3"])).item()
    assert transforms.arrays(CANDIDATES, [{**e, "ts": 20_100} for e in EVENTS]).lengths["history"].tolist() == [0] * 3


def test_the_column_of_a_condition_must_be_known_of_earlier_rows(home: Path) -> None:
    transforms, without = RowTransforms.load(home / "run"), [{n: e[n] for n in ("user", "item", "ts")} for e in EVENTS]
    with pytest.raises(UserError, match=r"history\[0\]: has no column click, which `where` of a feature reads"):
        transforms.arrays(CANDIDATES, without)
    with pytest.raises(UserError, match=r"rows\[0\]: has no column click, which `where` of a feature reads"):
        transforms.arrays([*without, *CANDIDATES])
    assert transforms.arrays(CANDIDATES).lengths["clicked"].tolist() == [0] * 3
    frame = pl.DataFrame(without)
    with pytest.raises(UserError, match="the data frame has no column click"):
        Predictor.load(str(home / "run")).predict(frame)
    frame.write_csv(home / "rows.csv")
    done = run_forked("recsys.predict", "run=run", "input=rows.csv", "output=p.parquet", cwd=home)
    assert done.returncode and "there is no column click" in done.stderr


def test_a_run_from_before_the_key_predicts_as_it_did(home: Path) -> None:
    """Its features saw the rows before them in the files."""
    old = home / "old"
    shutil.copytree(home / "run", old)
    (old / "manifest.json").unlink(missing_ok=True)
    state = json.loads((old / "transforms.json").read_text())
    assert state["data"]["group"].pop("ties") == "moment"
    (old / "transforms.json").write_text(json.dumps(state))
    config = (old / "config.yaml").read_text()
    assert config.count("    ties: null\n") == 1
    (old / "config.yaml").write_text(config.replace("    ties: null\n", ""))
    assert not Fitted.load(old).data.has_moments
    assert not RunConfig.of(load_config(old / "config.yaml")).data.has_moments
    arrays = RowTransforms.load(old).arrays(CANDIDATES, EVENTS)
    assert arrays.lengths["history"].tolist() == [5, 6, 7]


@pytest.mark.slow
def test_rows_that_come_before_their_past_in_a_file_are_exported(home: Path, tmp_path: Path) -> None:
    """The rows that an artefact holds are scored again without the others, on which theirs must not depend."""
    pl.read_csv(home / "log.csv").reverse().write_csv(tmp_path / "reversed.csv")
    arguments = ["run=run", f"rows={tmp_path}/reversed.csv", f"output={tmp_path}/artefact"]
    ok(run_forked("recsys.export", *arguments, cwd=home))
