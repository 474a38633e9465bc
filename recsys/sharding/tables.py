"""The tables of a module: names, sizes and widths in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import DataType, data_type_to_dtype
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recsys.base.errors import UserError
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.sharding.optimizers import OPTIMIZERS

# sharding.padding -> bytes; YAML reads a bare `off` as False
PADDINGS = {"off": 4, "False": 4, "16": 16, "64": 64, "128": 128}
DTYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}  # sharding.table_dtype, of which FBGEMM's kernels train tables


@dataclass(frozen=True)
class TableInfo:
    """One table.

    vocabulary: its name in the data, which several tables of a model may share
    dim: number of columns
    width: number of columns in memory; those after `dim` are zero
    dtype: type of the numbers in memory
    rounded: whether the model loses nothing if lookups return what autocast multiplies, see PooledEmbeddings
    """

    name: str
    vocabulary: str
    parameter: str  # name of its weight in a state dict
    rows: int
    dim: int
    width: int
    pooled: bool
    init: Callable[[Tensor], Any]
    dtype: torch.dtype = torch.float32
    rounded: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the weights, with padding."""
        return self.rows * self.width * self.dtype.itemsize


def tables(module: nn.Module) -> dict[str, TableInfo]:
    """Return every table of the module's embedding collections, by name. The module must not be sharded yet."""
    owners = {t: m for m in module.modules() if isinstance(m, PooledEmbeddings | SequenceEmbeddings) for t in m.tables}
    infos: dict[str, TableInfo] = {}
    for path, m in module.named_modules():
        if isinstance(m, EmbeddingBagCollection):
            where, configs = f"{path}.embedding_bags", m.embedding_bag_configs()
        elif isinstance(m, EmbeddingCollection):
            where, configs = f"{path}.embeddings", m.embedding_configs()
        else:
            continue
        for c in configs:
            assert c.init_fn is not None
            if c.name in infos:
                raise UserError(
                    f"model: two tables are named {c.name}; pass another `prefix` to one of the embedding collections"
                )
            owner = owners.get(c.name)
            infos[c.name] = TableInfo(
                name=c.name,
                vocabulary=getattr(owner, "vocabularies", "") + c.name.removeprefix(owner.prefix if owner else ""),
                parameter=f"{where}.{c.name}.weight".lstrip("."),
                rows=c.num_embeddings,
                dim=owner.dims[c.name] if owner else c.embedding_dim,
                width=c.embedding_dim,
                pooled=where.endswith("embedding_bags"),
                init=c.init_fn,
                dtype=data_type_to_dtype(c.data_type),
                rounded=getattr(owner, "rounded", False),
            )
    return infos


def lay_out_tables(module: nn.Module, padding: str, table_dtype: str = "fp32") -> None:
    """Choose the type of the numbers in tables, and widen tables so that a row is a multiple of `padding` bytes, the
    size of FBGEMM's vector loads.

    The module's weights must be on the meta device, since such tables are created again.
    """
    data_type = DTYPES[table_dtype]
    columns = PADDINGS[padding] // data_type_to_dtype(data_type).itemsize
    for m in module.modules():
        if not isinstance(m, PooledEmbeddings | SequenceEmbeddings):
            continue
        if data_type != DataType.FP32 or any(d % columns for d in m.dims.values()):
            m.lay_out(columns, data_type)


def check_table_dtype(table_dtype: str, is_fused: bool = True) -> None:
    """Raise UserError for a type of which FBGEMM trains no tables. is_fused: whether its kernels update the tables"""
    key = f"sharding.table_dtype={table_dtype}"
    if table_dtype != "fp32" and not is_fused:
        names = ", ".join(name for name, c in OPTIMIZERS.items() if c.cpu_kernel)
        why = f"only FBGEMM's fused kernels train such tables: on CPUs, the kernels of {names}"
        fix = "set optim.sparse.name=rowwise_adagrad, every_row=false and weight_decay=0, and trainer.accumulate=1"
        raise UserError(f"{key}: {why}; {fix}")
