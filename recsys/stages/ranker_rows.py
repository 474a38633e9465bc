"""Write rows to train a ranking model on: the candidates of past requests, and whether the users wanted them.

A ranker of a pipeline sees what sources retrieve and filters leave, not what the log shows. So it learns from such
rows, with the scores and ranks that the sources gave, and with the columns of users and items of the pipeline's tables.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.data.prepare.writer import Output
from recsys.files.outputs import check_output
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.assemble import load, tables_root
from recsys.stages.evaluate.evaluate_pipeline import held_out, requests_of
from recsys.stages.lists_for_requests import BATCH
from recsys.stages.merge import Retrieved, column_names

WANTED = "wanted"  # the label


def write_candidates(config: PipelineConfig, output: Path) -> None:
    """Write a row for each candidate of each user of the split, by the sources and filters of a config.

    Its columns are the columns of the request and of the tables of users and items, SOURCE_score and SOURCE_rank for
    each source, and `wanted`, 1 for the targets. The rows of a user are one after another.
    """
    check_output(output, (".parquet",))
    config = replace(config, score=None, order={})
    wanted = held_out(config, tables_root(config))
    pipeline = load(config, past=wanted.past)
    queries = wanted.queries(config, requests_of(config), config.k)
    out = Output(output)
    rows = hits = 0
    with out, bar("retrieving", len(queries), unit="users") as shown:
        for start in range(0, len(queries), BATCH):
            some = queries[start : start + BATCH]
            frames = []
            for query, retrieved, targets in zip(some, pipeline.found(some), wanted.targets[start:], strict=False):
                visitor = pipeline.visitor(query)
                items = pipeline.candidates(visitor, retrieved)
                said = Retrieved(retrieved, items)
                columns = [pl.Series(n, said.column(n)).fill_nan(None) for n in column_names(pipeline.sources)]
                frame = pipeline.catalogue.columns[items].with_columns(columns)
                given = {n: v for n, v in {**visitor.user, **visitor.context}.items() if n not in frame.columns}
                frame = frame.with_columns(pl.lit(v).alias(n) for n, v in given.items())
                hit = pl.col(config.item).is_in(targets.implode()).cast(pl.Int8)
                frames.append(frame.with_columns(hit.alias(WANTED)))
            block = pl.concat(frames, how="vertical_relaxed")
            rows, hits = rows + block.height, hits + int(block[WANTED].sum())
            out.write(block)
            shown.advance(len(some))
    if not hits:
        raise UserError(f"none of the {rows:,} candidates was wanted; let the sources list more, with a larger k")
    say(f"{rows:,} candidates of {len(queries):,} users written to {output}; {hits:,} of them were wanted")
