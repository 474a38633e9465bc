"""Data configs of tests: from YAML, or from a composed config."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys.base.parsing import parse
from recsys.config.compose import values_of
from recsys.data.features import ResolvedData, resolve
from recsys.job.run_config import data_of
from recsys.schema.data_schema import DataConfig


def data_config(cfg: DictConfig) -> ResolvedData:
    """Return the resolved data of a composed config."""
    return data_of(parse(DataConfig, values_of(cfg.data)))


def data_from(*parts: Any) -> ResolvedData:
    """Return the resolved data of mappings or texts in YAML; later ones extend earlier ones."""
    return resolve(parse(DataConfig, values_of(OmegaConf.merge(*map(OmegaConf.create, ({"name": "t"}, *parts))))))
