"""Compose a config, read what it says, build what it names."""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from recsys import schema
from recsys.errors import UserError, did_you_mean

COMMANDS = {
    "train": schema.TrainConfig,
    "evaluate": schema.EvaluateConfig,
    "predict": schema.PredictConfig,
    "plan": schema.PlanConfig,
    "preprocess": schema.PreprocessConfig,
    "checkpoint": schema.CheckpointToolConfig,
    "dashboard": schema.DashboardConfig,
    "doctor": schema.DoctorConfig,
    "report": schema.ReportConfig,
}


Kind = Literal["predicts", "retrieves", "closed_form"]


def conf_dir() -> Path:
    """conf/ of an installed wheel lies in the package, that of a source checkout beside it."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


class _UserConf(SearchPathPlugin):
    """A conf/ folder where the command is run adds to (and can replace parts of) ours."""

    def manipulate_search_path(self, search_path: Any) -> None:
        own = Path.cwd() / "conf"
        if own.is_dir() and own.resolve() != conf_dir().resolve():
            search_path.prepend(provider="user", path=f"file://{own}")


def register() -> None:
    """Make the schemas, and a user's conf/ folder, known to Hydra."""
    store = ConfigStore.instance()
    for name, node in COMMANDS.items():
        store.store(name=f"{name}_schema", node=node)
    Plugins.instance().register(_UserConf)


