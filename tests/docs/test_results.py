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


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["ranking", "sequence", "retrieval"])
def test_the_page_is_that_of_the_results(kind: str) -> None:
    assert make_results.PAGES[kind].read_text() == make_results.page(kind), "run python docs/make_results.py"
    assert make_results.ZOO.read_text() == make_results.zoo_page()


def test_the_interval_of_a_mean() -> None:
    values = [0.1, 0.2, 0.4]
    half = make_results.interval(values)  # Student's t: 4.3027 with two degrees of freedom
    assert half == pytest.approx(4.3027 * statistics.stdev(values) / 3**0.5, rel=1e-4)
    assert make_results.interval([0.3]) is None


@pytest.mark.parametrize(
    ("metric", "published", "ours", "shortfall"),
    [
        ("HR@10", 0.50, [0.49], 0.02),
        ("HR@10", 0.50, [0.51], 0.0),
        ("HR@10", 0.50, [0.48, 0.50, 0.49], 0.0),  # the interval of the mean has it
        ("HR@10", 0.50, [0.30, 0.60, 0.54], 0.04),  # too wide to say anything
        ("logloss", 0.50, [0.51], 0.02),
        ("logloss", 0.50, [0.49], 0.0),
        ("AUC", 0.8, [0.799], 0.001),
    ],
)
def test_how_much_worse_than_published(metric: str, published: float, ours: list[float], shortfall: float) -> None:
    figure = make_results.Figure("M (T)", metric, published, False, ours, None)
    assert figure.shortfall == pytest.approx(shortfall, abs=1e-9)
