"""Raw files -> prepared Parquet under a fingerprint, once, in bounded memory.

    PREPARED/<name>-<fingerprint>/
        train/ validation/ test/     part-00000-000.parquet ...: label, dense float32, ids int32
        features.json transforms.json vocabularies/     what was fitted on the training split
        prepared.json                rows, split, bad rows
    PREPARED/<name>-<fingerprint>.bad_rows.csv          file, line, reason, text
    PREPARED/read/<fingerprint>/                        chunks of raw files, as they were read (chunks.py)

Three passes: read what has not been read before; fit on the training rows; apply and write. A run that is killed goes
on where it was: with the next chunk to read, or the next ones to write.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from filelock import FileLock

from recsys.atomic import put_in_place, whole_folder
from recsys.config.schema_data import DataConfig
from recsys.console import bar
from recsys.data.check import SAMPLES, check_files
from recsys.data.prepare.chunks import cut, read_spec, source_spec
from recsys.data.prepare.digests import digests, together
from recsys.data.prepare.engine import Engine, OneMachine
from recsys.data.prepare.item_table import items_join, items_vectors
from recsys.data.prepare.passes import Build
from recsys.data.prepare.shuffle import decoded
from recsys.data.raw import sources
from recsys.data.raw.formats import files_in
from recsys.data.raw.vector_files import vector_files
from recsys.data.transforms import Fitted
from recsys.errors import UserError
from recsys.memory import keep_freed_memory

FORMAT = 6  # raise it when the same config and files would be prepared differently


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data."""

    folder: Path

    @property
    def info(self) -> dict[str, Any]:
        info = json.loads((self.folder / "prepared.json").read_text())
        assert isinstance(info, dict)
        return info

    @property
    def fitted(self) -> Fitted:
        return Fitted.load(self.folder)

    def files(self, split: str) -> list[Path]:
        return sorted((self.folder / split).glob("*.parquet"))

    def rows(self, split: str) -> int:
        return int(self.info["rows"][split])


def prepare(data: DataConfig, engine: Engine | None = None) -> Prepared:
    """The prepared data for this config, made now unless it is there. Safe to call from many processes."""
    build = _build(data, engine)
    target = build.target
    with FileLock(f"{target}.lock"):
        if not (target / "prepared.json").exists():
            keep_freed_memory()
            build.folder.mkdir(exist_ok=True)
            build.run()
            put_in_place(build.folder, target)
    return Prepared(target)


def typed_rows(data: DataConfig) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """Typed rows, text as text, and the split of each: (rows,) 0, 1 or 2. What was read is not read again."""
    build = _build(data, None)
    with TemporaryDirectory(dir=data.prepared, prefix="rows-") as folder:
        chunks, splitter, _ = replace(build, folder=Path(folder)).typed()
        for chunk in chunks:
            text = chunk.values()
            for frame in chunk.frames():
                yield frame.with_columns(decoded(n, frame, t) for n, t in text.items()), splitter.of(frame, chunk.split)


def _build(data: DataConfig, engine: Engine | None) -> "Build":
    if "://" in data.prepared:
        raise UserError(
            f"data.prepared={data.prepared}: must be a folder of this machine or one that machines share; "
            "raw files alone (data.root) may lie elsewhere"
        )
    home = Path(data.prepared)
    home.mkdir(parents=True, exist_ok=True)
    if data.root is None:
        data = _with_sample(data, home)
    files = check_files(data)
    joins = [*data.source.joins, *filter(None, [items_join(data)])]
    sides = {join.file: sources.side_file(data, join) for join in joins}
    vectors = vector_files(data) | items_vectors(data)
    holds = {f: files_in(data.source, f) for f, _ in files}
    raw = dict.fromkeys(p for found in holds.values() for p in found)
    known = digests([*raw, *sides.values(), *vectors.values()], home)
    known |= {
        f: together([known[p] for p in found], [[p.columns, p.dtypes] for p in data.source.parts.get(str(f), [])])
        for f, found in holds.items()
        if found != [f] or data.source.parts
    }
    side_contents = {name: known[file] for name, file in sides.items()}
    vector_contents = {name: known[file] for name, file in vectors.items()}
    contents = [[known[f] for f, _ in files], [split for _, split in files], side_contents, vector_contents]
    target = home / f"{data.name}-{_fingerprint(data, contents)}"
    spec = read_spec(data, {join.file: known[sides[join.file]] for join in data.source.joins})
    return Build(
        data, cut(data, files, known), spec, target, target.with_name(f"{target.name}.building"), engine or OneMachine()
    )


def _with_sample(data: DataConfig, home: Path) -> DataConfig:
    if data.sample is None:
        raise UserError(f"data={data.name}: set data.root=DIR, the folder of its raw files")
    if data.sample.rows < 100:
        raise UserError(f"data.sample.rows={data.sample.rows}: at least 100")
    kind = "" if data.sample.kind == "clicks" else f"{data.sample.kind}-"
    folder = home / f"sample-{kind}{data.sample.rows}-{data.sample.seed}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with whole_folder(folder) as building, bar("generating", data.sample.rows) as shown:
                written = lambda rows: shown.advance(rows - shown.done)  # noqa: E731
                SAMPLES[data.sample.kind](building, rows=data.sample.rows, seed=data.sample.seed, progress=written)
    return DataConfig(**{**vars(data), "root": str(folder)})


def _fingerprint(data: DataConfig, contents: Any) -> str:
    config = asdict(data)
    for key in ("root", "spec", "prepared", "max_bad_rows", "sample", "keep_read"):
        config.pop(key)
    config["source"] = source_spec(data.source)
    config["derive"] = [*data.derive.items()]  # in order: one may read another
    for files in ("train_files", "validation_files", "test_files"):
        config["split"].pop(files)  # contents says which file is of which split
    text = json.dumps([FORMAT, config, contents], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
