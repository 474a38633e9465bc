"""Preparing: rows in = rows out + bad rows, once, whatever happens on the way."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from data_configs import data_from, small_config
from forks import warm_python
from omegaconf import OmegaConf
from raw_rows import frames

from recsys.base.errors import UserError
from recsys.data.features import LABEL
from recsys.data.prepare import passes as build
from recsys.data.prepare import prepared as preparing
from recsys.data.prepare.check_data import check_raw_files
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw import text
from recsys.data.raw.raw_format import RawFormat
from recsys.data.raw.reasons import Reasons
from recsys.schema.data_schema import (
    DataConfig,
    DenseConfig,
    GroupConfig,
    SequenceConfig,
    SparseConfig,
    SplitConfig,
)
from recsys.schema.source_schema import SourceConfig

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("train", "validation", "test")


def write(folder: Path, *, rows: int = 200, bad: tuple[int, ...] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    lines = ["y,x,s", *(f"{i % 2},{'oops' if i in bad else i},v{i % 7}" for i in range(rows))]
    (folder / "f.csv").write_text("\n".join(lines) + "\n")
    return folder


def config(tmp_path: Path, **more: Any) -> DataConfig:
    given = {"dense": {"x": DenseConfig(transform=["standardise"])}, "sparse": {"s": SparseConfig()}}
    return small_config(tmp_path, **(given | more))


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 300)  # many blocks
    write(tmp_path / "raw", bad=(150,))
    prepared = prepare(config(tmp_path))
    done = frames(prepared)
    assert {s: f.height for s, f in done.items()} == {"train": 159, "validation": 20, "test": 20}
    assert {s: prepared.rows(s) for s in SPLITS} == prepared.info["rows"] == {s: f.height for s, f in done.items()}
    assert prepared.info["bad_rows"] == 1 and sum(prepared.info["rows"].values()) + 1 == 200
    good = [i for i in range(200) if i != 150]
    train = pl.Series(good[:159])
    whole = pl.concat([done[s] for s in SPLITS])
    assert whole.columns == [LABEL, "x", "s"] and whole.dtypes == [pl.Float32, pl.Float32, pl.Int32]
    assert whole[LABEL].to_list() == [i % 2 for i in good]
    expected = ((pl.Series(good) - train.mean()) / train.std(ddof=0)).cast(pl.Float32)
    assert (whole["x"] - expected).abs().max() < 1e-5
    vocabulary = prepared.fitted.vocabularies["s"]
    assert vocabulary["count"].sum() == 159
    ids = dict(zip(vocabulary["value"], vocabulary["id"], strict=True))
    assert whole["s"].to_list() == [ids[f"v{i % 7}"] for i in good]
    aside = pl.read_csv(Path(f"{prepared.folder}.bad_rows.csv"))
    assert aside.rows() == [(str(tmp_path / "raw" / "f.csv"), 152, "x is not a number", "0\toops\tv3")]


def test_too_many_bad_rows_stop_it_and_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "raw", bad=(3, 100, 150))
    with pytest.raises(UserError) as e:
        prepare(config(tmp_path))
    message = str(e.value)
    assert "3 of 200 rows cannot be read, more than data.max_bad_rows=0.01: 3 rows: x is not a number" in message
    assert "(such as 'oops', " in message and "line 5); if that means a missing value, add it to" in message
    assert "\n" not in message
    kept = Path(message.rsplit(" ", 1)[1])
    assert pl.read_csv(kept)["line"].to_list() == [5, 102, 152]
    assert not list((tmp_path / "prepared").glob("*/prepared.json"))
    assert prepare(config(tmp_path, max_bad_rows=0.02)).info["bad_rows"] == 3


def test_the_most_frequent_reason_comes_first() -> None:
    reasons = Reasons()
    for reason, rows in (("3 fields, not 2", 2), ("label y is neither 0 nor 1", 40), ("x is not a time", 1)):
        reasons.add(reason, rows, "f.csv line 7", "> 50K" if "label" in reason else None)
    reasons.add("label y is neither 0 nor 1", 1, "g.csv line 1", "no example")
    assert str(reasons) == (
        "41 rows: label y is neither 0 nor 1 (such as '> 50K', f.csv line 7); data.label.positive=[TEXT] names the "
        "texts that are 1, data.label.at_least=N a threshold; 2 rows: 3 fields, not 2 (such as f.csv line 7); "
        "1 row for other reasons"
    )


def test_files_that_the_config_does_not_fit_stop_it_at_once(tmp_path: Path) -> None:
    write(tmp_path / "raw", bad=tuple(range(150)))
    with pytest.raises(UserError, match=r"150 of the first 200 rows cannot be read: 150 rows: x is not a number"):
        check_raw_files(config(tmp_path))
    assert check_raw_files(config(tmp_path, max_bad_rows=1.0))


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "f.csv").write_text("y,x,s\n")
    with pytest.raises(UserError, match="no usable row"):
        prepare(config(tmp_path))
    (tmp_path / "raw" / "f.csv").write_text("y,x,s\n1,1,a\n0,2,b\n")
    with pytest.raises(UserError, match="split has no rows"):
        prepare(config(tmp_path))
    with pytest.raises(UserError, match=r"set data\.root"):
        prepare(config(tmp_path, root=None))


def test_prepared_once_and_again_when_something_changed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    raw = write(tmp_path / "raw")
    assert prepare(config(tmp_path, sparse={"s": SparseConfig(min_count=10**6)})).fitted.vocabularies["s"].is_empty()
    said = "table s: no value is in min_count training rows, so that all values share row 0"
    assert capfd.readouterr().err.count(said) == 1
    first = prepare(config(tmp_path))
    made = first.folder.stat().st_mtime_ns, (first.folder / "prepared.json").stat().st_mtime_ns
    assert prepare(config(tmp_path)).folder == prepare(config(tmp_path, max_bad_rows=0.5)).folder == first.folder
    assert (first.folder.stat().st_mtime_ns, (first.folder / "prepared.json").stat().st_mtime_ns) == made
    changed = [
        config(tmp_path, sparse={"s": SparseConfig(min_count=2)}),
        config(tmp_path, dense={"x": DenseConfig(transform=["log"])}),
        config(tmp_path, split=SplitConfig(test=0.2)),
        config(tmp_path, derive={"z": "x"}),
    ]
    folders = {prepare(c).folder for c in changed}
    assert len(folders) == 4 and first.folder not in folders
    write(raw, rows=201)
    assert prepare(config(tmp_path)).folder not in {first.folder, *folders}


def test_it_is_the_content_that_counts(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw")
    first = prepare(config(tmp_path)).folder
    os.utime(raw / "f.csv", (1, 1))
    assert prepare(config(tmp_path)).folder == first
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "f.csv").rename(tmp_path / "elsewhere" / "g.csv")
    assert prepare(config(tmp_path, root=str(tmp_path / "elsewhere"))).folder == first
    changed = (tmp_path / "elsewhere" / "g.csv").read_text().replace("1,1,v1", "1,2,v1")
    before = (tmp_path / "elsewhere" / "g.csv").stat()
    (tmp_path / "elsewhere" / "g.csv").write_text(changed)
    assert (tmp_path / "elsewhere" / "g.csv").stat().st_size == before.st_size
    assert prepare(config(tmp_path, root=str(tmp_path / "elsewhere"))).folder != first


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files, a chunk each, that are read from now on."""
    names: list[str] = []
    read_chunk = build.read_chunk
    monkeypatch.setattr(build, "read_chunk", lambda d, c, *a: (names.append(c[0].file.name), read_chunk(d, c, *a)))
    return names


