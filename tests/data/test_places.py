"""Raw files on stores: what is prepared of them is what is prepared of local ones, byte for byte."""

import gzip
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import fsspec
import polars as pl
import pytest
from data_configs import data_from
from every_transform import CSV, PARQUET, write_csv, write_parquet

from recsys.base.errors import UserError
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw import read_sources
from recsys.data.raw.raw_files import digests, list_remote_files, natural_sort, resolve_path
from recsys.data.raw.raw_format import RawFormat
from recsys.job import mirror
from recsys.online.predictor import input_files
from recsys.schema.data_schema import DataConfig


def of_yaml(text: str, root: str, home: Path) -> DataConfig:
    known = {"name": "t", "root": root, "prepared": str(home), "label": {"column": "y"}}
    return data_from(text, known)


def upload(fs: Any, folder: Path, root: str) -> str:
    fs.put(str(folder), root.partition("://")[2], recursive=True)
    return root


def both(yaml: str, folder: Path, root: str, tmp_path: Path) -> Prepared:
    """Prepared of local files and of remote ones, as which they are checked to be equal."""
    a = prepare(of_yaml(yaml, str(folder), tmp_path / "a"))
    b = prepare(of_yaml(yaml, root, tmp_path / "b"))
    names = sorted(str(f.relative_to(a.folder)) for f in a.folder.rglob("*") if f.is_file())
    assert names == sorted(str(f.relative_to(b.folder)) for f in b.folder.rglob("*") if f.is_file()) and len(names) > 8
    for name in names:
        own, other = (a.folder / name).read_bytes(), (b.folder / name).read_bytes()
        if name in ("prepared.json", "transforms.json", "manifest.json"):  # which name their folders
            told = json.loads(own), json.loads(other)
            assert all(x.get(k) == y.get(k) for x, y in (told, told[::-1]) for k in ("rows", "bad_rows", "dense"))
        else:
            assert own == other, name
    return b


