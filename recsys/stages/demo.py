"""Show a pipeline at work on built-in data: users, items and clicks, whose teacher tells the best possible lists."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.config.compose import conf_dir
from recsys.config.overrides import override
from recsys.data.samples.interactions import write_next, write_sample

ROWS = 200_000


def demo(output: Path, seed: int = 0) -> None:
    """Write data, train a two-tower model and a ranker, and run and evaluate conf/pipeline/sample.yaml.

    Raises UserError if the folder exists, or if a command fails.
    """
    if output.exists():
        raise UserError(f"output={output}: already exists; name a folder that does not exist yet")
    data = output / "data"
    data.mkdir(parents=True)
    write_sample(data, rows=ROWS, seed=seed)
    write_next(data, rows=ROWS, seed=seed)
    say(f"a log of {ROWS:,} shown items is in {data}/log.csv; next.parquet has what each user would click next")
    shipped = conf_dir() / "pipeline" / "sample.yaml"
    pipeline = shipped.relative_to(Path.cwd()) if shipped.is_relative_to(Path.cwd()) else shipped

    def typed(key: str, path: Path) -> str:
        return shlex.quote(override(key, path))

    log = f"data.sample=null {typed('data.root', data)} {typed('data.prepared', output / 'prepared')}"
    run = f"{typed('run', pipeline)} {typed('root', output)}"
    requests = typed("input", data / "requests.csv")
    for title, command in (
        (
            "1. Retrieval: a two-tower model of the clicks",
            f"recsys.train model=two_tower data=sample_interactions_retrieval {log} protocol.filter_history=false "
            f"seed={seed} {typed('run_dir', output / 'two_tower')}",
        ),
        (
            "   and the most popular items",
            f"recsys.train model=popularity data=sample_interactions_retrieval {log} "
            f"{typed('run_dir', output / 'popularity')}",
        ),
        (
            "2. Ranking: P(click), with the user's behaviour",
            f"recsys.train model=dlrm data=sample_behaviour {log} trainer.max_epochs=3 seed={seed} "
            f"{typed('run_dir', output / 'ranker')}",
        ),
        (
            "3. Lists for all users: retrieve, filter, score, order",
            f"recsys.pipeline {run} {requests} {typed('output', output / 'lists.parquet')}",
        ),
        ("4. Which stage loses what", f"recsys.pipeline evaluate {run} {requests} {typed('output', output)}"),
    ):
        say(f"\n{title}\n$ python -m {command}")
        done = subprocess.run([sys.executable, "-m", *shlex.split(command)], check=False)
        if done.returncode:
            raise UserError(f"this command failed (status {done.returncode}): python -m {command}")
    say(f"the page is {output}/evaluation.html; change a stage and compare, for example:")
    say(f"  python -m recsys.pipeline evaluate {run} {requests} order=dpp {typed('output', output / 'dpp')}")
    say(f"serve it with: python -m recsys.serve pipeline={pipeline} overrides=[{override('root', output)}]")
