"""Number types in which devices exchange the vectors of tables and their gradients, by TorchRec's codecs."""

from typing import Any

import torch
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry

from recsys.base.errors import UserError
from recsys.schema.run_schema import CommsConfig, ShardingConfig

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1.25}  # of a number; 32 of int8 share a scale and an offset
COLUMNS_WHOLE = {"table_wise", "column_wise", "data_parallel"}  # types whose vectors no device adds up


def codecs(comms: CommsConfig, device: torch.device) -> Any:
    """Return TorchRec's codecs, by collective; None if everything is exchanged in float32."""
    config = QCommsConfig(CommType(comms.forward), CommType(comms.backward))
    return get_qcomm_codecs_registry(config, device=device)


def check_comms(sharding: ShardingConfig, device: str) -> None:
    """Raise UserError for a type that collectives on the device, cpu or cuda, do not have."""
    for direction in ("forward", "backward"):
        key, name = f"sharding.comms.{direction}", getattr(sharding.comms, direction)
        if device == "cpu" and name == "bf16":  # TorchRec would take fp16, and only log it
            raise UserError(f"{key}=bf16: collectives on CPUs (gloo) have no bfloat16; use {key}=fp16")
        if device == "cpu" and name == "int8" and not (sharding.types and set(sharding.types) <= COLUMNS_WHOLE):
            why = "collectives on CPUs (gloo) cannot add up int8, as row-wise tables need"
            raise UserError(f"{key}=int8: {why}; use sharding=tablewise or columnwise, or {key}=fp16")
