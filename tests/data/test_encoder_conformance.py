"""Every encoder gives a value the same id in whole columns, in codes, in single rows, from a saved copy, and as exported.

The encoder of docs/how_to/add/encoder.md is one of them: adding a class is enough.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.config.compose import parsed
from recsys.data.features import Fitted, encoders
from recsys.data.features.encoders import ENCODERS
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms
from recsys.preprocess import preprocess

OVERRIDES = ["data=mine", "model=dnn", "model.dim=4", "trainer.max_steps=2", "trainer.threads=1", "run_dir=run"]
PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "add" / "encoder.md"
ROWS = 400
CASES: dict[str, tuple[str, list[Any]]] = {  # encoder -> the keys of a feature, and values
    "vocabulary": ("{min_count: 2}", ["a", "b", "ü", "", None, "7"]),
    "hash": ("{encode: hash, buckets: 13}", ["a", "b", "ü", "", None, "7"]),
    "id": ("{encode: id, rows: 9}", [0, 3, 8, 1]),
    "quantiles": ("{quantiles: 5}", [0.5, -3.0, None, 8.25, 100.0, 7.0]),
    "magnitude": ("{encode: magnitude, buckets: 6}", [0.5, -3.0, None, 8.25, 100.0, 7.0, 2.0, 1e9]),
}


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """Add the encoder of the page, as its reader does."""
    [code] = [c for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "class Magnitude" in c]
    exec(compile(code, str(PAGE), "exec"), names := dict(vars(encoders)))
    ENCODERS["magnitude"] = names["Magnitude"]
    yield
    del ENCODERS["magnitude"]


def test_every_encoder_is_here() -> None:
    assert {*CASES} == {*ENCODERS}


def write(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    """Write a data set whose feature s has an encoder, and return its rows."""
    monkeypatch.chdir(folder)
    keys, values = CASES[name]
    random = np.random.default_rng(0)
    column = [values[i] for i in random.integers(0, len(values), ROWS)]
    frame = pl.DataFrame({"y": random.integers(0, 2, ROWS), "s": column, "n": random.random(ROWS)}, strict=False)
    (folder / "raw").mkdir()
    frame.write_parquet("raw/rows.parquet")
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "mine.yaml").write_text(
        "name: mine\nroot: raw\nsource: {format: parquet, files: [rows.parquet]}\nlabel: {column: y}\n"
        f"dense: {{n: }}\nsparse:\n  s: {keys}\n"
    )
    return frame


@pytest.mark.parametrize("name", CASES)
def test_a_value_has_one_id(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = write(name, tmp_path, monkeypatch)
    preprocess(parsed("preprocess", ["data=mine"]))
    [folder] = Path("outputs/prepared").glob("mine-*/")
    prepared = pl.concat(pl.read_parquet(f) for f in folder.rglob("part-*.parquet"))
    raw = RawRows.load(folder)
    fitted, spec = raw.fitted, raw.fitted.features.feature("s")
    rows, bad = raw.from_frame(frame)
    assert not bad
    whole = fitted.apply(rows)["s"]
    assert whole.min() >= 0 and whole.max() < spec.cardinality and whole.n_unique() > 2  # type: ignore[operator]
    assert sorted(prepared["s"]) == sorted(whole)  # of codes
    transforms, some = RowTransforms(raw), frame.drop("y").head(20).to_dicts()
    assert transforms.arrays(some).ids[:, 0].tolist() == whole.head(20).to_list()
    assert [transforms.arrays(row).ids[0, 0] for row in some] == whole.head(20).to_list()
    assert transforms.frame(some)["s"].to_list() == whole.head(20).to_list()
    fitted.save(tmp_path / "again")
    again = Fitted.load(tmp_path / "again")
    assert again.features == fitted.features and again.apply(rows)["s"].equals(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_exported_and_profiled(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = write(name, tmp_path, monkeypatch)
    run = recsys.train(OVERRIDES)
    assert len(run.predict(frame.drop("y"))) == ROWS  # type: ignore[arg-type]
    if name != "magnitude":  # which the process that proves the artefact does not know
        run.export("out")
    preprocess(parsed("preprocess", ["data=mine", "report=true", "output=page.html"]))
    assert ENCODERS[name].encode in Path("page.html").read_text()
