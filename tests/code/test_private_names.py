"""Private names of other packages that recsys uses, because there is no public one: fails when one moves.

Each use says why in a comment that begins with "private:".
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "recsys"
USED = {  # name: the files that may use it
    "_ALL_BROKERS_DOWN": {"store/streams.py"},  # of confluent_kafka, which documents its codes of errors
    "_best_plan": {"plan.py"},
    "_data_fetcher": {"training/epoch_loop.py"},
    "_enumerator": {"sharding/infeasible.py"},
    "_evaluate_stopping_criteria": {"training/callbacks.py"},
    "_exit": {"distributed/failures.py", "base/interrupts.py"},  # of os, which documents it
    "_PARTITION_EOF": {"store/streams.py"},
    "_StorageInfo": {"sharding/stored_checkpoint.py"},
    "_feature_table_map": {"sharding/touched_rows.py"},
    "_get_layout": {"sharding/stored_checkpoint.py"},
    "_inductor": {"export/ranking_graph.py"},  # torch documents AOTInductor there
    "_init_from_local_shards_and_global_metadata": {"sharding/tables.py"},
    "_local_cols": {"sharding/touched_rows.py"},
    "_local_rows": {"sharding/touched_rows.py"},
    "_iteration_based_training": {"training/trainer.py"},
    "_log_artifact": {"training/wandb_artifacts.py"},
    "_lookups": {"sharding/touched_rows.py", "data/features/fitted.py"},  # the latter has its own
    "_profiler_enabled": {"training/profiling.py"},  # of torch.autograd
    "_pooling": {"sharding/touched_rows.py"},
    "_run_exitfuncs": {"distributed/failures.py"},
    "_should_check_val_fx": {"training/epoch_loop.py"},
    "_storage_reservation": {"sharding/table_memory.py"},
    "_to_model": {"dashboard.py"},
    "_trial_id": {"sweep/search.py"},
    "_valid_parameters": {"sweep/slurm.py"},
}


def test_only_these_are_used() -> None:
    """Attributes with an underscore that no module of ours defines."""
    trees = {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in ROOT.rglob("*.py")}
    own = set()
    for tree in trees.values():
        for n in ast.walk(tree):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own.add(n.name)
            elif isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store):
                own.add(n.id if isinstance(n, ast.Name) else n.attr)
    own -= set(USED)
    used: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for n in ast.walk(tree):
            private = isinstance(n, ast.Attribute) and n.attr.startswith("_") and not n.attr.startswith("__")
            if private and n.attr not in own:
                used.setdefault(n.attr, set()).add(file)
    assert used.keys() <= USED.keys()
    assert {name: files - USED[name] for name, files in used.items() if files - USED[name]} == {}


@pytest.mark.parametrize("file", sorted({f for files in USED.values() for f in files}))
def test_uses_have_a_reason(file: str) -> None:
    assert "private" in (ROOT / file).read_text() or file in ("data/features/fitted.py", "sharding/planner.py")
