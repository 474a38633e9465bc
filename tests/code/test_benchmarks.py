"""Benchmarks are run by hand; their bookkeeping is tested here."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import bench  # noqa: E402
import steady  # noqa: E402
from steady import Claim, PeerFailed, Sample  # noqa: E402


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(steady, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    return tmp_path


def contestants(seconds: float) -> dict[str, object]:
    rates = iter(range(1, 100))
    return {"ours": lambda: Sample(100, seconds / next(rates), seconds), "bound": lambda: Sample(100, 1.0, 2.0)}


def measured(topic: str, seconds: float) -> None:
    steady.measure(topic, "a <topic>", contestants(seconds), [Claim("ours", "bound", 0.9)], 3, "rows")  # type: ignore[arg-type]


def test_ratios_are_of_rates_in_the_same_round(results: Path) -> None:
    measured("loader", 0.5)
    [claim] = json.loads((results / "loader.json").read_text())["claims"]
    assert claim["clock"] == {"rounds": [2.0, 4.0, 6.0], "median": 4.0, "low": 2.0, "high": 6.0}
    assert claim["cpu"]["rounds"] == [4.0, 4.0, 4.0]


def test_a_peer_that_fails_is_left_out_and_nothing_else_is(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Sample:
        raise PeerFailed("no such package")

    ours = {"ours": lambda: Sample(1, 1, 1), "peer": fails}
    steady.measure("loader", "", ours, [Claim("ours", "peer")], 2, "rows")
    assert "loader: peer is left out: no such package" in capsys.readouterr().out
    found = json.loads((results / "loader.json").read_text())
    assert found["claims"] == [] and list(found["samples"]) == ["ours"]
    with pytest.raises(ZeroDivisionError):
        steady.measure("loader", "", {"ours": lambda: Sample(1 / 0, 1, 1)}, [], 2, "rows")


def test_smoke_fails_below_the_recorded_spread(results: Path) -> None:
    measured("loader", 0.5)
    fast = bench.results(["loader"])
    measured("loader", 0.6)
    slow = bench.results(["loader"])
    assert bench.check_smoke(fast, fast) == [] and bench.check_smoke(slow, fast) == []
    [line] = bench.check_smoke(fast, slow)
    assert line == "loader: ours : bound is 3.33 (3.33 - 3.33) by CPU seconds, recorded 4.00 (4.00 - 4.00)"
