"""Whatever happens to a file of a run or of prepared data: a right answer, or one line; never a wrong number.

A file, a fault and a command are drawn at random. The answer must be that of undamaged files, or a UserError of one
line that names the file; checkpoints that were whole must stay.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_run import Home
from storage_faults import DAMAGES, copy

from recsys.base.errors import UserError
from recsys.data.prepare.prepared import prepare
from recsys.online.predictor import Predictor
from recsys.report.runs import read
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.evaluate_run import evaluate
from recsys.training.run_dir import choose_checkpoint, open_run

FAULTS = 100
UNREAD = (".lock", ".owner.json", "train.log", "metrics.csv")  # not read again, or only shown


@dataclass(frozen=True)
class Scene:
    """Folders that are damaged, undamaged copies of them, and the answers to all commands."""

    home: Home
    whole: Path
    commands: dict[str, Callable[[], Any]]
    answers: dict[str, Any]

    def restore(self) -> None:
        for name in ("run", "prepared"):
            shutil.rmtree(self.home.folder / name, ignore_errors=True)
            copy(self.whole / name, self.home.folder / name)


@pytest.fixture(scope="module")
def scene(trained: Home, raw: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    whole = tmp_path_factory.mktemp("whole")
    for name in ("run", "prepared"):
        copy(trained.folder / name, whole / name)
    run = str(trained.run)

    def prepared() -> Any:
        cfg, _ = open_run(run)
        found = prepare(cfg.data)
        found.check_in_background(()).check_now(found.files("test"))
        return found.info["rows"], [pl.read_parquet(f).hash_rows().sum() for f in found.files("test")]

    commands: dict[str, Callable[[], Any]] = {
        "evaluate": lambda: evaluate(run)["test"],
        "evaluate last": lambda: evaluate(run, checkpoint="last")["test"],
        "resume": lambda: trained.train(f"resume={run}", "trainer.max_epochs=3").metrics["test"],
        "predict": lambda: Predictor.load(run).predict(raw).to_list(),
        "prepare": prepared,
        "report": lambda: read([run]).runs[0].test,
        "inspect": lambda: sorted(StoredCheckpoint(choose_checkpoint(Path(run), "last")).tensors),
    }
    found = Scene(trained, whole, commands, {})
    for name, command in commands.items():
        found.answers[name] = command()
        found.restore()
    yield found
    found.restore()


@pytest.mark.slow  # test_damage.py has one fault of each kind
@pytest.mark.parametrize("seed", range(6))
def test_right_or_one_line(scene: Scene, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bad = []
    for number in range(FAULTS):
        scene.restore()
        files = [
            f
            for name in ("run", "prepared")
            for f in sorted((scene.home.folder / name).rglob("*"))
            if f.is_file() and not f.name.endswith(UNREAD) and "/sample-" not in str(f)
        ]
        # one of few: vocabularies are many
        groups = sorted({f.parent for f in files})
        folder = groups[rng.integers(len(groups))]
        of_folder = [f for f in files if f.parent == folder]
        file = of_folder[rng.integers(len(of_folder))]
        damage = list(DAMAGES)[rng.integers(len(DAMAGES))]
        command = list(scene.commands)[rng.integers(len(scene.commands))]
        DAMAGES[damage](file, rng)
        what = f"{number}: {damage} {file.relative_to(scene.home.folder)}, {command}"
        try:
            if scene.commands[command]() != scene.answers[command]:
                bad.append(f"{what}: another answer")
        except UserError as e:
            if "\n" in str(e):
                bad.append(f"{what}: several lines: {e}")
        except BaseException as e:
            bad.append(f"{what}: {type(e).__name__}: {str(e)[:200]}")
    assert not bad, "\n".join([f"{len(bad)} faults fell through:", *bad])
