"""Versions of a model that are deltas: the full artefacts, which processes of this machine make once and share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from recsys.base.errors import UserError
from recsys.export.artefact.apply_delta import KEY, Delta, digest_of, is_delta
from recsys.files import manifest
from recsys.files.atomic import remove_folder

FOLDER_VARIABLE = "RECSYS_DELTA_DIR"
APPLIED = ".applied"  # beside the versions, if the variable names no folder
KEPT = 3  # full artefacts that are kept beside the newest; those that are mapped stay in memory until they are not


def chain(version: Path) -> list[Path]:
    """Return the folders that a version is made of: itself, the base of its delta, and so on, a full artefact last.

    Raises UserError if one of them is not beside it.
    """
    folders, above = [version], frozenset[str]()
    while base := _about(folders[-1]).get("base"):
        above |= {result_of(folders[-1])}
        folders.append(_beside(folders[-1], str(base), above))
    return folders


def full_artefact(version: Path) -> Path:
    """Return the artefact that a version is, or that its delta makes. Raises UserError as `applied`."""
    return applied(version) if is_delta(version) else version


def applied(version: Path) -> Path:
    """Return the full artefact of a version that is a delta, made of the versions beside it if it is not there yet.

    A process of its own makes it, at low priority: what works for requests gets the processor first. If it is killed,
    nothing is left that could be taken for the artefact, and the next caller makes it again.

    Raises:
        UserError: no version beside it is the delta's base, or the base is damaged.
        DamagedFile: the delta is damaged.
    """
    cache = _cache(version.parent)
    if (made := _made(cache, result_of(version))) is not None:  # also where nothing can be written
        return made
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
    if _made(cache, result) is not None:
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
    if (made := _made(cache, wanted)) is not None:
        return made
    other = _beside(version, wanted, above)
    return _applied(other, cache, above) if is_delta(other) else other


def _beside(version: Path, wanted: str, above: frozenset[str]) -> Path:
    """Return the version beside another one that is, or makes, the artefact with a digest; full artefacts first."""
    others = sorted(p.parent for p in version.parent.glob(f"*/{manifest.FILE}") if p.parent != version)
    deltas = []
    for other in others:
        with suppress(UserError):  # of this version alone
            if result_of(other) == wanted:
                if not is_delta(other):
                    return other
                deltas.append(other)
    if deltas and wanted not in above:
        return deltas[0]
    raise UserError(
        f"{version}: is a delta of the artefact with the digest {wanted}, which no version in {version.parent} has; "
        "copy that version there, or the full artefact: python -m recsys.export apply BASE DELTA output=DIR"
    )


def _made(cache: Path, digest: str) -> Path | None:
    """Return the artefact with a digest if it has been made, and count it as used now."""
    if not (folder := cache / digest).is_dir() or digest_of(folder) != digest:
        return None
    with suppress(OSError):
        os.utime(folder)
    return folder


def result_of(version: Path) -> str:
    """Return the digest of the artefact that a version is, or that its delta makes, as its manifest says."""
    return str(_about(version).get("result") or manifest.read_json(version / manifest.FILE).get("digest"))


def _about(version: Path) -> dict[str, Any]:
    about = manifest.read_json(version / manifest.FILE).get(KEY)
    return about if isinstance(about, dict) else {}


def _remove_old(cache: Path, folder: Path) -> None:
    """Remove all but the artefacts that were used last. Processes that have mapped one keep it until they unmap it."""
    others = [p for p in cache.iterdir() if p.is_dir() and p != folder]
    hidden = [p for p in others if p.name.startswith(".")]
    visible = sorted((p for p in others if p not in hidden), key=lambda p: p.stat().st_mtime)
    for old in visible[:-KEPT]:
        remove_folder(old)
    for left in hidden:  # of a process that was killed; only the holder of the lock writes here
        shutil.rmtree(left, ignore_errors=True)
