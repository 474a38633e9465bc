"""Resolve parts of a config: data, engine, accelerator, durations."""

import re
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from recsys.base.errors import UserError
from recsys.config.plain import from_plain
from recsys.schema import data_schema

if TYPE_CHECKING:
    from recsys.data.features import ResolvedData


def data_config(cfg: DictConfig) -> "ResolvedData":
    """Return the data config with its features resolved, and with the features, files and splits of data.spec."""
    return data_of(OmegaConf.to_container(cfg.data, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]


def data_of(plain: dict[str, Any]) -> "ResolvedData":
    """Return the data config of a checked config's plain values, as `data_config` does."""
    from recsys.data.features import resolve
    from recsys.data.raw.nvidia_spec import expand_spec

    return resolve(expand_spec(from_plain(data_schema.DataConfig, plain)))


def engine_config(cfg: DictConfig) -> data_schema.EngineConfig:
    """Return the engine config as an object."""
    engine = OmegaConf.to_object(cfg.engine)
    assert isinstance(engine, data_schema.EngineConfig)
    return engine


def seconds_of(max_time: str) -> float:
    """Return the seconds of DD:HH:MM:SS. Raises UserError for any other text."""
    if not (m := re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", max_time)):
        raise UserError(f"trainer.max_time={max_time}: must have the form DD:HH:MM:SS, such as 00:01:30:00")
    days, hours, minutes, seconds = map(int, m.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def device_of(accelerator: str) -> str:
    """Return cpu or gpu for the value of trainer.accelerator, of which `auto` depends on the machine."""
    import torch

    if accelerator == "auto":
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
        features = torch.cpu.get_capabilities()
        multiplies = bool(features.get("amx_bf16") or features.get("avx512_bf16"))
    return "bf16-mixed" if multiplies else "32-true"
