"""The way from `python -m recsys.train` to the first optimizer step: functions on the stack, rooms that see the config."""

import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 10
COMMAND = """
import os, runpy, sys, traceback
from torch.optim import optimizer

def print_stack(*step):
    frames = [f for f in traceback.extract_stack() if f"{os.sep}recsys{os.sep}" in f.filename]
    print("frames:", *(f.name for f in frames if f.name != "<module>"), flush=True)
    os._exit(0)

optimizer.register_optimizer_step_pre_hook(print_stack)
runpy.run_module("recsys.train", run_name="__main__")
"""
ROOMS = """
import os, sys
from pathlib import Path
import pytorch_lightning, recsys

home, trail = Path(recsys.__file__).parent, []

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(str(home)) and not code.co_name.startswith("<"):
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        kinds = {type(frame.f_locals.get(name)).__name__ for name in names} & {"DictConfig", "RunConfig"}
        for kind in kinds:
            trail.append((kind, Path(code.co_filename).relative_to(home).parts[0].removesuffix(".py")))

def end(*_, **__):
    sys.setprofile(None)
    print("trail:", *(f"{kind}:{room}" for kind, room in trail), flush=True)
    os._exit(0)

pytorch_lightning.Trainer.fit = end
sys.setprofile(note)
recsys.train(sys.argv[1:])
"""
MOST_CLIMBS = 4  # of the composed config, from a room to one that stands above it


def way(code: str, tmp_path: Path, first: str) -> list[str]:
    """Return the words of the line that begins with `first`, of a training that the code stops."""
    overrides = ["data=criteo", "data.sample.rows=500", f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    run = subprocess.run([sys.executable, "-c", code, *overrides], capture_output=True, text=True, env=os.environ)
    [line] = [line for line in run.stdout.splitlines() if line.startswith(first)]
    return line.split()[1:]


@pytest.mark.slow
def test_rooms(tmp_path: Path) -> None:
    trail = [step.split(":") for step in way(ROOMS, tmp_path, "trail:")]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    height = {n: -i for i, layer in enumerate(contract["layers"]) for n in re.split(r"[ |]+", layer)}
    composed = [room for kind, room in trail if kind == "DictConfig"]
    climbs = [(a, b) for a, b in pairwise(composed) if height[b] > height[a]]
    assert 1 <= len(climbs) <= MOST_CLIMBS, climbs
    assert {room for kind, room in trail if kind == "RunConfig"} <= {"job", "training", "base"}


@pytest.mark.slow
def test_frames(tmp_path: Path) -> None:
    frames = way(COMMAND, tmp_path, "frames:")
    assert frames[0] == "main" and 3 < len(frames) <= MOST, frames