def test_a_changed_config_reads_only_what_it_changes(tmp_path: Path, read: list[str]) -> None:
    write(tmp_path / "raw")
    for i in range(3):
        (tmp_path / "raw" / f"day_{i}.csv").write_text((tmp_path / "raw" / "f.csv").read_text() + f"1,{i},new\n")
    (tmp_path / "raw" / "f.csv").unlink()
    prepare(config(tmp_path))
    assert read == ["day_0.csv", "day_1.csv", "day_2.csv"]
    read.clear()
    for same in (
        {"sparse": {"s": SparseConfig(min_count=2)}},
        {"sparse": {"s": SparseConfig(encode="hash", buckets=9)}},
        {"dense": {"x": DenseConfig(fill="median", transform=["log", "standardise"])}},
        {"split": SplitConfig(by="random", test=0.3)},
        {"name": "another"},
    ):
        prepare(config(tmp_path, **same))
    assert not read
    (tmp_path / "raw" / "day_3.csv").write_text("y,x,s\n1,5,a\n0,6,b\n")
    (tmp_path / "raw" / "day_1.csv").write_text("y,x,s\n1,5,a\n0,7,b\n")
    more = prepare(config(tmp_path))
    assert read == ["day_1.csv", "day_3.csv"] and sum(more.info["rows"].values()) == 2 * 201 + 4
    prepare(config(tmp_path, dense={"z": DenseConfig(column="x", transform=["count"])}))  # read as a value
    assert len(read) == 2 + 4


