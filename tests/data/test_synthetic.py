"""The built-in sample: Criteo's format, labels that follow the teacher, and a need for interactions."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

from recsys.data.samples.clicks import CLICK_RATE, VOCABULARY, ClickTeacher, draw, write_sample

ROWS = 60_000  # more than a block, and not a whole number of blocks


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder, rows=ROWS, seed=7)
    return folder


def read(folder: Path) -> tuple[pl.DataFrame, np.ndarray]:
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    frame = pl.read_csv(folder / "train.tsv", separator="\t", has_header=False, new_columns=names, infer_schema=False)
    return frame, pl.read_parquet(folder / "teacher.parquet")["probability"].to_numpy()


def test_format(sample: Path) -> None:
    raw = (sample / "train.tsv").read_bytes()
    assert b"\r" not in raw and b'"' not in raw and raw.endswith(b"\n")
    lines = raw.decode("ascii").splitlines()
    assert len(lines) == ROWS
    row = re.compile(r"[01](\t-?\d*){13}(\t([0-9a-f]{8})?){26}")
    assert all(row.fullmatch(line) for line in lines)
    probability = pl.read_parquet(sample / "teacher.parquet")
    assert probability.schema == {"probability": pl.Float64} and probability.height == ROWS


def test_columns(sample: Path) -> None:
    frame, _ = read(sample)
    nulls = frame.null_count().row(0, named=True)
    assert nulls["label"] == 0
    assert nulls["I12"] / ROWS == pytest.approx(0.76, abs=0.02) and nulls["I2"] == 0
    assert nulls["C19"] / ROWS == pytest.approx(0.44, abs=0.02) and nulls["C3"] > 0
    assert frame["I2"].cast(pl.Int64).min() == -3
    seen = [frame[f"C{c + 1}"].n_unique() for c in range(26)]
    assert seen[8] == 3 and seen[16] == 10 and seen[2] > 2_000
    assert all(n <= size + 1 for n, size in zip(seen, VOCABULARY, strict=True))
    values = pl.concat([frame[f"C{c + 1}"].drop_nulls().unique().rename("v") for c in range(26)])
    assert values.is_unique().all()  # no value belongs to two columns
    top = frame["C3"].drop_nulls().value_counts(sort=True)["count"].to_numpy()
    assert top[0] > 0.1 * ROWS and (top < 5).mean() > 0.5  # a long tail


def test_labels_follow_the_probability(sample: Path) -> None:
    frame, p = read(sample)
    label = frame["label"].cast(pl.Float64).to_numpy()
    assert label.mean() == pytest.approx(CLICK_RATE, abs=0.015)
    for tenth in np.array_split(np.argsort(p), 10):
        bound = 4.5 * np.sqrt((p[tenth] * (1 - p[tenth])).sum())
        assert abs(label[tenth].sum() - p[tenth].sum()) < bound


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bayes_auc_and_the_part_that_needs_interactions(seed: int) -> None:
    teacher, rng = ClickTeacher(seed), np.random.default_rng(99)
    rows = draw(rng, 100_000)
    p, terms = teacher.probability(rows), teacher.terms(rows)
    label = rng.random(100_000) < p
    bayes = roc_auc_score(label, p)
    assert 0.78 < bayes < 0.85
    assert roc_auc_score(label, terms["dense"] + terms["ids"]) < bayes - 0.02
    for name in ("pairs", "gate"):  # nothing of them is left for a sum of single effects
        for c in (8, 13, 16, 21, 22):
            for value in (0, 1):
                chosen = terms[name][rows.ids[c] == value]
                assert abs(chosen.mean()) < 6 * chosen.std() / np.sqrt(len(chosen)) + 0.02


def test_a_missing_integer_counts_as_zero() -> None:
    rows = draw(np.random.default_rng(1), 5_000)
    assert (rows.ints[rows.int_missing] == 0).all()
    teacher = ClickTeacher(0)
    shown = rows._replace(int_missing=np.zeros_like(rows.int_missing))
    assert np.array_equal(teacher.probability(rows), teacher.probability(shown))


def test_no_rows(tmp_path: Path) -> None:
    write_sample(tmp_path, rows=0, seed=0)
    assert (tmp_path / "train.tsv").read_bytes() == b""
    assert pl.read_parquet(tmp_path / "teacher.parquet").height == 0
