"""Checks of new rows before a model is trained on them: schema, volume, bad rows, drift, labels and predictions.

A difference counts only if it is beyond chance, however small its limit is. Each line passes, warns or fails, and says
why in one sentence. By default, what only wrong rows show fails, and what a change of the world shows as well, such as
new items or a champion whose AUC falls, warns: it is a reason to train.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Literal

from pydantic import Field, model_validator

from recsys.base.parsing import StrictSettings
from recsys.evaluation.resampling import hanley_mcneil
from recsys.follow.column_reference import ColumnDrift, Frame, LabelFigures, Reference, Vocabularies, compare_rows

CHANCE = 4.0  # standard errors that a difference of means must exceed; many are looked at
ALERT_SECONDS = 60
Outcome = Literal["pass", "warn", "fail"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "warn", "fail")
_HELP = {
    "check": "Outcome of a check of new rows: 0 pass, 1 warn, 2 fail",
    "psi": "Population stability index of a column of new rows",
    "ks": "Kolmogorov-Smirnov distance of a column of new rows",
    "unknown_share": "Share of values of a column that the model does not know",
}


class Limits(StrictSettings):
    """Above `warn`, a line warns, and above `fail` it fails; null: never."""

    warn: float | None = Field(None, ge=0)
    fail: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Limits:
        if self.warn is not None and self.fail is not None and self.warn > self.fail:
            raise ValueError(f"warn={self.warn:g}: must not be above fail={self.fail:g}")
        return self

    def outcome(self, value: float) -> Outcome:
        if self.fail is not None and value > self.fail:
            return "fail"
        return "warn" if self.warn is not None and value > self.warn else "pass"


class CheckConfig(StrictSettings):
    """Settings of the checks.

    less, more: median of the rows of earlier increments over those of this one, and the inverse
    bad_rows: share of rows that cannot be read
    psi, ks: drift of a column
    missing: growth of the share of missing values of a column
    unknown: growth of the share of values of a column that the model does not know
    label: relative change of the mean of the label
    calibration: distance from 1 of predicted over observed labels
    auc: fall of the champion's AUC from that of the reference
    slice_rows: values of slices with fewer rows are not judged
    ignore: columns whose drift is not judged, such as times
    alert: a command that gets the lines that fail on its standard input; it is not a shell
    """

    less: Limits = Limits(warn=2, fail=5)
    more: Limits = Limits(warn=3, fail=20)
    bad_rows: Limits = Limits(warn=0.001, fail=0.05)
    # ids of users and items change from day to day in right data, so no value of these fails by itself
    psi: Limits = Limits(warn=0.1, fail=None)
    ks: Limits = Limits(warn=0.1, fail=0.5)
    missing: Limits = Limits(warn=0.05, fail=0.3)
    unknown: Limits = Limits(warn=0.05, fail=None)
    label: Limits = Limits(warn=0.2, fail=0.5)
    calibration: Limits = Limits(warn=0.1, fail=None)  # a champion that is wrong is a reason to train
    auc: Limits = Limits(warn=0.02, fail=0.25)
    slice_rows: int = Field(500, ge=1)
    ignore: tuple[str, ...] = ()
    alert: str | None = None


@dataclass(frozen=True)
class CheckLine:
    """One line of a report. column: the column or the slice; value: what was compared with the limits"""

    outcome: Outcome
    check: str
    text: str
    column: str = ""
    value: float | None = None


@dataclass(frozen=True)
class CheckReport:
    """All lines, those that fail first, and the drift of each column."""

    lines: tuple[CheckLine, ...]
    drifts: tuple[ColumnDrift, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return max((line.outcome for line in self.lines), key=OUTCOMES.index, default="pass")

    def failing(self) -> list[str]:
        """Return the sentences of the lines that fail."""
        return [line.text for line in self.lines if line.outcome == "fail"]

    def prometheus(self, model: str) -> str:
        """Return the report in Prometheus's text format. Outcomes are 0 (pass), 1 (warn) and 2 (fail)."""
        samples: dict[str, list[str]] = {"check": [], "psi": [], "ks": [], "unknown_share": []}
        worst: dict[tuple[str, str], int] = {}
        for line in self.lines:
            key = line.check, line.column
            worst[key] = max(worst.get(key, 0), OUTCOMES.index(line.outcome))
        for (check, column), number in worst.items():
            samples["check"].append(f"{_labels(model=model, check=check, column=column)} {number}")
        for d in self.drifts:
            if d.problem is None:
                labels = _labels(model=model, column=d.name)
                samples["psi"].append(f"{labels} {d.psi:.6g}")
                samples["ks"] += [] if d.ks is None else [f"{labels} {d.ks:.6g}"]
                samples["unknown_share"] += [] if d.unknown is None else [f"{labels} {d.unknown[1]:.6g}"]
        text = []
        for name, lines in samples.items():
            if lines:
                text += [f"# HELP recsys_follow_{name} {_HELP[name]}", f"# TYPE recsys_follow_{name} gauge"]
                text += [f"recsys_follow_{name}{line}" for line in lines]
        return "\n".join(text) + "\n"


