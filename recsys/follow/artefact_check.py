"""Check an artefact before it serves: it loads, answers its examples as the run did, is fast enough and not too large.

`check_artefact` runs this module in a new process, which loads the artefact as a server does, without torch.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.errors import UserError
from recsys.base.printable import escaped
from recsys.export.artefact.folder import EXAMPLES, Artefact, bytes_of
from recsys.export.artefact.load_artefact import load, verify
from recsys.files import manifest
from recsys.follow.gate import GateCheck, GateResult
from recsys.online.servable import Query

CALLS, WARM_UP = 500, 20  # calls that are timed, and before them
MAX_SECONDS = 600  # for loading and all calls


def check_artefact(folder: Path, *, latency_ms: float | None = None, size_mb: float | None = None) -> GateResult:
    """Check an artefact as a server would use it.

    Args:
        latency_ms: limit of the 99th percentile of calls with one example (one row, or one history), which come one
            after another in one process; null: any. It depends on the machine.
        size_mb: limit of all files together, in units of 10^6 bytes; null: any.
    """
    checks = [_at_most("size", bytes_of(folder) / 1e6, size_mb, "MB", "the artefact has")]
    command = [sys.executable, "-m", "recsys.follow.artefact_check", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        text = f"{folder}: did not load and answer its examples within {MAX_SECONDS} s"
        return GateResult((GateCheck("loads", False, text), *checks))
    if done.returncode != 0:
        why = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise UserError(f"{folder}: cannot be checked: {why}; free space there, then run the same command again")
        text = f"{folder}: does not load and answer its examples (exit status {done.returncode}): {why}"
        return GateResult((GateCheck("loads", False, text), *checks))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    text = f"the artefact answers {found['rows']:,} examples as the run did, to {found['difference']:.2g}"
    checks.insert(0, GateCheck("loads", True, text, found["difference"], None, found["tolerance"]))
    if found["p99_ms"] is not None:
        checks.append(_at_most("latency", found["p99_ms"], latency_ms, "ms", "the 99th percentile of a call takes"))
    elif latency_ms is not None:
        checks.append(GateCheck("latency", False, "the artefact has no examples to time; export the run again"))
    return GateResult(tuple(checks))


def _at_most(name: str, value: float, limit: float | None, unit: str, what: str) -> GateCheck:
    passed = limit is None or value <= limit
    text = f"{what} {value:.3g} {unit}" + ("" if limit is None else f", {'within' if passed else 'over'} {limit:g}")
    return GateCheck(name, passed, text, value, None, limit)


def _p99_ms(folder: Path) -> float | None:
    """Return the 99th percentile of the times of calls, None without examples."""
    examples = manifest.read_json(folder / EXAMPLES, "rows")["rows"][:CALLS]
    if not examples:
        return None
    model, kind = load(folder, digests=False), Artefact.open(folder, digests=False).kind
    times = []
    for i in range(WARM_UP + CALLS):
        example = examples[i % len(examples)]
        start = time.perf_counter()
        if kind == "retrieval":
            model.recommend([Query(example)])
        else:
            model.run(model.features([example]))
        times.append(time.perf_counter() - start)
    return float(np.quantile(times[WARM_UP:], 0.99)) * 1000


def main() -> None:
    """Verify and time the artefact in sys.argv[1], and print the result as JSON."""
    folder = Path(sys.argv[1])
    try:
        result = verify(folder)
        found = {"rows": result.rows, "difference": result.difference, "tolerance": result.tolerance}
        sys.stdout.write(json.dumps(found | {"p99_ms": _p99_ms(folder)}) + "\n")
    except UserError as e:
        sys.stderr.write(f"{escaped(str(e))}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
