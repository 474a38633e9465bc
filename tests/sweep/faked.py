"""Sweeps of fake_training.py, without the checks that import torch: python faked.py sweep|resume ARGUMENTS."""

import sys
from pathlib import Path
from typing import Any

from recsys.sweep import begin, command, processes, schedule

PARTS: list[tuple[Any, str, Any]] = [
    (schedule, "TRAIN", (sys.executable, str(Path(__file__).with_name("fake_training.py")))),
    (begin, "_check_trials", lambda *_: None),
    (begin, "metric_of", lambda _, settings: settings.metric or "validation/auc"),
    (processes, "device_of", lambda _: "cpu"),
]

if __name__ == "__main__":
    for module, name, value in PARTS:
        setattr(module, name, value)
    if sys.argv[1] == "sweep":
        sys.exit(begin.begin(sys.argv[2:]))
    command.main()
