"""A training command that takes no time: python fake_training.py OVERRIDES run_dir=DIR. Overrides tell how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    given = dict(a.split("=", 1) for a in sys.argv[1:])
    folder = Path(given["run_dir"].strip("'"))
    folder.mkdir(parents=True, exist_ok=True)
    seed, lr, dim = int(given.get("seed", 0)), float(given.get("optim.sparse.lr", 0.1)), int(given.get("model.dim", 16))
    with (folder / "calls.jsonl").open("a") as f:
        told = {k: os.environ.get(k) for k in ("RECSYS_SWEEP", "RECSYS_RUN_NAME", "CUDA_VISIBLE_DEVICES")}
        f.write(json.dumps({"arguments": sys.argv[1:], "start": time.time(), "pid": os.getpid()} | told) + "\n")
    if dim == 13 and "resume" not in given:
        print("error: 13 is no good", file=sys.stderr)
        sys.exit(2)
    if dim == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    if dim == 19:  # hard to end: deaf, with a worker in a session of its own
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    value = 0.5 + lr + seed / 10
    epochs = int(given.get("trainer.max_epochs", 1))
    for epoch in range(epochs):
        time.sleep(float(given.get("optim.dense.lr", 0)))  # seconds an epoch
        header = "" if epoch else "epoch,step,test/auc,validation/auc\n"
        with (folder / "metrics.csv").open("a") as f:
            f.write(f"{header}{epoch},{epoch * 10},,{value}\n")
    building = folder / ".metrics.json"
    building.write_text(json.dumps({"validation": {"auc": value}, "test": {"auc": value - 0.01, "logloss": 0.3}}))
    building.replace(folder / "metrics.json")


main()
