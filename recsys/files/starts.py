"""Record in RUN/starts.json what made a run: an entry for each start, the first one first.

start, end, how         times in UTC; how it ended: finished, or the error. Null if it was killed
command, folder         the command line, without secrets, and the folder that it was typed in
git                     commit of that folder; numbers of changed and of untracked files. Null outside a repository
resumed                 whether the start went on from a checkpoint
changed                 the keys of config.yaml that this start changed: {key: [before, now]}
packages                versions of all packages; of later starts those that differ, null for removed ones
host, cores, cpu, gpus, driver, launcher, job
more                    what the training itself says: processes, threads, precision, digest of the data
"""

import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recsys.base.cores import allowed_cores
from recsys.base.packages import FBGEMM, version_of
from recsys.base.secrets import mask_text
from recsys.files.atomic import write_json
from recsys.files.json_text import read_json
from recsys.files.run_files import STARTS

GIT_SECONDS = 5.0  # of a slow file system
LAUNCHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "SLURM_JOB_ID": "slurm", "KUBERNETES_SERVICE_HOST": "kubernetes"}
_begun: dict[Path, str] = {}  # run folders whose start has not ended -> the time of the start


def begin(run: Path, more: Mapping[str, Any]) -> None:
    """Add an entry for a start of a run. more: what only the caller knows"""
    before = entries(run)
    then: dict[str, Any] = {}
    for entry in before:
        then |= entry["packages"]
    now: dict[str, Any] = _packages()
    packages = {name: now.get(name) for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)}
    entry = {
        "start": _time(),
        "end": None,
        "how": None,
        "command": mask_text(shlex.join(["python", *(["-m"] if sys.argv[0].startswith("recsys.") else []), *sys.argv])),
        "folder": os.getcwd(),
        "git": _git(),
        **more,
        "packages": packages,
        "host": socket.gethostname(),
        "system": platform.platform(),
        **_hardware(),
        "launcher": [name for variable, name in LAUNCHERS.items() if variable in os.environ],
    }
    write_json(run / STARTS, [*before, entry])
    _begun[run] = entry["start"]


def end(error: BaseException | None) -> None:
    """Note in the entries of this process that their starts have ended. error: that ended them"""
    how = "finished" if error is None else mask_text(f"{type(error).__name__}: {error}").splitlines()[0][:300]
    while _begun:
        run, start = _begun.popitem()
        with suppress(OSError, ValueError, KeyError):  # a full disk may be what ended it, or a damaged file
            *before, last = entries(run)
            if last["start"] == start:
                write_json(run / STARTS, [*before, last | {"end": _time(), "how": how}])


def line(run: Path) -> str | None:
    """Return on one line what made a run; None if its folder does not say."""
    found = entries(run)
    try:
        begun, last, git = found[0], found[-1], found[0]["git"]
        packages = begun["packages"]
        fbgemm = next((p for p in FBGEMM if p in packages), FBGEMM[0])
        versions = ", ".join(f"{p} {packages.get(p)}" for p in ("torch", "torchrec", fbgemm, "python"))
        changes = ", with changes" if git and git["changed"] else ""
        commit = f"; commit {str(git['commit'])[:12]}{changes}" if git else ""
        more = f"; {len(found)} starts, the last {last['start']}" if found[1:] else ""
        return f"recsys {packages.get('recsys')} ({versions}){commit}; {begun['host']}, {begun['start']}{more}"
    except (LookupError, TypeError, AttributeError):
        return None


def entries(run: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's starts; none if the file is missing or damaged, since no result depends on it."""
    try:
        found = read_json(run / STARTS)
    except (OSError, ValueError):
        return []
    found = found if isinstance(found, list) else []
    return [e for e in found if isinstance(e, dict) and isinstance(e.get("packages"), dict)]


def first(found: Sequence[Mapping[str, Any]]) -> tuple[Any, ...] | None:
    """Return what tells a run from all others: when and where it was started first. None if its folder does not say."""
    return tuple(found[0].get(key) for key in ("start", "host", "folder", "command")) if found else None


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _packages() -> dict[str, str]:
    """Return the version of each installed package, by the folders that hold them: reading their files takes longer."""
    found = {"recsys": version_of("recsys") or "unknown", "python": platform.python_version()}
    for place in map(Path, sys.path):
        for folder in place.glob("*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
            found.setdefault(name.replace("_", "-").lower(), version)
    return found


def _git() -> dict[str, Any] | None:
    """Return the commit of the working folder, and how many of its files are changed and untracked; None without."""
    git = shutil.which("git")
    if git is None:
        return None
    answers = []
    for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=normal"]):
        command = [git, "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, errors="replace")
        except (OSError, subprocess.SubprocessError):
            return None
        if done.returncode:
            return None
        answers.append(done.stdout.splitlines())
    [commit], files = answers[0][:1], answers[1]
    untracked = sum(f.startswith("??") for f in files)
    return {"commit": commit, "changed": len(files) - untracked, "untracked": untracked}


def _hardware() -> dict[str, Any]:
    """Return the CPU, the cores that may be used, and the GPUs, without opening them."""

    def values(file: Path, key: str) -> list[str]:
        with suppress(OSError):
            lines = (text.partition(":") for text in file.read_text(errors="replace").splitlines())
            return [value.strip() for name, _, value in lines if name.strip() == key]
        return []

    nvidia = Path("/proc/driver/nvidia")
    cpu = values(Path("/proc/cpuinfo"), "model name") or [platform.processor() or platform.machine()]
    gpus = [name for file in sorted(nvidia.glob("gpus/*/information")) for name in values(file, "Model")]
    return {
        "cpu": cpu[0],
        "cores": allowed_cores().count,
        "gpus": gpus,
        "driver": values(nvidia / "version", "NVRM version"),
    }
