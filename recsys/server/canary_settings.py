"""The keys `canary.guard` and `kpi` of serving.json: how a canary is compared, and which rates ask for a retraining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recsys.errors import UserError, did_you_mean

MARGINS = {"errors": 0.01, "latency": 0.1, "score": 0.2, "click": 0.01}
EXAMPLE = '{"alpha": 0.05, "min_requests": 1000, "min_seconds": 60, "metrics": ["errors", "latency"]}, or false'


@dataclass(frozen=True)
class GuardSettings:
    """How a canary is compared with the version that answers.

    alpha: probability of a false alarm, at any time and on any metric
    min_requests, min_seconds: how much the canary and the baseline must have answered, without an alarm, to pass
    margins: by how much the canary may be worse, by metric: a difference of two shares, or of mean ranks of scores
    quantile: of the baseline's latencies; slower requests are counted
    """

    alpha: float = 0.05
    min_requests: int = 1000
    min_seconds: float = 60.0
    quantile: float = 0.95
    margins: tuple[tuple[str, float], ...] = tuple(MARGINS.items())


def guard_settings(guard: Any, where: str) -> GuardSettings | None:
    """Return the settings of canary.guard; None if it is false, the defaults if it is missing or true.

    Raises:
        UserError: a key or a value is not valid. where: begins its message
    """
    if guard is False:
        return None
    if guard is None or guard is True:
        return GuardSettings()
    if not isinstance(guard, dict):
        raise UserError(f"{where} must be a JSON object, such as {EXAMPLE}")
    keys = ("alpha", "min_requests", "min_seconds", "quantile", "metrics", "margins")
    _check_known(guard, keys, where)
    values = {key: _number(guard, key, where, *ends) for key, ends in _ENDS.items() if key in guard}
    if not float(values.get("min_requests", 1)).is_integer():
        raise UserError(f"{where}.min_requests must be a whole number")
    return GuardSettings(**values, margins=_margins(guard, where))


_ENDS = {"alpha": (1e-6, 0.5), "min_requests": (1, 10**9), "min_seconds": (0, 10**9), "quantile": (0.5, 0.999)}


def kpi_settings(kpi: Any, where: str) -> dict[str, float]:
    """Return the least rates. Raises UserError, whose message begins with `where`."""
    if not isinstance(kpi, dict):
        raise UserError(f'{where} must be a JSON object, such as {{"click": 0.02}}')
    _check_known(kpi, ("click",), where)
    return {key: _number(kpi, key, where, 1e-6, 0.999) for key in kpi}


def _margins(guard: dict[str, Any], where: str) -> tuple[tuple[str, float], ...]:
    metrics, margins = guard.get("metrics", list(MARGINS)), guard.get("margins", {})
    if not isinstance(metrics, list) or not metrics or not all(isinstance(m, str) for m in metrics):
        raise UserError(f"{where}.metrics must be a list of metrics, such as {list(MARGINS)}".replace("'", '"'))
    _check_known(metrics, MARGINS, f"{where}.metrics", "metric")
    if not isinstance(margins, dict):
        raise UserError(f'{where}.margins must be a JSON object of metrics, such as {{"errors": 0.01}}')
    _check_known(margins, list(dict.fromkeys(metrics)), f"{where}.margins", "guarded metric")
    given = {name: _number(margins, name, f"{where}.margins", 0, 0.9) for name in margins}
    return tuple((name, given.get(name, MARGINS[name])) for name in dict.fromkeys(metrics))


def _check_known(given: Any, known: Any, where: str, what: str = "key") -> None:
    if unknown := next((k for k in given if k not in known), None):
        raise UserError(f"{where}: {unknown[:80]}: no such {what}{did_you_mean(unknown[:80], known)}")


def _number(given: dict[str, Any], key: str, where: str, low: float, high: float) -> Any:
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{where}.{key} must be a number from {low:g} to {high:g}")
    return value
