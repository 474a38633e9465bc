"""TorchRec sharders with every sharding type, FBGEMM's fused optimizers, and codecs of what devices exchange."""

from collections.abc import Mapping
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import ParameterSharding, ShardingType

from recsys.base.errors import UserError
from recsys.schema.run_schema import CommsConfig, ShardingConfig
from recsys.sharding.dedup import add_cpu_operator
from recsys.sharding.optimizers import SparseOptimizer
from recsys.sharding.tables import TableInfo

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1.25}  # of a number; 32 of int8 share a scale and an offset
COLUMNS_WHOLE = {"table_wise", "column_wise", "data_parallel"}  # types whose vectors no device adds up
TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", "grid_shard")
SEQUENCE_TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise")  # TorchRec's types of unpooled tables
KERNELS = ("fused", "fused_uvm", "fused_uvm_caching")


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


class _EveryType:
    """Sharder with every sharding type on CPU too.

    TorchRec's sharders offer row-wise types on CUDA only, although they run over gloo. If FBGEMM has no fused CPU
    kernel for the optimizer (Adam, partial row-wise Adam, any with weight decay), tables use the dense kernel, and
    `RowOptimizer` updates the rows of each batch.

    Args:
        device: the device of the tables.
        sharding: has the number types of the exchanged vectors, and whether ids are exchanged once (`dedup`).
        prefetch: whether a pipeline loads the rows of the next batch into the cache; FBGEMM then keeps the rows of the
            current one there.
        bfloat16: whether the model multiplies in bfloat16. Tables on GPUs whose vectors it rounds then return bfloat16,
            which saves a pass over all vectors. (Not float16, in which the unscaled gradients of tables would vanish.)
    """

    TYPES = TYPES

    def __init__(
        self,
        optim: SparseOptimizer,
        device: torch.device,
        infos: dict[str, TableInfo],
        sharding: ShardingConfig,
        prefetch: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self._half = bfloat16 and device.type == "cuda"
        self.fused, self._optim, self._infos = optim.is_fused(device), optim, infos
        self._more: dict[str, Any] = {}
        if device.type == "cuda":  # the loader has checked the ids, which takes these kernels 4 % of DLRM's step
            self._more["bounds_check_mode"] = BoundsCheckMode.NONE
        super().__init__(  # type: ignore[call-arg]
            fused_params=self._params() if self.fused else {},
            qcomm_codecs_registry=codecs(sharding.comms, device),
            **self._own_settings(sharding, device),
        )
        if prefetch:  # not told to the planner, which would then take cached rows for rows in HBM
            self._more["prefetch_pipeline"] = True

    def _own_settings(self, sharding: ShardingConfig, device: torch.device) -> dict[str, Any]:
        return {}

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(self.TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        if sharding_type == ShardingType.DATA_PARALLEL.value:
            return [EmbeddingComputeKernel.DENSE.value]
        if compute_device_type == "cpu":
            return [EmbeddingComputeKernel.FUSED.value]
        return list(KERNELS)

    def shard(self, module: nn.Module, params: Mapping[str, ParameterSharding], *args: Any, **kwargs: Any) -> Any:
        if self.fused:
            info = self._infos[next(iter(params))]  # all tables of a collection have the same dim
            self._fused_params = self._params(info.dim / info.width, info.rounded)
        return super().shard(module, params, *args, **kwargs)  # type: ignore[misc]

    def _params(self, share: float = 1.0, rounded: bool = False) -> dict[str, Any]:
        output = {"output_dtype": SparseType.BF16} if rounded and self._half else {}
        return self._optim.fused_params(share) | self._more | output


class Sharder(_EveryType, EmbeddingBagCollectionSharder):
    """Sharder of pooled tables."""


class SequenceSharder(_EveryType, EmbeddingCollectionSharder):
    """Sharder of unpooled tables."""

    TYPES = SEQUENCE_TYPES  # type: ignore[assignment]

    def _own_settings(self, sharding: ShardingConfig, device: torch.device) -> dict[str, Any]:
        if sharding.dedup and device.type == "cpu":
            add_cpu_operator()
        return {"use_index_dedup": sharding.dedup}
