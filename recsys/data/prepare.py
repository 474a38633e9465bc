"""Raw files -> prepared Parquet under a fingerprint, once, in bounded memory.

    PREPARED/<name>-<fingerprint>/
        train/ validation/ test/     part-00000.parquet ...: label, dense float32, ids int32
        features.json transforms.json vocabularies/     what was fitted on the training split
        prepared.json                rows, split, bad rows
    PREPARED/<name>-<fingerprint>.bad_rows.csv          file, line, reason, text

Three passes: read and spill typed rows; fit on the training rows; apply and write.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from filelock import FileLock

from recsys.data import sources
from recsys.data.check import check_files
from recsys.data.formats import LINE, BadRow
from recsys.data.split import SPLITS, Part, Splitter
from recsys.data.synthetic import write_sample
from recsys.data.transforms import ROW, Fitted, fit, typed
from recsys.data.write import PartWriter
from recsys.errors import UserError
from recsys.progress import Bar, bar, say
from recsys.schema import DataConfig

FORMAT = 3  # raise it when the same config and files would be prepared differently
EARLY_STOP_ROWS = 100_000


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


def prepare(data: DataConfig) -> Prepared:
    """The prepared data for this config, made now unless it is there. Safe to call from many processes."""
    home = Path(data.prepared)
    home.mkdir(parents=True, exist_ok=True)
    if data.root is None:
        data = _with_sample(data, home)
    files = check_files(data)
    target = home / f"{data.name}-{_fingerprint(data, files)}"
    with FileLock(f"{target}.lock"):
        if not (target / "prepared.json").exists():
            building = target.with_name(target.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            _build(data, files, building, Path(f"{target}.bad_rows.csv"))
            shutil.rmtree(target, ignore_errors=True)  # what has no prepared.json
            os.replace(building, target)
    return Prepared(target)


def _with_sample(data: DataConfig, home: Path) -> DataConfig:
    if data.sample is None:
        raise UserError(f"data={data.name}: set data.root=DIR, the folder of its raw files")
    if data.sample.rows < 100:
        raise UserError(f"data.sample.rows={data.sample.rows}: at least 100")
    folder = home / f"sample-{data.sample.rows}-{data.sample.seed}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            building = folder.with_name(folder.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            with bar("generating", data.sample.rows) as shown:
                written = lambda rows: shown.advance(rows - shown.done)  # noqa: E731
                write_sample(building, rows=data.sample.rows, seed=data.sample.seed, progress=written)
            os.replace(building, folder)
    return DataConfig(**{**vars(data), "root": str(folder)})


def _fingerprint(data: DataConfig, files: list[tuple[Path, int | None]]) -> str:
    config = asdict(data)
    for key in ("root", "prepared", "max_bad_rows", "sample"):
        config.pop(key)
    sides = [sources.side_file(data, join) for join in data.source.joins]
    stats = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in [*(f for f, _ in files), *sides]]
    text = json.dumps([FORMAT, config, stats], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _build(data: DataConfig, files: list[tuple[Path, int | None]], folder: Path, bad_rows: Path) -> None:
    spill = folder / "spill"
    spill.mkdir()
    parts, bad = _spill(data, files, spill, bad_rows)
    total = sum(p.rows for p in parts)
    if total == 0:
        raise UserError(f"data={data.name}: no usable row in {files[0][0]}" + (f"; see {bad_rows}" if bad else ""))
    splitter = Splitter(data.split, parts)
    rows = dict.fromkeys(SPLITS, 0)

    def training() -> Iterator[pl.DataFrame]:
        with bar("fitting", total) as shown:
            for part in parts:
                frame, which = _placed(part, splitter)
                yield frame.filter(which == 0)
                shown.advance(part.rows)

    fitted = fit(data, training)
    with bar("writing", total) as shown:
        writers = {split: PartWriter(folder / split) for split in SPLITS}
        for part in parts:
            frame, which = _placed(part, splitter)
            done = fitted.apply(frame)
            for i, split in enumerate(SPLITS):
                piece = done.filter(which == i)
                rows[split] += piece.height
                writers[split].write(piece)
            part.path.unlink()
            shown.advance(part.rows)
        for writer in writers.values():
            writer.close()
    for split, n in rows.items():
        if n == 0 and (split != "validation" or data.split.validation > 0):
            raise UserError(f"data={data.name}: the {split} split has no rows ({total} in all); see data.split")
    fitted.save(folder)
    shutil.rmtree(spill)
    info = {
        "name": data.name,
        "root": data.root,
        "rows": rows,
        "bad_rows": bad,
        "split": splitter.describe(),
        "files": [str(f) for f, _ in files],
    }
    (folder / "prepared.json").write_text(json.dumps(info, indent=1) + "\n")


def typed_rows(data: DataConfig) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """The rows of data.root as `typed` makes them, and the split of each: (rows,) 0, 1 or 2."""
    files, folder = check_files(data), TemporaryDirectory(dir=data.prepared, prefix="spill-")
    bad_rows = Path(data.prepared) / f"{data.name}-{_fingerprint(data, files)}.bad_rows.csv"  # as preparing wrote it
    parts, _ = _spill(data, files, Path(folder.name), bad_rows)
    splitter = Splitter(data.split, parts)

    def rows() -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
        with folder:
            for part in parts:
                frame = part.read()
                yield frame, splitter.of(part, frame)
                part.path.unlink()

    return rows()


def _placed(part: Part, splitter: Splitter) -> tuple[pl.DataFrame, pl.Series]:
    """A part's rows, those of the training split with their place, and the split of each."""
    frame = part.read()
    which = pl.Series(splitter.of(part, frame))
    place = pl.when(which == 0).then(pl.int_range(part.first_row, part.first_row + frame.height))
    return frame.with_columns(place.alias(ROW)), which


