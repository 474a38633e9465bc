"""python -m recsys.train model=dlrm data=criteo sharding=rowwise

Checks the config, prepares the data once, trains, tests with the best checkpoint. From Python:

    run = recsys.train(["model=dlrm", "data=criteo"])
    run.metrics["test"]["auc"]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from recsys.base.console import say
from recsys.cli import command_line
from recsys.distributed.failures import exit_process

if TYPE_CHECKING:
    from recsys.job.run_config import RunConfig

ZOO = "model=zoo"


def main() -> None:
    """Run the command with this process's overrides."""
    rest = [a for a in sys.argv[1:] if a not in command_line.MULTIRUN]
    if len(rest) < len(sys.argv) - 1 and not any(a.startswith("--") or a == "-h" for a in rest):
        from recsys.sweep.begin import begin

        def name_models() -> None:
            """Replace `model=zoo` by the models that fit the first trial of the sweep."""
            from recsys.sweep.model_list import fitting
            from recsys.sweep.space import read_space

            space = read_space([a for a in rest if a != ZOO])
            names = fitting(space.overrides(space.ends()[0]))
            say(f"{ZOO}: {len(names)} models fit: {', '.join(names)}")
            rest[rest.index(ZOO)] = f"model={','.join(names)}"

        code = command_line.call(name_models, "train", rest) if ZOO in rest else 0
        exit_process(code or begin(rest))
    if ZOO in rest:
        exit_process(command_line.say_error(f"{ZOO}: stands for several models; train them in a sweep: add -m"))
    from recsys.training.run import train

    command_line.run("train", train, rest, parse=_config)  # --help and --cfg show one run


def _config(composed: DictConfig) -> RunConfig:
    """Return the config of this process's overrides, which Hydra has composed."""
    from hydra.core.hydra_config import HydraConfig

    from recsys.job.config_of import config_of

    hydra = HydraConfig.get()  # another config than train is the config.yaml of a run
    return config_of(hydra.overrides.task, composed, is_whole=hydra.job.config_name != "train")


class _TrainModule(ModuleType):
    """Lets `recsys.train([...])` train, although `recsys.train` is also the module of the command."""

    def __call__(self, overrides: Sequence[str] = (), rows: object = None) -> Any:
        from recsys.api import train

        return train(overrides, rows)


sys.modules[__name__].__class__ = _TrainModule

if __name__ == "__main__":
    main()
