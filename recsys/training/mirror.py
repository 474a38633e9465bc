"""Copies of a run's folder on an object store or another file system: checkpoint.mirror=s3://bucket/run.

    URL/mirror.json     the files of the copy, with their sizes and times; it is written last

A thread of rank 0 copies what has changed after each checkpoint, while training goes on, and all of it at the end.
resume=auto fetches the copy where the run's folder has no checkpoint that is as new.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.blocks import one_line
from recsys.data.raw.raw_files import EXTRAS, check_remote
from recsys.files.run_files import CONFIG, OWN, checkpoints_of

LISTING = "mirror.json"
KEY = "checkpoint.mirror"
LOOK_SECONDS = 2.0  # between two looks at the checkpoints
LEFT_OUT = ("checkpoints", "profile", "tensorboard", "wandb", ".owner.json")  # whole checkpoints are added by name

Files = dict[str, list[int]]  # path below the run's folder -> size, time


class Mirror:
    """The copy of a run's folder."""

    def __init__(self, url: str, run: Path) -> None:
        from fsspec.core import url_to_fs

        check_remote(url, KEY)
        self._url, self._run = url, run
        try:
            self._fs, self._root = url_to_fs(url)
            self._fs.invalidate_cache()
            there = f"{self._root}/{LISTING}"
            self._copied: Files = json.loads(self._fs.cat_file(there)) if self._fs.exists(there) else {}
        except Exception as e:  # each store raises its own exceptions
            raise UserError(f"{KEY}={url}: cannot be reached: {one_line(e)}") from e

    @property
    def newest(self) -> str:
        """The name of the newest checkpoint of the copy; empty if it has none."""
        names = {Path(name).parts[1] for name in self._copied if name.startswith("checkpoints/")}
        return max((name.rpartition("-")[2] for name in names), default="")

    def copy(self) -> None:
        """Copy what has changed, and remove what is no longer there. A checkpoint is listed once all of it is there."""
        files = _files(self._run)
        for name, state in files.items():
            if self._copied.get(name) != state:
                target = f"{self._root}/{name}"
                if self._url.partition("://")[0] not in EXTRAS:  # there, it would make a bucket of a wrong name
                    self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._fs.put_file(str(self._run / name), target)
        gone, self._copied = self._copied.keys() - files.keys(), files
        self._fs.pipe_file(f"{self._root}/{LISTING}", json.dumps(files).encode())
        for name in gone:
            if self._fs.exists(f"{self._root}/{name}"):
                self._fs.rm_file(f"{self._root}/{name}")
        for folder in {name.rpartition("/")[0] for name in gone} - {""}:
            with suppress(Exception):  # it has other files, or the store knows no folders
                self._fs.rmdir(f"{self._root}/{folder}")

    def fetch(self) -> None:
        """Copy the files of the copy to the run's folder, config.yaml last."""
        say(f"{self._run}: fetching the run from {self._url}")
        for name, (size, _) in sorted(self._copied.items(), key=lambda item: item[0] == CONFIG):
            target = (self._run / name).resolve()
            if not target.is_relative_to(self._run.resolve()):
                raise UserError(f"{KEY}={self._url}: {LISTING} names {name}, which is outside of the run's folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(f"{self._root}/{name}", str(target))
            if name.startswith("checkpoints/") and target.stat().st_size != size:
                raise UserError(f"{KEY}={self._url}: {name} is not as it was copied; restore it, or name another place")


def fetch(url: str, run: Path) -> None:
    """Fetch a run's folder from its mirror, unless the folder has a checkpoint that is as new, or there is no copy."""
    mirror = Mirror(url, run)
    newest = max((p.name.rpartition("-")[2] for p in checkpoints_of(run)), default="")
    if mirror.newest > newest:
        mirror.fetch()


def check(url: str, run: Path, resumed: bool) -> None:
    """Raise UserError if the mirror cannot be written, or holds another run than one that goes on."""
    mirror = Mirror(url, run)
    if mirror.newest and not resumed:
        why = "already holds checkpoints, which this new run would replace"
        raise UserError(f"{KEY}={url}: {why}; go on with resume=auto, or name another place")
    try:
        mirror.copy()
    except Exception as e:
        raise UserError(f"{KEY}={url}: cannot be written: {one_line(e)}") from e


@contextmanager
def mirrored(url: str | None, run: Path) -> Iterator[None]:
    """Copy the run's folder to its mirror while the block runs, and at its end, however it ends."""
    if url is None:
        yield
        return
    mirror, ended = Mirror(url, run), threading.Event()

    def watch() -> None:
        seen: list[Path] | None = None
        while not ended.wait(LOOK_SECONDS):
            if (found := checkpoints_of(run)) != seen and _copied(mirror, url, but=FileNotFoundError):
                seen = found

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _copied(mirror, url)


def _copied(mirror: Mirror, url: str, but: type[Exception] | tuple[()] = ()) -> bool:
    """Copy what has changed, and return whether that was possible. What the store refuses is tried again later.

    but: the error of a checkpoint that is replaced meanwhile, of which nothing is said
    """
    try:
        mirror.copy()
    except but:
        return False
    except Exception as e:
        say(f"{KEY}={url}: cannot be written: {one_line(e)}; the run's folder is complete")
        return False
    return True


def _files(run: Path) -> Files:
    """Return the files of a run that are copied."""
    roots = [p for pattern in OWN if pattern not in LEFT_OUT for p in run.glob(pattern)]
    found = [f for root in (*roots, *checkpoints_of(run)) for f in ([root] if root.is_file() else root.rglob("*"))]
    states = ((f, f.stat()) for f in found if f.is_file())
    return {str(f.relative_to(run)): [s.st_size, s.st_mtime_ns] for f, s in states}
