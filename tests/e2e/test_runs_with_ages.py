"""A run that reads the ages of a history: trained, predicted from files, exported and served with the same numbers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forks import ok, run_forked

YAML = """
name: log
root: raw
source: {files: ["*.csv"]}
label: {column: y}
group: {by: user, order: at}
split: {by: time, column: at, validation: 0.2, test: 0.2}
sparse:
  item: {}
  items: {column: item, table: item, last: 6}
  ages: {column: at, last: 6, age: true, quantiles: 8, pooling: mean}
"""
# the target has an age, 0, so that the ages are a side feature of the history
SIDE = YAML.replace("ages: {", "now: {quantiles: 8, table: age}\n  ages: {table: age, ") + "derive: {now: '0'}\n"
ROWS = 1500
TRAIN = ["trainer.batch_size=128", "trainer.max_epochs=2", "trainer.threads=1", "model.dim=4", "model.deep_mlp=[8]"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ages")
    (path / "conf" / "data").mkdir(parents=True)
    (path / "conf" / "data" / "aged.yaml").write_text(YAML)
    (path / "conf" / "data" / "side.yaml").write_text(SIDE)
    (path / "raw").mkdir()
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 30, ROWS), "item": rng.integers(0, 20, ROWS), "y": rng.integers(0, 2, ROWS)}
    pl.DataFrame(columns | {"at": np.sort(rng.integers(0, 10**6, ROWS))}).write_csv(path / "raw" / "log.csv")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "model"), [("aged", ["model=hstu_rank", "model.times=ages"]), ("side", ["model=din"])]
)
def test_the_same_numbers_everywhere(home: Path, data: str, model: list[str]) -> None:
    from recsys.export.artefact import load

    ok(run_forked("recsys.train", f"data={data}", *model, *TRAIN, f"run_dir={data}", cwd=home))
    trained = pl.read_parquet(home / data / "test_predictions.parquet")["probability"].to_numpy()
    ok(run_forked("recsys.predict", f"run={data}", "input=raw/log.csv", f"output={data}.parquet", cwd=home))
    predicted = pl.read_parquet(home / f"{data}.parquet")["probability"].to_numpy()
    np.testing.assert_allclose(predicted[-len(trained) :], trained, rtol=1e-5)
    ok(run_forked("recsys.export", f"run={data}", f"output={data}-artefact", cwd=home))
    served, rows = load(home / f"{data}-artefact"), pl.read_csv(home / "raw" / "log.csv").drop("y").to_dicts()
    outputs = served.run(served.features(rows))
    [name] = outputs
    np.testing.assert_allclose(outputs[name].ravel(), predicted, rtol=1e-5, atol=1e-6)
