"""Write the lists for the requests of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.data.prepare.writer import Output
from recsys.files.outputs import check_output
from recsys.online.predictor import input_files
from recsys.online.servable import Query
from recsys.schema.pipeline_schema import PipelineConfig, TableConfig
from recsys.stages.assemble import load
from recsys.stages.read_tables import read_table
from recsys.stages.staged import PipelineAnswer, StagedRecommender

BATCH = 256  # requests whose candidates are retrieved at a time


def run_files(cfg: PipelineConfig, output: Path) -> None:
    """Write a Parquet file with the list for each row of the input.

    Its columns are the columns of the input, and items, scores, sources (the names of the sources of each item) and, if
    the pipeline explores, propensities.
    """
    files = input_files(cfg.input) if cfg.input else []
    if not files:
        raise UserError(f"input: is missing; name a file with the column {cfg.user}, such as input=users.csv")
    check_output(output, (".parquet",), inputs=files)
    requests = read_requests(files, cfg.user)
    pipeline = load(cfg)
    out = Output(output)
    counts: Counter[str] = Counter()
    with out, bar("recommending", requests.height, unit="requests") as shown:
        for rows, answers in in_batches(pipeline, requests):
            sources = []  # the names of those that listed each item
            for a in answers:
                sets = {name: set(items.tolist()) for name, items in a.trace.found.items()}
                sources.append([[name for name, items in sets.items() if item in items] for item in a.items.tolist()])
            columns: list[Any] = [
                pl.Series("items", [pipeline.names(a.items) for a in answers], dtype=pl.List(pipeline.item_type)),
                pl.Series("scores", [a.scores.tolist() for a in answers], dtype=pl.List(pl.Float64)),
                pl.Series("sources", sources, dtype=pl.List(pl.List(pl.String))),
            ]
            if any(a.propensities is not None for a in answers):
                drawn = [None if a.propensities is None else a.propensities.tolist() for a in answers]
                columns.append(pl.Series("propensities", drawn, dtype=pl.List(pl.Float64)))
            out.write(rows.with_columns(columns))
            retried = "asked the sources for more, because filters left fewer candidates than a list needs"
            counts[retried] += sum(a.trace.rounds > 1 for a in answers)
            short = f"got fewer than {pipeline.settings.k} items: filters removed the others, or no source has more"
            counts[short] += sum(len(a.items) < pipeline.settings.k for a in answers)
            shown.advance(rows.height)
    say(f"{requests.height:,} lists of {pipeline.settings.k} items written to {output}")
    for what, number in (+counts).items():
        say(f"{number:,} of the {requests.height:,} requests {what}")


def read_requests(files: list[Path], user: str) -> pl.DataFrame:
    """Return the rows of files of requests."""
    table = TableConfig(file=[str(f.resolve()) for f in files])
    frame = read_table(table, Path("/"), "input")
    if user not in frame.columns:
        raise UserError(f"input: {files[0]} has no column {user}, which names the user (the key user)")
    return frame


def in_batches(
    pipeline: StagedRecommender, requests: pl.DataFrame
) -> Iterator[tuple[pl.DataFrame, list[PipelineAnswer]]]:
    """Yield rows of requests and their lists."""
    for rows in requests.iter_slices(BATCH):
        yield rows, pipeline.answers([Query([], context=row) for row in rows.iter_rows(named=True)])
