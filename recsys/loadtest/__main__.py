"""python -m recsys.loadtest target=http://127.0.0.1:8000 model=NAME rows=FILE [concurrency=[1,4]] [rate=1000]

Measures how fast a server of the open inference protocol v2 answers (recsys.serve, Triton, KServe), with requests of
real rows: in a closed loop over numbers of connections and batch sizes, or at given rates.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.cli import command_line
from recsys.schema.command_schemas import LoadTestConfig
from recsys.schema.fields import MISSING

MODULES = ("uvloop", "httptools", "orjson", "tritonclient", "grpc", "prometheus_client")


def _command(settings: LoadTestConfig) -> None:
    """Run the load test, print its table and write its files."""
    for key, example in (("target", "http://127.0.0.1:8000"), ("rows", "rows.jsonl")):
        if getattr(settings, key) == MISSING:
            raise UserError(f"{key}: is missing; add {key}={example}")
    check_extra("serve", "recsys.loadtest", *MODULES)

    from recsys.files.outputs import check_output
    from recsys.loadtest.figures import make_parts_table, make_table, notes
    from recsys.loadtest.load_page import FILES, write_results
    from recsys.loadtest.measure_loads import run

    output = settings.output
    if output is not None:
        check_output(Path(output))
        if existing := next((name for name in FILES if (Path(output) / name).exists()), None):
            raise UserError(f"output={output}: already has {existing}; name another folder")
    outcome = run(settings)
    model, measurements = outcome.model, outcome.measurements
    results.print(make_table(measurements, f"load test of {model}"))
    if (parts := make_parts_table(measurements)) is not None:
        results.print(parts)
    for line in notes(measurements, settings.slo_ms):
        say(line)
    if output is not None:
        shown = {key: value for key, value in asdict(settings).items() if key != "token"}
        write_results(Path(output), shown, model, measurements)
        say(f"written to {output}: {', '.join(FILES)}")
    if outcome.error is not None:
        raise outcome.error


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("loadtest", _command)


if __name__ == "__main__":
    main()
