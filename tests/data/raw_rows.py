"""Raw columns to fitted transforms, in a line; for tests."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
from data_configs import data_from

from recsys.data.features import Fitted, parse_rows
from recsys.data.features.blocks import LINE, BadRow, Block
from recsys.data.features.fit import InMemory, fit
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.chunks import TextCoder
from recsys.data.prepare.prepared import Prepared
from recsys.data.raw.derive import complete_rows
from recsys.schema.data_schema import DataConfig


def of_yaml(text: str) -> DataConfig:
    """A config as Hydra would read it; its label is a number, because `rows` makes all labels equal."""
    return data_from({"label": {"column": "y", "kind": "regression"}}, text)


def rows(data: DataConfig, **columns: Any) -> pl.DataFrame:
    """Typed rows of raw columns, whose label is 1 unless it is given; none of them may be bad."""
    frame, bad = some_rows(data, **columns)
    assert not bad
    return frame


def some_rows(data: DataConfig, **columns: Any) -> tuple[pl.DataFrame, list[BadRow]]:
    frame = pl.DataFrame(columns, strict=False)
    frame = frame if "y" in columns else frame.with_columns(pl.lit(1).alias("y"))
    frame = complete_rows(frame.with_columns(pl.int_range(1, pl.len() + 1).alias(LINE)), [], data.derive)
    return parse_rows(data, Block(Path("f"), frame))


def learn(data: DataConfig, *frames: pl.DataFrame) -> Fitted:
    check_data(data)
    coder = TextCoder(data.text_columns)
    coded = pl.concat([coder.encode(f) for f in frames] or [pl.DataFrame()])
    return fit(data, InMemory(coded, coder.values()))


def frames(prepared: Prepared) -> dict[str, pl.DataFrame]:
    """The rows of each split."""
    splits = ("train", "validation", "test")
    return {s: pl.concat([pl.read_parquet(f) for f in prepared.files(s)]) for s in splits}


def by_user(events: list[tuple[str, str, int]], gap: int | None = None) -> list[list[int]]:
    """Places of the rows (user, item, time) of each user, or session, in order."""
    users = defaultdict(list)
    for place, (user, _, time) in enumerate(events):
        users[user].append((time, place))
    groups = []
    for rows in users.values():
        rows.sort()
        last = None
        for time, place in rows:
            if last is None or (gap is not None and time - last > gap):
                groups.append([])
            groups[-1].append(place)
            last = time
    return groups
