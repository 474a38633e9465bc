"""python benchmarks/start.py [ROUNDS]: starts of commands, with deferred and with eager imports.

`import torch` alone is the bound of what a command that needs torch can take.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from steady import Claim, Clock, Sample, measure


def by_command(arguments: list[str], **env: str) -> Callable[[], Sample]:
    """Return a round of a command; FOLDER stands for a new folder."""

    def run() -> Sample:
        with tempfile.TemporaryDirectory() as folder:
            told = [a.replace("FOLDER", folder) for a in arguments]
            clock = Clock()
            subprocess.run([sys.executable, *told], check=True, capture_output=True, env={**os.environ, **env})
            return clock.sample(1)

    return run


def import_seconds(arguments: list[str]) -> dict[str, float]:
    """Return the seconds that a command spends in modules of each package while it imports them, the most first."""
    with tempfile.TemporaryDirectory() as folder:
        told = [a.replace("FOLDER", folder) for a in arguments]
        done = subprocess.run([sys.executable, "-X", "importtime", *told], check=True, capture_output=True, text=True)
    packages: Counter[str] = Counter()
    for line in done.stderr.splitlines():
        if found := re.match(r"import time: +(\d+) \| +\d+ \| +([a-z_A-Z]+)", line):
            packages[found[2]] += int(found[1])
    named = dict(packages.most_common(9))
    return {n: s / 1e6 for n, s in named.items()} | {"others": (packages.total() - sum(named.values())) / 1e6}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    os.chdir(Path(__file__).parents[1])
    train = ["-m", "recsys.train", "model=dlrm", "data=criteo", "data.sample.rows=20000", "run_dir=FOLDER/run"]
    train.append("data.prepared=FOLDER/prepared")
    packages = "import sys; sys.argv[0] = '-m'; import recsys, torchrec.distributed, pytorch_lightning"  # as a command
    measure(
        "start",
        "Starts of commands: a run of 20,000 sample rows, and less",
        {
            "recsys.train, eager imports": by_command(train, RECSYS_EAGER_IMPORTS="1"),
            "recsys.train": by_command(train),
            "imports, eager": by_command(["-c", packages], RECSYS_EAGER_IMPORTS="1"),
            "imports, deferred": by_command(["-c", packages]),
            "import torch": by_command(["-c", "import torch"]),
            "--help": by_command(["-m", "recsys.train", "--help"]),
            "recsys.doctor": by_command(["-m", "recsys.doctor", "data.prepared=FOLDER"]),
            "recsys.models": by_command(["-m", "recsys.models", "data=criteo"]),
        },
        [
            Claim("recsys.train", "recsys.train, eager imports"),
            Claim("imports, deferred", "imports, eager"),
            Claim("imports, deferred", "import torch"),
            Claim("--help", "import torch"),
            Claim("recsys.doctor", "import torch"),
            Claim("recsys.models", "import torch"),
        ],
        rounds,
        "starts",
        parts={"imports of recsys.train, s": import_seconds(train)},
    )


if __name__ == "__main__":
    main()
