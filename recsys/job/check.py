"""Check a training config before any data is read or any process is started. Every error message is one line."""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_type_hints

from omegaconf import DictConfig

from recsys.base.errors import UserError, did_you_mean
from recsys.base.parsing import reason_of
from recsys.evaluation.metrics_table import metric, mode_of
from recsys.job.build import BUILT_WITH, bind, build_loss, build_model, check_takes, make, make_scheduler
from recsys.job.check_early import check_early, check_fit, loss_facts_of, model_kind_of
from recsys.job.kinds import check_leads, kind_name, loss_facts, meta_task, monitor_of
from recsys.job.resumed import names_a_run
from recsys.job.run_config import RunConfig, seconds_of
from recsys.ranges import FLOAT32_MAX

MOST_NAME_BYTES = 255  # that file systems take


def check(given: DictConfig | RunConfig, world_size: int | None = None, *, trains: bool = True) -> None:
    """Raise UserError for a mistake in a training config, without reading data or starting a process.

    Args:
        given: the config that Hydra composed, or that of a run.
        world_size: number of processes of the job; by default trainer.devices, as on one machine.
        trains: the config will be used for training. If not, the monitored metrics are not checked: another protocol
            may not measure them.
    """
    check_late(check_early(given, trains=trains), world_size, trains=trains)


def check_late(cfg: RunConfig, world_size: int | None = None, *, trains: bool = True) -> None:
    """Check what needs the slow imports, after `check_early`. The arguments are the same as in `check`."""
    processes = world_size or cfg.trainer.devices
    check_parts(cfg)
    _check_numbers(cfg, processes)
    _check_devices(cfg)
    _check_model(cfg, processes, trains)
    if not trains:
        return
    metrics = [f"validation/{name}" for name in cfg.kind.metric_names(cfg)]
    watching = (("checkpoint", cfg.checkpoint), ("trainer.early_stopping", cfg.trainer.early_stopping))
    for key, c in watching:
        monitor = monitor_of(cfg, c.monitor)
        if (entry := metric(monitor)) is not None and entry.of_lists:
            why = f"metrics of lists are measured after training only; use another metric, or {key}.monitor=null"
            raise UserError(f"{key}.monitor={monitor}: {why}")
        check_leads(f"{key}.monitor", monitor, metrics)
        if c.mode is not None:
            _check_mode(f"{key}.mode", c.mode, monitor)
    scheduler = cfg.optim.scheduler or {}
    if _is_plateau(scheduler):  # it watches checkpoint.monitor; PyTorch's default is min
        _check_mode("optim.scheduler.mode", scheduler.get("mode", "min"), monitor_of(cfg, cfg.checkpoint.monitor))
    for name, node in cfg.logger.items():
        bind(node, f"logger.{name}")
    run = None if names_a_run(cfg) else cfg.run_dir
    _check_writable("run_dir", run or "outputs")
    _check_writable("data.prepared", cfg.data.prepared)
    if cfg.data.root is None or "://" in cfg.data.root:
        return
    root = Path(cfg.data.root).expanduser().resolve()
    if root == Path(cfg.data.prepared).resolve():
        raise UserError(
            f"data.prepared={cfg.data.prepared}: is data.root, the folder of raw files; name another folder"
        )
    if run is not None and (Path(run).resolve() == root or Path(run).resolve() in root.parents):
        why = f"contains the raw files (data.root={cfg.data.root}), and files in a run's own folder are not data"
        raise UserError(f"run_dir={run}: {why}; name another folder")