def compose(command: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """The config that `python -m recsys.<command> <overrides>` would run with.

    >>> cfg = compose("train", ["model=dcnv2", "data=frappe", "data.root=/data/frappe"])  # doctest: +SKIP
    """
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra_compose(command, free_keys(overrides))


FREE = (
    "sharding.per_table.",
    "engine.options.",
    "sweep.slurm.",
    "data.items.columns",
    "data.items.sparse",
    "data.items.dense",
)


def free_keys(overrides: Sequence[str]) -> list[str]:
    """With ++ before keys that the user names himself: Hydra would ask him to add them; local[2] in quotes."""
    overrides = [re.sub(r"^(engine\.master)=(local\[.*)$", r'\1="\2"', o) for o in overrides]
    return [f"++{o}" if o.startswith(FREE) else o for o in overrides]


def parse_overrides(overrides: Sequence[str]) -> list[Any]:
    """Hydra's Override of each, in order. Raises HydraException where one cannot be read."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        return parser.parse_overrides(free_keys(overrides))


def sweep_folder(overrides: Sequence[str]) -> str:
    """hydra.sweep.dir, where a sweep lies that is given no run_dir."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = hydra_compose("train", free_keys(overrides), return_hydra_config=True)
    return str(cfg.hydra.sweep.dir)


def typed(cfg: Any) -> DictConfig:
    """A training config under its schema: what a file or a plain mapping has lost."""
    merged = OmegaConf.merge(OmegaConf.structured(schema.TrainConfig), cfg)
    assert isinstance(merged, DictConfig)
    return merged


def load_config(path: Path) -> DictConfig:
    """A run's config.yaml."""
    return typed(OmegaConf.load(path))


def data_config(cfg: DictConfig) -> schema.DataConfig:
    """With what data.spec adds to it."""
    from recsys.data.feature_spec_yaml import expanded

    data = OmegaConf.to_object(cfg.data)
    assert isinstance(data, schema.DataConfig)
    return expanded(data)


def engine_config(cfg: DictConfig) -> schema.EngineConfig:
    engine = OmegaConf.to_object(cfg.engine)
    assert isinstance(engine, schema.EngineConfig)
    return engine


def seconds_of(max_time: str) -> float:
    """DD:HH:MM:SS. Raises UserError for any other text."""
    if not (m := re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", max_time)):
        raise UserError(f"trainer.max_time={max_time}: must be days:hours:minutes:seconds, as 00:01:30:00")
    days, hours, minutes, seconds = map(int, m.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def kind_of(cfg: DictConfig) -> Kind:
    """What the model does, as it shows: predict labels, retrieve items, or retrieve without steps of training."""
    target = locate(cfg.model.get("_target_") or "", "model")
    return "retrieves" if hasattr(target, "ask") else "closed_form" if hasattr(target, "rate") else "predicts"


def protocols_of(cfg: DictConfig) -> Any:
    """cfg.ranking, checked."""
    from recsys.ranking import Protocols

    r = cfg.ranking
    try:
        return Protocols(tuple(r.k), tuple(r.protocols), r.negatives, r.filter_history, r.seed)
    except ValueError as e:
        raise UserError(f"ranking.{e}") from e


def monitor_of(cfg: DictConfig, given: str | None) -> str:
    """The metric that tells which validation was best."""
    if given is not None:
        return given
    if kind_of(cfg) == "predicts":
        return "validation/auc"
    suffix = "" if "full" in cfg.ranking.protocols else f"_{cfg.ranking.protocols[0]}"
    k = 10 if 10 in cfg.ranking.k else cfg.ranking.k[0]
    return f"validation/ndcg@{k}{suffix}"


def metric_names(cfg: DictConfig) -> list[str]:
    """What is measured of a split."""
    from recsys.metrics import NAMES

    if kind_of(cfg) == "predicts":
        return [*NAMES, *(["gauc"] if cfg.metrics.gauc else [])]
    p = protocols_of(cfg)
    suffixes = ["" if name == "full" else f"_{name}" for name in p.protocols]
    return [f"{m}{s}" for s in suffixes for m in ("mrr", *(f"{n}@{k}" for n in ("hr", "ndcg", "recall") for k in p.k))]


def accelerator_of(cfg: DictConfig) -> str:
    """cpu or gpu, `auto` resolved."""
    import torch

    if cfg.trainer.accelerator == "auto":
        return "gpu" if torch.cuda.is_available() else "cpu"
    return "gpu" if cfg.trainer.accelerator == "cuda" else str(cfg.trainer.accelerator)


def locate(target: str, path: str) -> Callable[..., Any]:
    """The class or function that a dotted `target` names."""
    module, _, name = target.rpartition(".")
    try:
        loaded = import_module(module)
    except ImportError as e:
        raise UserError(f"{path}._target_={target}: cannot import {module or target} ({e})") from e
    if not hasattr(loaded, name):
        public = [n for n in vars(loaded) if not n.startswith("_")]
        raise UserError(f"{path}._target_={target}: {module} has no {name}{did_you_mean(name, public)}")
    found = getattr(loaded, name)
    assert callable(found)
    return found  # type: ignore[no-any-return]


# --- build -------------------------------------------------------------------------------------------


def make(node: DictConfig) -> Callable[..., Any]:
    """A function that builds what the node names from run-time objects (a FeatureSpec, parameters)."""
    from hydra.utils import instantiate

    return instantiate(node, _partial_=True, _convert_="all")  # type: ignore[no-any-return]


def make_scheduler(cfg: DictConfig, total_steps: int | None) -> Callable[..., Any]:
    """The scheduler's maker, told total_steps where it asks for them and the config does not say."""
    node = cfg.optim.scheduler
    asks = "total_steps" in inspect.signature(locate(node["_target_"], "optim.scheduler")).parameters
    return partial(make(node), total_steps=total_steps) if asks and node.get("total_steps") is None else make(node)


def build_model(cfg: DictConfig, features: Any, device: Any) -> Any:
    """The model for `features`, its tables on `device`. Raises UserError for what the model refuses."""
    try:
        return make(cfg.model)(features, device=device)
    except ValueError as e:
        raise UserError(f"model: {e}") from e


def build_loss(cfg: DictConfig) -> Any:
    """Raises UserError for what the loss refuses."""
    try:
        return make(cfg.loss)()
    except ValueError as e:
        raise UserError(f"loss: {e}") from e


def build_task(cfg: DictConfig, features: Any, device: Any, candidates: Any = None) -> Any:
    """The model with its loss, tables on `device`. candidates: of the data, where the model retrieves."""
    from recsys.task import RetrievalTask, Task

    model = build_model(cfg, features, device)
    return Task(model) if cfg.loss is None else RetrievalTask(model, build_loss(cfg), candidates)


def meta_task(cfg: DictConfig, features: Any) -> Any:
    """The Task for `features` on the meta device, its tables as wide as they will lie: what plans are made of."""
    import torch

    from recsys.sharding.tables import pad_tables

    with torch.device("meta"):
        task = build_task(cfg, features, torch.device("meta"))
        pad_tables(task, cfg.sharding.padding)
    return task
