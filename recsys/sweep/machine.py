"""This machine, whose GPUs and threads concurrent runs share."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.job.run_config import device_of
from recsys.sweep.processes import Process


def gpus_here() -> list[str]:
    """Return the names of the visible GPUs, as in CUDA_VISIBLE_DEVICES."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [g.strip() for g in given.split(",")][:count] if given else [str(i) for i in range(count)]


class Machine:
    """Runs on this machine.

    Args:
        jobs: number of concurrent runs.
        gpus: GPUs to share, `trainer.devices` for each run; empty if runs are on the CPU.
    """

    def __init__(self, jobs: int, gpus: Sequence[str]) -> None:
        self.jobs, self._free, self._taken = jobs, list(gpus), dict[int, list[str]]()

    @classmethod
    def for_trials(cls, jobs: int, cfgs: Sequence[Any]) -> "Machine":
        """Return the machine for trials with these configs. Raises UserError if it has too few GPUs."""
        devices = max(c.trainer.devices for c in cfgs)
        gpus = gpus_here() if any(device_of(c.trainer.accelerator) == "gpu" for c in cfgs) else []
        if gpus and jobs * devices > len(gpus):
            raise UserError(
                f"sweep.jobs={jobs}: {jobs} concurrent runs with trainer.devices={devices} need {jobs * devices} GPUs, "
                f"but there are {len(gpus)}; set sweep.jobs={max(1, len(gpus) // devices)}"
            )
        return cls(jobs, gpus)

    def share(self, cfg: Any) -> tuple[list[str], dict[str, str], int]:
        """Reserve a share for a run with this config.

        Returns:
            Overrides, environment variables, and the number to give the share back with.
        """
        if self.jobs == 1:
            return [], {}, 0
        if cfg is None:
            return [], {}, -1
        number = next(i for i in range(self.jobs) if i not in self._taken)
        self._taken[number] = gpus = [self._free.pop(0) for _ in range(min(cfg.trainer.devices, len(self._free)))]
        if gpus:
            return [], {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}, number
        if cfg.trainer.threads is not None:
            return [], {}, number
        threads = max(1, (os.cpu_count() or 1) // (self.jobs * cfg.trainer.devices))
        return [f"trainer.threads={threads}"], {}, number

    def give_back(self, number: int) -> None:
        """Release the share with this number."""
        self._free += self._taken.pop(number, [])

    def start(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
        return Process(command, env, folder)
