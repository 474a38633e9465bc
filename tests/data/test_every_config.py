"""Every YAML of conf/data: rows give the same tensors whether they are prepared, or come from files, frames or dicts."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import feature_specs
import polars as pl
import public_rows
import pytest
from data_configs import data_config
from entries import check_entries, check_histories, moved

from recsys.config.compose import compose, conf_dir
from recsys.data.prepare.prepared import prepare
from recsys.data.samples import SAMPLES, clicks
from recsys.schema.data_schema import SplitConfig

RealData = Callable[[str], Path]
CRITEO = ("criteo", "criteo_1tb", "criteo_1tb_t0", "criteo_1tb_t3", "criteo_1tb_t15", "criteo_1tb_multihot")
FOLDERS = {name: name for name in ("avazu", "frappe", "tiger_beauty")}  # of real data
FOLDERS |= {
    f"movielens_100k{end}": "ml-100k" for end in ("", "_retrieval", "_history", "_ages", "_sequences", "_times")
}
FOLDERS |= {f"amazon_beauty{end}": "amazon_beauty_s3rec" for end in ("", "_sequences", "_attributes")}
FOLDERS |= {"movielens_1m": "ml-1m", "gowalla_lists": "gowalla", "gowalla_pairs": "gowalla"}
BUILT_IN = {f"sample_{name}": name for name in ("sequences", "interactions", "sales", "queries", "drifting")}
BUILT_IN |= {f"sample_{name}": "interactions" for name in ("tasks", "interactions_retrieval", "ratings", "behaviour")}
LINES = 3000  # of each file of real data, except for side tables
SINGLE = 50  # rows that are read one by one


NAMES = sorted(p.stem for p in (conf_dir() / "data").glob("*.yaml"))
SLOW = [n for n in NAMES if n.startswith("criteo_1tb_")]  # they differ from criteo_1tb in the sizes of tables


@pytest.mark.few(7)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else []) for n in NAMES])
def test_every_entry(name: str, real_data: RealData, tmp_path: Path) -> None:
    check_config(name, write_raw(name, real_data, tmp_path / "raw"), SINGLE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["criteo", "avazu", "movielens_100k", "frappe"])
def test_every_entry_of_whole_files(name: str, real_data: RealData, tmp_path: Path) -> None:
    check_config(name, real_data({"criteo": "criteo_kaggle"}.get(name) or FOLDERS[name]), 10_000, tmp_path)


def check_config(name: str, raw: Path, rows: int, home: Path) -> None:
    where = f"data.spec={raw}" if raw.suffix == ".yaml" else f"data.root={raw}"
    arguments = [f"data={name}", where, f"data.prepared={home / 'prepared'}", *public_rows.OVERRIDES.get(name, ())]
    data = data_config(compose("preprocess", arguments))
    if data.item_feature is not None:
        prepared = prepare(data)
        check_histories(prepared, data, moved(prepared, home))
        return
    if not data.split.validation_files:
        data = replace(data, split=SplitConfig())  # by order: the last rows are the test's
    data = replace(data, where=None)  # does not apply to rows to predict
    prepared = prepare(data)
    check_entries(prepared, data, moved(prepared, home), rows)


def write_raw(name: str, real_data: RealData, folder: Path) -> Path:
    """Write raw data of a config: the beginning of the real files, or the same format made up."""
    if name == "nvidia_feature_spec":
        made = {split: feature_specs.rows(500, seed) for seed, split in enumerate(("train", "test"))}
        return feature_specs.split_binary(folder, made)
    if name == "criteo_npy":
        feature_specs.days(folder, 2, 500)
        return folder
    folder.mkdir()
    if name in CRITEO:
        clicks.write_sample(folder, rows=1000, seed=0)
        rows = pl.read_csv(folder / "train.tsv", separator="\t", has_header=False, infer_schema=False)
        if name == "criteo_1tb_multihot":
            rows = rows.with_columns(
                pl.col(f"column_{i}") + "," + pl.col(f"column_{i}").shift(1) for i in range(14, 40)
            )
        rows.write_csv(folder / "day_0_train.tsv", separator="\t", include_header=False)
        (folder / "train.tsv").unlink()
    elif name in BUILT_IN:
        SAMPLES[BUILT_IN[name]](folder, rows=2000, seed=0)
    elif write := public_rows.WRITERS.get(name) or public_rows.CANDIDATES.get(name):
        write(folder)
    else:
        for file in real_data(FOLDERS[name]).iterdir():
            if file.suffix in (".item", ".user", ".json"):
                shutil.copy(file, folder)
            else:
                with file.open() as lines:
                    (folder / file.name).write_text("".join(islice(lines, LINES)))
    return folder
