"""How many functions of recsys lie between `python -m recsys.train` and the first optimizer step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_frames(tmp_path: Path) -> None:
    overrides = ["data=criteo", "data.sample.rows=500", f"data.prepared={tmp_path}", f"hydra.run.dir={tmp_path}/run"]
    run = subprocess.run([sys.executable, "-c", COMMAND, *overrides], capture_output=True, text=True, env=os.environ)
    [line] = [line for line in run.stdout.splitlines() if line.startswith("frames:")]
    frames = line.split()[1:]
    assert frames[0] == "main" and 3 < len(frames) <= MOST, line
