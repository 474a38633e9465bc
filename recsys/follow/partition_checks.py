"""Check a new partition against what the champion was trained on, and against how well it predicted before.

REFERENCES/columns.json    the distributions of the features in the champion's training rows
REFERENCES/units.json      the units of the times by which these rows are ordered
REFERENCES/figures.json    labels and predictions of its window, on which it was not trained
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from recsys.base.console import hidden
from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.data.features.value_types import unit_of_time
from recsys.data.prepare.chunks import ParsedChunk
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.shuffle import decode_column
from recsys.distributed.failures import is_disk_full
from recsys.files.atomic import write_json
from recsys.files.manifest import DamagedFile
from recsys.follow.column_reference import Reference
from recsys.follow.follow_settings import SliceCheckConfig
from recsys.follow.increment_checks import CheckLine, CheckReport, check_increment
from recsys.follow.row_columns import check_settings_columns, read_columns
from recsys.job.run_config import RunConfig, data_of
from recsys.schema.data_schema import DataConfig

COLUMNS, FIGURES, UNITS = "columns.json", "figures.json", "units.json"
LABEL, PREDICTION = "label", "probability"


class PartitionRows:
    """The parsed rows of a partition's files: features as numbers and text, in batches.

    Args:
        cfg: a training config; its split does not matter.
        files: files below data.root.
        columns: further columns that the rows must have, by the key of the settings that names each.
    """

    def __init__(self, cfg: RunConfig, files: tuple[str, ...], columns: Mapping[str, str] | None = None) -> None:
        values = deepcopy(cfg.plain["data"])
        values["source"]["files"] = list(files)
        values["split"] |= {"by": "order", "validation": 0.0, "test": 0.0, "train_files": [], "test_files": []}
        self._data = data_of(parse(DataConfig, values, "data"))
        self._columns = dict(columns or {})
        self.rows, self.bad = 0, 0
        self.units: dict[str, str] = {}  # of the times by which rows are ordered, by their columns

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Raise UserError if the first file lacks a column. columns: by the key of the settings that names each"""
        if columns:
            check_settings_columns(self._data, columns)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Yield the rows. Raises UserError if the files cannot be read, or too many rows of them."""
        self.check_columns(self._columns)
        build = plan_build(self._data)
        names = [*(c.parsed for c in self._data.dense_columns.values()), *self._data.sparse_columns]
        with hidden(), TemporaryDirectory(dir=self._data.prepared, prefix="rows-") as folder:
            chunks, _, self.bad = replace(build, folder=Path(folder)).parsed()
            self._note_units([ParsedChunk(f, 0) for f in build.chunk_folders()])  # as they are in the files
            for chunk in chunks:
                text = chunk.values()
                for frame in chunk.frames():
                    self.rows += frame.height
                    decoded = frame.with_columns(decode_column(n, frame, t) for n, t in text.items())
                    yield decoded.select(n for n in dict.fromkeys(names) if n in decoded.columns)

    def _note_units(self, chunks: Iterable[ParsedChunk]) -> None:
        medians = [(n, x) for c in chunks for n, values in c.info.get("medians", {}).items() for x in values]
        for name, unit in ((n, unit_of_time(x)) for n, x in medians if x is not None):
            if unit is not None:
                self.units.setdefault(self._data.moments[name], unit)


def check_any_complete(partitions: Sequence[PartitionRows], columns: Mapping[str, str]) -> None:
    """Raise UserError if no partition has all columns. One that is broken is not judged here: its checks say so."""
    problems = []
    for rows in partitions:
        try:
            return rows.check_columns(columns)
        except UserError as e:
            problems.append(e)
    raise problems[0]


def save_references(folder: Path, rows: PartitionRows, predictions: Path, slices: Sequence[str] = ()) -> None:
    """Write the references of a new champion. rows: its training rows

    predictions: the file of its predictions on its window; a file that does not exist is left out
    slices: columns beside the predictions (`write_columns`), whose values get figures of their own
    """
    folder.mkdir(parents=True, exist_ok=True)
    Reference.fit(rows).save(folder / COLUMNS)
    write_json(folder / UNITS, rows.units)
    if predictions.exists():
        figures = _figures(predictions, slices)
        Reference.fit(figures, label=LABEL, prediction=PREDICTION, slices=slices).save(folder / FIGURES)


def check_partition(
    folder: Path, rows: PartitionRows, predictions: Path | None, config: SliceCheckConfig, earlier: list[int]
) -> CheckReport:
    """Check the rows of a partition. The files are read here.

    folder: the references of the champion; without it, only the number of rows and bad rows are checked
    predictions: the file of the champion's predictions for the rows
    earlier: numbers of rows of earlier partitions
    """
    found: list[CheckReport] = []
    try:
        if (folder / COLUMNS).exists():
            batches, reference = list(rows), Reference.load(folder / COLUMNS)
            _check_units(folder / UNITS, rows.units)
            found.append(check_increment(reference, batches, config, earlier=earlier, bad_rows=rows.bad))
        else:
            for _ in rows:
                pass
            found.append(CheckReport((CheckLine("pass" if rows.rows else "fail", "volume", f"{rows.rows:,} rows"),)))
    except (UserError, DamagedFile) as e:
        if is_disk_full(e):  # which is not the partition's fault
            raise
        return CheckReport((CheckLine("fail", "schema", str(e)),))
    if predictions is not None and predictions.exists() and (folder / FIGURES).exists():
        reference = Reference.load(folder / FIGURES)
        gone = {*reference.slices} - {*config.slices}  # the settings no longer name them
        columns = {n: c for n, c in reference.columns.items() if n not in gone}
        slices = tuple(c for c in reference.slices if c not in gone)
        reference = replace(reference, columns=columns, slices=slices)
        report = check_increment(reference, _figures(predictions, reference.slices), config)
        lines = [x for x in report.lines if x.check not in ("volume", "bad_rows") and x.column not in reference.slices]
        drifts = [d for d in report.drifts if d.name not in reference.slices]  # in the other report
        found.append(replace(report, lines=tuple(lines), drifts=tuple(drifts)))
    lines = sorted((x for r in found for x in r.lines), key=lambda x: ("fail", "warn", "pass").index(x.outcome))
    return CheckReport(tuple(lines), tuple(d for r in found for d in r.drifts))


def _check_units(file: Path, units: Mapping[str, str]) -> None:
    """Raise UserError if times are in another unit than those of the champion's training rows. file: their units"""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}  # champions of before have none
    for column, unit in units.items():
        if (before := known.get(column, unit)) != unit:
            why = f"holds {unit} since 1970, and the rows that the champion was trained on {before}"
            raise UserError(f"column {column}: {why}; write it in {before}")


def _figures(predictions: Path, slices: Sequence[str]) -> pl.DataFrame:
    """Return the labels and predictions of binary labels, and the columns of slices."""
    frame = pl.read_parquet(predictions)
    known = [c for c in (LABEL, PREDICTION) if c in frame.columns]
    figures = frame.select(pl.col(c).cast(pl.Float64) for c in known)
    if not slices:
        return figures
    return figures.hstack(read_columns(predictions.parent, slices, frame["row"], frame[LABEL]))
