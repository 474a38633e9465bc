"""Compose a config, check it before data or processes are touched, build what it names."""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_type_hints

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
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
    "report": schema.ReportConfig,
}


Kind = Literal["predicts", "retrieves", "closed_form"]

# Not 16-mixed: its loss scaling would reach the tables' fused optimizers, which take gradients as they come.
PRECISIONS = ("32-true", "bf16-mixed")


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


FREE = ("sharding.per_table.", "engine.options.", "data.items.columns", "data.items.sparse", "data.items.dense")


def free_keys(overrides: Sequence[str]) -> list[str]:
    """With ++ before keys that the user names himself: Hydra would ask him to add them; local[2] in quotes."""
    overrides = [re.sub(r"^(engine\.master)=(local\[.*)$", r'\1="\2"', o) for o in overrides]
    return [f"++{o}" if o.startswith(FREE) else o for o in overrides]


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


# --- check -------------------------------------------------------------------------------------------


def check(cfg: DictConfig) -> None:
    """Raises UserError, one line, for what is wrong with a training config. Touches no row, no process."""
    from recsys.data.engine import check_engine

    check_parts(cfg)
    check_engine(engine_config(cfg))
    _check_numbers(cfg)
    _check_metrics(cfg)
    _check_devices(cfg)
    _check_model(cfg, cfg.trainer.devices)
    _check_monitors(cfg)


def check_parts(cfg: DictConfig) -> None:
    """What a training and a planning config share: data, model, optimizers and sharding, each by itself."""
    from recsys.data.check import check_data
    from recsys.versions import check_versions

    if missing := OmegaConf.missing_keys(cfg):
        raise UserError(f"{sorted(missing)[0]}: must be set")
    check_data(data_config(cfg))
    check_versions()
    check_target(cfg.model, "model", given=("features", "device"))
    if cfg.loss is not None:
        check_target(cfg.loss, "loss")
        build_loss(cfg)
    check_target(cfg.optim.dense, "optim.dense", given=("params",))
    _try_optimizer(cfg)
    if cfg.optim.scheduler is not None:
        check_target(cfg.optim.scheduler, "optim.scheduler", given=("optimizer",))
        _try_scheduler(cfg)
    from recsys.sharding.rules import check_sharding

    check_sharding(OmegaConf.to_object(cfg.sharding), OmegaConf.to_object(cfg.optim.sparse))  # type: ignore[arg-type]


def _check_numbers(cfg: DictConfig) -> None:
    t = cfg.trainer
    for name in ("devices", "batch_size", "eval_batch_size", "max_epochs", "log_every_n_steps", "accumulate"):
        if t[name] < 1:
            raise UserError(f"trainer.{name}={t[name]}: must be at least 1")
    if t.threads is not None and t.threads < 1:
        raise UserError(f"trainer.threads={t.threads}: must be at least 1, or null")
    if t.timeout_minutes <= 0:
        raise UserError(f"trainer.timeout_minutes={t.timeout_minutes}: must be positive")
    if t.max_steps != -1 and t.max_steps < 1:
        raise UserError(f"trainer.max_steps={t.max_steps}: must be at least 1, or -1 for no limit")
    if t.precision not in PRECISIONS:
        raise UserError(f"trainer.precision={t.precision}: must be {' or '.join(PRECISIONS)}")
    if t.early_stopping.patience is not None and t.early_stopping.patience < 0:
        raise UserError(f"trainer.early_stopping.patience={t.early_stopping.patience}: must not be negative")
    for key, mode in {"checkpoint": cfg.checkpoint.mode, "trainer.early_stopping": t.early_stopping.mode}.items():
        if mode not in ("min", "max"):
            raise UserError(f"{key}.mode={mode}: must be min or max")
    if not 0 <= cfg.seed < 2**32:
        raise UserError(f"seed={cfg.seed}: must be from 0 to 2^32 - 1")
    if t.batch_size % t.devices:
        raise UserError(f"trainer.batch_size={t.batch_size} is not divisible by trainer.devices={t.devices}")
    if cfg.loader.buffer_rows < 1:
        raise UserError(f"loader.buffer_rows={cfg.loader.buffer_rows}: must be at least 1")
    for name in ("every_n_steps", "every_minutes"):
        if cfg.checkpoint[name] is not None and cfg.checkpoint[name] <= 0:
            raise UserError(f"checkpoint.{name}={cfg.checkpoint[name]}: must be positive, or null")
    if cfg.optim.sparse.lr < 0:
        raise UserError(f"optim.sparse.lr={cfg.optim.sparse.lr}: must not be negative")
    if t.validate_every < 1:
        raise UserError(f"trainer.validate_every={t.validate_every}: must be at least 1")
    if t.validate_every_n_steps is not None and t.validate_every_n_steps < 1:
        raise UserError(f"trainer.validate_every_n_steps={t.validate_every_n_steps}: must be at least 1, or null")
    if t.max_time is not None:
        seconds_of(t.max_time)
    for key in ("keep_best", "keep_last"):
        if cfg.checkpoint[key] < 1:
            raise UserError(f"checkpoint.{key}={cfg.checkpoint[key]}: must be at least 1")
    o = cfg.optim
    for key, value in {"optim.clip_norm": o.clip_norm, "optim.sparse.clip": o.sparse.clip}.items():
        if value is not None and value <= 0:
            raise UserError(f"{key}={value}: must be positive, or null")
    if o.ema is not None and not 0 < o.ema < 1:
        raise UserError(f"optim.ema={o.ema}: must be between 0 and 1, such as 0.999, or null")
    if o.interval not in ("step", "validation"):
        raise UserError(f"optim.interval={o.interval}: must be step or validation")


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


