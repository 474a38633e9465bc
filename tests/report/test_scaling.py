"""Fits of loss against compute."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.report.scaling import ScalingRun, fit, frontier, sentence


def runs(computes: list[float], excesses: list[float]) -> list[ScalingRun]:
    return [ScalingRun(str(i), c, e) for i, (c, e) in enumerate(zip(computes, excesses, strict=True))]


@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-6, 1)), max_size=12))
def test_the_frontier_is_what_no_cheaper_run_beats(points: list[tuple[float, float]]) -> None:
    given_runs = runs([c for c, _ in points], [e for _, e in points])
    on = frontier(given_runs)
    for run in given_runs:
        beaten = any(o.compute <= run.compute and o.excess <= run.excess for o in on if o is not run)
        assert run in on or beaten
    assert list(on) == sorted(on, key=lambda r: r.compute)
    assert [r.excess for r in on] == sorted({r.excess for r in on}, reverse=True)


def test_a_power_law_is_found() -> None:
    computes = [1e6, 1e7, 1e8, 1e9, 1e10]
    exact = fit(runs([*computes, 1e10], [*(3 * c**-0.2 for c in computes), 0.5]))  # the last run is off the frontier
    assert exact is not None and len(exact.frontier) == 5
    assert (exact.exponent, exact.factor) == (pytest.approx(0.2), pytest.approx(3))
    assert exact.low == pytest.approx(0.2) and exact.high == pytest.approx(0.2)
    assert exact.at(1e8) == pytest.approx(3 * 1e8**-0.2)
    assert "falls as compute^-0.200 (95 %: 0.200 to 0.200), by 12.9%" in sentence("DLRM", list(exact.frontier))


@pytest.mark.slow
def test_the_interval_covers_the_exponent() -> None:
    """In 95 of 100 draws with independent noise, as Student's t promises; 100 draws deviate by 2.2."""
    rng, computes = np.random.default_rng(0), np.logspace(6, 10, 8)
    hits = 0
    for _ in range(400):
        logs = math.log(2) - 0.3 * np.log(computes) + rng.normal(0, 0.02, 8)  # small, so that all stay on the frontier
        found = fit(runs(computes.tolist(), np.exp(logs).tolist()))
        assert found is not None and len(found.frontier) == 8
        hits += found.low <= 0.3 <= found.high
    assert 0.91 * 400 <= hits <= 0.985 * 400


def test_too_few_runs_have_no_fit() -> None:
    few = runs([1e6, 1e7, 1e8, 1e9], [0.1, 0.05, 0.06, 0.07])
    assert fit(few) is None
    assert sentence("DLRM", few) == "DLRM: fewer than 4 of 4 runs are on the frontier of loss against compute: no fit"


@pytest.mark.slow
def test_a_sweep_of_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Four sizes of a model, and the page; more rows and more width cost more."""
    from recsys.report.__main__ import report
    from recsys.report.compute import scaling_runs
    from recsys.report.runs import read
    from recsys.schema.command_schemas import ReportConfig
    from recsys.sweep.begin import begin

    monkeypatch.chdir(tmp_path)
    small = ["model.bottom_mlp=[8]", "trainer.threads=1"]
    sizes = [["model.dim=8", f"model.top_mlp=[{w}]", f"data.sample.rows={n}"] for w in (8, 64) for n in (2000, 8000)]
    assert begin(["experiment=scaling", f"sweep.points={json.dumps(sizes)}", *small, "run_dir=s"]) == 0
    [sweep] = read(["s"]).sweeps
    [found] = scaling_runs(sweep).values()
    cheap, more_rows, wider, most = (run.compute for run in found)
    assert more_rows == pytest.approx(4 * cheap, rel=0.05) and cheap < wider < most
    report(ReportConfig(runs=["s"], output=str(tmp_path / "report.html"), resamples=100))
    assert "Loss against compute" in (tmp_path / "report.html").read_text()
    assert "DLRM: " in capsys.readouterr().out
