"""The types of raw columns in requests: whole numbers may be missing unless they may be ids."""

from __future__ import annotations

import polars as pl

from recsys.data.features.resolved_data import resolve
from recsys.export.artefact.graph_io import raw_inputs
from recsys.schema.data_schema import DataConfig, DenseConfig, GroupConfig, SparseConfig


def test_whole_numbers_that_dense_features_alone_read_are_fp64() -> None:
    names = ["age", "user", "size", "hour", "ts", "price", "shop", "flag"]
    dtypes = [pl.Int32, pl.Int64, pl.UInt8, pl.Int64, pl.Int64, pl.Float32, pl.String, pl.Boolean]
    data = resolve(
        DataConfig(
            name="t",
            dense={"age": None, "size": None, "price": None, "ts": None, "of_hour": DenseConfig(column="hour")},
            sparse={"user": None, "size_id": SparseConfig(column="size"), "shop": None, "flag": None},
            group=GroupConfig(by="user", order="ts"),
        )
    )
    found = {s.name: s.datatype for s in raw_inputs(pl.Schema(dict(zip(names, dtypes, strict=True))), data)}
    whole = {"age": "FP64", "hour": "FP64", "user": "INT64", "size": "INT64", "ts": "INT64"}
    assert found == whole | {"price": "FP64", "shop": "BYTES", "flag": "BOOL"}
