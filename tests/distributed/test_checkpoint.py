"""A checkpoint of two processes, row-wise, read by one and by four, under other plans; and killed saves."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from parity import ROWS, Model, batch, fill, weights
from processes import run

from recsys.schema import ShardingConfig, SparseOptimConfig
from recsys.sharding import checkpoint
from recsys.sharding.optim import RowOptimizer
from recsys.sharding.plan import describe, make_plan, shard, tables_of
from recsys.task import Task


def build(
    kind: str, optimizer: str, world_size: int
) -> tuple[Any, dict[str, torch.Tensor], RowOptimizer | None, list[Any]]:
    config = SparseOptimConfig(name=optimizer, lr=0.1)
    task = Task(Model())
    tables = tables_of(task)
    plan, sharder = make_plan(
        task,
        ShardingConfig(types=[kind]),
        config,
        device=torch.device("cpu"),
        batch_size=ROWS,
        local_world_size=world_size,
    )
    dmp = shard(task, plan, sharder, torch.device("cpu"))
    entries = describe(plan, tables)
    dense = {f"{e['module']}.embedding_bags.{e['table']}.weight" for e in entries if e["kernel"] == "dense"}
    rows = {n: p for n, p in dmp.named_parameters() if n in dense and p.dim() == 2}
    return dmp, rows, RowOptimizer(list(rows.values()), config) if rows else None, entries


def step(dmp: Any, row_optimizer: RowOptimizer | None, number: int, rank: int) -> None:
    for p in dmp.parameters():
        p.grad = None
    loss, _ = dmp(batch(number, rank))
    loss.backward()
    if row_optimizer:
        row_optimizer.step()


def predict(dmp: Any) -> torch.Tensor:
    """The same six rows on every rank."""
    with torch.no_grad():
        return dmp(batch(9, 0))[1]


def write(rank: int, world_size: int, folder: str) -> Any:
    out = {}
    for optimizer in ("rowwise_adagrad", "adam", "partial_rowwise_adam"):
        dmp, rows, row_optimizer, plan = build("row_wise", optimizer, world_size)
        with torch.no_grad():
            fill(dmp, weights())
        step(dmp, row_optimizer, 0, rank)
        checkpoint.save(Path(folder) / optimizer, dmp, rows, row_optimizer, {"global_step": 1}, plan)
        out[optimizer] = {"now": predict(dmp)}
        step(dmp, row_optimizer, 1, rank)
        out[optimizer]["next"] = predict(dmp)
    return out


def read(rank: int, world_size: int, folder: str, kinds: list[str]) -> Any:
    out = {}
    for kind in kinds:
        dmp, *_ = build(kind, "rowwise_adagrad", world_size)
        checkpoint.load_model(Path(folder) / "rowwise_adagrad", dmp)
        out[kind] = predict(dmp)
    return out


def resume(rank: int, world_size: int, folder: str) -> Any:
    """Weights and every table optimizer's state, under another plan of the same world size."""
    out = {}
    for optimizer in ("rowwise_adagrad", "adam", "partial_rowwise_adam"):
        for kind in ("row_wise", "table_wise"):
            dmp, rows, row_optimizer, _ = build(kind, optimizer, world_size)
            state = checkpoint.load_all(Path(folder) / optimizer, dmp, rows, row_optimizer)
            assert state["global_step"] == 1
            for p in rows.values():
                if row_optimizer and "step" in row_optimizer.state[p]:
                    row_optimizer.state[p]["step"] = 1
            step(dmp, row_optimizer, 1, rank)
            out[optimizer, kind] = predict(dmp)
    return out


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    return folder, run(write, 2, folder)


@pytest.mark.parametrize(
    ("world_size", "kinds"), [(1, ["row_wise"]), (4, ["row_wise", "table_wise", "data_parallel", "column_wise"])]
)
def test_loads_at_another_world_size_and_plan_with_equal_predictions(
    written: tuple[str, Any], world_size: int, kinds: list[str]
) -> None:
    folder, ranks = written
    for found in run(read, world_size, folder, kinds):
        for kind in kinds:
            torch.testing.assert_close(found[kind], ranks[0]["rowwise_adagrad"]["now"], rtol=1e-6, atol=1e-6, msg=kind)


def test_optimizer_state_goes_on_under_another_plan(written: tuple[str, Any]) -> None:
    folder, ranks = written
    for rank, found in enumerate(run(resume, 2, folder)):
        for (optimizer, kind), value in found.items():
            torch.testing.assert_close(
                value, ranks[rank][optimizer]["next"], rtol=1e-5, atol=1e-6, msg=f"{optimizer} {kind}"
            )


def killed_while_saving(rank: int, folder: str, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    dmp, rows, row_optimizer, plan = build("none", "rowwise_adagrad", 1)
    with torch.no_grad():
        fill(dmp, weights())
    path = Path(folder) / "step-1"
    checkpoint.save(path, dmp, rows, row_optimizer, {"global_step": 1}, plan)
    torch.save(predict(dmp), Path(folder) / "predictions")
    with torch.no_grad():
        fill(dmp, {k: v * 0 for k, v in weights().items()})
    real = checkpoint.dcp.save

    def save_half(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.dcp.save = save_half
    checkpoint.save(path, dmp, rows, row_optimizer, {"global_step": 2}, plan)


def test_a_kill_during_the_save_leaves_the_previous_one_loadable(tmp_path: Path) -> None:
    with pytest.raises(mp.ProcessExitedException):
        mp.spawn(killed_while_saving, (str(tmp_path), str(tmp_path / "store")), nprocs=1)
    [found] = run(read_one, 1, str(tmp_path / "step-1"))
    torch.testing.assert_close(found, torch.load(tmp_path / "predictions"))


def read_one(rank: int, world_size: int, path: str) -> Any:
    dmp, *_ = build("none", "rowwise_adagrad", 1)
    checkpoint.load_model(Path(path), dmp)
    return predict(dmp)
