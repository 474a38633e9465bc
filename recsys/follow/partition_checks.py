"""Check a new partition against what the champion was trained on, and against how well it predicted before.

REFERENCES/columns.json    the distributions of the features in the champion's training rows
REFERENCES/figures.json    labels and predictions of its window, on which it was not trained
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from omegaconf import DictConfig, open_dict

from recsys.cli.console import hidden
from recsys.config.run_config import RunConfig
from recsys.data.prepare.prepared import plan_build
from recsys.data.prepare.shuffle import decode_column
from recsys.errors import UserError
from recsys.files.manifest import DamagedFile
from recsys.follow.column_reference import Reference
from recsys.follow.increment_checks import CheckConfig, CheckLine, CheckReport, check_increment

COLUMNS, FIGURES = "columns.json", "figures.json"
LABEL, PREDICTION = "label", "probability"


class PartitionRows:
    """The parsed rows of a partition's files: features as numbers and text, in batches.

    Args:
        cfg: a training config; its split does not matter.
        files: files below data.root.
    """

    def __init__(self, cfg: DictConfig, files: tuple[str, ...]) -> None:
        cfg = cfg.copy()
        with open_dict(cfg):
            cfg.data.source.files = list(files)
            cfg.data.split.update({"by": "order", "validation": 0.0, "test": 0.0, "train_files": [], "test_files": []})
        self._data = RunConfig.of(cfg).data
        self.rows, self.bad = 0, 0

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Yield the rows. Raises UserError if the files cannot be read, or too many rows of them."""
        build = plan_build(self._data)
        names = [*(c.parsed for c in self._data.dense_columns.values()), *self._data.sparse_columns]
        with hidden(), TemporaryDirectory(dir=self._data.prepared, prefix="rows-") as folder:
            chunks, _, self.bad = replace(build, folder=Path(folder)).parsed()
            for chunk in chunks:
                text = chunk.values()
                for frame in chunk.frames():
                    self.rows += frame.height
                    decoded = frame.with_columns(decode_column(n, frame, t) for n, t in text.items())
                    yield decoded.select(n for n in dict.fromkeys(names) if n in decoded.columns)


def save_references(folder: Path, rows: PartitionRows, predictions: Path) -> None:
    """Write the references of a new champion.

    Args:
        folder: the folder to write to.
        rows: its training rows.
        predictions: the file of its predictions on its window; a file that does not exist is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    Reference.fit(rows).save(folder / COLUMNS)
    if predictions.exists():
        frame = pl.read_parquet(predictions)
        Reference.fit(_figures(frame), label=LABEL, prediction=PREDICTION).save(folder / FIGURES)


def check_partition(
    folder: Path, rows: PartitionRows, predictions: Path | None, config: CheckConfig, earlier: list[int]
) -> CheckReport:
    """Check the rows of a partition. The files are read here.

    Args:
        folder: the references of the champion; without it, only the number of rows and bad rows are checked.
        rows: the rows of the partition.
        predictions: the file of the champion's predictions for them; None if there is none.
        config: the limits.
        earlier: numbers of rows of earlier partitions.
    """
    found: list[CheckReport] = []
    try:
        if (folder / COLUMNS).exists():
            batches = list(rows)
            report = check_increment(
                Reference.load(folder / COLUMNS), batches, config, earlier=earlier, bad_rows=rows.bad
            )
            found.append(report)
        else:
            for _ in rows:
                pass
            found.append(CheckReport((CheckLine("pass" if rows.rows else "fail", "volume", f"{rows.rows:,} rows"),)))
    except (UserError, DamagedFile) as e:
        return CheckReport((CheckLine("fail", "schema", str(e)),))
    if predictions is not None and predictions.exists() and (folder / FIGURES).exists():
        reference = Reference.load(folder / FIGURES)
        report = check_increment(reference, _figures(pl.read_parquet(predictions)), config)
        found.append(replace(report, lines=tuple(x for x in report.lines if x.check not in ("volume", "bad_rows"))))
    lines = sorted((x for r in found for x in r.lines), key=lambda x: ("fail", "warn", "pass").index(x.outcome))
    return CheckReport(tuple(lines), tuple(d for r in found for d in r.drifts))


def _figures(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the labels and predictions of binary labels."""
    known = [c for c in (LABEL, PREDICTION) if c in frame.columns]
    return frame.select(pl.col(c).cast(pl.Float64) for c in known)
