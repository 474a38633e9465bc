"""Read a sample of rows from the head, the middle and the tail of raw files, in bounded time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.raw.nested import plain
from recsys.data.raw.raw_files import partitions
from recsys.new.layouts import Layout
from recsys.new.raw_bytes import Sample, readable

MAX_ROWS, MAX_CELLS = 200_000, 20_000_000  # of a sample
MAX_FILES = 64
MAX_WHOLE = 5  # files, if each is read whole or in several pieces


def read_sample(files: Sequence[Path], layout: Layout, layouts: Mapping[Path, Layout] | None = None) -> Sample:
    """Read rows of some of the files, evenly: the first, the last, and one of each of equal parts of those between.

    The place within a part is random, so that no period of the files, such as 24 files a day, can hide values.

    Args:
        layouts: how files are read whose columns differ.
    """
    some, most_files = list(files), MAX_WHOLE if layout.reads_whole else MAX_FILES
    if len(files) > most_files:
        bounds = np.linspace(1, len(files) - 1, most_files - 1).astype(int)
        places = np.random.default_rng(0).integers(bounds[:-1], bounds[1:])
        some = [files[0], *(files[i] for i in places), files[-1]]
    most = max(min(MAX_ROWS, MAX_CELLS // max(len(layout.columns), 1)) // len(some), 100)
    frames, rows = [], 0
    for f in some:
        with readable(f):
            part = (layouts or {}).get(f, layout).sample(f, most, min(MAX_WHOLE / len(some), 1))
        folders = [(n, v) for n, v in partitions(f, None).items() if n not in part.frame.columns]
        frames.append(part.frame.with_columns(pl.lit(v, pl.String).alias(name) for name, v in folders))
        rows += part.rows
    frame = pl.concat(frames, how="diagonal_relaxed")
    for name in [n for n, dtype in frame.schema.items() if dtype == pl.Binary]:
        try:
            frame[name].cast(pl.String)
        except pl.exceptions.PolarsError:  # not text, such as UUIDs
            frame = frame.with_columns(pl.col(name).bin.encode("hex"))
    return Sample(plain(frame, files[0]), round(rows * len(files) / len(some)))
