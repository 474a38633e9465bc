"""Check a training config by building its parts, before data are prepared or processes are started."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from omegaconf import DictConfig

from recsys.base.console import say
from recsys.base.cores import allowed_cores
from recsys.base.errors import UserError
from recsys.job.build import BUILT_WITH, bind, build_loss, build_model, check_takes, make, make_scheduler
from recsys.job.check_config import check_config, check_fit, check_monitors
from recsys.job.kinds import kind_name, loss_facts, loss_facts_of, meta_task, model_kind_of
from recsys.job.run_config import RunConfig
from recsys.schema.signatures import Parameter, check_parameter_values


def check_job(given: DictConfig | RunConfig, world_size: int | None = None, *, trains: bool = True) -> None:
    """Raise UserError for a mistake in a training config, without reading data or starting a process.

    Args:
        given: the config that Hydra composed, or that of a run.
        world_size: number of processes of the job; by default trainer.devices, as on one machine.
        trains: the config will be used for training. If not, the monitored metrics are not checked: another protocol
            may not measure them.
    """
    check_built(check_config(given, trains=trains), world_size, trains=trains)


check = check_job  # recsys.check


def check_built(cfg: RunConfig, world_size: int | None = None, *, trains: bool = True) -> None:
    """Build the parts of a run, which needs the slow imports, after `check_config`. Arguments: as in `check_job`."""
    processes = world_size or cfg.trainer.devices
    check_parts(cfg)
    _check_batch(cfg, processes)
    _check_devices(cfg)
    _check_model(cfg, processes, trains)
    if not trains:
        return
    check_monitors(cfg)
    for name, node in cfg.logger.items():
        bind(node, f"logger.{name}")


def check_parts(cfg: RunConfig) -> None:
    """Check the parts that training and planning share, one by one: model, loss, optimizers, sharding."""
    from recsys.base.packages import check_versions

    check_versions()
    check_target(cfg.model, "model", given=BUILT_WITH)
    if cfg.loss is not None:
        check_target(cfg.loss, "loss")
        build_loss(cfg)
    check_target(cfg.optim.dense, "optim.dense", given=("params",))
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
                scheduler.step(*([0.0] if cfg.optim.watches else []))
        except (ValueError, TypeError, ArithmeticError) as e:
            raise UserError(f"optim.scheduler: {e}") from e
    from recsys.sharding.optimizers import sparse_optimizer

    sparse_optimizer(cfg.optim.sparse)


def _check_batch(cfg: RunConfig, processes: int) -> None:
    if (rows := cfg.trainer.batch_size) % processes:
        raise UserError(f"trainer.batch_size={rows} is not divisible by {processes} processes")


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
    fused = sparse_optimizer(cfg.optim.sparse).is_fused(torch.device(device), cfg.trainer.accumulate)
    check_table_dtype(cfg.sharding.table_dtype, fused)
    # On CPUs, a device is a process. More processes than cores are slow but valid; many more are probably a mistake.
    have = gpus if accelerator == "gpu" else max(4, allowed_cores().count)
    if cfg.trainer.devices > have:
        kind = "GPUs" if accelerator == "gpu" else f"processes (for {allowed_cores().count} cores)"
        raise UserError(f"trainer.devices={cfg.trainer.devices}: there are at most {have} {kind}")


def _check_model(cfg: RunConfig, processes: int, trains: bool) -> None:
    """Build the model on the meta device for the features that the config names, with any cardinality."""
    import numpy as np
    import torch

    from recsys.data.features.resolved_data import feature_spec
    from recsys.data.prepare.check_data import names_files
    from recsys.data.raw.vector_files import table_widths
    from recsys.models.common.layers import has_batch_norm
    from recsys.sharding.constraints import constraints
    from recsys.sharding.sharded_model import check_vector_tables
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
    if cfg.sharding.dedup and all(info.pooled for info in infos.values()):
        say("no effect on this run: sharding.dedup is read only by models with tables of unpooled lists")
    if trains and names_files(cfg.data):
        check_vector_tables(infos, {table: np.empty((0, width)) for table, width in table_widths(cfg.data).values()})


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
    try:
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    parameters = {
        n: Parameter(hints.get(n, Any), p.default is inspect.Parameter.empty)
        for n, p in inspect.signature(function).parameters.items()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and n not in given
    }
    check_parameter_values(values, path, target, parameters)
