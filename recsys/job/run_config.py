"""The config of a run, parsed and resolved once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.config.compose import load_values, object_of
from recsys.data.features.resolved_data import ResolvedData
from recsys.job.kinds import ModelKind, ResolvedConfig, kind_of
from recsys.schema import run_schema
from recsys.schema.data_schema import DataConfig
from recsys.schema.fields import plain


class RunConfig(ResolvedConfig):
    """A training config whose data is resolved. Do not set its values: `changed` makes another one.

    plain: all values as plain containers, which the run's config.yaml and loggers get
    unread: returns a line about keys that were typed, and that the run does not read, or None
    """

    plain: dict[str, Any]
    unread: Callable[[], str | None]

    @classmethod
    def of(cls, cfg: object) -> RunConfig:
        """Return the config of a run. Raises UserError if a value is missing or wrong.

        cfg: composed by Hydra, loaded from YAML, or such a config
        """
        if isinstance(cfg, cls):
            return cfg
        names = [field.name for field in fields(run_schema.TrainConfig)]
        parsed = object_of(run_schema.TrainConfig, cfg)
        made, values = cls.__new__(cls), plain(parsed)
        vars(made).update({name: vars(parsed)[name] for name in names}, data=data_of(parsed.data), unread=lambda: None)
        made.plain = {name: values[name] for name in names}
        return made

    @classmethod
    def load(cls, file: Path, *, ours: bool = False) -> RunConfig:
        """Return the config in a run's config.yaml. Raises UserError as `compose.load_values`. ours: see there"""
        values = load_values(file, ours=ours)
        try:
            return cls.of(values)
        except UserError as e:
            raise UserError(f"{file}: {e}") from e

    @cached_property
    def kind(self) -> ModelKind:
        """The kind of the model."""
        return kind_of(self)

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
        changed = deepcopy(self.plain)
        for key, value in values.items():
            *parents, name = key.split(".")
            node = changed
            for parent in parents:
                node = node[parent]
            node[name] = value
        parsed = vars(parse(run_schema.TrainConfig, {**changed, "data": self.data}))
        made = RunConfig.__new__(RunConfig)
        vars(made).update(vars(self), plain=changed, **{key.split(".")[0]: parsed[key.split(".")[0]] for key in values})
        vars(made).pop("kind", None)  # it is found again: the model may be another one
        return made


def data_of(config: DataConfig) -> ResolvedData:
    """Return a data config with its features resolved, and with the features, files and splits of data.spec."""
    from recsys.data.features.resolved_data import resolve
    from recsys.data.raw.nvidia_spec import expand_spec

    return resolve(expand_spec(config))


def device_of(accelerator: str) -> str:
    """Return cpu or gpu for the value of trainer.accelerator, of which `auto` depends on the machine."""
    if accelerator == "auto":
        import torch

        return "gpu" if torch.cuda.is_available() else "cpu"
    return "gpu" if accelerator == "cuda" else accelerator


def precision_of(precision: str | None, accelerator: str) -> str:
    """Return Lightning's name of trainer.precision, of which null and `auto` depend on the machine."""
    import torch

    if precision is None and accelerator == "cpu":
        return "32-true"
    if precision not in (None, "auto"):
        return precision
    if accelerator == "gpu":
        multiplies = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = torch.cpu.get_capabilities()  # avx512_bf16 has twice the rate of float32 on AMD's CPUs, half on Intel's
        multiplies = has.get("amx_bf16") or (has.get("avx512_bf16") and "AMD" in str(has.get("cpu_name")))
    return "bf16-mixed" if multiplies else "32-true"
