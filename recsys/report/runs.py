"""Reader of the folders of runs and sweeps. Files may be missing or incomplete, since a run may have failed or still be
running.
"""

import contextlib
import csv
import json
import math
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.base.json_log import messages
from recsys.base.secrets import mask_overrides, mask_text, masked
from recsys.evaluation import metrics_table
from recsys.files import manifest, starts
from recsys.files.atomic import finite
from recsys.files.json_text import read_json
from recsys.files.run_files import RESULTS, config_text
from recsys.schema.fields import flatten

NAMELESS = ("model", "optim", "trainer")  # groups whose keys say enough without them
WORDS = {"null": "unset", "None": "unset", "true": "on", "True": "on", "false": "off", "False": "off"}
FOLD = "data.split.fold"
UNCOMPARED = {"seed", FOLD, "run_dir", "resume"}  # keys that differ between seeds and folds of the same config


@dataclass(eq=False)
class ReportedRun:
    """A run, as read from its folder. Parts that the folder lacks are None or empty."""

    path: Path
    name: str
    config: dict[str, Any]  # flattened: "trainer.batch_size"
    text: str  # config.yaml
    metrics: dict[str, Any] | None = None  # None if it has not finished
    curves: dict[str, list[Any]] = field(default_factory=dict)  # curves of the test rows
    plan: dict[str, Any] | None = None
    history: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # metric -> (step, value)
    last: str = ""  # last error or line of its log; why it is not compared

    @property
    def test(self) -> dict[str, Any]:
        return (self.metrics or {}).get("test") or {}

    @property
    def retrieves(self) -> bool:
        return metrics_table.is_retrieval(self.test)

    @property
    def weight(self) -> str | None:
        """The column of the rows' weights; None if all rows have the same weight."""
        column = self.config.get("data.weight.column")
        return None if column is None else str(column)

    def curve(self, label: str, name: str) -> list[Any]:
        """Return a curve of a label; the curves of the first label have no prefix."""
        first = next(iter(metrics_table.of_label(self.test)), "")
        return self.curves.get(name if label == first else f"{label}/{name}") or []

    @property
    def repetition(self) -> tuple[Any, Any]:
        """The seed, and the fold of the test rows."""
        return self.config.get("seed"), self.config.get(FOLD)

    @property
    def model(self) -> str:
        return str(self.config.get("model._target_", "")).rpartition(".")[2]


@dataclass
class ReportedTrial:
    """A trial of a sweep."""

    number: str
    values: dict[str, str]  # swept key -> value
    overrides: list[str]
    status: str
    paths: list[Path]
    runs: list[ReportedRun] = field(default_factory=list)


@dataclass
class ReportedSweep:
    """A sweep."""

    folder: Path
    trials: list[ReportedTrial]
    metric: str | None = None  # the metric that it optimises, such as validation/auc
    minimize: bool = False


@dataclass
class RunSet:
    """The runs and sweeps to compare. left_out: what was named beside them and holds no run"""

    runs: list[ReportedRun]
    sweeps: list[ReportedSweep]
    left_out: list[Path] = field(default_factory=list)


