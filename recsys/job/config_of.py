"""The config of a training: that of the command line, or that of the run it resumes or starts from with new keys."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from recsys.config.compose import compose, composing, load_config, parse_overrides
from recsys.config.safe_targets import check_loggers
from recsys.files.run_files import CONFIG
from recsys.job.fetched_runs import fetch_to_resume, is_address, local_run
from recsys.job.resumed import names_a_run, run_to_start_from
from recsys.job.run_config import RunConfig
from recsys.job.unread_keys import unread_line
from recsys.schema.fields import flatten

OWN = {  # keys of one start, which the next does not take over
    *("run_dir", "resume", "resume_on_changed_data", "logging", "metrics_port", "metrics_host"),
}


def config_of(
    overrides: Sequence[str] = (), composed: DictConfig | None = None, *, is_whole: bool = False
) -> RunConfig:
    """Return the config of a training.

    Args:
        overrides: what is typed after `python -m recsys.train`.
        composed: the config that Hydra composed from them, if it has.
        is_whole: it is the config.yaml of a run, to which nothing is added.

    Raises:
        UserError: an override is wrong, or the run that `resume` or `start_from` names cannot be read.
    """
    values = compose("train", overrides) if composed is None else composed
    values = values if is_whole else composed_config(values, overrides)
    cfg = RunConfig.of(values)
    cfg.unread = partial(unread_line, cfg, values)
    return cfg


def composed_config(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return the config of a training: `cfg`, or that of the run that it resumes or starts from, with new keys.

    Args:
        cfg: the config that Hydra composed from the command line.
        overrides: the command line.
    """
    if names_a_run(cfg):
        if is_address(cfg.resume):
            cfg.checkpoint.mirror = cfg.checkpoint.mirror or cfg.resume
            cfg.resume = str(fetch_to_resume(cfg.resume, cfg.run_dir))
            overrides = [*overrides, "checkpoint.mirror=null"]  # of which only the name counts
        return config_of_run(cfg, Path(str(cfg.resume)), overrides)
    if cfg.start_from is not None and is_address(cfg.start_from):
        cfg.start_from = str(local_run(cfg.start_from, "start_from"))
    if (start := run_to_start_from(cfg)) is not None:
        return config_of_run(cfg, start, [*overrides, "checkpoint.mirror=null"])  # it has a mirror of its own
    return cfg


def config_of_run(cfg: DictConfig, run_dir: Path, overrides: Sequence[str]) -> DictConfig:
    """Return the config of a run, in which the command line replaces keys.

    A choice such as `model=dlrm` replaces the whole key `model`. One that sets several keys, such as `experiment=...`,
    replaces those in which `cfg` differs from the default config.

    Args:
        cfg: the config that Hydra composed from the command line.
        run_dir: the folder of the run.
        overrides: the command line; Hydra's flags are left out.
    """
    path = run_dir / CONFIG
    if not path.is_file():
        return cfg  # run_to_resume reports it
    run, given = load_config(path), [o for o in overrides if not o.startswith("-")]
    names = {o.key_or_group for o in parse_overrides(given)}
    with composing():
        loader = GlobalHydra.instance().config_loader()
        groups = {name for name in names if name not in cfg and loader.get_group_options(name)}
    keys = OWN | (names - groups)
    if groups:
        composed, default = (flatten(OmegaConf.to_container(c)) for c in (cfg, compose("train")))
        keys |= {key for key, value in composed.items() if key not in default or default[key] != value}
    with open_dict(run):
        for key in sorted(keys):  # a key comes before those within it
            parent, _, name = key.rpartition(".")
            if name in (OmegaConf.select(cfg, parent) if parent else cfg):
                OmegaConf.update(run, key, OmegaConf.select(cfg, key), merge=False, force_add=True)
            else:  # `~key` has removed it
                (OmegaConf.select(run, parent) if parent else run).pop(name, None)
    check_loggers(OmegaConf.to_container(run.logger), path, keys)
    return run