def check_increment(
    reference: Reference,
    frame: Frame,
    config: CheckConfig,
    *,
    earlier: Sequence[int] = (),
    bad_rows: int = 0,
    vocabularies: Vocabularies | None = None,
) -> CheckReport:
    """Check new rows against a champion's training rows.

    frame: the new rows, with the champion's predictions if the reference has them
    earlier: numbers of rows of earlier increments
    bad_rows: number of rows that could not be read, which are not in `frame`
    """
    found = compare_rows(reference, frame, vocabularies)
    rows, usual = found.rows, median(earlier) if earlier else 0
    if not rows:
        volume = CheckLine("fail", "volume", "there are no rows", value=0)
    elif not usual:
        volume = CheckLine("pass", "volume", f"there are {rows:,} rows, and no earlier increments", value=rows)
    else:
        less, more = config.less.outcome(usual / rows), config.more.outcome(rows / usual)
        text = f"there are {rows:,} rows, {rows / usual:.2g} times the median of earlier increments, {usual:,.0f}"
        volume = CheckLine(max(less, more, key=OUTCOMES.index), "volume", text, value=rows / usual)
    share = bad_rows / max(rows + bad_rows, 1)
    text = f"{bad_rows:,} of {found.rows + bad_rows:,} rows cannot be read ({share:.2%})"
    lines = [volume, CheckLine(config.bad_rows.outcome(share), "bad_rows", text, value=share)]
    lines += [CheckLine("warn", "schema", f"column {n} is new; training does not read it", n) for n in found.extra]
    for d in found.drifts:
        if d.problem is not None and found.rows:
            lines.append(CheckLine("fail", "schema", f"column {d.name} {d.problem}", d.name))
        elif d.problem is None:
            lines += _drift_lines(d, config)
    for where, now in found.figures.items():
        before = reference.figures.get(where)
        if before is not None and (not where or min(before.rows, now.rows) >= config.slice_rows):
            lines += _label_lines(where, before, now, config)
    lines.sort(key=lambda line: -OUTCOMES.index(line.outcome))
    return CheckReport(tuple(lines), tuple(found.drifts))


def alert(command: str, report: CheckReport) -> str | None:
    """Run a command with the lines that fail on its standard input, if any fails. Return what went wrong, or None."""
    if not (failing := report.failing()):
        return None
    try:
        done = subprocess.run(
            shlex.split(command),
            input="\n".join(failing) + "\n",
            capture_output=True,
            text=True,
            timeout=ALERT_SECONDS,
            check=False,
        )
    except (OSError, ValueError) as e:
        return f"alert={command}: cannot be run ({e}); write a program and its arguments"
    except subprocess.TimeoutExpired:
        return f"alert={command}: did not end within {ALERT_SECONDS} s"
    if done.returncode:
        why = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        return f"alert={command}: ended with exit status {done.returncode}: {why}"
    return None


def _drift_lines(d: ColumnDrift, config: CheckConfig) -> list[CheckLine]:
    judged = d.name not in config.ignore
    lines = []
    outcome = config.psi.outcome(d.psi) if judged and d.psi > d.psi_chance else "pass"
    text = f"column {d.name}: the population stability index is {d.psi:.3f} (by chance up to {d.psi_chance:.3f})"
    lines.append(CheckLine(outcome, "psi", text, d.name, d.psi))
    if d.ks is not None and d.ks_chance is not None:
        outcome = config.ks.outcome(d.ks) if judged and d.ks > d.ks_chance else "pass"
        text = f"column {d.name}: the distribution functions differ by {d.ks:.3f} (by chance up to {d.ks_chance:.3f})"
        lines.append(CheckLine(outcome, "ks", text, d.name, d.ks))
    for name, what, limits, shares in (
        ("missing", "values are missing", config.missing, d.missing),
        ("unknown", "values are unknown to the model", config.unknown, d.unknown),
    ):
        if shares is not None:
            grown = shares[1] - shares[0]
            text = f"column {d.name}: {shares[1]:.1%} of the {what}, and {shares[0]:.1%} before"
            lines.append(CheckLine(limits.outcome(grown) if judged else "pass", name, text, d.name, grown))
    return lines


def _label_lines(where: str, before: LabelFigures, now: LabelFigures, config: CheckConfig) -> list[CheckLine]:
    """Return lines for the label, the calibration and the AUC of all rows or of a slice."""
    at, lines = f"{where}: " if where else "", []
    if not now.rows:
        return [CheckLine("fail", "label", f"{at}no row has a label", where)]
    change = abs(now.mean - before.mean) / max(abs(before.mean), 1e-12)
    error = sqrt(before.std**2 / before.rows + now.std**2 / now.rows)
    chance = abs(now.mean - before.mean) <= CHANCE * error
    text = f"{at}the mean of the label is {now.mean:.4g} and was {before.mean:.4g}"
    lines.append(CheckLine("pass" if chance else config.label.outcome(change), "label", text, where, change))
    if now.prediction is None:
        return lines
    off = abs(now.prediction - now.mean) / max(abs(now.mean), 1e-12)
    chance = abs(now.prediction - now.mean) <= CHANCE * now.std / sqrt(now.rows)
    text = f"{at}the champion predicts {now.prediction:.4g} on average, and the labels' mean is {now.mean:.4g}"
    lines.append(CheckLine("pass" if chance else config.calibration.outcome(off), "calibration", text, where, off))
    if now.auc is None:
        return lines
    error, text = _auc_error(now), f"{at}the champion's AUC is {now.auc:.4f}"
    outcome: Outcome = "pass"
    if now.auc + CHANCE * error < 0.5:
        text, outcome = f"{text}, below 0.5: the labels are inverted, or a column is broken", "fail"
    elif before.auc is not None:
        fall, text = before.auc - now.auc, f"{text} and was {before.auc:.4f}"
        chance = fall <= CHANCE * sqrt(error**2 + _auc_error(before) ** 2)
        outcome = "pass" if chance else config.auc.outcome(fall)
    return [*lines, CheckLine(outcome, "auc", text, where, now.auc)]


def _auc_error(figures: LabelFigures) -> float:
    """Return the standard error of an AUC."""
    assert figures.auc is not None
    positives = round(figures.rows * figures.mean)
    return hanley_mcneil(figures.auc, positives, figures.rows - positives)


def _labels(**values: str) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ",".join(f'{k}="{v.translate(escapes)}"' for k, v in values.items()) + "}"
