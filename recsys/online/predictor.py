"""Predict probabilities for raw rows in memory, and for raw files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.files.atomic import whole_file
from recsys.files.data_files import named_by
from recsys.files.user_files import problem_of
from recsys.interface.labels import Label, columns, predict
from recsys.online.unknown_values import UnknownValues

if TYPE_CHECKING:
    from recsys.data.features import Fitted
    from recsys.data.features.blocks import BadRow, Block
    from recsys.online.raw_rows import RawRows


@dataclass
class Predictor:
    """A run's ranking model and its fitted transforms, loaded into memory."""

    module: Any
    rows: RawRows
    labels: tuple[Label, ...] = ()  # with their calibration; by default, the labels of `rows`

    def __post_init__(self) -> None:
        self._said: set[str] = set()  # features of whose unknown values a line was printed
        self.labels = self.labels or self.rows.fitted.labels

    @property
    def fitted(self) -> Fitted:
        return self.rows.fitted

    @classmethod
    def load(cls, run: str, checkpoint: str = "best") -> Predictor:
        """Load a predictor from a run's folder.

        The checkpoint may have been written with any number of processes and any sharding plan.
        """
        from recsys.evaluation.calibration import load as load_calibration
        from recsys.online.raw_rows import RawRows
        from recsys.training.fitted_ranking import scoring_module
        from recsys.training.run_dir import choose_checkpoint, open_run

        cfg, path = open_run(run)
        if not cfg.kind.scores_rows:
            raise UserError(
                f"run={run}: its model retrieves items and cannot score rows; use recsys.online.recommender.Recommender"
            )
        rows = RawRows.load(path)
        chosen = choose_checkpoint(path, checkpoint)
        module = scoring_module(cfg, rows.fitted, chosen)
        return cls(module, rows, load_calibration(path, rows.fitted.labels, chosen))

    def predict(self, raw: pl.DataFrame, *, allow_unknown: bool = False) -> pl.Series | pl.DataFrame:
        """Return the probabilities of raw rows, (rows,) Float32; null for a row that cannot be read.

        If the rows have several labels, or one that is not binary, return a data frame with a column for each
        prediction: a probability, a number, or NAME_CLASS with the probability of a class.

        Columns are named as in the raw files or as in the YAML. The side tables of training are joined, except for
        joined columns that the frame already has. Columns that no feature needs are ignored. Raises UserError for a
        missing column, and for one of whose values nearly all are unknown, unless `allow_unknown`.
        """
        from recsys.data.features.blocks import LINE

        unknown = UnknownValues(self.fitted, allow_unknown)
        scores = self.score(self.rows.in_context(self.rows.parse_frame(raw)[0]), unknown)[0]
        unknown.check(self._said)
        lines = pl.DataFrame({LINE: pl.int_range(raw.height, dtype=pl.Int64, eager=True)})
        scores = lines.join(scores, on=LINE, how="left", maintain_order="left").drop(LINE)
        return scores["probability"] if scores.columns == ["probability"] else scores

    def score(self, frame: pl.DataFrame, counts: UnknownValues | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return two data frames: line and predictions of each row, and shares of out-of-vocabulary ids.

        The second has a column for each sparse feature, with the share of its ids that are 0.

        Args:
            frame: parsed rows with group features.
            counts: counts the unknown values, if it is given.
        """
        import torch

        from recsys.data.features.batch_tensors import batch_of
        from recsys.data.features.blocks import LINE

        applied = self.fitted.apply(frame)
        features = self.fitted.features
        if counts is not None:
            counts.add(frame, {f.name: applied[f.name] for f in features.sparse})
        if frame.height:
            with torch.no_grad():
                _, logits = self.module.dmp(batch_of(applied, features, self.fitted.matrices))
            values = predict(logits, self.labels).numpy()
        else:
            values = np.zeros((0, features.logits), np.float32)
        unknown = applied.select(
            (pl.col(f.name).explode() if f.multi_valued else pl.col(f.name)).eq(0).mean().alias(f.name)
            for f in features.sparse
        )
        predictions = [pl.Series(name, values[:, i], dtype=pl.Float32) for i, name in enumerate(columns(self.labels))]
        return frame.select(LINE).with_columns(predictions), unknown


def predict_files(
    run: str,
    files: list[Path],
    output: Path,
    *,
    checkpoint: str,
    batch_size: int,
    bad_rows: Path | None = None,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Score raw files and write one Parquet file with the columns file, line and probability (see Predictor.predict).

    With data.source.explode, `element` is the place of a row in the list of its line, from 1.

    The predictions of a row that cannot be read are null, and `bad_rows`, by default a file next to the output, has the
    reasons. Returns the numbers of rows and of bad rows and, for each
    sparse feature with a vocabulary, the share of its ids that are out of vocabulary. Raises UserError if nearly all
    values of a column are, unless `allow_unknown`.
    """
    from recsys.data.features.blocks import ELEMENT, LINE
    from recsys.data.prepare.writer import Output
    from recsys.data.raw import read_sources

    out = Output(output, bad_rows)
    predictor = Predictor.load(run, checkpoint)
    data = predictor.fitted.data
    for file in files:
        read_sources.check_columns(
            read_sources.prediction_source(data, file), file, predictor.rows.raw.sides, predictor.rows.types
        )
    names = {LINE: "line", ELEMENT: "element"}
    rows = 0
    fitted = predictor.fitted
    unknown = {f.name: 0.0 for f in fitted.features.sparse if f.table in fitted.vocabularies}
    counts = UnknownValues(fitted, allow_unknown)
    with out, bar("predicting", unit="rows") as shown:
        for file in files:
            for frame, wrong in file_blocks(predictor.rows, file):
                pieces = [
                    predictor.score(p, counts) for p in (frame.iter_slices(batch_size) if frame.height else [frame])
                ]
                scores = pl.concat([scored for scored, _ in pieces])
                places = {LINE: [b.line for b in wrong]}
                if ELEMENT in frame.columns:
                    scores.insert_column(1, frame[ELEMENT])
                    places[ELEMENT] = [b.element for b in wrong]
                nulls = [None] * len(wrong)
                bad_scores = pl.DataFrame({n: places.get(n, nulls) for n in scores.columns}, schema=scores.schema)
                out.write(
                    pl.concat([scores, bad_scores])
                    .sort(*places)
                    .select(pl.lit(str(file)).alias("file"), pl.all().name.map(lambda n: names.get(n, n)))
                )
                out.keep(wrong)
                rows += frame.height
                for scored, share in pieces:
                    for name in unknown if scored.height else ():
                        unknown[name] += (share[name].item() or 0.0) * scored.height
                shown.advance(frame.height)
        counts.check(set(fitted.data.sparse))  # a table has the shares
    if rows == 0:
        raise UserError(f"input: {out.without_rows()}")
    return {
        "rows": rows,
        "bad_rows": out.bad,
        "bad_rows_file": str(out.bad_rows) if out.bad else None,
        "out_of_vocabulary": {name: total / rows for name, total in unknown.items()},
    }


def predict_mean(
    runs: Sequence[str],
    files: list[Path],
    output: Path,
    *,
    checkpoint: str,
    batch_size: int,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Score raw files with several runs, and write the mean of their predictions as `predict_files` does.

    A row has a prediction if every run can read it. Returns the summary of the last run.

    Args:
        runs: folders of the runs.
        files: the raw files.
        output: the Parquet file to write.
        checkpoint: best, last or the name of a checkpoint, of each run.
        batch_size: rows that are scored at a time.
        allow_unknown: whether nearly all values of a column may be unknown.

    Raises:
        UserError: the runs predict other labels.
    """
    from recsys.data.prepare.writer import bad_rows_file, make_parent

    make_parent(output)
    how: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size, "bad_rows": bad_rows_file(output)}
    how["allow_unknown"] = allow_unknown
    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        parts, part = list[pl.DataFrame](), Path(folder) / "part.parquet"
        for run in runs:
            summary = predict_files(run, files, part, **how)
            parts.append(pl.read_parquet(part, memory_map=False, glob=False))
            if parts[-1].columns != parts[0].columns:
                raise UserError(
                    f"run={run}: predicts {', '.join(parts[-1].columns)}, and {runs[0]} {', '.join(parts[0].columns)}"
                )
        predictions = [n for n in parts[0].columns if n not in ("file", "line", "element")]
        totals = {n: sum((part[n] for part in parts[1:]), parts[0][n]) for n in predictions}
        mean = parts[0].with_columns((x / len(runs)).alias(n) for n, x in totals.items())
        with whole_file(output) as building:
            mean.write_parquet(building)
    return summary


def file_blocks(raw_rows: RawRows, file: Path) -> Iterator[tuple[pl.DataFrame, list[BadRow]]]:
    """Yield blocks of a file: its parsed rows with group features, and its bad rows.

    If the data has group features, which depend on earlier rows, the whole file is one block.
    """
    from recsys.data.features import parse_rows
    from recsys.data.features.blocks import Block
    from recsys.data.features.group_features import add_group_features
    from recsys.data.raw import read_sources

    data = raw_rows.fitted.data
    source = read_sources.prediction_source(data, file)
    refused: list[BadRow] = []
    complete = partial(raw_rows.complete_file, file=file, bad=refused)
    blocks: Iterable[Block] = read_sources.read_blocks(source, file, unlabelled=True, complete=complete)
    if data.group is not None and (all_blocks := list(blocks)):
        blocks = [Block(file, pl.concat(b.frame for b in all_blocks), [bad for b in all_blocks for bad in b.bad])]
    for block in blocks:
        rows, bad = parse_rows(data, block, labelled=False)
        yield add_group_features(data, rows), sorted(bad + refused, key=lambda b: b.line)
        refused.clear()


def input_files(patterns: list[str], key: str = "input") -> list[Path]:
    """Return the files that paths, folders and globs name, each once and without hidden ones, as training does.

    Raises UserError for one that is missing or empty.
    """
    from recsys.data.raw.raw_files import is_remote, list_remote_files

    found: dict[Path, None] = {}
    for pattern in patterns:
        local = pattern.removeprefix("file://")
        matches = list_remote_files(pattern, key) if is_remote(pattern) else named_by(local)
        if not matches or not (is_remote(pattern) or os.path.lexists(matches[0])):
            raise UserError(f"{key}={pattern}: no such file")
        found |= dict.fromkeys(matches)
    for file in (files := [*found]):
        if isinstance(file, PosixPath) and (problem := problem_of(file)):
            raise UserError(f"{key}={file}: {problem}")
        if file.stat().st_size == 0:
            raise UserError(f"{key}={file}: the file is empty")
    return files
