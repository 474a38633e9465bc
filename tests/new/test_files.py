"""Files are found, named by globs that match them alone, and sampled in whole lines."""

import bz2
import gzip
from pathlib import Path

import polars as pl
import pytest
from file_shapes import clicks, lines
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.new import raw_bytes
from recsys.new.find_files import find, globs_for, split_of
from recsys.new.find_layout import layout_of
from recsys.new.gather import gather
from recsys.new.propose import propose
from recsys.new.questions import Answers
from recsys.new.sample import read_sample

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


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), st.integers(2, 7), st.sampled_from(["", ".gz", ".bz2"]), st.booleans())
def test_pieces_are_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: int, pieces: int, kind: str, ends: bool
) -> None:
    """However a file is cut, each line of the sample is a line of the file, in order; head and tail are in it."""
    texts = [f"line {i:05d}" for i in range(rows)]
    text = ("\n".join(texts) + "\n" * ends).encode()
    file = tmp_path_factory.mktemp("pieces") / f"a.csv{kind}"
    file.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[kind](text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_bytes, "HEAD", 2000)
        patch.setattr(raw_bytes, "PIECE", 500)
        found, size = raw_bytes.pieces(file, pieces)
    sampled = [line for piece in found for line in piece.decode().split("\n") if line]
    assert size == len(text) and sampled == sorted(set(sampled)) and set(sampled) <= set(texts)
    assert sampled[0] == texts[0] and (kind or sampled[-1] == texts[-1])


def test_the_sample_reaches_the_end_of_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_bytes, "HEAD", 4000)
    monkeypatch.setattr(raw_bytes, "PIECE", 2000)
    frame = clicks(rows=2000)
    (tmp_path / "a.csv").write_text(lines(frame))
    sample = read_sample([tmp_path / "a.csv"], layout_of(tmp_path / "a.csv"))
    assert sample.frame.height < 1000 and sample.rows == pytest.approx(2000, rel=0.1)
    assert sample.frame["ts"][0] == str(frame["ts"][0]) and sample.frame["ts"][-1] == str(frame["ts"][-1])


def test_rows_and_side_tables_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(lines(clicks()))
    (tmp_path / "log2.csv").write_text(lines(clicks(1)))
    (tmp_path / "users.tsv").write_text(lines(clicks().select("user", "city").unique("user"), "\t"))
    (tmp_path / "test.csv").write_text(lines(clicks().drop("clicked")))
    gathered = gather(find([str(tmp_path)]), Answers())
    assert {f.name for f in gathered.files} == {"log.csv", "log2.csv"}
    assert [f.name for f in gathered.sides] == ["users.tsv"]
    assert [f.name for f, _ in gathered.unused] == ["test.csv"]


def test_a_side_table_adds_columns_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(lines(clicks().drop("tags")))
    users = clicks().select("user", pl.col("city").alias("price"), "tags").unique("user", maintain_order=True)
    (tmp_path / "users.csv").write_text(lines(users, ";"))
    p = propose([str(tmp_path)])
    [join] = p.source["joins"]
    assert join == {
        "file": "users.csv", "key": "user", "columns": {"users_price": "price", "tags": "tags"}, "separator": ";",
    }  # fmt: skip
    assert {"users_price", "tags"} <= {f.name for f in p.features.sparse}


def test_a_key_of_numbers_is_an_id(tmp_path: Path) -> None:
    """60 stores look like a number until a file describes each of them."""
    log = clicks().with_columns(shop=pl.col("user").str.slice(1).cast(pl.Int64) + 1, height=pl.col("price") / 7)
    (tmp_path / "log.csv").write_text(lines(log))
    shops = pl.DataFrame({"shop": range(1, 61), "shape": ["a", "b", "c"] * 20})
    (tmp_path / "shops.csv").write_text(lines(shops))
    (tmp_path / "heights.csv").write_text(lines(pl.DataFrame({"height": [0.5, 1.5, 2.5], "word": ["x", "y", "z"]})))
    (tmp_path / "towns.csv").write_text(lines(pl.DataFrame({"city": ["Paris", "Rome"], "mayor": ["x", "y"]})))
    (tmp_path / "other.csv").write_text(lines(pl.DataFrame({"q": [1, 2], "r": ["x", "y"]})))
    p = propose([str(tmp_path)])
    assert [(j["file"], j["key"]) for j in p.source["joins"]] == [("shops.csv", "shop")]
    assert {"shop", "shape"} <= {f.name for f in p.features.sparse}
    assert dict(p.unused) == {
        "heights.csv": "not joined: height holds times, lists or fractions, which are no keys",
        "towns.csv": "not joined: city has only 33 % of the values of the rows",
        "other.csv": "not joined: it has no column of the same name as one of the rows",
    }


@pytest.mark.parametrize(("name", "content"), [("a.bin", bytes(range(256)) * 50), ("a.json", b'[["a", 1], ["a", 2]]')])
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"convert it to one of them|write one object a line"):
        layout_of(tmp_path / name)
