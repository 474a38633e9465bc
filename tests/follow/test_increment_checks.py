"""Checks of new rows: figures equal closed forms, each kind of damage is found, and rows without damage pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.data.samples.drifting import DriftingTeacher, write_days
from recsys.data.samples.interactions import Shown
from recsys.evaluation.binary import binary_metrics
from recsys.files.manifest import DamagedFile
from recsys.follow.column_reference import Reference, batches, compare
from recsys.follow.increment_checks import CheckConfig, CheckReport, Limits, alert, check_increment

ROWS = 10_000


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[pl.DataFrame]:
    """Days whose champion is the teacher itself; the last three are wrong: labels, prices, volume."""
    home = tmp_path_factory.mktemp("days")
    poison = {4: "labels", 5: "column", 6: "volume"}
    files = write_days(home, days=7, rows_per_day=ROWS, drift="none", poison=poison)
    frames = []
    for f in files:
        expected = pl.read_parquet(home / "teacher" / f"{f.parent.name.removeprefix('day=')}.parquet")["click_expected"]
        frames.append(pl.read_parquet(f, glob=False).with_columns(score=expected))
    return frames


@pytest.fixture(scope="module")
def reference(days: list[pl.DataFrame]) -> Reference:
    return Reference.fit(pl.concat(days[:3]), label="click", prediction="score", slices=["device"])


CONFIG = CheckConfig.model_validate(
    {"ignore": ("time",), "psi": {"warn": 0.1, "fail": 1}}
    | {"unknown": {"warn": 0.05, "fail": 0.3}, "calibration": {"warn": 0.1, "fail": 0.5}}
)


def check(reference: Reference, frame: pl.DataFrame, config: CheckConfig = CONFIG) -> CheckReport:
    return check_increment(reference, frame, config, earlier=[ROWS, ROWS, ROWS])


def bad(report: CheckReport, outcome: str = "fail") -> set[tuple[str, str]]:
    return {(line.check, line.column) for line in report.lines if line.outcome == outcome}


def test_a_usual_day_passes(reference: Reference, days: list[pl.DataFrame]) -> None:
    report = check(reference, days[3])
    assert report.outcome == "pass", [line for line in report.lines if line.outcome != "pass"]
    checks = {"volume", "bad_rows", "psi", "ks", "missing", "label", "calibration", "auc"}
    assert {line.check for line in report.lines} == checks
    assert len([line for line in report.lines if line.check == "auc"]) == 4  # all rows and three devices


def test_inverted_labels(reference: Reference, days: list[pl.DataFrame]) -> None:
    report = check(reference, days[4])
    assert {("label", ""), ("calibration", ""), ("auc", ""), ("psi", "click"), ("auc", "device=phone")} <= bad(report)
    [text] = [line.text for line in report.lines if (line.check, line.column) == ("auc", "")]
    assert text.startswith("the champion's AUC is 0.2")


def test_inverted_labels_of_balanced_classes(days: list[pl.DataFrame]) -> None:
    """The mean of the label does not change; the champion's AUC does."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 1, 4000)
    frame = pl.DataFrame({"score": p, "y": (rng.random(4000) < p).astype(int)})
    report = check(Reference.fit(frame, label="y", prediction="score"), frame.with_columns(y=1 - pl.col("y")))
    assert ("auc", "") in bad(report) and ("label", "") not in bad(report)


def test_a_broken_column(reference: Reference, days: list[pl.DataFrame]) -> None:
    assert {("psi", "price"), ("ks", "price")} <= bad(check(reference, days[5]))
    missing = days[3].with_columns(price=pl.lit(None, pl.Float64), kind=pl.lit(""))
    assert {("missing", "price"), ("missing", "kind"), ("psi", "price")} <= bad(check(reference, missing))
    null = days[3].with_columns(price=pl.lit(None))
    assert ("missing", "price") in bad(check(reference, null))


def test_a_tenth_of_the_volume(reference: Reference, days: list[pl.DataFrame]) -> None:
    report = check(reference, days[6])
    assert bad(report) == {("volume", "")}
    assert report.failing() == ["there are 1,000 rows, 0.1 times the median of earlier increments, 10,000"]
    assert bad(check(reference, pl.concat([days[3]] * 4)), "warn") == {("volume", "")}
    assert check(reference, days[3].head(0)).failing() == ["there are no rows"]
    first = check_increment(reference, days[3], CONFIG)
    assert "there are 10,000 rows, and no earlier increments" in [line.text for line in first.lines]


