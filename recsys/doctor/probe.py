"""python -m recsys.doctor.probe cpu|cuda|gloo|nccl: run one test in a process of its own, which may crash.

Prints a line of JSON.
"""

import json
import sys
import time
from typing import Any


def _kernel(device: str) -> dict[str, Any]:
    """Compare FBGEMM's fused lookup, backward and row-wise Adagrad on a small table with plain PyTorch.

    Returns:
        A dict: right, whether the results are equal, and lookups_per_second.
    """
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rows, dim, bags, each = 100_000, 64, 8192, 10
    where = (
        (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if device == "cpu"
        else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    )
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, *where)], optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1, eps=1e-8
    )
    [weight] = table.split_embedding_weights()
    weight.data.uniform_(-1, 1)
    before = weight.detach().clone().requires_grad_()
    ids = torch.randint(rows, (bags * each,), device=weight.device)
    offsets = torch.arange(0, bags * each + 1, each, device=weight.device)
    expected = torch.nn.functional.embedding_bag(ids, before, offsets[:-1], mode="sum")
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    assert before.grad is not None
    size = before.grad.square().mean(1, keepdim=True).sqrt() + 1e-8
    updated = before.detach() - 0.1 * before.grad / size
    out = table(ids, offsets)
    out.square().sum().backward()
    right = torch.allclose(out, expected, atol=1e-4) and torch.allclose(
        table.split_embedding_weights()[0], updated, atol=1e-3
    )
    begun, steps = time.perf_counter(), 10
    for _ in range(steps):
        table(ids, offsets).sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return {"right": right, "lookups_per_second": steps * bags * each / (time.perf_counter() - begun)}


def _collective(backend: str) -> dict[str, Any]:
    """All-reduce within this process alone, to check that the backend exists."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
    dist.all_reduce(x)
    return {"right": bool((x == 1).all())}


if __name__ == "__main__":
    what = sys.argv[1]
    print(json.dumps(_collective(what) if what in ("gloo", "nccl") else _kernel(what)))