@pytest.mark.parametrize("group", [None, GroupConfig("s", "x")])
def test_what_was_read_is_not_kept_where_it_must_not(tmp_path: Path, group: GroupConfig | None) -> None:
    write(tmp_path / "raw")
    prepare(config(tmp_path, keep_read=False, group=group))
    assert not list((tmp_path / "prepared" / "read").iterdir())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"group": GroupConfig("s")}),
        ({"group": GroupConfig("s")}, {"group": GroupConfig("y")}),
        ({"group": GroupConfig("s")}, {"group": GroupConfig("s", order="x")}),
        ({"group": GroupConfig("s"), "sequences": SequenceConfig()}, {"group": GroupConfig("s")}),
        ({"derive": {"z": "x", "x": "'7'"}}, {"derive": {"x": "'7'", "z": "x"}}),  # in the order that is told
    ],
)
def test_another_config_never_takes_what_was_read_for_its_own(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    write(tmp_path / "raw")
    column = "z" if "derive" in after else "x"

    def made(more: dict[str, Any], folder: str) -> Prepared:
        dense = {"f": DenseConfig(column=column, transform=[], lag=1 if "group" in more else None)}
        split = SplitConfig(validation=0.2, test=0.2)
        return prepare(config(tmp_path, prepared=str(tmp_path / folder), dense=dense, split=split, **more))

    made(before, "prepared")
    again, fresh = made(after, "prepared"), made(after, "fresh")
    assert again.folder.name == fresh.folder.name
    for split in SPLITS:
        assert frames(again)[split].equals(frames(fresh)[split])


def test_a_time_read_for_its_difference_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    times = [datetime(2024, 1, 1) + timedelta(seconds=i * i) for i in range(40)]
    raw = pl.DataFrame({"y": [0, 1] * 20, "u": ["a"] * 40, "x": times})
    raw.write_parquet(tmp_path / "raw" / "f.parquet")
    told: dict[str, Any] = {"source": SourceConfig(format="parquet"), "group": GroupConfig("u"), "sparse": {}}
    prepare(config(tmp_path, dense={"x": DenseConfig(transform=[])}, **told))
    found = frames(prepare(config(tmp_path, dense={"x": DenseConfig(transform=[], difference=1)}, **told)))
    assert found["train"]["x"].to_list()[:4] == [0, 1, 3, 5]  # seconds


def test_what_is_left_of_a_piece_is_read_again(tmp_path: Path, read: list[str]) -> None:
    write(tmp_path / "raw")
    prepare(config(tmp_path))
    (piece,) = (tmp_path / "prepared" / "read").iterdir()
    (piece / "chunk.json").unlink()
    again = prepare(config(tmp_path, name="another"))
    assert read == ["f.csv"] * 2 and sum(again.info["rows"].values()) == 200


def test_text_is_cut_into_chunks_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "raw", rows=60, bad=(3, 30, 50))
    whole = prepare(config(tmp_path, max_bad_rows=0.1))
    aside = pl.read_csv(Path(f"{whole.folder}.bad_rows.csv"))
    for size in (7, 40, 333):
        monkeypatch.setattr(RawFormat, "range_bytes", size)
        cut = prepare(config(tmp_path, max_bad_rows=0.1, prepared=str(tmp_path / f"prepared {size}")))
        assert all(a.equals(b) for a, b in zip(frames(whole).values(), frames(cut).values(), strict=True))
        assert pl.read_csv(Path(f"{cut.folder}.bad_rows.csv")).equals(aside)
        assert aside["line"].to_list() == [5, 32, 52]


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["read_chunk", "_collect_chunk", "_write_job"])
def test_killed_it_goes_on_where_it_was(tmp_path: Path, step: str) -> None:
    """A process is killed in the middle of a pass; the next one does what is left, to the same bytes."""
    write(tmp_path / "raw", rows=5000)
    code = f"""
import os, signal, sys
from recsys.data.prepare import passes as p
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import formats
from recsys.schema.data_schema import *; from recsys.data.features import ResolvedData
formats.RawFormat.range_bytes, p.FILE_ROWS = 9000, 1000
calls = []
step = p.{step}
def counted(*a):
    calls.append(1)
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*a)
p.{step} = counted
done = prepare(ResolvedData(name="t", root={str(tmp_path / "raw")!r}, prepared=sys.argv[2],
    label=LabelConfig("y"), dense={{"x": DenseConfig(transform=["standardise"])}}, sparse={{"s": SparseConfig()}}))
print(len(calls), done.folder)
"""

    def run(die_at: int, home: str) -> subprocess.CompletedProcess[str]:
        python = warm_python()
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [python, "-c", code, str(die_at), str(tmp_path / home)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)

    whole = run(-1, "whole").stdout.split()
    assert run(4, "killed").returncode == -9
    rest = run(-1, "killed").stdout.split()
    # at most two chunks were being written when it was killed; a pass that fits begins anew
    assert int(rest[0]) <= int(whole[0]) - (0 if step == "_collect_chunk" else 2)
    a, b = Path(whole[1]), Path(rest[1])
    names = sorted(str(f.relative_to(a)) for f in a.rglob("*") if f.is_file())
    assert names == sorted(str(f.relative_to(b)) for f in b.rglob("*") if f.is_file()) and len(names) > 8
    for name in names:
        if name not in ("prepared.json", "transforms.json", "manifest.json"):  # which name their folders
            assert (a / name).read_bytes() == (b / name).read_bytes(), name


