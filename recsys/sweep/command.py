"""python -m recsys.sweep resume|status|best SWEEP_DIR"""

import os
import sys
from pathlib import Path

from recsys.base.console import results
from recsys.base.errors import UserError, did_you_mean
from recsys.cli import command_line
from recsys.sweep import record, show

ACTIONS = ("resume", "status", "best")
USAGE = f"python -m recsys.sweep {'|'.join(ACTIONS)} SWEEP_DIR"
HELP = f"""{USAGE}

    status    show the state of each trial, also while the sweep is running
    best      show the best trial and the command that trains it again
    resume    resume the sweep: finished trials stay, interrupted ones continue, failed ones run again;
              sweep.trials=N and sweep.jobs=N may change

SWEEP_DIR is the folder of python -m recsys.train -m (its run_dir; by default one under outputs/sweeps/)."""


def status(folder: Path) -> None:
    """Print the state of each trial."""
    sweep = record.load(folder)
    show.table(sweep, folder)
    show.summary(sweep, folder, record.under_way(folder))


def best(folder: Path) -> None:
    """Print the best trial. Raises UserError if none has finished."""
    sweep = record.load(folder)
    first = sweep.best_first()[:1]
    if not first or first[0].status != "ok":
        raise UserError(f"{folder}: no trial has finished; see python -m recsys.sweep status {folder}")
    show.best(first[0], sweep)


def resume(folder: Path, changes: list[str]) -> int:
    """Resume a sweep and return its exit status."""
    record.load(folder)  # raises UserError if there is no sweep
    with record.lock(folder):
        sweep = record.load(folder)
        for change in changes:
            key, _, value = change.partition("=")
            if key not in ("sweep.trials", "sweep.jobs"):
                why = "cannot be changed when a sweep is resumed; only sweep.trials=N and sweep.jobs=N can"
                raise UserError(f"{change}: {why}")
            if not value.isdigit():
                raise UserError(f"{change}: must be a whole number")
            sweep.settings[key.removeprefix("sweep.")] = int(value)
        if sweep.settings["method"] != "grid":
            sweep.wanted = max(sweep.settings["trials"], len(sweep.trials))
        if not Path(sweep.cwd).is_dir():
            raise UserError(f"{folder}: was started in {sweep.cwd}, which no longer exists")
        if Path(sweep.cwd) != Path.cwd():
            folder = folder.resolve()
            os.chdir(sweep.cwd)
        from recsys.schema.run_schema import SweepConfig
        from recsys.sweep.begin import check_sweep_settings, launcher, run
        from recsys.sweep.search import check_method
        from recsys.sweep.space import read_space

        settings = SweepConfig(**sweep.settings)
        space = read_space(sweep.command)
        check_sweep_settings(settings)
        check_method(space, settings)
        return run(sweep, space, folder, launcher(space, settings, folder))


def main() -> None:
    """Run the command with this process's overrides."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        results.print(HELP, markup=False)
        sys.exit(0)
    code = 0

    def work() -> None:
        nonlocal code
        words, changes = [a for a in arguments if "=" not in a], [a for a in arguments if "=" in a]
        if len(words) != 2:
            raise UserError(f"expected an action and a folder; usage: {USAGE}")
        action, folder = words[0], Path(words[1])
        if action not in ACTIONS:
            raise UserError(f"{action}: no such action{did_you_mean(action, ACTIONS)}; usage: {USAGE}")
        if changes and action != "resume":
            raise UserError(f"{changes[0]}: {action} takes only the folder")
        if action == "resume":
            code = resume(folder, changes)
        else:
            (status if action == "status" else best)(folder)

    sys.exit(command_line.call(work, "sweep", arguments) or code)
