"""The values of the keys of recsys.export, without the imports that they need."""

FORMATS = ("onnx", "single_graph", "torchscript", "aoti")
PRECISIONS = ("fp32", "fp16", "bf16")
TABLES = ("fp32", "fp16", "int8", "int4")
DENSE_BACKENDS = ("onnxruntime", "pytorch", "python")