def test_a_changed_side_table_is_prepared_again(tmp_path: Path) -> None:
    from recsys.schema.source_schema import JoinConfig, SourceConfig

    raw = write(tmp_path / "raw")
    (raw / "side.txt").write_text("s,k\nv1,p\n")
    source = SourceConfig(files=["*.csv"], joins=[JoinConfig(file="side.txt", key="s", columns={"k": "k"})])
    data = config(tmp_path, source=source, sparse={"k": SparseConfig()})
    first = prepare(data)
    (raw / "side.txt").write_text("s,k\nv1,p\nv2,q\n")
    second = prepare(data)
    assert [p.fitted.vocabularies["k"].height for p in (first, second)] == [2, 3]  # and the missing


def test_what_a_killed_run_left_is_never_taken_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "raw")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(preparing.Fitted, "save", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(config(tmp_path))
    left = list((tmp_path / "prepared").glob("*.building"))
    assert len(left) == 1 and not list((tmp_path / "prepared").glob("*/prepared.json"))
    (left[0] / "train").mkdir(exist_ok=True)
    (left[0] / "train" / "part-99999.parquet").write_bytes(b"half a file")
    target = left[0].with_suffix("")
    (target / "train").mkdir(parents=True)  # a folder without prepared.json is nothing
    prepared = prepare(config(tmp_path))
    assert sum(f.height for f in frames(prepared).values()) == 200
    assert not list((tmp_path / "prepared").glob("*.building"))


def test_two_processes_at_once(tmp_path: Path) -> None:
    write(tmp_path / "raw", rows=20_000)
    code = f"""
from recsys.data.prepare import passes as build
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import *; from recsys.data.features import ResolvedData
built = []
run = build.Build.run
build.Build.run = lambda self: (built.append(1), run(self))
done = prepare(ResolvedData(name="t", root={str(tmp_path / "raw")!r}, prepared={str(tmp_path / "prepared")!r},
    label=LabelConfig("y"), dense={{"x": DenseConfig(transform=["standardise"])}}, sparse={{"s": SparseConfig()}}))
print(len(built), sum(done.info["rows"].values()), done.folder)
"""
    python = warm_python()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    said = [p.communicate(timeout=60)[0].strip().splitlines()[-1].split() for p in running]
    assert all(p.returncode == 0 for p in running)
    assert sorted(s[0] for s in said) == ["0", "1"] and {s[1] for s in said} == {"20000"} and said[0][2] == said[1][2]


def from_yaml(name: str, root: Path, tmp_path: Path) -> DataConfig:
    given = OmegaConf.load(ROOT / "conf" / "data" / f"{name}.yaml")
    return replace(data_from(given), root=str(root), prepared=str(tmp_path))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "folder", "rows"),
    [
        ("criteo", "criteo_kaggle", 14_549),
        ("avazu", "avazu", 14_077),
        ("movielens_100k", "ml-100k", 100_000),
        ("frappe", "frappe", {"train": 202_027, "validation": 57_722, "test": 28_860}),
    ],
)
def test_real_data(name: str, folder: str, rows: Any, real_data: Callable[[str], Path], tmp_path: Path) -> None:
    root = real_data(folder)
    prepared = prepare(from_yaml(name, root, tmp_path))
    info = prepared.info
    assert info["bad_rows"] == 0
    if isinstance(rows, dict):
        assert info["rows"] == rows
    else:
        assert sum(info["rows"].values()) == rows
        # the last hours of avazu hold more than a tenth of its rows, and stay together
        assert info["rows"]["test"] == (2144 if name == "avazu" else pytest.approx(rows * 0.1, rel=0.02))
    features = prepared.fitted.features
    for split in SPLITS:
        for file in prepared.files(split):
            frame = pl.read_parquet(file)
            assert frame.null_count().sum_horizontal().item() == 0 and set(frame[LABEL].unique()) <= {0.0, 1.0}
            for f in features.sparse:
                ids = frame[f.name].explode().drop_nulls() if f.multi_valued else frame[f.name]
                assert (ids.min() or 0) >= 0 and (ids.max() or 0) < f.cardinality
    if name == "criteo":
        clicks = sum(pl.read_parquet(f)[LABEL].sum() for s in SPLITS for f in prepared.files(s))
        assert clicks == 3305
    if name == "movielens_100k":
        raw = pl.read_csv(root / "ml-100k.item", separator="\t", quote_char=None, infer_schema=False)
        genres = {g for text in raw["class:token_seq"].drop_nulls() for g in text.split(" ")}
        assert set(prepared.fitted.vocabularies["genres"]["value"]) <= genres
        assert prepared.fitted.vocabularies["genres"].height == pytest.approx(19, abs=2)
