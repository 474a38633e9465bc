"""Data configs of tests: from YAML, or from a composed config."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys.config.compose import object_of
from recsys.data.features import ResolvedData
from recsys.data.features.resolved_data import resolve
from recsys.job.run_config import data_of
from recsys.schema.data_schema import DataConfig, LabelConfig


def data_config(cfg: DictConfig) -> ResolvedData:
    """Return the resolved data of a composed config."""
    return data_of(object_of(DataConfig, cfg.data))


def data_from(*parts: Any) -> ResolvedData:
    """Return the resolved data of mappings or texts in YAML; later ones extend earlier ones."""
    return resolve(object_of(DataConfig, OmegaConf.merge(*map(OmegaConf.create, ({"name": "t"}, *parts)))))


def small_config(folder: Path, **more: Any) -> ResolvedData:
    """Return the config of the files in folder/raw, whose label is y, prepared in folder/prepared."""
    given = {"name": "t", "root": str(folder / "raw"), "prepared": str(folder / "prepared"), "label": LabelConfig("y")}
    return ResolvedData(**(given | more))
