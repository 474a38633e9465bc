"""Copies of a run's folder on an object store or another file system: checkpoint.mirror=s3://bucket/run.

    URL/mirror.json     the files of the copy, with their sizes and times; it is written last

A thread of rank 0 copies what has changed after each checkpoint, while training goes on, and all of it at the end.
resume=auto fetches the copy where the run's folder has no checkpoint that is as new; fetched_runs.py, where a command
names the address.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import groupby
from pathlib import Path

from recsys.base.console import say
from recsys.base.errors import Unavailable, UserError
from recsys.data.features.blocks import one_line
from recsys.data.raw.raw_files import EXTRAS, check_remote
from recsys.files import starts
from recsys.files.atomic import whole_folder, write_text
from recsys.files.run_files import CONFIG, OWN, STARTS, checkpoints_of

LISTING = "mirror.json"
KEY = "checkpoint.mirror"
LOOK_SECONDS, AGAIN_SECONDS = 2.0, 60.0  # between two looks at the checkpoints, and after an error of the store
MAX_MISSED = 3  # copies in a row, of which nothing is said
LEFT_OUT = ("checkpoints", "profile", "tensorboard", "wandb", ".owner.json")  # whole checkpoints are added by name

Files = dict[str, list[int]]  # path below the run's folder -> size, time


class Mirror:
    """The copy of a run's folder. key: the config key that names it; there must be a copy, unless it is KEY"""

    def __init__(self, url: str, run: Path, key: str = KEY) -> None:
        from fsspec.core import url_to_fs

        check_remote(url, key)
        self._url, self.run, self._key, self.missed = url, run, key, 0
        try:
            self._fs, self._root = url_to_fs(url)
            self._fs.invalidate_cache()
            there = f"{self._root}/{LISTING}"
            self.listing: bytes = self._fs.cat_file(there) if self._fs.exists(there) else b""
        except Exception as e:  # each store raises its own exceptions
            raise self.error("cannot be reached", e) from e
        try:
            self._copied: Files = json.loads(self.listing or b"{}")
            if not all(name and size >= 0 and time >= 0 for name, (size, time) in self._copied.items()):
                raise ValueError
        except (ValueError, TypeError, AttributeError):
            raise self.error(f"{LISTING} is damaged; restore it, or name another place") from None
        if key != KEY and CONFIG not in self._copied:
            raise self.error(f"has no copy of a run, whose {LISTING} checkpoint.mirror writes")

    def error(self, why: str, cause: Exception | None = None) -> UserError:
        """Return the error of a mirror that cannot be used. cause: that of its store"""
        kind = UserError if cause is None else Unavailable
        return kind(f"{self._key}={self._url}: {why}" + (f": {one_line(cause)}" if cause else ""))

    @property
    def newest(self) -> str:
        """The steps of the newest checkpoint of the copy; empty if it has none."""
        return max(map(_steps, self._copied), default="")

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoints of the copy, the newest first."""
        names = {Path(name).parts[1] for name in self._copied if _steps(name)}
        return sorted(names, key=lambda name: (name.rpartition("-")[2], name), reverse=True)

    @property
    def folder(self) -> Path | None:
        """The folder of a copy on a file system."""
        return Path(self._root).resolve() if "file" in self._fs.protocol else None

    def check_same_run(self) -> None:
        """Raise UserError if the copy has checkpoints of another run than the run's folder."""
        theirs, ours = None, starts.first(starts.entries(self.run))
        with suppress(Exception):  # it has none, or one that is damaged
            theirs = starts.first(json.loads(self._fs.cat_file(f"{self._root}/{STARTS}")))
        if self.newest and None not in (ours, theirs) and ours != theirs:
            raise self.error(f"has another run than {self.run}; name another place, or run_dir")

    def copy(self) -> None:
        """Copy what has changed, and remove what is no longer there. A checkpoint is listed once all of it is there."""
        files = _files(self.run)
        for name, state in files.items():
            if self._copied.get(name) != state:
                target = f"{self._root}/{name}"
                if self._url.partition("://")[0] not in EXTRAS:  # there, it would make a bucket of a wrong name
                    self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._fs.put_file(str(self.run / name), target)
        if self.folder is not None:  # where a file may be written in part
            write_text(self.folder / LISTING, json.dumps(files))
        else:
            self._fs.pipe_file(f"{self._root}/{LISTING}", json.dumps(files).encode())
        gone = self._copied.keys() - files.keys()
        for name in gone:
            if self._fs.exists(f"{self._root}/{name}"):
                self._fs.rm_file(f"{self._root}/{name}")
        for folder in {name.rpartition("/")[0] for name in gone} - {""}:
            with suppress(Exception):  # it has other files, or the store knows no folders
                self._fs.rmdir(f"{self._root}/{folder}")
        self._copied = files

    def fetch(self, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Copy the files of the copy to the run's folder, and the newest checkpoint last: with it, all are there.

        wanted: whether to copy a checkpoint of this name and, called with "", all other files
        """
        say(f"{self.run}: fetching the run from {self._url}")
        for name in self._copied:
            if not (self.run / name).resolve().is_relative_to(self.run.resolve()):
                raise self.error(f"{LISTING} names {name}, which is outside of the run's folder")
        names = sorted(self._copied, key=lambda name: (_steps(name), name))
        (self.run / "checkpoints").mkdir(parents=True, exist_ok=True)
        for checkpoint, files in groupby(names, key=lambda name: _steps(name) and Path(name).parts[1]):
            place = self.run / "checkpoints" / checkpoint
            if not wanted(checkpoint):
                continue
            with whole_folder(place) if checkpoint else nullcontext(self.run) as building:
                for name in files:
                    self._get(name, building / Path(*Path(name).parts[2 if checkpoint else 0 :]))

    def _get(self, name: str, target: Path) -> None:
        size, time = self._copied[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fs.get_file(f"{self._root}/{name}", str(target))
        except Exception as e:
            raise self.error(f"{name} cannot be fetched", e) from e
        if _steps(name) and target.stat().st_size != size:
            raise self.error(f"{name} is not as it was copied; restore it, or name another place")
        os.utime(target, ns=(time, time))  # so that it is not copied again


def fetch(url: str, run: Path, key: str = KEY) -> None:
    """Fetch a run's folder from its mirror, unless the folder has a checkpoint that is as new, or there is no copy.

    Raises UserError if the mirror has another run. key: as of Mirror
    """
    mirror = Mirror(url, run, key)
    if mirror.newest > _newest(run) or (key != KEY and not (run / CONFIG).exists()):
        mirror.check_same_run()
        mirror.fetch()


def check(url: str, run: Path, resumed: bool) -> None:
    """Raise UserError if the mirror cannot be written, or a copy would replace another run or newer checkpoints."""
    mirror = Mirror(url, run)
    if mirror.folder is not None and mirror.folder.is_relative_to(run.resolve()):
        raise mirror.error("is within the run's folder; name a place on another disk")
    if mirror.newest and not resumed:
        why = "already holds checkpoints, which this new run would replace"
        raise mirror.error(f"{why}; go on with resume=auto, or name another place")
    mirror.check_same_run()
    if mirror.newest > _newest(run):
        why = f"has a newer checkpoint than {run}, which this run would replace"
        raise mirror.error(f"{why}; go on with run_dir={run} resume=auto, or name another place")
    try:
        mirror.copy()
    except Exception as e:
        raise mirror.error("cannot be written", e) from e


def _newest(run: Path) -> str:
    return max((p.name.rpartition("-")[2] for p in checkpoints_of(run)), default="")


@contextmanager
def mirrored(url: str | None, run: Path) -> Iterator[None]:
    """Copy the run's folder to its mirror while the block runs, and at its end, however it ends."""
    if url is None:
        yield
        return
    mirror, ended = Mirror(url, run), threading.Event()

    def watch() -> None:
        seen, pause = list[Path](), LOOK_SECONDS
        while not ended.wait(pause):
            if (found := checkpoints_of(run)) != seen:
                copied, pause = _copied(mirror, url, run)
                seen = found if copied else seen

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        starts.end(sys.exception())
        _copied(mirror, url, run)


def _copied(mirror: Mirror, url: str, run: Path) -> tuple[bool, float]:
    """Copy what has changed, and return whether that was possible, and the seconds until the next look."""
    try:
        mirror.copy()
    except Exception as e:
        if isinstance(e, FileNotFoundError) and Path(e.filename or "/").is_relative_to(run):  # replaced meanwhile
            mirror.missed += 1
            if mirror.missed == MAX_MISSED:
                why = "checkpoints are replaced before they are copied; set checkpoint.keep_last=2, or write fewer"
                say(f"{KEY}={url}: {why}")
            return False, LOOK_SECONDS
        say(f"{KEY}={url}: cannot be written: {one_line(e)}; the run's folder is complete")
        return False, AGAIN_SECONDS
    mirror.missed = 0
    return True, LOOK_SECONDS


def _steps(name: str) -> str:
    """Return the steps of the checkpoint that a file is of; empty for other files."""
    parts = Path(name).parts
    return parts[1].rpartition("-")[2] if parts[0] == "checkpoints" else ""


def _files(run: Path) -> Files:
    """Return the files of a run that are copied."""
    roots = [p for pattern in OWN if pattern not in LEFT_OUT for p in run.glob(pattern)]
    found = [f for root in (*roots, *checkpoints_of(run)) for f in ([root] if root.is_file() else root.rglob("*"))]
    states = ((f, f.stat()) for f in found if f.is_file())
    return {str(f.relative_to(run)): [s.st_size, s.st_mtime_ns] for f, s in states}
