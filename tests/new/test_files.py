"""Files are found, named by globs that match them alone, and sampled from their heads to their tails."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from file_shapes import clicks, lines
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.new import sample
from recsys.new.find_files import find, globs_for, split_of
from recsys.new.find_layout import layout_of
from recsys.new.propose import propose
from recsys.new.sample import read_sample

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"
NAMES = st.lists(
    st.from_regex(r"(a|b|train|test)(/(x|day=1))?/?[a-c][0-9]?\.(csv|csv\.gz|tsv)", fullmatch=True),
    min_size=2,
    max_size=8,
    unique=True,
)


def touch(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a,b\n1,2\n")
    return [root / name for name in names]


def test_paths_stay_as_they_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "logs/a.csv", "logs/b.csv", "logs/.hidden.csv", "logs/_SUCCESS", "other/c [1].csv", "d.csv")
    monkeypatch.chdir(tmp_path)
    for given_, root, globs in (
        (["logs/*.csv"], "logs", ("*.csv",)),
        (["d.csv"], ".", ("d.csv",)),
        (["logs/a.csv", "other/c [1].csv"], ".", ("logs/a.csv", "other/c [[]1].csv")),
        (["l*/*.csv"], ".", ("l*/*.csv",)),
        ([str(tmp_path / "logs" / "*.csv")], str(tmp_path / "logs"), ("*.csv",)),
    ):
        found = find(given_)
        assert (found.root, found.globs) == (root, globs)
        assert {p.resolve() for g in globs for p in Path(root).glob(g)} >= {p.resolve() for p in found.files}
        assert not any(p.name.startswith((".", "_")) for p in found.files)


def test_a_folder_holds_more_than_data(tmp_path: Path) -> None:
    touch(tmp_path, "a.csv", "conf/data/mine.yaml", "outputs/run/metrics.csv", "README.md", "sub/b.csv")
    (tmp_path / "outputs" / "run" / "config.yaml").write_text("model: x\n")
    (tmp_path / "outputs" / "run" / "checkpoints").mkdir()
    (tmp_path / "empty.csv").touch()
    assert [p.name for p in find([str(tmp_path)]).files] == ["a.csv", "b.csv"]
    with pytest.raises(UserError, match="no file there holds data"):
        find([str(tmp_path / "conf")])


@settings(deadline=None, max_examples=40)
@given(NAMES, st.data())
def test_globs_match_these_files_alone(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("globs")
    names = [n for n in names if not any(other.startswith(f"{n}/") for other in names)]
    files = touch(root, *names)
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, unique=True))
    globs = globs_for(root, chosen)
    assert {p for g in globs for p in root.glob(g) if p.is_file()} == set(chosen)


def test_globs_match_the_days_to_come(tmp_path: Path) -> None:
    days = touch(tmp_path, *(f"logs/events_2026-03-0{i}.csv" for i in range(1, 8)))
    touch(tmp_path, "items.csv", "logs/users.csv")
    assert globs_for(tmp_path, days) == ["logs/events*.csv"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.csv", "train"),
        ("training_set.parquet", "train"),
        ("frappe.validation.libfm", "validation"),
        ("x_val.csv", "validation"),
        ("test_unlabelled.tsv", "test"),
        ("validation/part-0.parquet", "validation"),
        ("clicks.csv", None),
        ("train_test.csv", None),
    ],
)
def test_split_of_a_file(name: str, split: str | None) -> None:
    assert split_of(Path(name)) == split


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_sample_reaches_the_end_of_large_files(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "PIECE", 2000)
    monkeypatch.setattr(sample, "MAX_ROWS", 400)
    frame, file = clicks(rows=2000), tmp_path / f"a.csv{suffix}"
    file.write_bytes((gzip.compress if suffix else bytes)(lines(frame).encode()))
    found = read_sample([file], layout_of(file))
    assert found.frame.height < 1000 and 1000 < found.rows < 4000
    assert found.frame["ts"][0] == str(frame["ts"][0])
    assert int(found.frame["ts"][-1]) > frame["ts"][1500]


def test_files_are_told_apart(tmp_path: Path) -> None:
    log = clicks().with_columns(shop=pl.col("user").str.slice(1).cast(pl.Int64) + 1)
    for name, content in {
        "log.csv": log,
        "log2.csv": clicks(1).with_columns(shop=pl.col("user").str.slice(1).cast(pl.Int64) + 1),
        "users.tsv": clicks().select("user", "city").unique("user"),
        "shops.csv": pl.DataFrame({"shop": range(1, 61), "shape": ["a", "b", "c"] * 20}),
        "towns.csv": pl.DataFrame({"city": ["Paris", "Rome"], "mayor": ["x", "y"]}),
        "test.csv": log.drop("clicked"),
    }.items():
        (tmp_path / name).write_text(lines(content, "\t" if name.endswith("tsv") else ","))
    p = propose([str(tmp_path)])
    assert p.source["files"] == ["log*.csv"] and not p.questions
    unused = dict(p.unused)
    assert "{joins: [{file: shops.csv, key: shop}]}" in unused["shops.csv"]
    assert 'key: user, separator: "\\t"' in unused["users.tsv"] and "recsys.predict" in unused["test.csv"]
    assert unused["towns.csv"] == "it has other columns than the rows"


def test_keys_that_some_files_lack_are_optional(tmp_path: Path) -> None:
    for part in range(2):
        rows = [r | ({"coupon": f"c{i % 3}"} if part else {}) for i, r in enumerate(clicks(part).to_dicts())]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert propose([str(tmp_path)]).source["optional_columns"] == ["coupon"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is a named pipe; write what comes out of it to a file first"),
        (lambda p: os.symlink("gone", p), "is a link to gone, which does not exist"),
        (lambda p: p.write_bytes(LFS), "is a pointer of Git LFS, not the file itself; run: git lfs pull"),
    ],
)
def test_paths_that_are_no_files(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    make(tmp_path / "a.csv")
    with pytest.raises(UserError, match=message):
        propose([str(tmp_path / "*.csv")])
