"""A checkpoint is read by any plan and world size, optimizers' state included, and training goes on as if never moved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Case, Trained, blocks_of, reference
from processes import run

from recsys.sharding import checkpoint
from recsys.sharding.plan import FUSED_OPTIMIZERS

ROWWISE = ["rowwise_adagrad", "partial_rowwise_adam"]

WORLDS = [4, 2, 1, 2]
CHAINS = {  # the plans that follow each other in each world
    "with columns": (
        FUSED_OPTIMIZERS,
        [["row_wise", "grid_shard"], ["column_wise"], ["table_wise"], ["mixed", "data_parallel"]],
    ),
    "by rows": (ROWWISE, [["row_wise"], ["table_row_wise"], ["table_wise"], ["data_parallel"]]),
}
EACH, LAST = 3, 20  # steps with each plan of a chain, and with its last


def save(trained: Trained, path: Path, step: int) -> None:
    m = trained.module
    state: dict[str, Any] = {"global_step": step}
    checkpoint.save(path, trained.dmp, m.tables, m._sparse.name, m.row_optimizer, state, m.plan)


def load(trained: Trained, path: Path) -> int:
    m = trained.module
    state = checkpoint.load_all(path, trained.dmp, m.tables, m._sparse.name, m.row_optimizer)
    if "adam" in m._sparse.name:
        trained.dmp.fused_optimizer.set_optimizer_step(state["global_step"])
    return int(state["global_step"])


def stage(rank: int, world_size: int, folder: str, number: int) -> dict[str, Any]:
    """One world's part of every chain: under each plan, go on from the last checkpoint, and write the next."""
    found: dict[str, Any] = {}
    for chain, (optimizers, kinds) in CHAINS.items():
        for optimizer in optimizers:
            step = EACH * sum(map(len, kinds[:number]))
            logits, blocks = [], []
            for kind in kinds[number]:
                wide = kind == "table_wise"  # padding changes on the way, too
                trained = Trained(Case(kind, optimizer, decay=False, padding="64" if wide else "16"))
                place = Path(folder) / chain / optimizer
                if step:
                    assert load(trained, place / f"step-{step}") == step
                steps = LAST if kind == "data_parallel" else EACH
                logits += [trained.step(step + i) for i in range(steps)]
                blocks += [blocks_of(trained.module.plan)] * steps
                step += steps
                save(trained, place / f"step-{step}", step)
            found[chain, optimizer] = logits, blocks
    return found


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """The folder of checkpoints; logits of every step, of all ranks' rows, and the tables' column blocks in it."""
    folder = tmp_path_factory.mktemp("chains")
    found: dict[Any, Any] = {}
    for number, world_size in enumerate(WORLDS):
        ranks = run(stage, world_size, str(folder), number)
        for key in ranks[0]:
            logits, blocks = found.get(key, ([], []))
            new = map(torch.cat, zip(*(r[key][0] for r in ranks), strict=True))
            found[key] = [*logits, *new], [*blocks, *ranks[0][key][1]]
    return folder, found


@pytest.mark.parametrize("key", [(c, o) for c, (optimizers, _) in CHAINS.items() for o in optimizers], ids="-".join)
def test_training_goes_on_as_if_it_had_never_moved(moved: Any, key: tuple[str, str]) -> None:
    """Against plain torch in one process, over all plans and the 20 steps after the last move.

    1e-4: float32 sums in another order. Row-wise state has a number a row
    and column block: the reference keeps it by the blocks of the step's plan.
    """
    logits, blocks = moved[1][key]
    expected, _ = reference(Case("", key[1], decay=False), blocks)
    assert len(logits) >= 3 * EACH + LAST
    for step, got in enumerate(logits):
        torch.testing.assert_close(got, expected[step], rtol=1e-4, atol=1e-4, msg=lambda m, s=step: f"step {s}: {m}")
