"""The run folder. Other programs rely on the names of its files:

config.yaml features.json transforms.json vocabularies/ plan.json metrics.json metrics.csv train.log checkpoints/

manifest.json has the digests of those that are read again; data.json says which data the run was trained on.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.config.compose import without_secrets
from recsys.data.features.fitted import fitted_files, is_fitted
from recsys.data.features.resolved_data import feature_spec
from recsys.data.prepare.prepared import Prepared
from recsys.files import manifest, run_files
from recsys.files.atomic import whole_file
from recsys.files.json_text import read_json
from recsys.files.manifest import DamagedFile
from recsys.files.run_files import CALIBRATION, CONFIG, DATA, FEATURES, OWN, RESULTS
from recsys.job.resumed import AUTO, names_a_run, run_to_resume
from recsys.job.run_config import RunConfig
from recsys.schema.fields import flatten
from recsys.training.run_lock import hold
from recsys.training.run_state import RunState

# Keys that may differ when a run is resumed: where and how fast it runs, how long it trains, and what is measured and
# saved; not how a step is computed.
FREE = {
    "run_dir",
    "resume",
    "resume_on_changed_data",
    "sweep",
    "sharding",
    "engine",
    "logger",
    "logging",
    "metrics_port",
    "metrics_host",
    "checkpoint",
    "trainer.devices",
    "trainer.accelerator",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
    "metrics",
    "trainer.compile",
    "trainer.cuda_graphs",
    "trainer.threads",
    "trainer.timeout_minutes",
    "trainer.save_on_interrupt",
    "trainer.eval_batch_size",
    "trainer.log_every_n_steps",
    "trainer.early_stopping.mode",  # follows from the metric
    "data.prepared",
    "data.root",
    "data.max_bad_rows",
    "data.verify",
}

STARTS_OWN = ("run_dir", "resume", "resume_on_changed_data", "sweep")  # keys of one start, which config.yaml leaves out
MISSES_REPEATS = "left out, as targets missed"  # the history, in the protocol of metrics


@dataclass(frozen=True)
class RunFolder:
    """An opened run folder.

    resumed: whether the run continues from a checkpoint
    start: that checkpoint's state, if this process has read it
    restarts: how often torchrun has restarted the job
    changed: the keys that this start changes: (before, now)
    """

    path: Path
    resumed: bool = False
    start: RunState | None = None
    restarts: int = 0
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)


def open_run_dir(cfg: RunConfig) -> RunFolder:
    """Create the folder of this run or, with `resume=`, open the existing one.

    resume=auto resumes run_dir if it contains a run.

    Raises UserError if the folder holds a run with another config.
    """
    auto, start = cfg.resume == AUTO, None
    key = "resume" if names_a_run(cfg) else "run_dir"  # names the folder
    path = run_to_resume(cfg)
    if path is None and cfg.run_dir is not None:
        path = Path(cfg.run_dir)
    elif path is None:
        model = str(cfg.model["_target_"]).rpartition(".")[2].lower()
        stem = f"outputs/{cfg.data.name}_{model}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        path, n = Path(stem), 1
        while path.exists():
            path, n = Path(f"{stem}_{n}"), n + 1
    if path.exists() and not path.is_dir():
        raise UserError(f"run_dir={path}: is a file; name a folder")
    path.mkdir(parents=True, exist_ok=True)
    hold(path, key)
    changed: dict[str, tuple[Any, Any]] = {}
    if (path / CONFIG).exists():
        there = RunConfig.load(path / CONFIG)
        old, new = (flatten(without_secrets(c.plain)) for c in (there, cfg))
        names = sorted(set(old) | set(new))
        for name, after in zip(names, [*names[1:], ""], strict=True):
            is_free = any(name == f or name.startswith(f + ".") for f in FREE)
            is_free = is_free or after.startswith(f"{name}.")  # an empty mapping, which has keys in the other config
            if old.get(name) == new.get(name):
                continue
            changed[name] = (old.get(name), new.get(name))
            if not is_free:
                raise UserError(
                    f"{key}={path}: contains a run with another config: {name} is {old.get(name)} there, "
                    f"{new.get(name)} here; choose another run_dir"
                )
        if cfg.resume is None:
            _move_old_run(path)
        elif (newest := run_files.newest_checkpoint(path)) is not None:
            with suppress(DamagedFile):  # a fitted model has no state; else `fit` reports it, and takes an older one
                start = RunState.load(newest)
    elif auto:
        say(f"{path} contains no run yet: starting a new run")
    windows = cfg.data.split.window is not None  # of which each is an epoch
    if start is not None and (done := start.epochs_done) > cfg.trainer.max_epochs and not windows:
        raise UserError(
            f"trainer.max_epochs={cfg.trainer.max_epochs}: {start.checkpoint} has already finished {done} epochs; "
            f"set trainer.max_epochs={done} or more"
        )
    (path / "checkpoints").mkdir(exist_ok=True)
    resumed = cfg.resume is not None and run_files.newest_checkpoint(path) is not None
    if cfg.resume is not None and not resumed and (path / CONFIG).exists():
        say(f"{path} has no complete checkpoint: the run starts again from the beginning")
    write_config(path / CONFIG, cfg.changed({"run_dir": str(path)}))
    if (path / manifest.FILE).exists():
        _add_to_manifest(path, [CONFIG])
    begun = {k: v for k, v in changed.items() if cfg.resume is not None and k.partition(".")[0] not in STARTS_OWN}
    return RunFolder(path, resumed, start, changed=begun)


def _move_old_run(path: Path) -> None:
    """Move the files of an earlier run to a new folder PATH.N. Other files in the folder stay."""
    n = 1
    while (old := path.with_name(f"{path.name}.{n}")).exists():
        n += 1
    old.mkdir()
    for file in (f for pattern in OWN for f in sorted(path.glob(pattern))):
        file.rename(old / file.name)
    unfinished = run_files.newest_checkpoint(old) is not None and not (old / "metrics.json").exists()
    hint = f", where resume={old} goes on with it" if unfinished else ""
    say(f"{path} already contained a run with the same config; moved it to {old}{hint}")


def write_config(file: Path, cfg: RunConfig) -> None:
    """Write the config of a run, without its secrets, the settings of a sweep, and how this start resumed it."""
    values = without_secrets(cfg.plain) | {"resume": None, "resume_on_changed_data": False}
    values.pop("sweep")
    with whole_file(file) as building:
        OmegaConf.save(OmegaConf.create(values), building)


def allow_restarts(cfg: RunConfig, restarts: int) -> RunConfig:
    """Return the config, with resume=auto if torchrun has restarted this job.

    Raises UserError if restarts are allowed but run_dir is not set.
    """
    if cfg.run_dir is None and cfg.resume is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        why = "so that a restarted job can find and resume its run"
        raise UserError(f"torchrun --max_restarts needs run_dir=DIR, {why}")
    return cfg.changed({"resume": AUTO}) if restarts and cfg.resume is None else cfg


def write_manifest(path: Path) -> None:
    """Write the digests of the files that a run begins with, which are checked when the run is read again."""
    begun = [f for name in (CONFIG, DATA) if (f := path / name).exists()]
    manifest.write(path, manifest.entries_of(path, [*fitted_files(path), *begun]))


def add_results(path: Path) -> None:
    """Add the digests of the results, which recsys.report reads, to the manifest."""
    _add_to_manifest(path, (*RESULTS, CALIBRATION))


def _add_to_manifest(path: Path, names: Sequence[str]) -> None:
    files = [f for name in names if (f := path / name).exists()]
    manifest.write(path, (manifest.read(path) or {}) | manifest.entries_of(path, files))


def open_run(run: str) -> tuple[RunConfig, Path]:
    """Return a run's config and folder.

    Raises UserError if there is no run, or if its features differ from its config, as in a folder with files of two
    runs.
    """
    path = run_files.run_folder(run)
    try:
        manifest.check(path, [CONFIG])
    except DamagedFile:
        say(f"{path / CONFIG} has changed since the run wrote it")
    cfg = RunConfig.load(path / CONFIG)
    try:
        written = read_json(path / FEATURES)
        fitted = {feature["name"] for kind in ("dense", "sparse") for feature in written[kind]}
    except (OSError, ValueError, LookupError, TypeError):  # a UserError, too
        return cfg, path  # whoever reads the file or the data says it
    spec = feature_spec(cfg.data, lambda *_: 1)
    if wrong := fitted ^ {*(f.name for f in spec.dense), *(f.name for f in spec.sparse)}:
        why = f"{CONFIG} and {FEATURES} are of different runs: only one of them has {min(wrong)}"
        raise UserError(f"{path}: {why}; restore the run's own files")
    return cfg, path


def check_ids(path: Path, prepared: Prepared) -> None:
    """Raise UserError if the ids of the prepared data differ from those that the run's tables were trained with.

    Raises DamagedFile if a file of the run's own transforms is damaged.
    """
    manifest.check(path, of=is_fitted)
    for file in sorted((path / "vocabularies").glob("*.parquet")):
        now = prepared.folder / "vocabularies" / file.name
        if not now.exists() or not _values(file).equals(_values(now)):
            raise UserError(
                f"{path}: table {file.stem} was trained with different ids than those in {prepared.folder}: the data "
                "or its preparation has changed since. Train again, or restore the raw files and the version of "
                "recsys with which the run was trained"
            )


def _values(vocabulary: Path) -> pl.Series:
    try:
        return pl.read_parquet(vocabulary, columns=["value"], glob=False)["value"]
    except (pl.exceptions.PolarsError, OSError):
        raise DamagedFile(vocabulary, manifest.UNREADABLE) from None


def choose_checkpoint(path: Path, name: str) -> Path:
    """Return the checkpoint `best`, `last`, or of this name under checkpoints/. Raises UserError if it is missing."""
    folder = path / "checkpoints"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []
    chooser = {"best": run_files.best_checkpoint, "last": run_files.newest_checkpoint}.get(name)
    found = folder / name if chooser is None else chooser(path)
    if found is None or not found.is_dir() or name not in ("best", "last", *names):
        raise UserError(f"checkpoint={name}: not in {path}/checkpoints (there: {', '.join(names) or 'none'})")
    return found


def protocol(cfg: RunConfig, prepared: Prepared, checkpoint: Path | None) -> dict[str, Any]:
    """Return a description of how the metrics were measured, which is written to every file of results."""
    info, data = prepared.info, cfg.data
    order = None  # no feature, list or split depends on the order of the rows
    if data.group is not None:
        order = "that of the rows in the files"
    column = data.group.order if data.group is not None else None
    if column is None and data.split.by == "time":
        column = data.split.column
    if column is not None:
        order = f"by {column}; rows with equal values as in the files"
    # recsys.report compares these texts: runs whose texts differ are not compared with each other
    texts = {
        "data": info["name"],
        "split": info["split"],
        "order": order,
        "rows": info["rows"],
        "bad_rows": info["bad_rows"],
        "seed": cfg.seed,
        "checkpoint": checkpoint.name if checkpoint else None,
        "metrics": "over all rows of the split" if cfg.debug.eval_batches is None else "of its first batches alone",
        "label": ", ".join(data.labels) or data.label.column,
        # a search finds this many items of each query, and all others rank behind them
        **({"beam": cfg.model["beam"]} if cfg.model.get("beam") else {}),
    }
    if cfg.kind.scores_rows:
        return texts
    r, next_item = cfg.protocol, data.sequences is not None and data.sequences.held_out == "next"
    negatives = {"count": r.negatives, "of": "no history, no target", "seed": r.seed}
    more, unknown_items = "", "as targets missed"
    misses = not r.rank_repeats and "full" in r.candidates  # sampled candidates are ranked against every target
    history = "ranked too" if not r.filter_history else MISSES_REPEATS if misses else "left out"
    if data.has_item_table:
        more = f" and of data.items.{'file' if data.items.file else 'vectors'}"
        unknown_items = "ranked, by their features where the model reads them"
    return texts | {
        "ranking": {
            "protocols": list(r.candidates),
            "k": list(r.k),
            "candidates": f"all items of the training split{more}",
            "history": history,
            "negatives": negatives if any(p != "full" for p in r.candidates) else None,
            "ties": "the expectation over their orders",
            "query": "each held-out item" if next_item else "each group's of a split",
            "unknown_items": unknown_items,
        }
    }
