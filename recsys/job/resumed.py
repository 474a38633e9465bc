"""The run that a training resumes, or starts from."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.files.run_files import CONFIG, newest_checkpoint, run_folder
from recsys.interface.features import FeatureSpec
from recsys.job.build import with_dims
from recsys.job.run_config import RunConfig
from recsys.schema.fields import flatten

AUTO = "auto"  # resume=auto: resume run_dir if it contains a run
FILE_KEYS = tuple(
    f"data.{part}" for part in ("root", "name", "source.files", "prepared", "split.", "sample.", "max_bad_rows")
)


def names_a_run(cfg: DictConfig | RunConfig) -> bool:
    """Return whether `resume` is the folder of a run, neither null nor auto."""
    return cfg.resume not in (None, AUTO)


def run_to_resume(cfg: RunConfig) -> Path | None:
    """Return the folder of the run that `resume` names, or None for a new run.

    Raises:
        UserError: the folder holds no run, run_dir is another folder, or resume=auto lacks run_dir.
    """
    if cfg.resume == AUTO and cfg.run_dir is None:
        raise UserError("resume=auto: needs run_dir=DIR, the folder of the run to resume or to start")
    if cfg.resume is None or not names_a_run(cfg):
        return None
    path = run_folder(cfg.resume, "resume")
    if cfg.run_dir is not None and Path(str(cfg.run_dir)).resolve() != path.resolve():
        raise UserError(f"run_dir={cfg.run_dir} and resume={cfg.resume} differ; set only one of them")
    return path


def run_to_start_from(cfg: DictConfig | RunConfig) -> Path | None:
    """Return the folder of the run that `start_from` names, or None. Raises UserError if the folder holds no run."""
    if cfg.start_from is None:
        return None
    path = run_folder(cfg.start_from, "start_from")
    if cfg.run_dir is not None and Path(str(cfg.run_dir)).resolve() == path.resolve():
        raise UserError(f"start_from={cfg.start_from}: is run_dir, too; name a new folder, or resume the run")
    return path


def cannot_start_from(cfg: RunConfig) -> str | None:
    """Return why the model cannot start from another run, or None."""
    if not cfg.kind.fitted_at_once:
        return None
    why = "is fitted at once, and cannot start from another model; name one that is trained step by step"
    return f"the model {_class(cfg)} {why}"


def check_start(cfg: RunConfig) -> RunConfig:
    """Return the config, with the widths of the tables of the run that `start_from` names if `dims` is auto.

    Raises UserError if it is no run, or if this config's model cannot start from that run's. A run that goes on from a
    checkpoint of its own needs no other, which may be on another machine.
    """
    if names_a_run(cfg) and newest_checkpoint(Path(str(cfg.resume))) is not None:
        return cfg
    if (start := run_to_start_from(cfg)) is None:
        return cfg
    ran = RunConfig.load(start / CONFIG)
    why, theirs = cannot_start_from(cfg), _class(ran)
    if why is None and theirs != _class(cfg):
        why = f"its model is {theirs}, and this one is {_class(cfg)}; leave out model="
    if why is None and cfg.data.position_bias != ran.data.position_bias:
        why = "its data.position differs, by which the place in a list is learned; write it as it is there"
    if why is not None:
        raise UserError(f"start_from={start}: {why}")
    before, now = (flatten(c.plain["data"], "data") for c in (ran, cfg))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if changed := [key for key in changed if not key.startswith(FILE_KEYS)]:
        say(f"start_from={start}: these keys differ from that run's: {', '.join(changed)}")
    if cfg.dims is None or "auto" not in (cfg.dims.values() if isinstance(cfg.dims, Mapping) else [cfg.dims]):
        return cfg
    tables = with_dims(ran, FeatureSpec.load(start / "features.json")).tables
    dims = {table: dim for table, [f, *_] in tables.items() if (dim := f.dim) not in (None, cfg.model["dim"])}
    return cfg.changed({"dims": dims})  # they grow with the rows of a table, which a training keeps


def _class(cfg: DictConfig | RunConfig) -> str:
    return str(cfg.model["_target_"]).rpartition(".")[2]
