"""Compose a command's config from conf/ and overrides, and load the config of a run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from recsys.base.errors import UserError
from recsys.base.parsing import WrongKey, parse
from recsys.base.secrets import masked, remember, restored
from recsys.config.overrides import RENAMED, free_keys
from recsys.config.safe_targets import check_run_config
from recsys.files.run_files import config_text
from recsys.files.user_files import problem_of
from recsys.schema import command_schemas, evaluate_schema, pipeline_schema, run_schema
from recsys.schema.fields import MISSING, defaults, plain

T = TypeVar("T")
NO_SCHEMA = "lacks the schema; let it begin with defaults: [pipeline_schema, _self_]"  # a pipeline's file
COMMANDS = {
    "train": run_schema.TrainConfig,
    "evaluate": evaluate_schema.EvaluateConfig,
    "predict": command_schemas.PredictConfig,
    "export": command_schemas.ExportConfig,
    "feature_store": command_schemas.FeatureStoreConfig,
    "plan": command_schemas.PlanConfig,
    "preprocess": command_schemas.PreprocessConfig,
    "checkpoint": command_schemas.CheckpointToolConfig,
    "dashboard": command_schemas.DashboardConfig,
    "doctor": command_schemas.DoctorConfig,
    "new": command_schemas.NewConfig,
    "report": command_schemas.ReportConfig,
    "registry": command_schemas.RegistryConfig,
    "follow": command_schemas.FollowCommandConfig,
    "serve": command_schemas.ServeConfig,
    "loadtest": command_schemas.LoadTestConfig,
    "pipeline": pipeline_schema.PipelineConfig,
}
# what the files of conf/ say to Hydra, for those that do not: no log, no folder of its own
QUIET = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.run.dir=."]


def conf_dir() -> Path:
    """Return the folder conf/.

    It is inside the package in an installed wheel, and next to the package in a checkout.
    """
    package = Path(__file__).parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


class _UserConf(SearchPathPlugin):
    """Hydra plugin that lets a conf/ folder in the working directory extend and override the conf/ of recsys."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        own = Path.cwd() / "conf"
        if own.is_dir() and own.resolve() != conf_dir().resolve():
            search_path.prepend(provider="user", path=f"file://{own}")


@cache
def register(command: str) -> None:
    """Register a command's schema and the user's conf/ folder with Hydra."""
    ConfigStore.instance().store(name=f"{command}_schema", node=defaults(COMMANDS[command]))
    # Hydra copies its sources, and with them all schemas, for each config that it composes; it changes none of them.
    ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]
    Plugins.instance().register(_UserConf)


@contextmanager
def composing(command: str = "train", folder: Path | None = None) -> Iterator[None]:
    """Let Hydra compose a command's config from a folder, conf/ by default, while the block runs."""
    register(command)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder or conf_dir()), version_base="1.3"):
        yield


