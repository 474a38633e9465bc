"""python -m recsys.train -m model=dlrm,dcnv2 optim.sparse.lr=0.01,0.05: every trial a process of its own.

Hydra's sweeper makes the trials; each runs as `python -m recsys.train OVERRIDES run_dir=SWEEP/N`, so that a
trial that fails, or is killed, takes nothing with it. A table and sweep.json end the sweep.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from recsys.progress import results, say


@dataclass
class Trial:
    number: int
    overrides: list[str]
    run_dir: str
    status: int
    test: dict[str, Any] = field(default_factory=dict)


class Sweep:
    """Runs trials one after another and remembers how they ended."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.folder: Path | None = None
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def run_trial(self, cfg: DictConfig) -> float | None:
        """Run the trial that Hydra has composed; its test AUC, or None where it failed."""
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        self.folder = Path(cfg.run_dir or hydra.sweep.dir)
        number = len(self.trials)
        overrides = [o for o in hydra.overrides.task if not o.startswith("run_dir=")]
        run_dir = self.folder / str(number)
        say(f"--- trial {number}: {' '.join(overrides)}")
        command = [sys.executable, "-m", "recsys.train", *overrides, f"run_dir={run_dir}"]
        group = {"RECSYS_SWEEP": self.folder.name}
        with subprocess.Popen(command, env=os.environ | group) as running:
            try:
                status = running.wait()
            except BaseException:  # an interrupted sweep leaves no trial, and no trial's workers, behind
                running.terminate()
                raise
        trial = Trial(number, overrides, str(run_dir), status)
        if status == 0:
            trial.test = json.loads((run_dir / "metrics.json").read_text())["test"]
        self.trials.append(trial)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "sweep.json").write_text(json.dumps([asdict(t) for t in self.trials], indent=1) + "\n")
        return trial.test.get(_told(trial.test)[0])

    def finish(self) -> int:
        """Print the table; the exit status: 0 where every trial succeeded, else the worst one's."""
        from rich.table import Table

        common = [o for o in self.trials[0].overrides if all(o in t.overrides for t in self.trials)]
        own = [[o for o in t.overrides if o not in common] for t in self.trials]
        keys = list(dict.fromkeys(o.partition("=")[0] for overrides in own for o in overrides))
        table = Table(title=f"sweep {self.folder}: {' '.join(common)}", title_justify="left")
        told = _told(next((t.test for t in self.trials if t.test), {}))
        for name in ("trial", *keys, "status", *told):
            table.add_column(name, justify="left" if name in keys else "right", overflow="fold")
        scored = sorted(self.trials, key=lambda t: -(t.test.get(told[0]) or float("-inf")))
        for t in scored:
            numbers = [f"{t.test[m]:.5f}" if t.test.get(m) is not None else "" for m in told]
            status = "ok" if t.status == 0 else f"failed ({t.status})"
            values = dict(o.split("=", 1) for o in own[t.number] if "=" in o)
            table.add_row(str(t.number), *(values.get(k, "") for k in keys), status, *numbers)
        results.print(table)
        failed = [t.status for t in self.trials if t.status]
        say(
            f"{len(self.trials) - len(failed)} of {len(self.trials)} trials succeeded; each run lies in {self.folder}/N"
        )
        return (1 if 1 in failed else failed[0]) if failed else 0


def _told(test: dict[str, Any]) -> list[str]:
    """Of a trial's metrics, those that tables show; trials are ordered by the first."""
    ranked = [m for m in test if m.startswith("ndcg@")]
    if not ranked:
        return ["auc", "logloss", "ne"]
    return ["ndcg@10" if "ndcg@10" in ranked else ranked[0], "mrr"]
