"""JSON lines, Arrow IPC and Hive partitions: the same rows give the same prepared data in every format."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from data_configs import small_config
from test_sources import config, error

from recsys.base.errors import UserError
from recsys.data.features import ResolvedData
from recsys.data.features.blocks import LINE, TEXT_FORMATS
from recsys.data.prepare.check_data import check_raw_files
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw import read_sources, text
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.raw_format import RawFormat
from recsys.online.row_transforms import RowTransforms
from recsys.schema.data_schema import DenseConfig, SparseConfig, SplitConfig
from recsys.schema.source_schema import SourceConfig

ROWS = 300


def log(rows: int = ROWS) -> list[dict[str, Any]]:
    rng, made = random.Random(0), []
    for _ in range(rows):
        row = {"y": rng.randrange(2), "user": {"id": f"u{rng.randrange(20)}"}, "price": round(rng.random() * 9, 2)}
        made.append(row | {"tags": rng.sample(["a", "b", "c"], rng.randrange(3)), "code": rng.randrange(5)})
    return made


def flat(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([{**r, "user.id": r["user"]["id"]} for r in rows]).drop("user")


def mine(folder: Path, **more: Any) -> ResolvedData:
    sparse = {"user": SparseConfig(column="user.id"), "code": SparseConfig(), "tags": SparseConfig(split=" ")}
    given = {"dense": {"price": DenseConfig(transform=["standardise"])}, "sparse": sparse}
    return small_config(folder, **(given | more))


def content(prepared: Prepared) -> list[Any]:
    parts = [pl.read_parquet(f) for split in ("train", "validation", "test") for f in prepared.files(split)]
    vocabularies = {n: v["value"].to_list() for n, v in prepared.fitted.vocabularies.items()}
    return [pl.concat(parts).rows(), vocabularies]


def write_arrow(frame: pl.DataFrame, file: Path, *, stream: bool = False) -> None:
    table = frame.to_arrow()
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(file), table.schema) as out:
        for batch in table.to_batches(max_chunksize=50):
            out.write_batch(batch)


def test_formats_without_types() -> None:
    """Serving knows them by name, because it loads no reader."""
    assert [name for name, f in FORMATS.items() if f.untyped] == list(TEXT_FORMATS)


def test_the_same_rows_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks of each format give what Parquet gives."""
    monkeypatch.setattr(RawFormat, "range_bytes", 4000)
    monkeypatch.setattr(RawFormat, "range_rows", 120)
    monkeypatch.setattr(text, "BLOCK_BYTES", 1000)
    rows = log()
    frame = flat(rows)
    results = {}
    for name in ("parquet", "structs", "jsonl", "jsonl.gz", "json", "arrow", "stream"):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        lines = "".join(json.dumps(r) + "\n" for r in rows)
        if name == "parquet":
            frame.write_parquet(raw / "f.parquet", row_group_size=60)
        elif name == "structs":  # Parquet with the user as a struct, whose field is the column user.id
            pl.DataFrame(rows).write_parquet(raw / "f.parquet", row_group_size=60)
        elif name == "json":
            (raw / "f.json").write_text(json.dumps(rows, indent=1))
        elif name == "jsonl":
            (raw / "f.jsonl").write_text(lines)
        elif name == "jsonl.gz":
            import gzip

            (raw / "f.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            write_arrow(frame, raw / "f.arrow", stream=name == "stream")
        format_ = {"stream": "arrow", "jsonl.gz": "jsonl", "structs": "parquet"}.get(name, name)
        data = mine(tmp_path / name, source=SourceConfig(format=format_))
        check_raw_files(data)
        prepared = prepare(data)
        assert sum(prepared.info["rows"].values()) == ROWS and not prepared.info["bad_rows"]
        results[name] = content(prepared)
        pipeline = RowTransforms.load(prepared.folder)
        row = {"user.id": "u3", "price": 2.5, "tags": ["a", "zz", "b"], "code": 3.0 if "json" in name else 3}
        results[name].append(pipeline.frame(row).rows())
    for name, result in results.items():
        assert result == results["parquet"], name


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    lines = ['{"y": 1, "a": 2}', "", '{"y": 0', "[1, 2]", '{"y": {"x": 1}, "a": 3}', '{"y": 0, "a": null, "more": [1]}']
    (tmp_path / "f.jsonl").write_text("\n".join(lines) + "\n")
    data = config(tmp_path, format="jsonl", files=["f.jsonl"])
    [block] = read_sources.read_blocks(data, tmp_path / "f.jsonl")
    assert block.frame.select("y", "a", LINE).rows() == [("1", "2", 1), ("0", None, 6)]
    assert [(b.line, b.reason) for b in block.bad] == [
        (3, "not a JSON object"),
        (4, "not a JSON object"),
        (5, "holds another kind of value than the first lines"),
    ]
    assert "not JSON lines" in error(tmp_path, b"y,a\n1,2\n", "f.jsonl", format="jsonl")
    assert "has no column a; valid: y" in error(tmp_path, b'{"y": 1}\n', "f.jsonl", format="jsonl")
    assert "set data.source.format=json" in error(tmp_path, b'[{"y": 1}]\n', "f.jsonl", format="jsonl")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_decimals_of_256_bits_are_numbers(suffix: str, tmp_path: Path) -> None:
    """polars has no type for them."""
    rows = flat(log()).drop("tags").to_arrow()
    column = rows.schema.get_field_index("price")
    wide = rows.set_column(column, "price", rows["price"].cast(pa.decimal256(50, 2)))
    prepared = []
    for name, table in (("plain", rows), ("wide", wide)):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        file = raw / f"a.{suffix}"
        pq.write_table(table, file) if suffix == "parquet" else feather.write_feather(table, str(file))
        source = SourceConfig(format=suffix, files=[file.name])
        prepared.append(prepare(mine(tmp_path / name, source=source, sparse={"code": SparseConfig()})))
    assert content(prepared[0]) == content(prepared[1])


def test_lists_of_objects_are_lists_of_their_values(tmp_path: Path) -> None:
    rows = [{"y": 1, "items": [{"id": 7, "n": 1}, {"id": "x"}]}, {"y": 0, "items": []}, {"y": 0}]
    (tmp_path / "f.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    data = config(tmp_path, format="jsonl", dense=("items.n",))
    [block] = read_sources.read_blocks(data, tmp_path / "f.jsonl")
    assert block.frame["items.n"].to_list() == [["1", None], [], None]
    assert block.frame.columns == ["y", "items.n", LINE]  # no other column was decoded


def partitioned(folder: Path) -> pl.DataFrame:
    frame = flat(log()).with_columns(
        day=pl.date(2026, 1, 1) + pl.duration(days=pl.int_range(ROWS) // 60),
        country=pl.when(pl.int_range(ROWS) % 3 > 0).then(pl.lit("côte d'ivoire")),
    )
    pq.write_to_dataset(frame.to_arrow(), folder / "raw", partition_cols=["day", "country"])
    return frame


def test_partition_folders_are_columns(tmp_path: Path) -> None:
    frame = partitioned(tmp_path)
    data = mine(
        tmp_path,
        source=SourceConfig(format="parquet"),
        split=SplitConfig(by="time", column="day", validation=0.2, test=0.2),
        sparse={"country": SparseConfig(), "day": SparseConfig()},
    )
    check_raw_files(data)
    prepared = prepare(data)
    assert prepared.fitted.vocabularies["country"]["value"].to_list() == ["côte d'ivoire", ""]
    assert prepared.info["rows"] == {"train": 180, "validation": 60, "test": 60}
    assert prepared.fitted.vocabularies["day"]["value"].sort().to_list() == ["2026-01-01", "2026-01-02", "2026-01-03"]
    by_files = SplitConfig(
        by="files", train_files=["day=2026-01-0[12]"], validation_files=["day=2026-01-03"], test_files=["day=*-0[45]"]
    )
    assert prepare(mine(tmp_path, source=data.source, split=by_files)).info["rows"]["test"] == 120
    days = sorted((tmp_path / "raw").iterdir())
    one = RowTransforms.load(prepared.folder).frame({"price": 1.0, "country": None, "day": "2026-01-02"})
    assert one["country"].item() == 2 and one["day"].item() > 0
    # equal files in two folders are two files
    first = next(days[0].rglob("*.parquet"))
    moved = days[0].with_name("day=2025-12-31") / first.parent.name
    moved.mkdir(parents=True)
    (moved / first.name).write_bytes(first.read_bytes())
    again = prepare(data)
    assert "2025-12-31" in again.fitted.vocabularies["day"]["value"].to_list()
    assert sum(again.info["rows"].values()) == frame.height + pq.read_metadata(first).num_rows


def test_a_partition_that_is_no_folder_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "lr=1" / "raw").mkdir(parents=True)
    flat(log()).write_parquet(tmp_path / "lr=1" / "raw" / "f.parquet")
    data = mine(tmp_path / "lr=1", source=SourceConfig(format="parquet"), sparse={"lr": SparseConfig()})
    with pytest.raises(UserError, match=r"data\.sparse\.lr: f\.parquet has no column lr"):
        check_raw_files(data)
