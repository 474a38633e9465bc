"""python benchmarks/start.py [ROUNDS]: CPU seconds of a run of 20,000 sample rows, with deferred and eager imports.

`import torch` alone is the bound of what imports can take.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from steady import Sample, measure


def by_command(arguments: list[str], **env: str) -> Callable[[], Sample]:
    def run() -> Sample:
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            told = [a.replace("FOLDER", folder) for a in arguments]
            subprocess.run([sys.executable, *told], check=True, capture_output=True, env={**os.environ, **env})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return Sample(1, time.perf_counter() - wall, cpu)

    return run


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    os.chdir(Path(__file__).parents[1])
    train = ["-m", "recsys.train", "model=dlrm", "data=criteo", "data.sample.rows=20000", "run_dir=FOLDER/run"]
    train.append("data.prepared=FOLDER/prepared")
    packages = "import recsys, torchrec.distributed, pytorch_lightning"
    results = measure(
        "start",
        {
            "recsys.train, eager imports": by_command(train, RECSYS_EAGER_IMPORTS="1"),
            "recsys.train": by_command(train),
            "import torch": by_command(["-c", "import torch"]),
            "imports, eager": by_command(["-c", packages], RECSYS_EAGER_IMPORTS="1"),
            "imports, deferred": by_command(["-c", packages]),
            "--help": by_command(["-m", "recsys.train", "--help"]),
        },
        "recsys.train, eager imports",
        rounds,
        "starts",
    )
    for name, result in results.items():
        print(f"{name:32} {1 / result['per_cpu_second']:5.1f} s of CPU, {1 / result['per_second']:5.1f} s")


if __name__ == "__main__":
    main()