def compose(command: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """Return the config that `python -m recsys.<command> <overrides>` would run with.

    Raises UserError if it has a key that does not exist, or a value of a wrong type or out of its range.

    >>> compose("train", ["model=dcnv2", "trainer.batch_size=512"]).trainer.batch_size
    512
    """
    with composing(command):
        cfg = hydra_compose(command, free_keys(overrides, command))
    object_of(COMMANDS[command], cfg)
    OmegaConf.set_struct(cfg, False)  # keys of the schema may be added
    return cfg


def parsed(command: str, overrides: Sequence[str] = ()) -> Any:
    """Return the config that a command would run with as an object of its schema. Raises UserError as `compose`."""
    return object_of(COMMANDS[command], compose(command, overrides))


def compose_with_choices(
    command: str, overrides: Sequence[str] = ()
) -> tuple[DictConfig, dict[str, str | None], dict[str, list[str]]]:
    """Return a command's config, the choice that it has for each group, and the names of each group's choices."""
    with composing(command):
        cfg = hydra_compose(command, free_keys(overrides, command), return_hydra_config=True)
        groups = [g for g in cfg.hydra.runtime.choices if not g.startswith("hydra/")]
        choices = {g: cfg.hydra.runtime.choices[g] for g in groups}
        loader = GlobalHydra.instance().config_loader()
        names = {g: loader.get_group_options(g) for g in groups}
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices, names


def file_of_choice(group: str, choice: str) -> Path | None:
    """Return the YAML file of a group's choice: the user's own, which Hydra prefers, or the file in recsys's conf/."""
    files = (folder / group / f"{choice}.yaml" for folder in (Path.cwd() / "conf", conf_dir()))
    return next((f for f in files if f.is_file()), None)


def files_of_choices(choices: Mapping[str, str | None]) -> dict[str, Path]:
    """Return the YAML file of each group's choice."""
    files = {group: file_of_choice(group, choice) for group, choice in choices.items() if choice}
    return {group: file for group, file in files.items() if file is not None}


def named(mistake: WrongKey, files: Mapping[str, Path], arguments: Sequence[str]) -> UserError:
    """Return the error for a mistake in a composed config, with the YAML file that has the key.

    Args:
        files: the files that the config was composed from, by their groups; that of a pipeline has the group "".
        arguments: the overrides; the one that sets the key is named instead of a file.
    """
    key, given = mistake.key, (a.lstrip("+~").partition("=")[0] for a in arguments if "=" in a)
    message = renamed(key) or str(mistake)
    if any(f"{key}.".startswith(f"{a}.") for a in given):
        return UserError(message)
    for group, file in files.items():
        with suppress(OmegaConfBaseException):
            node = OmegaConf.load(file)
            if any(OmegaConf.select(node, k) is not None for k in (key, key.removeprefix(f"{group}."))):
                return UserError(f"{group}/{file.name}: {message}" if group else f"{file}: {message}")
    return UserError(message)


def renamed(key: str) -> str | None:
    """Return the message for an old key in a file. Old keys in overrides and run folders are translated instead."""
    new = next((f"{n}{key.removeprefix(old)}" for old, n in RENAMED.items() if f"{key}.".startswith(f"{old}.")), None)
    return new and f"{key}: is {new} now; rename it in your YAML file"


def file_overrides(file: Path) -> list[str]:
    """Return the overrides with which Hydra composes a file of the user's as it composes the files of conf/.

    Groups are looked up beside the file, and then in the folder of conf/ that has files of its kind.
    """
    own = conf_dir() / "pipeline"
    elsewhere = file.resolve().parent != own.resolve()
    return QUIET + ([f"hydra.searchpath=['file://{own}']"] if elsewhere else [])


def compose_file(file: Path, overrides: Sequence[str] = ()) -> pipeline_schema.PipelineConfig:
    """Return the config of a file of a pipeline with overrides. Raises UserError for a mistake in it."""
    check_pipeline_file(file)
    with composing("pipeline", file.resolve().parent):
        cfg = hydra_compose(file.stem, [*free_keys(overrides, "pipeline"), *file_overrides(file)])
    try:
        return object_of(pipeline_schema.PipelineConfig, cfg)
    except WrongKey as e:
        raise named(e, {"": file}, overrides) from e


def check_pipeline_file(file: Path, key: str = "run") -> None:
    """Raise UserError if a pipeline's YAML file is not there, is not YAML, or has no defaults."""
    if file.suffix != ".yaml" or not file.is_file():
        names = ", ".join(sorted(f.name for f in (conf_dir() / "pipeline").glob("*.yaml")))
        raise UserError(f"{key}={file}: no such YAML file; name that of a pipeline (conf/pipeline has {names})")
    loaded = _load_yaml(file)
    if not OmegaConf.is_dict(loaded) or not OmegaConf.is_list(loaded.get("defaults")):
        raise UserError(f"{file}: {NO_SCHEMA}")


def parse_overrides(overrides: Sequence[str]) -> list[Any]:
    """Parse each override into Hydra's Override, in order. Raises HydraException if an override cannot be parsed."""
    with composing():
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        return parser.parse_overrides(free_keys(overrides))


def compose_sweep(overrides: Sequence[str]) -> tuple[DictConfig, str]:
    """Return the config of a sweep, and hydra.sweep.dir, its default folder without run_dir."""
    with composing():
        cfg = hydra_compose("train", free_keys(overrides), return_hydra_config=True)
    check_hydra(cfg.hydra)
    folder = str(cfg.hydra.sweep.dir)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, folder


def check_hydra(hydra: Any) -> None:
    """Raise UserError if a YAML file of the user's, such as an experiment, sets up Hydra's own sweeper."""
    experiment = hydra.runtime.choices.get("experiment")
    where = f" in experiment/{experiment}.yaml" if experiment else ""
    for key, is_set in (("sweeper.params", hydra.sweeper.params), ("mode", hydra.mode == RunMode.MULTIRUN)):
        if is_set:
            raise UserError(
                f"hydra.{key}{where}: recsys has its own sweeper; give a key several values on the command line, with "
                "-m, or list trials in sweep.points"
            )


def object_of(schema: type[T], cfg: object, place: str = "") -> T:
    """Return a config, or a part of one, as an object of its schema.

    Args:
        cfg: the config, which may be such an object. A key of a command that is missing is MISSING in the object.
        place: the key of `cfg`, if it is a part.

    Raises:
        WrongKey: as `parse`; or a key that must be set is not.
    """
    if isinstance(cfg, schema):
        return cfg
    values: Any = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg
    unset = {name for name, declared in vars(schema)["__pydantic_fields__"].items() if declared.default == MISSING}
    values = {k: v for k, v in values.items() if v != MISSING or k not in unset}
    if key := next(_missing_keys(values, place), None):
        raise WrongKey(key, f"{key}: must be set; add {key}=VALUE, or write it in a YAML file")
    return parse(schema, values, place)


def _missing_keys(value: object, key: str) -> Iterator[str]:
    """Yield the keys whose value is missing. OmegaConf.missing_keys takes seconds for thousands of features."""
    if value == MISSING:
        yield key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _missing_keys(item, f"{key}[{name}]" if isinstance(value, list) else f"{key}.{name}".lstrip("."))


def typed(cfg: Any) -> DictConfig:
    """Return a training config, loaded from a file or a plain mapping, merged into the structured schema."""
    return OmegaConf.create(plain(object_of(run_schema.TrainConfig, _with_new_names(OmegaConf.create(cfg)))))


def _with_new_names(cfg: DictConfig) -> DictConfig:
    """Return a config of a run that was made before keys were renamed, with their new names."""
    for old, new in RENAMED.items():
        if (value := OmegaConf.select(cfg, old)) is not None:
            OmegaConf.update(cfg, new, value)
            parent, _, key = old.rpartition(".")
            (OmegaConf.select(cfg, parent) if parent else cfg).pop(key)
    return cfg


def load_config(path: Path) -> DictConfig:
    """Load a run's config.yaml, and apply the schema. Raises UserError as `load_values`."""
    values = load_values(path)
    try:
        return typed(values)
    except UserError as e:
        raise UserError(f"{path}: {e}") from e


def load_values(path: Path, *, ours: bool = False) -> DictConfig:
    """Load the values of a run's config.yaml, which may come from elsewhere, with the new names of renamed keys.

    Values that were masked are taken from the environment (see secrets.py).

    ours: this job has written it, and checked what it names

    Raises UserError if the file is not the config of a run, or could execute something (see safe_targets.py).
    """
    loaded = _load_yaml(path, aliases=False)
    if not OmegaConf.is_dict(loaded) or "model" not in loaded:
        raise UserError(f"{path}: is not the config of a run; it has no key model")
    if not ours:
        check_run_config(loaded, path)  # first, because the schema reads values, which resolves interpolations
    values = restored(OmegaConf.to_container(loaded))
    model, loader = values["model"], values.setdefault("loader", {})
    if isinstance(model, dict) and "unknown_users" not in model and isinstance(loader, dict):
        loader.setdefault("unknown", 0.0)  # a run from before this key is resumed as it began
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("group"), dict):
        data["group"].setdefault("ties", "order")  # as above
    protocol = values.setdefault("protocol", {})
    if isinstance(protocol, dict):
        protocol.setdefault("rank_repeats", True)  # as its metrics.json was measured
    return _with_new_names(OmegaConf.create(values))


