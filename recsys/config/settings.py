"""Values that follow from a config."""

import re
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from recsys.config import schema_data
from recsys.config.build import locate
from recsys.errors import UserError

Kind = Literal["predicts", "retrieves", "closed_form"]


def data_config(cfg: DictConfig) -> schema_data.DataConfig:
    """With what data.spec adds to it."""
    from recsys.data.raw.nvidia_spec import expanded

    data = OmegaConf.to_object(cfg.data)
    assert isinstance(data, schema_data.DataConfig)
    return expanded(data)


def engine_config(cfg: DictConfig) -> schema_data.EngineConfig:
    engine = OmegaConf.to_object(cfg.engine)
    assert isinstance(engine, schema_data.EngineConfig)
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
    from recsys.evaluation.retrieval import Protocols

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
    from recsys.evaluation.binary import NAMES

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