def check_parts(cfg: RunConfig) -> None:
    """Check the parts that training and planning share, one by one: model, loss, optimizers, sharding."""
    from recsys.base.packages import check_versions

    check_versions()
    check_target(cfg.model, "model", given=BUILT_WITH)
    if cfg.loss is not None:
        check_target(cfg.loss, "loss")
        build_loss(cfg)
    check_target(cfg.optim.dense, "optim.dense", given=("params",))
    for name, value in cfg.optim.dense.items():
        if isinstance(value, float) and abs(value) > FLOAT32_MAX:
            raise UserError(f"optim.dense.{name}={value}: must be at most {FLOAT32_MAX}")
    import torch

    weight = torch.zeros(1, requires_grad=True)  # what is built for it runs checks of its own
    try:
        make(cfg.optim.dense, "optim.dense")([weight])
    except (ValueError, TypeError) as e:
        raise UserError(f"optim.dense: {e}") from e
    if cfg.optim.scheduler is not None:
        check_target(cfg.optim.scheduler, "optim.scheduler", given=("optimizer",))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        try:
            scheduler = make_scheduler(cfg, 100)(optimizer)
            for _ in range(3):
                optimizer.step()
                scheduler.step(*([0.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
        except (ValueError, TypeError, ArithmeticError) as e:
            raise UserError(f"optim.scheduler: {e}") from e
    from recsys.sharding.optimizers import sparse_optimizer

    sparse_optimizer(cfg.optim.sparse)


def _check_numbers(cfg: RunConfig, processes: int) -> None:
    """Check numbers that depend on each other; the schemas declare the range of each."""
    t = cfg.trainer
    if t.batch_size % processes:
        raise UserError(f"trainer.batch_size={t.batch_size} is not divisible by {processes} processes")
    if t.validate_every_n_steps is not None and t.validate_every_n_steps % t.accumulate:
        raise UserError(
            f"trainer.validate_every_n_steps={t.validate_every_n_steps}: must be a multiple of "
            f"trainer.accumulate={t.accumulate}, because checkpoints do not store accumulated gradients"
        )
    if t.max_time is not None:
        seconds_of(t.max_time)
    o = cfg.optim
    if o.sparse.clip is not None and t.accumulate > 1:
        raise UserError(
            f"optim.sparse.clip={o.sparse.clip}: applies only to FBGEMM's fused kernels, which are not used with "
            f"trainer.accumulate={t.accumulate}; set optim.sparse.clip=null or trainer.accumulate=1"
        )
    if o.interval == "step" and _is_plateau(o.scheduler or {}):
        raise UserError(
            "optim.interval=step: schedule=plateau steps once per validation; set optim.interval=validation"
        )


def _check_mode(key: str, mode: str, monitor: str) -> None:
    better = mode_of(monitor)
    if mode != better:
        way = "lower" if better == "min" else "higher"
        raise UserError(f"{key}={mode}: {monitor} is better when it is {way}; set {key}={better}")


def _is_plateau(scheduler: Mapping[str, Any]) -> bool:
    return str(scheduler.get("_target_", "")).endswith("ReduceLROnPlateau")


def _check_devices(cfg: RunConfig) -> None:
    import torch

    from recsys.sharding.optimizers import sparse_optimizer
    from recsys.sharding.sharders import check_comms
    from recsys.sharding.tables import check_table_dtype

    accelerator = cfg.accelerator
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if accelerator == "gpu" and gpus == 0:
        raise UserError("trainer.accelerator=gpu: no GPU was found; use trainer.accelerator=cpu")
    if accelerator == "cpu" and cfg.trainer.pipeline == "prefetch":
        why = "reads rows of tables that a GPU caches (UVM caching), and there is no GPU"
        raise UserError(f"trainer.pipeline=prefetch: {why}; use trainer.pipeline=sparse_dist")
    device = "cpu" if accelerator == "cpu" else "cuda"
    check_comms(cfg.sharding, device)
    fused = sparse_optimizer(cfg.optim.sparse).is_fused(torch.device(device)) and cfg.trainer.accumulate == 1
    check_table_dtype(cfg.sharding.table_dtype, fused)
    # On CPUs, a device is a process. More processes than cores are slow but valid; many more are probably a mistake.
    have = gpus if accelerator == "gpu" else max(4, os.cpu_count() or 1)
    if cfg.trainer.devices > have:
        kind = "GPUs" if accelerator == "gpu" else f"processes (for {os.cpu_count()} cores)"
        raise UserError(f"trainer.devices={cfg.trainer.devices}: there are at most {have} {kind}")


def _check_model(cfg: RunConfig, processes: int, trains: bool) -> None:
    """Build the model on the meta device for the features that the config names, with any cardinality."""
    import numpy as np
    import torch

    from recsys.data.features import feature_spec
    from recsys.data.prepare.check_data import names_files
    from recsys.data.raw.vector_files import table_widths
    from recsys.models.common.layers import has_batch_norm
    from recsys.sharding.constraints import constraints
    from recsys.sharding.sharded_model import check_vectors
    from recsys.sharding.tables import tables

    features = feature_spec(cfg.data, lambda *_: 8)
    if model_kind_of(cfg) is None or (cfg.loss is not None and loss_facts_of(cfg) is None):  # a class of the user's
        check_fit(cfg, kind_name(cfg), loss_facts(cfg))
    check_processes(cfg, processes)
    if cfg.kind.fitted_at_once:
        build_model(cfg, features, torch.device("meta"))
        return
    task = meta_task(cfg, features)
    if cfg.trainer.batch_size == processes and has_batch_norm(task):
        fix = f"set trainer.batch_size={2 * processes} or more, or model.batch_norm=false"
        why = "gives each process 1 row, and batch normalisation needs 2 or more"
        raise UserError(f"trainer.batch_size={cfg.trainer.batch_size}: {why}; {fix}")
    infos = tables(task)
    constraints(cfg.sharding, infos, processes)
    if trains and names_files(cfg.data):
        check_vectors(infos, {table: np.empty((0, width)) for table, width in table_widths(cfg.data).values()})


def check_processes(cfg: RunConfig, processes: int) -> None:
    """Raise UserError if the model is fitted in one process and there are several."""
    if (models := cfg.kind.fitted_models) and processes > 1:
        raise UserError(f"trainer.devices={processes}: {models} are fitted in one process; set trainer.devices=1")


def check_target(node: Mapping[str, Any], path: str, given: Sequence[str] = (), base: type | None = None) -> None:
    """Check the values of a `_target_` node against the signature of its target.

    Args:
        path: its key in the config.
        given: names of parameters that the caller passes, which the config may not set.
        base: the class that it must name a subclass of, if the path does not decide it.

    Raises:
        UserError: a parameter is unknown, missing or of a wrong type.
    """
    function, values = bind(node, path, base)
    target = node["_target_"]
    check_takes(function, f"{path}._target_={target}", given)
    parameters = inspect.signature(function).parameters
    valid = [n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and n not in given]
    for name in values:
        if name not in valid:
            raise UserError(f"{path}.{name}: {target} has no such parameter{did_you_mean(name, valid)}")
    for name in valid:
        if parameters[name].default is inspect.Parameter.empty and name not in values:
            raise UserError(f"{path}.{name}: must be set; it is a required parameter of {target}")
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    for name, value in values.items():
        if name not in hints:
            continue
        if problem := _mismatch(value, hints[name]):
            raise UserError(f"{path}.{name}={value!r}: {problem}")


def _mismatch(value: object, hint: Any) -> str | None:
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            if not isinstance(value, list):
                raise
            adapter.validate_python(tuple(value), strict=True)  # YAML writes tuples, such as Adam's betas, as lists
    except ValidationError as e:
        return reason_of(e.errors()[0])
    except (PydanticUserError, TypeError):
        return None  # a type that no value can be checked against
    return None


def _check_writable(key: str, name: str) -> None:
    """Raise UserError if the folder can neither be written nor created. Creates and removes a folder to find out."""
    if "://" in name:
        return  # the room that uses the folder reports this
    try:
        existing = next(p for p in (Path(name).absolute(), *Path(name).absolute().parents) if os.path.lexists(p))
        if not existing.is_dir():
            raise UserError(f"{key}={name}: {existing} is not a folder; name a folder")
        os.rmdir(mkdtemp(prefix=".recsys-", dir=existing))
        for part in Path(name).parts:  # no file system takes these names
            if "\0" in part:
                raise OSError(0, "a name contains the character NUL")
            if len(os.fsencode(part)) > MOST_NAME_BYTES:
                raise OSError(0, f"the name {part[:20]}... is longer than {MOST_NAME_BYTES} bytes")
    except (OSError, ValueError) as e:
        if isinstance(e, UserError):
            raise
        why = e.strerror if isinstance(e, OSError) else str(e)
        text = "".join(c if c.isprintable() else "?" for c in name)
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise UserError(f"{key}={shown}: cannot be written: {why}; name another folder") from e