def _load_yaml(path: Path, *, aliases: bool = True) -> Any:
    """Return the config of a YAML file. Raises UserError if it is not YAML, or has aliases and must not."""
    if problem := problem_of(path):
        raise UserError(f"{path}: {problem}")
    try:
        return OmegaConf.create(path.read_text(encoding="utf-8") if aliases else config_text(path))
    except AssertionError:  # OmegaConf's, for a number
        return None
    except YAMLError as e:
        raise UserError(yaml_mistake(e, path)) from e
    except RecursionError as e:
        raise UserError(f"{path}: is nested too deeply") from e
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: cannot be read ({e.strerror if isinstance(e, OSError) else 'not text'})") from e
    except UserError:
        raise
    except ValueError as e:  # a number of more digits than Python reads
        raise UserError(f"{path}: is not YAML: {e}; correct the file") from e


def yaml_mistake(error: YAMLError, path: Path | None = None) -> str:
    """Return on one line what is wrong in a YAML file, and where. path: the file, if the error does not name it"""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if path is None:
        path = Path(mark.name if mark else "a YAML file")
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    if m := re.search(r"found duplicate key (\S+)", problem or ""):
        return f"duplicate key {m[1]} in {where}; remove one of the two"
    if "'\\t'" in (problem or ""):
        return f"{where}: a TAB cannot indent a line in YAML; replace it with spaces"
    return f"{where}: not YAML: {problem or str(error).splitlines()[0]}; correct the file"


def without_secrets(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a config with its secrets masked, for run folders and loggers.

    Messages of this process mask the same secrets, and processes that it starts get them in their environment.
    """
    remember(plain)
    hidden = masked(plain)
    assert isinstance(hidden, dict)
    return hidden