@pytest.mark.slow
@pytest.mark.parametrize("drift", ["gradual", "seasonal"])
def test_drift_is_no_reason_to_stop(tmp_path: Path, drift: str) -> None:
    """Days whose taste and items have changed warn, so that a model is trained on them; wrong days fail."""
    poison = {9: "labels", 10: "column", 11: "volume"}
    frames = []
    for f in write_days(tmp_path, days=12, rows_per_day=5000, drift=drift, change=6, poison=poison):
        rows, old = pl.read_parquet(f, glob=False), DriftingTeacher(0)
        numbers = (rows[c].str.slice(1).cast(pl.Int64).to_numpy() for c in ("user", "item"))
        device = np.array([2, 0, 1])[np.unique(rows["device"], return_inverse=True)[1]]
        old.day(0)
        frames.append(rows.with_columns(score=old.click(Shown(*numbers, device, device))))
    reference = Reference.fit(pl.concat(frames[:2]), label="click", prediction="score", slices=["device"])
    outcomes = [check_increment(reference, f, CONFIG, earlier=[5000]).outcome for f in frames[2:]]
    assert set(outcomes[:7]) <= {"pass", "warn"} and "warn" in outcomes and outcomes[7:] == ["fail"] * 3


def test_schema(reference: Reference, days: list[pl.DataFrame]) -> None:
    wrong = days[3].drop("age").with_columns(pl.col("price").cast(pl.String), new=1)
    report = check(reference, wrong)
    assert bad(report) == {("schema", "age"), ("schema", "price")}

    as_int = days[3].with_columns(pl.col("age").cast(pl.Float32))  # also a number
    assert check(reference, as_int).outcome == "pass"
    no_score = check(reference, days[3].drop("score", "click"))
    assert bad(no_score) == {("schema", "score"), ("schema", "click")}