def _check_metrics(cfg: DictConfig) -> None:
    from recsys.data.transforms import dense_columns, is_bag, sparse_columns

    m, data = cfg.metrics, data_config(cfg)
    for name in ("bins", "slice_values", "exact_rows"):
        if m[name] < 1:
            raise UserError(f"metrics.{name}={m[name]}: must be at least 1")
    sparse = sparse_columns(data)
    dense = [n for n, c in dense_columns(data).items() if c.vectors is None]
    hint = "; a column that models are not to see: data.sparse.NAME.model=false"
    if m.gauc is not None and m.gauc not in sparse:
        raise UserError(f"metrics.gauc={m.gauc}: no sparse feature{did_you_mean(m.gauc, sparse)}{hint}")
    if m.gauc is not None and is_bag(sparse[m.gauc]):
        raise UserError(f"metrics.gauc={m.gauc}: has several values a row, and rows are of one group")
    for name in m.slices:
        if name not in [*sparse, *dense]:
            raise UserError(f"metrics.slices: no feature {name}{did_you_mean(name, [*sparse, *dense])}{hint}")
    if kind_of(cfg) != "predicts" and (m.gauc or m.slices):
        raise UserError("metrics.gauc and metrics.slices are of models that predict; this one retrieves")


def _check_monitors(cfg: DictConfig) -> None:
    from recsys.metrics import NAMES

    t, names = cfg.trainer, [*NAMES, *(["gauc"] if cfg.metrics.gauc else [])]
    if kind_of(cfg) != "predicts":
        p = protocols_of(cfg)
        suffixes = ["" if name == "full" else f"_{name}" for name in p.protocols]
        names = [
            f"{m}{s}" for s in suffixes for m in ("mrr", *(f"{n}@{k}" for n in ("hr", "ndcg", "recall") for k in p.k))
        ]
    metrics = [f"validation/{name}" for name in names]
    monitors = {"checkpoint.monitor": cfg.checkpoint.monitor}
    if t.early_stopping.patience is not None:
        monitors["trainer.early_stopping.monitor"] = t.early_stopping.monitor
    for key, given in monitors.items():
        if (monitor := monitor_of(cfg, given)) not in metrics:
            raise UserError(f"{key}={monitor}: no such metric{did_you_mean(monitor, metrics)}")


def _try_optimizer(cfg: DictConfig) -> None:
    """Build the dense optimizer for one number: what its own checks refuse."""
    import torch

    try:
        make(cfg.optim.dense)([torch.zeros(1, requires_grad=True)])
    except (ValueError, TypeError) as e:
        raise UserError(f"optim.dense: {e}") from e


def _try_scheduler(cfg: DictConfig) -> None:
    """Likewise the scheduler."""
    import torch

    parameter = torch.zeros(1, requires_grad=True)
    try:
        make(cfg.optim.scheduler)(torch.optim.SGD([parameter], lr=0.1))
    except (ValueError, TypeError) as e:
        raise UserError(f"optim.scheduler: {e}") from e


def accelerator_of(cfg: DictConfig) -> str:
    """cpu or gpu, `auto` resolved."""
    import torch

    if cfg.trainer.accelerator == "auto":
        return "gpu" if torch.cuda.is_available() else "cpu"
    return "gpu" if cfg.trainer.accelerator == "cuda" else str(cfg.trainer.accelerator)


