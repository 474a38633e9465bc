"""Rows of databases, tables and built-in samples, which are stored as files before they are read.

PREPARED/tables/<fingerprint>/                   rows of databases and tables
PREPARED/sample-<rows>-<seed>/                   rows of a built-in sample
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import polars as pl
from filelock import FileLock

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.check_data import SAMPLES
from recsys.data.raw import read_sources
from recsys.data.raw.databases import TABLES
from recsys.data.raw.raw_files import digests
from recsys.files import manifest
from recsys.files.atomic import put_in_place, remove_folder, whole_folder


def with_root(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config with a folder of raw files: that of the config, of the sample, or of a table's stored rows."""
    if data.root is not None:
        return with_stored_rows(data, home) if data.source.format in TABLES else data
    assert data.sample is not None
    kind = "" if data.sample.kind == "clicks" else f"{data.sample.kind}-"
    folder = home / f"sample-{kind}{data.sample.rows}-{data.sample.seed}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with whole_folder(folder) as building, bar("generating", data.sample.rows) as progress:
                written = lambda rows: progress.advance(rows - progress.done)  # noqa: E731
                SAMPLES[data.sample.kind](building, rows=data.sample.rows, seed=data.sample.seed, progress=written)
    return replace(data, root=str(folder))


def with_stored_rows(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config that reads the table's rows from Parquet files, after writing them under `home`.

    Raises:
        UserError: the table cannot be read, or lacks a column that the config names.
    """
    assert data.root is not None
    folder = home / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    # a digest or version that changes whenever the table does; None for a server, which has neither
    table = TABLES[data.source.format]
    if (file := table.file(data.root)) is not None and file.is_file():
        state: str | None = digests([file], home, verify=data.verify)[file]
    else:
        state = table.version(data.root)
    if state is None:
        building = Path(mkdtemp(dir=folder, prefix=".reading-"))
        try:
            _write(data, building)
            content = [entry[1:] for _, entry in sorted(manifest.entries_of(building).items())]
            target = folder / _key([data.source.query, content])
            with FileLock(f"{target}.lock"):
                if not target.exists():
                    put_in_place(building, target)
        finally:
            with suppress(OSError):
                remove_folder(building)
        return _local(data, target)
    target = folder / _key([data.source.format, data.root, data.source.query, state])
    with FileLock(f"{target}.lock"):
        if not target.exists():
            with whole_folder(target) as building:
                _write(data, building)
    return _local(data, target)


def _key(state: object) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _write(data: ResolvedData, folder: Path) -> None:
    rows, table = 0, TABLES[data.source.format]
    with bar(f"reading {data.source.format}") as progress:
        for i, batch in enumerate(table.read(data.source, data.root or "")):
            # a column without a value in a batch has no type, so it becomes text
            frame = batch.with_columns(pl.col(n).cast(pl.String) for n, t in batch.schema.items() if t == pl.Null)
            file = folder / f"part-{i:05d}.parquet"
            frame.write_parquet(file, compression="lz4")
            if not i:
                read_sources.check_columns(_local(data, folder), file)
            rows += frame.height
            progress.advance(frame.height)
    if not rows:
        raise UserError(f"data.root: the {table.rows_of} returns no rows")


def _local(data: ResolvedData, folder: Path) -> ResolvedData:
    source = replace(data.source, format="parquet", files=["*.parquet"], query=None)
    return replace(data, root=str(folder), source=source)
