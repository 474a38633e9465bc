"""The values of the keys of recsys.export, without the imports that they need."""

from typing import Literal, get_args

from recsys.index.build_index import KINDS

TableType = Literal["fp32", "fp16", "int8", "int4"]

FORMATS = ("onnx", "single_graph", "torchscript", "aoti")
PRECISIONS = ("fp32", "fp16", "bf16")
INDEXES = ("auto", *KINDS)
TABLES: tuple[str, ...] = get_args(TableType)
DENSE_BACKENDS = ("onnxruntime", "pytorch", "python", "fil")
