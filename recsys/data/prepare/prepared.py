"""Prepare raw files as Parquet under a fingerprint, once, in bounded memory.

    PREPARED/<name>-<fingerprint>/
        train/ validation/ test/     part-00000-000.parquet ...: label, dense float32, ids int32
        features.json transforms.json vocabularies/     the transforms fitted on the training split
        prepared.json                rows, split, bad rows, digest of the raw files' content
        manifest.json                digests of all files, which are checked when they are read
    PREPARED/<name>-<fingerprint>.bad_rows.csv          file, line, reason, text
    PREPARED/read/<fingerprint>/                        parsed chunks of raw files (chunks.py)

There are four passes: read the chunks that were not read before; arrange rows by group, if there are groups; fit on the
training rows; apply and write. After a
run is killed, the next one resumes with the first chunk that is missing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from filelock import FileLock

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.memory import keep_freed_memory
from recsys.base.packages import check_extra
from recsys.data.features import Fitted, ResolvedData
from recsys.data.features.group_features import CONTEXT
from recsys.data.prepare.check_data import SplitFiles
from recsys.data.prepare.engine import Engine, OneMachine
from recsys.data.prepare.passes import INFO, WINDOW, Build
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.shuffle import decode_column
from recsys.data.prepare.split import SPLITS
from recsys.files import manifest
from recsys.files.atomic import put_in_place, remove_folder
from recsys.files.manifest import BackgroundCheck, DamagedFile
from recsys.schema.data_schema import DataConfig, EngineConfig


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data. Files are read on first use and cached."""

    folder: Path

    @cached_property
    def info(self) -> dict[str, Any]:
        """Name, split, rows and bad rows."""
        return manifest.read_json(self.folder / INFO, "name", "rows")

    @cached_property
    def fitted(self) -> Fitted:
        """The fitted transforms."""
        return Fitted.load(self.folder)

    def files(self, split: str) -> list[Path]:
        """Return the Parquet files of a split."""
        return sorted((self.folder / split).glob("*.parquet"))

    def windows(self, least: int) -> list[list[Path]]:
        """Return the files of each window of training rows, in order of time; [] without data.split.window.

        least: rows of a window; one with fewer is a part of the next one, and the last of the one before
        """
        start, length = WINDOW.index("{"), len(WINDOW.format(0))
        by_number: dict[int, list[Path]] = {}
        for file in self.files("train"):
            if file.name.startswith(WINDOW[:start]):
                by_number.setdefault(int(file.name[start : length - 1]), []).append(file)
        windows: list[list[Path]] = []
        rows = least
        for _, files in sorted(by_number.items()):
            windows += [[]] if rows >= least else []
            rows = sum(pq.read_metadata(f).num_rows for f in files) + (rows if rows < least else 0)
            windows[-1] += files
        return [*windows[:-2], windows[-2] + windows[-1]] if rows < least and windows[1:] else windows

    def check_in_background(self, files: Iterable[Path]) -> BackgroundCheck:
        """Return a check of these files, which the caller starts."""
        return BackgroundCheck(self.folder, files, f"remove {self.folder}, and the next run prepares the data again")

    def rows(self, split: str) -> int:
        """Return the number of rows of a split."""
        return int(self.info["rows"][split])

    def __reduce__(self) -> tuple[type["Prepared"], tuple[Path]]:
        return Prepared, (self.folder,)  # another process reads the folder itself


def prepare(data: DataConfig, engine: Engine | None = None, files: SplitFiles | None = None) -> Prepared:
    """Return the prepared data for this config; prepare it if it does not exist. Safe to call from many processes.

    files: the raw files, if `check_raw_files` has already checked them
    """
    return finish(plan_build(data, engine, files))


def finish(build: Build) -> Prepared:
    """Return the data that a build prepares; run it if they do not exist. Safe to call from many processes.

    Damaged files, of the prepared data or of what was read from the raw files, are written again.
    """
    target = build.target
    with FileLock(f"{target}.lock"):
        if target.exists() and (damage := find_damage(target)) is not None:
            say(f"{damage}; preparing the data again")
            remove_folder(target)
        if not target.exists():
            keep_freed_memory()
            build.folder.mkdir(exist_ok=True)
            _run(build)
            put_in_place(build.folder, target)
    return Prepared(target)


def find_damage(folder: Path) -> DamagedFile | None:
    """Return the first damage in prepared data, or None, by the sizes of the parts and the content of other files."""
    parts = tuple(f"{split}/" for split in SPLITS)
    try:
        info = Prepared(folder).info
        entries = manifest.read(folder)
        if entries is None and info.get("manifest"):
            raise DamagedFile(folder / manifest.FILE, "is missing")
        for name, entry in (entries or {}).items():
            manifest.check_file(folder, name, entry, size_only=name.startswith(parts))
    except DamagedFile as e:
        return e
    return None


def _run(build: Build) -> None:
    try:
        build.run()
    except DamagedFile as e:  # a chunk that was read from a raw file before
        chunk = next((f for f in build.chunk_folders() if e.file.is_relative_to(f)), None)
        if chunk is None:
            raise
        say(f"{e}; its chunk of the raw files is read again")
        remove_folder(chunk)
        remove_folder(build.folder)
        build.folder.mkdir()
        build.run()


def parsed_rows(data: DataConfig) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """Yield frames of parsed rows with decoded text, and the split of each row: (rows,) 0, 1 or 2.

    Chunks that were read before are not read again.
    """
    build = plan_build(data)
    with TemporaryDirectory(dir=data.prepared, prefix="rows-") as folder:
        chunks, splitter, _ = replace(build, folder=Path(folder)).parsed()
        for chunk in chunks:
            text = chunk.values()
            for frame in chunk.frames():
                decoded = frame.with_columns(decode_column(n, frame, t) for n, t in text.items())
                split_of = splitter.assign(frame, chunk.split)
                yield decoded.filter(split_of != CONTEXT), split_of[split_of != CONTEXT]


def check_engine(config: EngineConfig) -> None:
    """Check the config of an engine, and that its packages are installed. Raises UserError if not."""
    if config.name == "polars" and (config.master is not None or config.options):
        raise UserError("engine.master, engine.options: apply only to engine=spark; this is engine=polars")
    if config.name == "spark":
        check_extra("spark", "engine=spark")


@contextmanager
def open_engine(config: EngineConfig, data: ResolvedData) -> Iterator[Engine]:
    """Yield the engine that the config names; close it at the end."""
    check_engine(config)
    if config.name == "polars":
        yield OneMachine()
        return
    from recsys.data.prepare.spark_engine import Spark  # pyspark is an extra

    spark = Spark(config, Path(data.prepared))
    try:
        yield spark
    finally:
        spark.close()
