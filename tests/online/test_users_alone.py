"""Users without any item are given one, and a time, whatever type their log has for times."""

import polars as pl
import pytest

from recsys.config.compose import compose
from recsys.data.features.blocks import LINE
from recsys.job.run_config import RunConfig
from recsys.online.queries import with_users_alone

TIMES = (pl.Datetime("ms"), pl.Datetime("us", "Europe/Berlin"), pl.Date(), pl.Float64(), pl.UInt8(), pl.String())


@pytest.fixture(scope="module")
def own() -> RunConfig:
    return RunConfig.of(compose("train", ["model=sasrec", "data=sample_sequences"]))


@pytest.mark.parametrize("dtype", TIMES, ids=str)
def test_time_of_users_alone(own: RunConfig, dtype: pl.DataType) -> None:
    frame = pl.DataFrame(
        {
            LINE: [0, 1, 2],
            "user": ["a", "a", "b"],
            "item": ["x", None, None],
            "time": pl.Series([1, None, None]).cast(dtype),
        }
    )
    given, lines = with_users_alone(own.data, frame)
    assert lines.to_list() == [2]
    assert given.schema == frame.schema
    assert given["item"].is_null().to_list() == given["time"].is_null().to_list() == [False, True, False]
