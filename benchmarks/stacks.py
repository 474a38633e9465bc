"""python benchmarks/stacks.py OTHER_PYTHON [ROUNDS]: the host's time of a step with two versions of torch and FBGEMM.

Figures of GPUs are of the packages that their machine had. A step of 32 rows and narrow layers takes as long as the
host needs to call its kernels, which is what bounds most steps on a GPU. It is trained as recsys.train does, with one
thread on the CPU, in a process of this Python and in one of the other, by turns.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
import numpy as np
from in_memory import draw_batches, draw_lists, features_of, fitted_for, lengths_of, trained
from steady import Claim, Sample, measure

from recsys.config.compose import compose
from recsys.job.run_config import RunConfig

PACKAGES = ("torch", "torchrec", "fbgemm-gpu-cpu")
STEPS, ROWS, VALUES = 400, 32, 50
SMALL = [
    "model.dim=16",
    f"trainer.batch_size={ROWS}",
    "trainer.threads=1",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
]
LAYERS = ["model.bottom_mlp=[32,16]", "model.top_mlp=[32,16]"]
MODELS = {
    "dlrm": ["data=criteo_1tb_t15", "model=dlrm", *LAYERS],
    "dcnv2": ["data=criteo_1tb_multihot", "model=dlrm", "model.interaction=cross", *LAYERS],
    "sasrec": ["data=movielens_1m", "data.root=none", "model=sasrec", "model.max_length=20"],
}


def steps(model: str) -> Sample:
    """Train a model for STEPS steps."""
    cfg = RunConfig.of(compose("train", [*MODELS[model], *SMALL]))
    features = features_of(cfg, VALUES)
    lists = model == "sasrec"
    lengths = {} if lists else lengths_of(cfg, features)
    batches = draw_lists(features, np.full(ROWS, 20), VALUES, 4) if lists else draw_batches(features, lengths, ROWS, 4)
    sample = trained(cfg, fitted_for(features, VALUES if lists else 0), batches, STEPS)
    return Sample(STEPS, sample.wall, sample.cpu)


def ask(python: str, *arguments: str) -> str:
    """Return what this script prints last in a process of another Python."""
    ran = subprocess.run([python, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout.splitlines()[-1]


def main(other: str, rounds: int) -> None:
    """Measure all models with both."""
    stacks = {ask(python, "packages"): python for python in (sys.executable, other)}
    here, there = stacks

    def run(python: str, model: str) -> Sample:
        return Sample(**json.loads(ask(python, "steps", model)))

    contestants: dict[str, Callable[[], Sample]] = {
        f"{model}, {stack}": partial(run, python, model) for model in MODELS for stack, python in stacks.items()
    }
    claims = [Claim(f"{model}, {here}", f"{model}, {there}") for model in MODELS]
    measure("stacks", f"steps of {ROWS} rows, one thread, {STEPS} a round", contestants, claims, rounds, "steps")


if __name__ == "__main__":
    if sys.argv[1] == "steps":
        print(json.dumps(asdict(steps(sys.argv[2]))))
    elif sys.argv[1] == "packages":
        print(", ".join(f"{package} {version(package)}" for package in PACKAGES))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7)