# csv in memory stands for all
@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("csv", "memory"),
        *(
            pytest.param(*both, marks=pytest.mark.slow)
            for both in (("parquet", "s3"), ("csv", "s3"), ("parquet", "memory"), ("gz", "memory"), ("gz", "s3"))
        ),
    ],
)
def test_prepared_as_local_files_are(
    kind: str, store: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With side tables, in several files, folders and chunks."""
    fs, raw = request.getfixturevalue(store), tmp_path / "raw"
    monkeypatch.setattr(RawFormat, "range_bytes", 50_000)
    monkeypatch.setattr(RawFormat, "range_rows", 2000)
    (write_parquet if kind == "parquet" else write_csv)(raw)
    yaml = PARQUET.replace("f.parquet", "days*/*.parquet") if kind == "parquet" else CSV
    for folder in ("days", "days-more"):  # which sort otherwise by their whole names
        (raw / folder).mkdir()
    if kind == "parquet":
        frame = pl.read_parquet(raw / "f.parquet")
        frame.write_parquet(raw / "days-more" / "1.parquet", row_group_size=700)
        frame.reverse().write_parquet(raw / "days" / "2.parquet", row_group_size=700)
    else:
        yaml = yaml.replace("f.csv", f"days*/*.{kind}")
        text = (raw / "f.csv").read_bytes()
        for name, content in {"days-more/1": text, "days/2": text + b"1,oops,,,,,,,\n"}.items():
            (raw / f"{name}.{kind}").write_bytes(gzip.compress(content, mtime=0) if kind == "gz" else content)
    (raw / "_SUCCESS").write_text("")
    root = upload(fs, raw, f"{store}://bucket/logs")
    both(yaml, raw, root, tmp_path)


def test_what_changes_is_prepared_again_what_does_not_is_not(s3: Any, tmp_path: Path) -> None:
    yaml = "source: {files: ['*.csv']}\nsparse: {s: {}}\ndense: {x: {}}"
    lines = "y,x,s\n" + "".join(f"{i % 2},{i},v{i % 7}\n" for i in range(200))
    fs = fsspec.filesystem("s3")
    fs.pipe("bucket/a/1.csv", lines.encode())
    first = prepare(of_yaml(yaml, "s3://bucket/a", tmp_path)).folder
    fs.ls("bucket/a")  # another way to be told of it
    assert prepare(of_yaml(yaml, "s3://bucket/a", tmp_path)).folder == first
    fs.pipe("bucket/b/2.csv", lines.encode())
    assert prepare(of_yaml(yaml, "s3://bucket/b/2.csv", tmp_path)).folder == first  # the content is what counts
    s3.pipe("bucket/a/1.csv", lines.replace("v1", "w1").encode())  # behind the other's back
    assert prepare(of_yaml(yaml, "s3://bucket/a", tmp_path)).folder != first


def test_files_to_predict(memory: Any) -> None:
    for name in ("/in/b.csv", "/in/a.csv", "/in/deep/c.csv", "/in/d.txt", "/in/_tmp.csv", "/in/.a.csv", "/in/_SUCCESS"):
        memory.pipe(name, b"x\n1\n")
    names = [[p.name for p in input_files([f"memory://in{rest}"])] for rest in ("", "/*.csv", "/*/*.csv", "/a.csv")]
    assert names == [["a.csv", "b.csv", "d.txt", "c.csv"], ["a.csv", "b.csv"], ["c.csv"], ["a.csv"]]
    with pytest.raises(UserError, match=r"^input=memory://in/\*.tsv: no such file$"):
        input_files(["memory://in/*.tsv"])
    with pytest.raises(UserError, match=r"^input=memory://in/z.csv: no such folder or file$"):
        input_files(["memory://in/z.csv"])


def test_paths_cross_processes(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/in/a.csv", b"x\n1\n")
    [path] = list_remote_files("memory://in", "input")
    assert pickle.loads(pickle.dumps(path)) == path
    assert isinstance(resolve_path(str(tmp_path), "data.root"), PosixPath)
    assert resolve_path(f"file://{tmp_path}", "data.root") == tmp_path
    assert natural_sort([Path("a-b/x"), Path("a/x")]) == [Path("a/x"), Path("a-b/x")]
    code = (
        "import sys, recsys.data.prepare.prepared; print([m for m in ('upath', 's3fs', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]"  # who needs none pays for none


def test_mistakes_are_told_in_one_line(s3: Any, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = of_yaml(CSV, "s3://bucket/logs", tmp_path)
    told = {
        "s3://bucket/logs": r"data.root=s3://bucket/logs: no such folder or file",
        "s3://none/logs": r"data.root=s3://none/logs: no such folder or file",
        "nope://bucket": r"data.root=nope://bucket: nope:// is unknown",
        "memory://empty": r"data.root=memory://empty: no file matches f.csv \(the folder holds x.txt\)",
    }
    memory.pipe("/empty/x.txt", b"x")
    for root, message in told.items():
        with pytest.raises(UserError, match=message) as e:
            read_sources.find_files(replace(data, root=root))
        assert "\n" not in str(e.value)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(
        UserError, match=r"data.root=gs://b/x: needs gcsfs, which is not installed; run: uv sync --inexact --extra gcs$"
    ):
        resolve_path("gs://b/x", "data.root")
    memory.pipe("/broken/f.parquet", b"PAR1 and nothing")
    with pytest.raises(UserError, match=r"f.parquet: not a Parquet file"):
        read_sources.check_columns(
            of_yaml(PARQUET, "memory://broken", tmp_path), list_remote_files("memory://broken", "x")[0]
        )


def test_no_credentials(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    type(s3).clear_instance_cache()
    with pytest.raises(UserError, match=r"^data.root=s3://bucket/x: .*credentials") as e:
        resolve_path("s3://bucket/x", "data.root")
    assert "\n" not in str(e.value)


def test_a_run_is_mirrored_to_s3_and_fetched(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "checkpoints" / "step-00000010"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"state")
    (tmp_path / "a" / "config.yaml").write_text("model: {}\n")
    url = "s3://bucket/runs/a"
    mirror.check(url, tmp_path / "a", resumed=False)
    mirror.fetch(url, tmp_path / "b")
    assert (tmp_path / "b/checkpoints/step-00000010/state.pt").read_bytes() == b"state"
    (folder / "state.pt").unlink()
    mirror.Mirror(url, tmp_path / "a").copy()
    assert sorted(s3.find("bucket/runs/a")) == ["bucket/runs/a/config.yaml", "bucket/runs/a/mirror.json"]
    with pytest.raises(UserError, match=r"^checkpoint\.mirror=s3://none/a: cannot be written: "):
        mirror.check("s3://none/a", tmp_path / "a", resumed=False)


def test_digests_of_stores_that_tell_no_content(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/in/a.csv", b"x\n1\n")
    [file] = list_remote_files("memory://in", "input")
    first = digests([file], tmp_path)[file]
    assert digests([file], tmp_path)[file] == first
    memory.pipe("/in/a.csv", b"x\n2\n")
    assert digests([file], tmp_path)[file] != first