def read(folders: Sequence[str]) -> RunSet:
    """Read runs in the order given, and the runs of a sweep in the order of the sweep.

    Files and folders without a run are left out, as outputs/* may name some. Raises UserError if there is no run.
    """
    paths: list[Path] = []
    sweeps = []
    left_out: list[Path] = []
    for folder in map(Path, folders):
        if not folder.exists():
            raise UserError(f"{folder}: no such folder")
        if (folder / "sweep.json").exists():
            sweeps.append(_sweep(folder))
            paths += [run for trial in sweeps[-1].trials for run in trial.paths]
        elif (folder / "config.yaml").exists():
            paths.append(folder)
        else:
            left_out.append(folder)
    if left_out and not paths and not sweeps:
        folder = left_out[0]
        if not folder.is_dir():
            raise UserError(f"{folder}: is a file, not a run's folder")
        hint = f"; its subfolders are runs: use {folder}/*" if any(folder.glob("*/config.yaml")) else ""
        raise UserError(f"{folder}: not a run (it has no config.yaml){hint}")
    unique = {p.resolve(): p for p in paths}
    names = [p.name for p in unique]
    if len(unique) > 1:
        common = os.path.commonpath([p.parent for p in unique])
        names = [os.path.relpath(p, common) for p in unique]
    runs = {whole: _run(p, name) for (whole, p), name in zip(unique.items(), names, strict=True)}
    for sweep in sweeps:
        keys = {k for t in sweep.trials for k in t.values}
        differing = {k for k in keys if len({t.values.get(k) for t in sweep.trials}) > 1} or keys
        for trial in sweep.trials:
            trial.runs = [runs[p.resolve()] for p in trial.paths]
            values = ", ".join(in_words(k, v) for k, v in trial.values.items() if k in differing)
            for run in trial.runs:  # '0: dense lr 0.1, dim 8' instead of '0'
                run.name = f"{run.name}: {values}" if values else run.name
    return RunSet(list(runs.values()), sweeps, left_out)


