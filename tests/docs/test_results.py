"""The page of published figures follows from the results of experiments."""

import importlib.util
import statistics
from pathlib import Path
from typing import Any

import pytest


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location(
        "make_results", Path(__file__).parents[2] / "docs" / "make_results.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_results = loaded()


@pytest.mark.parametrize("kind", ["ranking", "retrieval"])
def test_the_page_is_that_of_the_results(kind: str) -> None:
    assert make_results.PAGES[kind].read_text() == make_results.page(kind), "run python docs/make_results.py"


def test_the_interval_of_a_mean() -> None:
    values = [0.1, 0.2, 0.4]
    half = make_results.interval(values)  # Student's t: 4.3027 with two degrees of freedom
    assert half == pytest.approx(4.3027 * statistics.stdev(values) / 3**0.5, rel=1e-4)
    assert make_results.interval([0.3]) is None


def test_a_row_without_runs_is_an_error() -> None:
    table = {"title": "T", "results": "retrieval/results.csv", "metrics": {"HR@10": "hr@10"}}
    row = {"model": "M", "where": {"experiment": "none"}, "published": {"HR@10": 0.5}}
    with pytest.raises(SystemExit, match=r"T, M: no such lines in retrieval/results\.csv"):
        list(make_results.cells(table, row))
    assert list(make_results.cells(table, row | {"not_run": True})) == [("0.5000", "not run", "")]


def test_figures_beside_published_ones() -> None:
    table = {"title": "T", "results": "retrieval/results.csv", "metrics": {"HR@10": "hr@10"}}
    row = {"model": "M", "where": {"experiment": "beauty_popularity"}, "published": {"HR@10": 0.0230}}
    [(published, ours, apart)] = make_results.cells(table, row)
    assert (published, ours) == ("0.0230", "0.0115 (1)") and apart.startswith("-49.")
