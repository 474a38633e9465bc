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
    named = os.environ.get(FOLDER_VARIABLE)
    cache = Path(named) / version.parent.resolve().name if named else version.parent / APPLIED
    if (there := _made(cache, result_of(version))) is not None:  # also where nothing can be written
        return there
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):
            folder = _applied(version, cache, frozenset())
            others = [p for p in cache.iterdir() if p.is_dir() and p != folder]
            unfinished = [p for p in others if p.name.startswith(".")]  # of a process that was killed
            made = sorted((p for p in others if p not in unfinished), key=lambda p: p.stat().st_mtime)
            for old in made[:-KEPT]:  # processes that have mapped one keep it until they unmap it
                remove_folder(old)
            for left in unfinished:
                shutil.rmtree(left, ignore_errors=True)
            return folder
    except OSError as e:
        fix = f"set {FOLDER_VARIABLE} to a folder on a local disk"
        raise UserError(f"{cache}: cannot be written ({e.strerror}), and deltas are applied there; {fix}") from e


def _applied(version: Path, cache: Path, above: frozenset[str]) -> Path:
    delta = Delta.open(version)
    result, wanted = delta.about["result"], delta.about["base"]
    folder = cache / result
    if _made(cache, result) is not None:
        return folder
    if (base := _made(cache, wanted)) is None:
        base = _beside(version, wanted, above | {result})
        base = _applied(base, cache, above | {result}) if is_delta(base) else base
    command = [sys.executable, "-m", "recsys.export.artefact.apply_delta", str(base), str(version), str(folder)]
    environment = os.environ | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"the process has ended with status {done.returncode}"])[-1]
        raise UserError(why if str(version) in why else f"{version}: cannot be applied: {why}")
    return folder


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