def _check_devices(cfg: DictConfig) -> None:
    import torch

    accelerator = accelerator_of(cfg)
    if accelerator not in ("cpu", "gpu"):
        valid = ("auto", "cpu", "gpu")
        raise UserError(f"trainer.accelerator={accelerator}: unknown{did_you_mean(accelerator, valid)}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if accelerator == "gpu" and gpus == 0:
        raise UserError("trainer.accelerator=gpu: no GPU is there; use trainer.accelerator=cpu")
    # On CPU a device is a process: more of them than cores are slow but right, far more are a mistake.
    have = gpus if accelerator == "gpu" else max(4, os.cpu_count() or 1)
    if cfg.trainer.devices > have:
        kind = "GPUs" if accelerator == "gpu" else f"processes (for {os.cpu_count()} cores)"
        raise UserError(f"trainer.devices={cfg.trainer.devices}: there are at most {have} {kind}")


def _check_model(cfg: DictConfig, devices: int) -> None:
    """Build the model on the meta device for the features the config names, whatever their cardinality."""
    import torch

    from recsys.data.transforms import feature_spec
    from recsys.sharding.rules import constraints
    from recsys.sharding.tables import tables

    features = feature_spec(data_config(cfg), lambda *_: 8)
    check_kind(cfg, features)
    check_processes(cfg, devices)
    if kind_of(cfg) == "closed_form":
        build_model(cfg, features, torch.device("meta"))
        return
    task = meta_task(cfg, features)
    constraints(OmegaConf.to_object(cfg.sharding), tables(task), devices)  # type: ignore[arg-type]


def check_processes(cfg: DictConfig, processes: int) -> None:
    """Raises UserError where the model takes one process, and there are more."""
    if kind_of(cfg) == "closed_form" and processes > 1:
        raise UserError(f"trainer.devices={processes}: this model is fitted at once, in one process; leave it at 1")


def check_kind(cfg: DictConfig, features: Any) -> None:
    """Raises UserError where data and model, or model and loss, do not go together."""
    kind = kind_of(cfg)
    if kind == "predicts" and not features.labels:
        raise UserError(f"data={cfg.data.name}: its rows have no label, and this model predicts one")
    if kind != "predicts" and features.item is None:
        told = "data.items.feature names no feature whose values they are"
        raise UserError(f"data={cfg.data.name}: this model retrieves items, and {told}")
    if cfg.data.sequences is not None and cfg.data.sequences.pad is not None and kind != "predicts":
        raise UserError(
            f"data.sequences.pad={cfg.data.sequences.pad}: models that retrieve read lists as they are; null"
        )
    if kind == "closed_form" and not features.feature(features.item).sequence:
        raise UserError("model: reads lists of items; data.sequences.max_length must be set")
    if kind == "retrieves" and cfg.loss is None:
        raise UserError("loss: this model needs one, such as loss=full_softmax")
    if kind != "retrieves" and cfg.loss is not None:
        raise UserError(f"loss={cfg.loss.get('_target_')}: this model has a loss of its own; leave it out")


def check_target(node: Any, path: str, given: Sequence[str] = ()) -> None:
    """Bind a `_target_` node to the signature it names: unknown, missing and ill-typed parameters.

    given: parameters that the caller passes, so that the config may not.
    """
    if not OmegaConf.is_dict(node) or "_target_" not in node:
        raise UserError(f"{path}: needs a _target_, the class to build")
    values: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
    target = values.pop("_target_")
    values = {k: v for k, v in values.items() if k not in ("_partial_", "_convert_", "_recursive_")}
    function = locate(target, path)
    parameters = inspect.signature(function).parameters
    valid = [n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and n not in given]
    for name in values:
        if name not in valid:
            raise UserError(f"{path}.{name}: {target} has no such parameter{did_you_mean(name, valid)}")
    for name in valid:
        if parameters[name].default is inspect.Parameter.empty and name not in values:
            raise UserError(f"{path}.{name}: {target} needs it")
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (NameError, TypeError, AttributeError):
        hints = {}
    for name, value in values.items():
        if name in hints and not _is_node(value) and (problem := _mismatch(value, hints[name])):
            raise UserError(f"{path}.{name}={value!r}: {problem}")


def _is_node(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value


def _mismatch(value: Any, hint: Any) -> str | None:
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value, strict=True)
    except ValidationError as e:
        return str(e.errors()[0]["msg"])[:1].lower() + str(e.errors()[0]["msg"])[1:]
    except (PydanticUserError, TypeError):
        return None  # not a type that can be told from a value
    return None


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
