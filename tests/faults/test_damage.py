"""Damaged files are named; what can be rebuilt is, and an older checkpoint takes the place of a damaged one."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_run import Home
from storage_faults import flip

from recsys.data.loader.row_groups import row_groups
from recsys.data.raw.raw_files import digests
from recsys.files.manifest import DamagedFile
from recsys.files.run_files import checkpoints_of
from recsys.training.evaluate_run import evaluate

RNG = np.random.default_rng(0)


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    whole = home.train(f"resume={home.run}", "trainer.max_epochs=3").metrics["test"]
    newest, before, *_ = checkpoints_of(home.run)
    flip(newest / "__0_0.distcp", RNG)
    capfd.readouterr()
    again = home.train(f"resume={home.run}", "trainer.max_epochs=3").metrics["test"]
    said = capfd.readouterr().err
    assert f"{newest}/__0_0.distcp: is damaged; its content differs from what was written; resuming from" in said
    assert f"resuming from {before}" in said
    assert again == whole


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["rank-0.pt", "state.pt", "plan.json", ".metadata", "__0_0.distcp", "manifest.json"])
def test_a_run_never_starts_again_from_nothing(home: Home, name: str) -> None:
    for checkpoint in checkpoints_of(home.run):
        (checkpoint / name).unlink()
    with pytest.raises(
        DamagedFile, match=rf"/{name}: is missing; no earlier checkpoint is intact, so the run cannot be"
    ):
        home.train(f"resume={home.run}", "trainer.max_epochs=3")
    assert len(checkpoints_of(home.run)) == 3


def test_a_checkpoint_without_digests_loads(home: Home) -> None:
    """One that was written before there were any."""
    for checkpoint in checkpoints_of(home.run):
        (checkpoint / "manifest.json").unlink()
        plan = json.loads((checkpoint / "plan.json").read_text())
        del plan["manifest"]
        (checkpoint / "plan.json").write_text(json.dumps(plan))
    test = json.loads((home.run / "metrics.json").read_text())["test"]
    assert evaluate(str(home.run))["test"] == test


def test_a_damaged_part_ends_the_epoch_that_reads_it(home: Home) -> None:
    part = home.prepared / "train" / "part-00000-000.parquet"
    content = bytearray(part.read_bytes())
    content[100:104] = b"\xff\xff\xff\xff"
    part.write_bytes(content)
    again = f"remove {home.prepared}, and the next run prepares the data again"
    with pytest.raises(DamagedFile, match=f"train/part-00000-000.parquet: is damaged; .*; {again}"):
        home.train(f"run_dir={home.folder / 'other'}", "checkpoint.every_n_steps=null")
    shutil.rmtree(home.prepared)
    assert home.train(f"run_dir={home.folder / 'other'}").metrics["test"]["rows"] == 120


@pytest.mark.slow
def test_what_was_read_from_raw_files_is_read_again(home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    test = json.loads((home.run / "metrics.json").read_text())["test"]
    [rows] = (home.folder / "prepared" / "read").glob("*/rows-00000.arrow")
    for damage in ("content", "note"):
        shutil.rmtree(home.prepared)
        flip(rows if damage == "content" else rows.with_name("chunk.json"), RNG)
        assert evaluate(str(home.run))["test"] == test
        assert "; its chunk of the raw files is read again" in capfd.readouterr().err


def test_a_broken_cache_of_digests_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "raw.csv"
    file.write_text("a,b\n")
    os.utime(file, (1e9, 1e9))
    first = digests([file], tmp_path)
    for content in ("", "{", "[]", '{"x": 1}', "null"):
        (tmp_path / "contents.json").write_text(content)
        assert digests([file], tmp_path) == first


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    """cp -p and rsync -t keep the time."""
    file, other = tmp_path / "raw.csv", tmp_path / "other.csv"
    file.write_text("1" * (1 << 20))
    other.write_text("1" * (1 << 19) + "2" + "1" * ((1 << 19) - 1))
    for f in (file, other):
        os.utime(f, (1e9, 1e9))
    first = digests([file], tmp_path)
    shutil.copy2(other, file)
    second = digests([file], tmp_path)
    assert first != second
    content = file.read_bytes()
    with file.open("r+b") as f:  # in place, beside the sampled ranges
        f.seek(200_000)
        f.write(b"3")
    os.utime(file, (1e9, 1e9))
    assert digests([file], tmp_path) != second  # ctime has changed
    file.write_bytes(content)
    os.utime(file, (1e9, 1e9))
    assert digests([file], tmp_path) == second


def test_verify_content_reads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recsys.data.raw import raw_files as module

    file = tmp_path / "raw.csv"
    file.write_text("a")
    os.utime(file, (1e9, 1e9))
    read: list[Path] = []
    digest = module._digest
    monkeypatch.setattr(module, "_digest", lambda f, advance: (read.append(f), digest(f, advance))[1])
    for verify in ("stat", "stat", "content"):
        digests([file], tmp_path, verify=verify)
    assert len(read) == 2


def test_any_byte_of_a_parquet_footer(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pl.DataFrame({"a": range(100), "b": ["x", "y"] * 50}).write_parquet(file)
    whole = file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    damaged = 0
    for at in range(len(whole) - footer, len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            list(row_groups(file))
        except DamagedFile:
            damaged += 1
    assert damaged > 20
