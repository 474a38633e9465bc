"""Messages and tables about a sweep."""

import shlex
import textwrap
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.base.console import results, say
from recsys.base.printable import visible
from recsys.base.secrets import mask_overrides, masked
from recsys.evaluation import metrics_table
from recsys.evaluation.resampling import half_width
from recsys.sweep.record import FAILED, Sweep, Trial, TrialRun
from recsys.sweep.watch import progress

WIDTH, LONGEST = 200, 160  # characters of a table outside of a terminal, and of a status in it


def name(trial: Trial, run: TrialRun, sweep: Sweep) -> str:
    """Return the name of a run in messages: its trial and seed or fold."""
    return f"trial {trial.number}" + ("" if run.seed is None else f", {sweep.unit} {run.seed}")


def differences(trial: Trial) -> str:
    """Return the trial's own values; all of its overrides if nothing is swept."""
    shown = [f"{k.lstrip('+')}={v}" for k, v in trial.values.items()] or trial.overrides
    return " ".join(mask_overrides(shown))


def _number(trial: Trial, metric: str) -> str:
    """Return '0.71234', with the deviation over seeds or folds '0.71234 ± 0.00123', or '' if it is unknown."""
    if metric not in trial.mean:
        return ""
    deviation = f" ± {trial.deviation[metric]:.5f}" if metric in trial.deviation else ""
    return f"{trial.mean[metric]:.5f}{deviation}"


def _interval(trial: Trial, metric: str) -> str:
    """Return the 95 % interval of a metric's mean over seeds or folds, by Student's t; '' without a deviation."""
    if metric not in trial.deviation:
        return ""
    mean, half = trial.mean[metric], half_width(trial.deviation[metric], len(trial.runs))
    return f"{mean - half:.5f} to {mean + half:.5f}"


def end_message(trial: Trial, run: TrialRun, sweep: Sweep, folder: Path) -> str:
    """Return the message at the end of a run, and of its trial if it is the last run."""
    value = f", {sweep.metric} {run.metrics[sweep.metric]:.5f}" if sweep.metric in run.metrics else ""
    line = f"{name(trial, run, sweep)} {_status(run, sweep, folder)}{value} ({run.seconds:.0f} s)"
    if (number := len(trial.runs)) > 1 and trial.status == "ok":
        line += f"; trial {trial.number}, {number} {sweep.unit}s: {sweep.metric} {_number(trial, sweep.metric)}"
        if sweep.metric in trial.deviation:
            line += f", 95 % interval of the mean {_interval(trial, sweep.metric)}"
    return line


def _status(run: TrialRun, sweep: Sweep, folder: Path) -> str:
    """Return the state of a run, with its progress or error."""
    if run.status == "killed":
        return f"killed by signal {(run.exit or 128) - 128}"
    if run.status == "failed":
        return f"failed ({run.exit}): {run.error}"
    if run.status == "running" and (at := progress(folder / run.folder, sweep.metric)):
        return f"running ({at})"
    return run.status


def table(sweep: Sweep, folder: Path) -> None:
    """Print the state of each trial, the best first."""
    keys = list(dict.fromkeys(k for t in sweep.trials for k in t.values))
    first = sweep.trials[0].overrides if sweep.trials else []
    common = [o for o in first if all(o in t.overrides for t in sweep.trials)]
    shown = Table(title=Text(f"sweep {folder}: {' '.join(mask_overrides(common))}"), title_justify="left")
    mean = next((t.mean for t in sweep.trials if t.status == "ok"), {})
    tested = {m.removeprefix("test/"): v for m, v in mean.items() if m.startswith("test/")}
    main = metrics_table.main_metric(tested) if tested else ""
    others = ("logloss", "ne") if main == metrics_table.MAIN_RANKING else ("mrr",)
    metrics = list(dict.fromkeys([sweep.metric, *(f"test/{m}" for m in (main, *others) if m in tested)]))
    for column in ("trial", *(k.lstrip("+") for k in keys), "status", *metrics, "seconds", "run folder"):
        right, width = column in ("trial", "seconds", *metrics), 24 if column == "status" else None
        side: Literal["left", "right"] = "right" if right else "left"
        shown.add_column(Text(column), justify=side, overflow="fold", no_wrap=right, min_width=width)
    for t in sweep.best_first():
        seconds = sum(r.seconds for r in t.runs)
        decides = next((r for r in t.runs if r.status == t.status), t.runs[0])  # the run whose status is the trial's
        state = visible(_status(decides, sweep, folder))
        if t.status not in ("ok", "waiting") and decides.seed is not None:
            state = f"{sweep.unit} {decides.seed}: {state}"
        cells = [Text(visible(str(masked(t.values.get(k, ""), k)))) for k in keys]
        shown.add_row(
            str(t.number),
            *cells,
            Text(textwrap.shorten(state, LONGEST)),
            *(_number(t, m) for m in metrics),
            f"{seconds:.0f}" if seconds else "",
            Text(str(folder / str(t.number))),
        )
    plain = Console(highlight=False, width=WIDTH, force_terminal=False, force_jupyter=False)
    (results if results.is_terminal else plain).print(shown)


def summary(sweep: Sweep, folder: Path, running: bool = False) -> None:
    """Print the number of trials in each state, and the command to resume."""
    states = [t.status for t in sweep.trials]
    rest = [f"{states.count(s)} {s}" for s in ("running", "interrupted", "pruned", *FAILED) if s in states]
    waiting = states.count("waiting") + max(sweep.wanted - len(states), 0)
    rest += [f"{waiting} waiting"] * bool(waiting)
    say(f"{states.count('ok')} of {sweep.wanted} trials succeeded" + "".join(f", {r}" for r in rest))
    left = waiting or any(s in states for s in ("interrupted", "running", *FAILED))
    if left and not running:
        say(f"resume with: python -m recsys.sweep resume {shlex.quote(str(folder))}")


def best(trial: Trial, sweep: Sweep) -> None:
    """Print a trial's metrics and the command that trains it again."""
    say(f"trial {trial.number}: {differences(trial)}")
    shown = Table(title=f"best by {sweep.metric} ({sweep.direction})", title_justify="left")
    interval = [f"95 % interval of the mean over {len(trial.runs)} {sweep.unit}s"] if trial.deviation else []
    for column in ("metric", "value", *interval):
        shown.add_column(column)
    for metric in sorted(trial.mean, key=lambda m: (m != sweep.metric, m)):
        shown.add_row(metric, _number(trial, metric), *([_interval(trial, metric)] if interval else []))
    results.print(shown)
    seeds = [f"{sweep.repeated}={','.join(map(str, sweep.seeds))}"] if sweep.seeds else []
    many = ["-m"] if len(sweep.seeds) > 1 else []
    command = ["python", "-m", "recsys.train", *many, *map(shlex.quote, mask_overrides([*trial.overrides, *seeds]))]
    results.print(" ".join(command), markup=False, soft_wrap=True)
