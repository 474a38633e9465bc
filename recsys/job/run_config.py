"""The config of a run, resolved once. Below `RunConfig.of`, nothing reads the DictConfig that Hydra composed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from recsys.base.errors import UserError
from recsys.config.plain import from_plain
from recsys.data.features.resolved_data import ResolvedData
from recsys.job.settings import data_of, device_of, precision_of
from recsys.schema import run_schema
from recsys.schema.data_schema import EngineConfig

if TYPE_CHECKING:
    from recsys.job.kinds import ModelKind


@dataclass(frozen=True)
class RunConfig:
    """A training config (schema/run_schema.py) whose data is resolved. `changed` makes another one.

    model, loss, numeric, logger: plain mappings, whose `_target_` names a class
    plain: all values as plain containers, which the run's config.yaml and loggers get
    """

    data: ResolvedData
    model: dict[str, Any]
    loss: dict[str, Any] | None
    dims: Any
    numeric: dict[str, Any] | None
    metrics: run_schema.MetricsConfig
    protocol: run_schema.ProtocolConfig
    sharding: run_schema.ShardingConfig
    optim: run_schema.OptimConfig
    trainer: run_schema.TrainerConfig
    loader: run_schema.LoaderConfig
    checkpoint: run_schema.CheckpointConfig
    engine: EngineConfig
    debug: run_schema.DebugConfig
    sweep: run_schema.SweepConfig
    calibration: str
    logger: dict[str, Any]
    seed: int
    run_dir: str | None
    resume: str | None
    start_from: str | None
    resume_on_changed_data: bool
    plain: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, cfg: DictConfig) -> RunConfig:
        """Return the config of a run. Raises UserError if a value is missing."""
        plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
        if missing := sorted(_missing_keys(plain)):
            raise UserError(f"{missing[0]}: must be set")
        values = {name: _typed(name, value) for name, value in plain.items() if name != "data"}
        return cls(data=data_of(plain["data"]), plain=plain, **values)

    @cached_property
    def kind(self) -> ModelKind:
        """The kind of the model."""
        from recsys.job.kinds import KINDS, kind_name

        return KINDS[kind_name(self)]

    @property
    def accelerator(self) -> str:
        """The kind of device: cpu or gpu, with `auto` resolved."""
        return device_of(self.trainer.accelerator)

    @property
    def pipeline(self) -> str:
        """TorchRec's train pipeline, with `auto` resolved. Retrieval models look up items that a step draws."""
        given = self.trainer.pipeline
        if given == "auto":
            given = "sparse_dist" if self.accelerator == "gpu" else "none"
        return given if self.kind.scores_rows or given == "none" else "base"

    @property
    def precision(self) -> str:
        """Lightning's name of the precision, with null and `auto` resolved."""
        return precision_of(self.trainer.precision, self.accelerator)

    @property
    def tf32(self) -> bool:
        """Whether float32 matrices are multiplied as TensorFloat-32, with null resolved."""
        given = self.trainer.tf32
        return self.accelerator == "gpu" and self.precision != "32-true" if given is None else given

    def changed(self, values: Mapping[str, Any]) -> RunConfig:
        """Return a copy with other values. values: by dotted key, such as trainer.devices; not keys of data"""
        plain = deepcopy(self.plain)
        for key, value in values.items():
            *parents, name = key.split(".")
            node = plain
            for parent in parents:
                node = node[parent]
            node[name] = value
        parts = {key.split(".")[0] for key in values}
        return replace(self, plain=plain, **{name: _typed(name, plain[name]) for name in parts})


HINTS = get_type_hints(run_schema.TrainConfig)
SCHEMAS = {f.name for f in fields(run_schema.TrainConfig) if hasattr(HINTS[f.name], "__dataclass_fields__")}


def _typed(name: str, value: Any) -> Any:
    if name in SCHEMAS:
        return from_plain(HINTS[name], value)
    return value or {} if name == "logger" else value


def _missing_keys(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys whose value is missing. OmegaConf.missing_keys takes seconds for thousands of features."""
    if value == MISSING:
        yield key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _missing_keys(item, f"{key}[{name}]" if isinstance(value, list) else f"{key}.{name}".lstrip("."))
