"""Versions of a model that are deltas: the full artefacts, which processes of this machine make once and share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from recsys.errors import UserError
from recsys.export.artefact.apply_delta import Delta, digest_of, is_delta
from recsys.files import manifest
from recsys.files.atomic import remove_folder

FOLDER_VARIABLE = "RECSYS_DELTA_DIR"
APPLIED = ".applied"  # beside the versions, if the variable names no folder
KEPT = 3  # full artefacts that are kept beside the newest; those that are mapped stay in memory until they are not


def applied(version: Path) -> Path:
    """Return the full artefact of a version that is a delta, made of the versions beside it if it is not there yet.

    A process of its own makes it, at low priority: what works for requests gets the processor first. If it is killed,
    nothing is left that could be taken for the artefact, and the next caller makes it again.

    Raises:
        UserError: no version beside it is the delta's base, or the base is damaged.
        DamagedFile: the delta is damaged.
    """
    cache = _cache(version.parent)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / ".lock")
        with lock:
            folder = _applied(version, cache, frozenset())
            _remove_old(cache, folder)
            return folder
    except OSError as e:
        fix = f"set {FOLDER_VARIABLE} to a folder on a local disk"
        raise UserError(f"{cache}: cannot be written ({e.strerror}), and deltas are applied there; {fix}") from e


def _cache(versions: Path) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) / versions.resolve().name if folder else versions / APPLIED


def _applied(version: Path, cache: Path, above: frozenset[str]) -> Path:
    delta = Delta.open(version)
    result, wanted = delta.about["result"], delta.about["base"]
    folder = cache / result
    if folder.is_dir() and digest_of(folder) == result:
        os.utime(folder)
        return folder
    base = _base(version, wanted, cache, above | {result})
    command = [sys.executable, "-m", "recsys.export.artefact.apply_delta", str(base), str(version), str(folder)]
    environment = os.environ | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"the process has ended with status {done.returncode}"])[-1]
        raise UserError(why if str(version) in why else f"{version}: cannot be applied: {why}")
    return folder


def _base(version: Path, wanted: str, cache: Path, above: frozenset[str]) -> Path:
    """Return the artefact that a delta is based on, which may be made of a delta, too."""
    if (made := cache / wanted).is_dir() and digest_of(made) == wanted:
        os.utime(made)
        return made
    for other in sorted(p.parent for p in version.parent.glob(f"*/{manifest.FILE}") if p.parent != version):
        if digest_of(other) == wanted and not is_delta(other):
            return other
        if wanted not in above and _result(other) == wanted:
            return _applied(other, cache, above)
    raise UserError(
        f"{version}: is a delta of the artefact with the digest {wanted}, which no version in {version.parent} has; "
        "copy that version there, or the full artefact: python -m recsys.export apply BASE DELTA output=DIR"
    )


def _result(folder: Path) -> str | None:
    try:
        return Delta.open(folder).about["result"] if is_delta(folder) else None
    except UserError:  # of this version alone
        return None


def _remove_old(cache: Path, folder: Path) -> None:
    """Remove all but the artefacts that were used last. Processes that have mapped one keep it until they unmap it."""
    others = [p for p in cache.iterdir() if p.is_dir() and p != folder]
    hidden = [p for p in others if p.name.startswith(".")]
    visible = sorted((p for p in others if p not in hidden), key=lambda p: p.stat().st_mtime)
    for old in visible[:-KEPT]:
        remove_folder(old)
    for left in hidden:  # of a process that was killed; only the holder of the lock writes here
        shutil.rmtree(left, ignore_errors=True)
