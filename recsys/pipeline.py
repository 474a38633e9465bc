"""python -m recsys.pipeline run=FILE.yaml input=REQUESTS output=LISTS.parquet
python -m recsys.pipeline evaluate run=FILE.yaml output=DIR
python -m recsys.pipeline candidates run=FILE.yaml output=ROWS.parquet
python -m recsys.pipeline demo output=DIR

Retrieves, filters, scores and orders items for the users of a file, by one YAML (conf/pipeline). `evaluate` says which
stage loses what, on one page. `candidates` writes rows to train a ranker on: what the sources retrieve for users of
the past, and whether they wanted it. `demo` trains a two-tower model and a ranker, and runs a pipeline of both.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recsys.base.errors import UserError, did_you_mean
from recsys.cli import command_line
from recsys.schema.pipeline_schema import PipelineConfig

ACTIONS = ("run", "evaluate", "candidates", "demo")
USAGE = "python -m recsys.pipeline run=FILE.yaml input=REQUESTS output=LISTS.parquet; see --help"


def _command(cfg: PipelineConfig) -> None:
    if cfg.output is None:
        raise UserError(f"output: is missing; usage: {USAGE}")
    output = Path(cfg.output)
    if cfg.action == "evaluate":
        from recsys.stages.evaluate.evaluate_pipeline import evaluate

        evaluate(cfg, output)
        return
    if output.exists():
        raise UserError(f"output={output}: already exists; name a file that does not exist yet")
    if cfg.action == "candidates":
        from recsys.stages.ranker_rows import write_candidates

        write_candidates(cfg, output)
        return
    from recsys.stages.lists_for_requests import run_files

    run_files(cfg, output)


def _demo(cfg: PipelineConfig) -> None:
    from recsys.stages.demo import demo

    if cfg.output is None:
        raise UserError("output: is missing; usage: python -m recsys.pipeline demo output=DIR")
    demo(Path(cfg.output), cfg.seed)


def main() -> None:
    """Run the command with this process's overrides; the action may come first."""
    from recsys.config.compose import check_pipeline_file

    arguments = command_line.named_words(("action",), f"usage: {USAGE}")
    given = dict(a.partition("=")[::2] for a in arguments if "=" in a)
    action = given.get("action", "run")
    if action not in ACTIONS:
        sys.exit(command_line.say_error(f"{action}: no such action{did_you_mean(action, ACTIONS)}; usage: {USAGE}"))
    if action == "demo" or any(a in command_line.HELP for a in arguments):
        command_line.run("pipeline", _demo, arguments)
        return
    if "run" not in given:
        sys.exit(command_line.say_error(f"run: is missing; usage: {USAGE}"))
    try:
        check_pipeline_file(Path(given["run"]))
    except UserError as e:
        sys.exit(command_line.say_error(str(e)))
    command_line.run("pipeline", _command, arguments, file=Path(given["run"]))


if __name__ == "__main__":
    main()