def value_text(value: Any) -> str:
    """Format a value as a config or a command line has it, such as null for None."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def in_words(key: str, value: Any) -> str:
    """Return a setting in words: 'batch size 512' for trainer.batch_size=512, 'checkpoint every n steps unset'."""
    first, *others = key.split(".")
    parts = others if first in NAMELESS and others else [first, *others]
    name = " ".join(p for p in parts if p != "_target_").replace("_", " ")
    text = f"{value:.4g}" if isinstance(value, float) else value_text(value)
    if key.endswith("_target_"):
        text = text.rpartition(".")[2]
    return f"{name} {WORDS.get(text, text)}"


def _run(path: Path, name: str) -> ReportedRun:
    from omegaconf import OmegaConf

    try:
        text = config_text(path / "config.yaml")
        config = OmegaConf.to_container(OmegaConf.create(text))
        if not isinstance(config, dict) or "model" not in config:
            raise UserError("it has no key model")
    except Exception as e:  # errors of YAML, OmegaConf, or of decoding
        raise UserError(f"{path / 'config.yaml'}: cannot be read: {str(e).splitlines()[0]}") from e
    labels = [p.name for p in path.glob("test_predictions_*.parquet")]
    manifest.check(path, [name for name in (*RESULTS, *labels) if (path / name).exists()])
    if (shown := masked(config)) != config:  # a run of an earlier version
        config, text = shown, OmegaConf.to_yaml(OmegaConf.create(shown))
    if (made := starts.line(path)) is not None:
        text = f"# made by {made}\n{text}"
    metrics = json_or_none(path / "metrics.json")
    test = (metrics or {}).get("test") or {}
    for part in ("test", "validation", "train"):
        if not isinstance((metrics or {}).get(part), dict | list | None):
            raise UserError(f"{path / 'metrics.json'}: {part} is not a mapping; evaluate the run again")
    if wrong := next((n for n, v in dict(test).items() if not isinstance(v, int | float | None)), None):
        where = f"{path / 'metrics.json'}: test.{wrong}={test[wrong]!r}"
        raise UserError(f"{where} is not a number; evaluate the run again")
    curves = (json_or_none(path / "curves.json") or {}).get("test") or {}
    if not isinstance(curves, dict):
        raise UserError(f"{path / 'curves.json'}: test is not a mapping; evaluate the run again")
    plan, history = json_or_none(path / "plan.json"), _history(path)
    run = ReportedRun(path, name, flatten(config), text, metrics, curves, plan, history)
    if run.test:
        return run
    if (metrics or {}).get("train"):  # it has finished
        run.last = "has no test rows (data.split.test=0), on which runs are compared"
        return run
    logged: list[str] = []
    with contextlib.suppress(OSError):
        logged = messages((path / "train.log").read_text(encoding="utf-8", errors="replace"))
    errors = [line for line in logged if re.search(r"\berror: ", line)]
    last = textwrap.shorten((errors or logged or [""])[-1], 300, placeholder=" ...")
    run.metrics, run.last = None, mask_text(last)
    return run


def json_or_none(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a JSON file; None if it is missing or incomplete."""
    try:
        content = finite(read_json(path))  # NaN is not valid JSON
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _history(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return (step, value) of all finite numbers in metrics.csv, by metric.

    The validation after the training is omitted, since it measures the best checkpoint again.
    """
    history: dict[str, list[tuple[float, float]]] = {}
    tested: float | None = None
    try:
        with (path / "metrics.csv").open(newline="") as f:
            for row in csv.DictReader(f):
                step = _number(row.get("step"))
                if any(v for k, v in row.items() if k and k.startswith("test/")):
                    tested = step
                for name, text in row.items():
                    value = _number(text)
                    if step is not None and value is not None and name not in ("step", "epoch"):
                        again = step == tested or step <= history.get(name, [(-1.0, 0.0)])[-1][0]
                        if again and name.startswith("validation/"):
                            continue
                        history.setdefault(name, []).append((step, value))
    except (OSError, csv.Error, UnicodeDecodeError):
        return {}
    return history


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _sweep(folder: Path) -> ReportedSweep:
    """Read sweep.json: a list of trials, or a mapping with the list under "trials"."""
    try:
        content = read_json(folder / "sweep.json")
    except (OSError, ValueError) as e:
        raise UserError(f"{folder / 'sweep.json'}: cannot be read: {e}") from e
    about = content if isinstance(content, dict) else {}
    trials = about.get("trials", content)
    entries = list(trials.values()) if isinstance(trials, dict) else trials
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UserError(f"{folder / 'sweep.json'}: has no list of trials")
    metric = about.get("metric")
    read_trials = [_trial(folder, str(e.get("number", i)), e) for i, e in enumerate(entries)]
    given = [t.overrides for t in read_trials]
    for trial in read_trials:  # the old format does not list the swept values
        if not trial.values:
            own = [o for o in trial.overrides if not all(o in other for other in given)]
            trial.values = {k.lstrip("+"): v for k, _, v in (o.partition("=") for o in own)}
    return ReportedSweep(folder, read_trials, str(metric) if metric else None, about.get("direction") == "minimize")


def _trial(folder: Path, number: str, entry: dict[str, Any]) -> ReportedTrial:
    """Read a trial, whose runs are in SWEEP/N or SWEEP/N/seed-S even if the sweep was moved."""
    listed = entry.get("overrides")
    listed = [f"{k}={v}" for k, v in listed.items()] if isinstance(listed, dict) else listed
    overrides = [str(o) for o in listed] if isinstance(listed, list) else []
    overrides = mask_overrides([o for o in overrides if not o.startswith("run_dir=")])
    inside = [r for r in entry.get("runs") or [] if isinstance(r, dict)]
    places = [folder / str(r["folder"]) for r in inside if r.get("folder")]
    places += [folder / number, *sorted((folder / number).glob("seed-*")), Path(str(entry.get("run_dir") or number))]
    runs = list({p.resolve(): p for p in places if (p / "config.yaml").exists()}.values())
    status: Any = entry.get("status")
    if status is None:
        states = {str(r.get("status")) for r in inside}
        bad = [s for s in ("failed", "killed", "pruned", "running", "interrupted", "waiting") if s in states]
        status = bad[0] if bad else "ok" if states == {"ok"} else "unknown"
    if isinstance(status, int):
        status = "ok" if status == 0 else f"failed ({status})"
    values = entry.get("values")
    swept = {str(k): value_text(v) for k, v in values.items()} if isinstance(values, dict) else {}
    return ReportedTrial(number, swept, overrides, str(status), runs)
