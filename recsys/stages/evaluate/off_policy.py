"""Estimate the reward of a pipeline from logged lists of another: IPS, SNIPS and doubly robust.

A log has a row for each shown item: request, item, position (from 1), propensity (the probability with which the item
was put there) and reward. The value of a policy is the expected sum of rewards over the positions of a list. The
estimates take rewards to depend on item and position, not on the other items of the list (the item-position model of
Li et al., Offline evaluation of ranking policies with click models, KDD 2018); they are unbiased then, if the log gave
every item that the pipeline shows a chance.

With w = pi(item at position) / propensity and R requests:

    IPS     sum of w r / R
    SNIPS   for each position, sum of w r / sum of w; added up over positions (self-normalised: less variance)
    DR      sum over positions of the model's reward of the pipeline's items, plus w (r - the model's reward), / R
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.base.errors import UserError

COLUMNS = ("request", "item", "position", "propensity", "reward")


@dataclass(frozen=True)
class Logged:
    """Logged items (n,), with the pipeline's view of them.

    request: (n,) number of the request, from 0
    position: (n,) from 0
    propensity, reward: (n,)
    target: (n,) probability that the pipeline puts the item at this position of the request's list
    expected: (n,) the model's reward of the item, NaN if there is no model
    shown: (R, k) the model's reward of the items that the pipeline shows; NaN where the list is shorter
    """

    request: np.ndarray
    position: np.ndarray
    propensity: np.ndarray
    reward: np.ndarray
    target: np.ndarray
    expected: np.ndarray
    shown: np.ndarray


def check_log(frame: pl.DataFrame, user: str) -> None:
    """Raise UserError if a log lacks a column or has a value that cannot be."""
    for name in (*COLUMNS, user):
        if name not in frame.columns:
            raise UserError(f"evaluate.log: has no column {name}; it needs {', '.join(COLUMNS)} and {user}")
    wrong = (~frame["propensity"].is_between(0, 1, closed="right")).arg_true()
    if wrong.len():
        found = frame["propensity"][wrong[0]]
        raise UserError(f"evaluate.log: row {wrong[0] + 1}: propensity {found}: must be above 0 and at most 1")
    if not (frame["position"] >= 1).all():
        raise UserError(f"evaluate.log: position {frame['position'].min()!r}: must be at least 1")


def estimates(logged: Logged) -> dict[str, np.ndarray]:
    """Return each request's part (R,) of the estimates of a list's value; their means are the estimates."""
    requests = len(logged.shown)
    weight = logged.target / logged.propensity
    values = {
        "logged": np.bincount(logged.request, logged.reward, requests),
        "ips": np.bincount(logged.request, weight * logged.reward, requests),
    }
    positions = int(logged.position.max(initial=-1)) + 1
    totals = np.bincount(logged.position, weight, positions)
    normalised = np.divide(
        weight * requests, totals[logged.position], where=totals[logged.position] > 0, out=np.zeros_like(weight)
    )
    values["snips"] = np.bincount(logged.request, normalised * logged.reward, requests)
    if not np.isnan(logged.expected).any():
        correction = np.bincount(logged.request, weight * (logged.reward - logged.expected), requests)
        values["dr"] = np.nansum(logged.shown, axis=1) + correction
    return values


def effective_size(logged: Logged) -> float:
    """Return how many items, logged by the pipeline itself, would tell as much: (sum of w)^2 / sum of w^2 (Kish)."""
    weight = logged.target / logged.propensity
    return float(weight.sum() ** 2 / max(float((weight**2).sum()), 1e-300))