def _spill(
    data: DataConfig, files: list[tuple[Path, int | None]], spill: Path, bad_rows: Path
) -> tuple[list[Part], int]:
    """Pass 1: typed rows in Parquet parts, bad rows in a file; stops where their share is too large."""
    parts: list[Part] = []
    good = bad = 0
    bad_rows.unlink(missing_ok=True)
    first_bad = ""

    def check(least: int) -> None:
        if bad > data.max_bad_rows * (good + bad) and good + bad >= least:
            raise UserError(
                f"data={data.name}: {bad} of {good + bad} rows cannot be read (first: {first_bad}), more than "
                f"data.max_bad_rows={data.max_bad_rows}; they lie in {bad_rows}"
            )

    with bar("reading", _expected_rows(files)) as shown:
        for file, split in files:
            for block in sources.read_blocks(data, file):
                frame, wrong = typed(data, block)
                if wrong:
                    first_bad = first_bad or f"{wrong[0].file} line {wrong[0].line}: {wrong[0].reason}"
                    _keep(wrong, bad_rows)
                if frame.height:
                    path = spill / f"{len(parts):05d}.parquet"
                    frame.drop(LINE).write_parquet(path, compression="lz4")
                    parts.append(Part(path, good, frame.height, split))
                good, bad = good + frame.height, bad + len(wrong)
                shown.advance(frame.height)
                check(EARLY_STOP_ROWS)
        _finish(shown)
    check(1)
    if bad:
        say(f"{bad} of {good + bad} rows could not be read (first: {first_bad}) and lie in {bad_rows}")
    return parts, bad


def _finish(shown: Bar) -> None:
    shown.total = shown.done
    shown.advance(0)


def _expected_rows(files: list[tuple[Path, int | None]]) -> float | None:
    """For the ETA: exact for Parquet; from the first lines' length for text; unknown for gzip."""
    total = 0.0
    for file, _ in files:
        if file.suffix == ".parquet":
            total += pq.read_metadata(file).num_rows
        elif file.suffix == ".gz":
            return None
        else:
            with file.open("rb") as f:
                head = f.read(1 << 16)
            total += file.stat().st_size / (len(head) / max(head.count(b"\n"), 1))
    return total


def _keep(bad: list[BadRow], path: Path) -> None:
    frame = pl.DataFrame([asdict(b) for b in bad])
    with path.open("ab") as f:
        frame.write_csv(f, include_header=f.tell() == 0)
