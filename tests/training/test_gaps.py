"""The line about the values of a slice between which the main metric differs most."""

import pytest

from recsys.evaluation.metrics_table import TARGETS
from recsys.training.results import say_gaps


@pytest.mark.parametrize(("metric", "ends"), [("auc", ("b", "a")), ("rmse", ("a", "b"))])
def test_the_worst_and_the_best_value_are_named(
    metric: str, ends: tuple[str, str], capsys: pytest.CaptureFixture
) -> None:
    parts = [{"value": v, "rows": n, metric: x} for v, n, x in (("a", 900, 0.8), ("b", 150, 0.6), ("few", 9, 0.1))]
    say_gaps({"slices": {"test": {"kind": parts, TARGETS: parts}}}, "test")
    [line] = capsys.readouterr().err.splitlines()
    assert f"{metric} differs by 0.2000, from " in line
    assert line.index(f"({ends[0]}, ") < line.index(f"({ends[1]}, ") and "few" not in line
