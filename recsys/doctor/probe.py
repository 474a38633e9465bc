"""python -m recsys.doctor.probe cpu gloo cuda nccl: run tests, each in a process of its own, which may crash.

Prints a JSON object: the result of each test, or {"failed": why}. The processes are forked after PyTorch is imported
once: a second import of it would take as long as all tests.
"""

import json
import sys
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 180  # time limit of a test


def _kernel(device: str) -> dict[str, Any]:
    """Compare FBGEMM's fused lookup, backward and row-wise Adagrad on a small table with plain PyTorch.

    Returns:
        A dict: right, whether the results are equal, and lookups_per_second.
    """
    import torch
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    rows, dim, bags, each = 100_000, 64, 8192, 10
    location, computes = ("HOST", "CPU") if device == "cpu" else ("DEVICE", "CUDA")
    where = (EmbeddingLocation[location], ops.ComputeDevice[computes])
    table = ops.SplitTableBatchedEmbeddingBagsCodegen(
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
    [after] = table.split_embedding_weights()
    right = torch.allclose(out, expected, atol=1e-4) and torch.allclose(after, updated, atol=1e-3)
    begun, steps = time.perf_counter(), 5
    for _ in range(steps):
        table(ids, offsets).sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return {"right": right, "lookups_per_second": steps * bags * each / (time.perf_counter() - begun)}


def _answer(name: str, connection: Connection) -> None:
    """Send a test's result, or the last line of its error."""
    try:
        if name not in ("gloo", "nccl"):
            connection.send(_kernel(name))
            return
        import torch
        import torch.distributed as dist

        # all-reduce within this process alone, to check that the backend exists
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(4, device="cuda" if name == "nccl" else "cpu")
        dist.all_reduce(x)
        connection.send({"right": bool((x == 1).all())})
    except Exception as e:
        lines = "".join(traceback.format_exception_only(e)).splitlines()
        connection.send({"failed": [line for line in lines if line.strip()][-1]})


def in_a_fork(name: str) -> dict[str, Any]:
    """Run a test in a forked process, and return its result or {"failed": why}."""
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(name, sender))
    process.start()
    sender.close()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        return {"failed": f"did not answer within {SECONDS} s"}
    if process.exitcode:
        how = f"ended by signal {-process.exitcode}" if process.exitcode < 0 else f"exited with {process.exitcode}"
        return {"failed": f"the process {how}"}
    result: dict[str, Any] = receiver.recv()
    return result


if __name__ == "__main__":
    import torch  # noqa: F401

    print(json.dumps({name: in_a_fork(name) for name in sys.argv[1:]}))