def test_unknown_ids_and_bad_rows(days: list[pl.DataFrame]) -> None:
    known = {"item": days[0]["item"].unique()}
    reference = Reference.fit(days[0], vocabularies=known)
    assert reference.columns["item"].unknown == 0
    half = days[3].with_columns(item=pl.when(pl.int_range(ROWS) % 2 == 0).then("item").otherwise(pl.lit("i9999")))
    report = check_increment(reference, half, CONFIG, bad_rows=ROWS, vocabularies=known)
    assert {("unknown", "item"), ("bad_rows", "")} <= bad(report)
    assert "10,000 of 20,000 rows cannot be read (50.00%)" in report.failing()
    assert any(
        t.startswith("column item: 5") and t.endswith("unknown to the model, and 0.0% before") for t in report.failing()
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-1, 1), whole=st.booleans(), n=st.integers(50, 3000))
def test_ks_and_psi_are_those_of_the_cells(seed: int, shift: float, whole: bool, n: int) -> None:
    """KS over the cells is at most scipy's, and less by at most a cell; PSI is the sum over the tenths."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 2, 3000), rng.normal(shift, 2, n)
    if whole:
        a, b = np.round(a), np.round(b)
    reference = Reference.fit(pl.DataFrame({"x": a}))
    [d] = compare(reference, pl.DataFrame({"x": b}))
    true = ks_2samp(a, b).statistic
    assert d.ks is not None and d.ks <= true + 1e-9 and d.ks >= true - (1e-9 if whole else 0.05)
    assert d.psi >= 0 and d.missing == (0, 0)


def test_no_drift_is_within_chance() -> None:
    """Of 400 columns without drift, about 5 % are above the bounds of chance."""
    rng = np.random.default_rng(0)
    a, b = (pl.DataFrame(rng.normal(0, 1, (n, 400)), schema=[f"x{i}" for i in range(400)]) for n in (5000, 2000))
    found = compare(Reference.fit(a), b)
    above = np.array([(d.psi > d.psi_chance, d.ks > d.ks_chance) for d in found])  # type: ignore[operator]
    assert (above.mean(0) < 0.09).all() and above.any()


def test_all_types(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1)
    frame = pl.DataFrame(
        {
            "b": [True, False, None] * 100,
            "l": [["a", "b"], [], None] * 100,
            "n": [[1.0], [2.0, 3.0], []] * 100,
            "t": [start + timedelta(hours=i) for i in range(300)],
            "d": [(start + timedelta(days=i)).date() for i in range(300)],
            "c": pl.Series(["x", "y", "x"] * 100, dtype=pl.Categorical),
            "none": pl.Series([None] * 300, dtype=pl.Float64),
            "null": pl.Series([None] * 300, dtype=pl.Null),
            "nan": [float("nan"), 1.0, float("inf")] * 100,
        }
    )
    reference = Reference.fit(frame)
    families = "boolean,list of text,list of number,time,time,text,number,null,number".split(",")
    assert [c.family for c in reference.columns.values()] == families
    reference.save(tmp_path / "reference.json")
    assert Reference.load(tmp_path / "reference.json") == reference
    for found in (
        compare(reference, frame),
        compare(reference, frame.lazy()),
        compare(reference, frame.iter_slices(7)),
    ):
        assert [(d.psi, d.problem) for d in found] == [(0.0, None)] * 9
    moved = compare(reference, frame.with_columns(pl.col("t") + pl.duration(days=99)))
    assert moved[3].ks == 1.0
    (tmp_path / "reference.json").write_text((tmp_path / "reference.json").read_text().replace('"bounds"', '"bouns"'))
    with pytest.raises(DamagedFile, match="cannot be read; fit the reference again"):
        Reference.load(tmp_path / "reference.json")


def test_a_sample_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.follow.column_reference.SAMPLE_ROWS", 1000)
    monkeypatch.setattr("recsys.follow.column_reference.BATCH", 300)
    frame = pl.DataFrame({"x": np.random.default_rng(0).normal(size=20_000)})
    reference = Reference.fit(frame)
    assert reference.rows == 20_000 and sum(reference.columns["x"].counts) == 1000
    [d] = compare(reference, frame)
    assert d.psi < d.psi_chance and sum(b.height for b in batches(frame)) == 20_000


def test_figures(reference: Reference, days: list[pl.DataFrame]) -> None:
    rows = pl.concat(days[:3])
    figures = reference.figures[""]
    wanted = binary_metrics(rows["score"].to_numpy(), rows["click"].to_numpy())
    assert figures.auc == pytest.approx(wanted["auc"]) and figures.calibration == pytest.approx(wanted["calibration"])
    assert figures.rows == 3 * ROWS and figures.mean == pytest.approx(rows["click"].mean())


def test_prometheus(reference: Reference, days: list[pl.DataFrame]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    report = check(reference, days[5].rename({"device": 'de"v\\ice\n'}))
    families = {f.name: f for f in text_string_to_metric_families(report.prometheus("clicks"))}
    assert set(families) == {"recsys_follow_check", "recsys_follow_psi", "recsys_follow_ks"}
    samples = {(s.labels["check"], s.labels["column"]): s.value for s in families["recsys_follow_check"].samples}
    assert samples["psi", "price"] == 2 and samples["schema", "device"] == 2 and samples["volume", ""] == 0
    assert {s.labels["model"] for s in families["recsys_follow_psi"].samples} == {"clicks"}


def test_alert(reference: Reference, days: list[pl.DataFrame], tmp_path: Path) -> None:
    report = check(reference, days[6])
    script = tmp_path / "alert.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())")
    told = tmp_path / "told it"
    assert alert(f"{sys.executable} {script} '{told}'", report) is None
    assert told.read_text() == "there are 1,000 rows, 0.1 times the median of earlier increments, 10,000\n"
    told.unlink()
    assert alert(f"{sys.executable} {script} '{told}'", check(reference, days[3])) is None and not told.exists()
    assert str(alert("no_such_program", report)).startswith("alert=no_such_program: cannot be run (")
    assert alert(f"{sys.executable} -c 'exit(3)'", report) == (
        f"alert={sys.executable} -c 'exit(3)': ended with exit status 3: no message"
    )


@pytest.mark.parametrize(
    ("value", "key"), [({"psi": {"warm": 1}}, "psi.warm: "), ({"psi": {"warn": 1, "fail": 0.5}}, "psi.warn=1: ")]
)
def test_mistakes_in_settings(value: object, key: str) -> None:
    with pytest.raises(UserError, match=f"^f.yaml: {key}"):
        parse(CheckConfig, value, file="f.yaml")


def test_limits() -> None:
    outcomes: Callable[[float], str] = Limits(warn=1, fail=2).outcome
    assert [outcomes(x) for x in (1, 1.5, 2, 2.5)] == ["pass", "warn", "warn", "fail"]
    assert Limits().outcome(1e9) == "pass"
