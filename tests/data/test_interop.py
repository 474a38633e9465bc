"""Other projects' prepared data: NVIDIA's feature specification, read and written; TorchRec's arrays; ids as they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import feature_specs as made
import numpy as np
import polars as pl
import pytest
import yaml
from data_configs import data_config, small_config
from examples import examples
from feature_specs import CARDINALITIES, NUMBERS, Rows
from forks import run_forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_rows import frames

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features import LABEL, ResolvedData
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.export_nvidia import export
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import fixed_width, text
from recsys.data.raw.nvidia_spec import expand_spec
from recsys.data.raw.raw_format import RawFormat
from recsys.online.predictor import Predictor
from recsys.online.row_transforms import RowTransforms
from recsys.preprocess import preprocess
from recsys.schema.data_schema import DataConfig, DenseConfig, LabelConfig, SparseConfig

SPLITS = ("train", "validation", "test")


def config(spec: Path, home: Path, *more: str, data: str = "nvidia_feature_spec") -> DataConfig:
    where = f"data.spec={spec}" if data == "nvidia_feature_spec" else f"data.root={spec}"
    found = data_config(compose("preprocess", [f"data={data}", where, f"data.prepared={home / 'prepared'}", *more]))
    check_data(found)
    return found


def assert_rows(frame: pl.DataFrame, of: Rows) -> None:
    """Every value, in the type that models read."""
    assert frame.columns == [LABEL, *NUMBERS, *CARDINALITIES]
    for name in NUMBERS:
        assert frame[name].dtype == pl.Float32
        assert np.array_equal(frame[name].to_numpy(), of[name].astype(np.float32))
    for name in CARDINALITIES:
        assert frame[name].dtype == pl.Int32 and np.array_equal(frame[name].to_numpy(), of[name])
    assert np.array_equal(frame[LABEL].to_numpy(), of["label"].astype(np.float32))


def part(of: Rows, a: int, b: int) -> Rows:
    return {name: values[a:b] for name, values in of.items()}


@pytest.mark.parametrize("cuts", [(), (7, 500, 501)])
def test_split_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...]) -> None:
    monkeypatch.setattr(RawFormat, "range_rows", 300)
    monkeypatch.setattr(fixed_width, "BLOCK_ROWS", 64)
    train, test = made.rows(1000), made.rows(600, 1)
    spec = made.split_binary(tmp_path / "raw", {"train": train, "test": test}, cuts)
    prepared = prepare(config(spec, tmp_path))
    assert len(prepared.info["read"]) == 4 + 2
    assert {f.name: f.cardinality for f in prepared.fitted.features.sparse} == CARDINALITIES
    assert not prepared.fitted.vocabularies
    done = frames(prepared)
    assert_rows(done["train"], part(train, 0, 900))  # without a mapping of its own, the last tenth validates
    assert_rows(done["validation"], part(train, 900, 1000))
    assert_rows(done["test"], test)
    assert "the last 10% of train's rows validate, not train" in prepared.info["split"]
    (tmp_path / "raw").rename(tmp_path / "moved")
    assert prepare(config(tmp_path / "moved" / spec.name, tmp_path)).folder == prepared.folder


def test_a_validation_mapping(tmp_path: Path) -> None:
    of = {"train": made.rows(200), "test": made.rows(100, 1), "validation": made.rows(50, 2)}
    done = frames(prepare(config(made.split_binary(tmp_path / "raw", of), tmp_path)))
    for split in SPLITS:
        assert_rows(done[split], of[split])


@pytest.mark.parametrize(
    ("chunks", "cuts"),
    [
        ([["label", *NUMBERS, *CARDINALITIES]], [[]]),
        ([["label", *NUMBERS, *CARDINALITIES]], [[30, 77]]),
        ([["c_large", "n_2", "label"], [*NUMBERS[:2], "c_small", "c_middle"]], [[11], [90, 120]]),
    ],
)
def test_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[list[str]], cuts: list[list[int]]) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 200)
    train, test = made.rows(200), made.rows(150, 1)
    spec = made.csv(tmp_path / "raw", {"train": train, "test": test}, chunks, cuts)
    done = frames(prepare(config(spec, tmp_path, "data.split.validation=0.25")))
    assert_rows(done["train"], part(train, 0, 150))
    assert_rows(done["validation"], part(train, 150, 200))
    assert_rows(done["test"], test)


def test_a_bad_line_of_one_chunk_takes_its_row_alone(tmp_path: Path) -> None:
    train, test = made.rows(200), made.rows(100, 1)
    names = [["label", *NUMBERS], [*CARDINALITIES]]
    spec = made.csv(tmp_path / "raw", {"train": train, "test": test}, names, [[20], []])
    lines = (spec.parent / "train" / "1_0.csv").read_text().split("\n")
    lines[59] = "1,2"
    (spec.parent / "train" / "1_0.csv").write_text("\n".join(lines))
    prepared = prepare(config(spec, tmp_path, "data.max_bad_rows=0.01"))
    kept = {name: np.delete(values, 59) for name, values in train.items()}
    assert_rows(pl.concat([frames(prepared)[s] for s in SPLITS[:2]]), kept)
    aside = pl.read_csv(Path(f"{prepared.folder}.bad_rows.csv"))
    assert aside["line"].to_list() == [60] and "2 fields, not 3" in aside["reason"][0]
    (spec.parent / "train" / "1_0.csv").write_text("\n".join(lines[:100]) + "\n")
    with pytest.raises(UserError, match=r"1_0\.csv: has only 100 lines"):
        prepare(config(spec, tmp_path, "data.max_bad_rows=0.01"))


@given(data=st.data())
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_types_and_cardinalities(tmp_path: Path, data: st.DataObject) -> None:
    home = Path(str(tmp_path)) / str(len(list(tmp_path.iterdir())))
    home.mkdir()
    types = st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "int64"])
    dtypes = data.draw(st.lists(types, min_size=1, max_size=4))
    sizes = [data.draw(st.integers(1, min(int(np.iinfo(t).max) + 1, 2**31 - 1))) for t in dtypes]
    n = data.draw(st.integers(10, 40))
    values = [np.array(data.draw(st.lists(st.integers(0, s - 1), min_size=n, max_size=n))) for s in sizes]
    names = [f"f{i}" for i in range(len(dtypes))]
    for name, t, v in zip(names, dtypes, values, strict=True):
        v.astype(t).tofile(home / f"{name}.bin")
    (np.arange(n) % 2 == 0).tofile(home / "label.bin")
    (np.arange(n) % 2 == 0).tofile(home / "label_test.bin")
    chunks = [{"type": "split_binary", "features": [x], "files": [f"{x}.bin"]} for x in names]
    of = {f: {"dtype": t, "cardinality": s} for f, t, s in zip(names, dtypes, sizes, strict=True)}
    label = [{"type": "split_binary", "features": ["label"], "files": [f"label{x}.bin"]} for x in ("", "_test")]
    splits = {"train": [*chunks, label[0]], "test": [*chunks, label[1]]}
    channels = {"categorical": names, "label": ["label"]}
    spec = made.save(home, splits, feature_spec=of | {"label": {"dtype": "bool"}}, channel_spec=channels)
    prepared = prepare(config(spec, home))
    done = frames(prepared)
    for name, size, v in zip(names, sizes, values, strict=True):
        assert prepared.fitted.features.tables[name][0].cardinality == size
        assert done["test"][name].to_list() == v.tolist()
        assert done["train"][name].to_list() + done["validation"][name].to_list() == v.tolist()


def published_type(size: int) -> Any:
    """As dlrm/data/defaults.py tells a file's type from the cardinality."""
    return next(t for t in (np.int8, np.int16, np.int32) if size < np.iinfo(t).max)


def test_round_trip(tmp_path: Path) -> None:
    overrides = ["data=criteo", "data.sample.rows=5000", f"data.prepared={tmp_path / 'prepared'}"]
    first = preprocess(compose("preprocess", [*overrides, f"export={tmp_path / 'out'}"]))
    spec = tmp_path / "out" / "feature_spec.yaml"
    content = yaml.safe_load(spec.read_text())
    assert sorted(content["source_spec"]) == ["test", "train"]  # which NVIDIA's loader insists on
    used = [c for chunk in content["source_spec"]["train"] for c in chunk["features"]]
    assert sorted(used) == sorted(content["feature_spec"])
    assert all(len(chunk["files"]) == 1 for chunk in content["source_spec"]["train"])
    rows = first.rows("train")
    for name in content["channel_spec"]["categorical"]:
        about = content["feature_spec"][name]
        file = spec.parent / "train" / "categorical" / f"{name}.bin"
        dtype = np.dtype(published_type(about["cardinality"]))
        assert about["dtype"] == dtype.name and file.stat().st_size == rows * dtype.itemsize
    assert (spec.parent / "train" / "numerical.bin").stat().st_size == rows * 13 * 2
    second = prepare(config(spec, tmp_path))
    a, b = first.fitted.features, second.fitted.features
    assert [(f.name, f.cardinality, f.table) for f in a.sparse] == [(f.name, f.cardinality, f.table) for f in b.sparse]
    before, after = frames(first), frames(second)
    for split in SPLITS:
        assert after[split].columns == before[split].columns
        halved = before[split].with_columns(
            pl.Series(f.name, before[split][f.name].to_numpy().astype(np.float16).astype(np.float32)) for f in a.dense
        )
        assert after[split].equals(halved)
    export(second, tmp_path / "again")  # from here on to the bit
    for file in (p for p in spec.parent.rglob("*") if p.is_file()):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(spec.parent)).read_bytes()
    with pytest.raises(UserError, match="exists already"):
        export(second, tmp_path / "again")


def test_shared_tables_and_what_cannot_be_exported(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    lines = "".join(f"{i % 2},{i * 1000},a{i % 3},a{i % 5},x y\n" for i in range(100))
    (tmp_path / "raw" / "f.csv").write_text("y,n,a,b,t\n" + lines)
    sparse = {"a": SparseConfig(table="s"), "b": SparseConfig(table="s")}
    dense = {"n": DenseConfig(transform=[])}
    data = ResolvedData("t", str(tmp_path / "raw"), label=LabelConfig("y"), prepared=str(tmp_path / "prepared"))
    data = replace(data, sparse=dict(sparse), dense={"n": DenseConfig()})
    export(prepare(replace(data)), tmp_path / "out")
    again = expand_spec(ResolvedData("t", spec=str(tmp_path / "out" / "feature_spec.yaml")))
    assert [c and (c.table, c.rows) for c in again.sparse.values()] == [("s", 6), ("s", 6)]
    data = replace(data, dense=dict(dense))
    with pytest.raises(UserError, match=r"n has values above 65504"):
        export(prepare(replace(data)), tmp_path / "large")
    assert not (tmp_path / "large").exists()
    data = replace(data, dense={}, sparse=sparse | {"t": SparseConfig(split=" ")})
    with pytest.raises(UserError, match=r"remove it with ~data\.sparse\.t"):
        export(prepare(replace(data)), tmp_path / "bags")


@pytest.mark.slow
def test_days_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawFormat, "range_rows", 70)
    raw = made.days(tmp_path / "raw", 12, 100)
    prepared = prepare(config(tmp_path / "raw", tmp_path, "data.sparse_defaults.min_count=1", data="criteo_npy"))
    names = [Path(f).name for f in prepared.info["files"]]
    assert names == [f"day_{i}_labels.npy" for i in range(12)]  # 10 after 9
    dense, sparse, labels = (np.concatenate([day[i] for day in raw]) for i in range(3))
    done = pl.concat([frames(prepared)[s] for s in SPLITS])
    assert np.array_equal(done.select(f"int_{i}" for i in range(1, 14)).to_numpy(), dense)
    assert np.array_equal(done[LABEL].to_numpy(), labels[:, 0])
    for i in range(26):
        known = prepared.fitted.vocabularies[f"cat_{i + 1}"]
        ids = dict(zip(known["value"], known["id"], strict=True))
        assert done[f"cat_{i + 1}"].to_list() == [ids.get(str(v), 0) for v in sparse[:, i]]


def test_contiguous_ids_of_arrays_beside_the_raw_ones(tmp_path: Path) -> None:
    raw = made.days(tmp_path / "raw", 2, 100)
    (tmp_path / "ids").mkdir()
    for day, (_, sparse, _) in enumerate(raw):
        np.save(tmp_path / "ids" / f"day_{day}_sparse_contig_freq.npy", (sparse.astype(np.int64) % 50).astype(np.int32))
    more = ["data.sparse_defaults={encode: id, rows: 50, pooling: sum}"]
    more += ["data.source.arrays.sparse.file='../ids/{}_sparse_contig_freq.npy'"]
    prepared = prepare(config(tmp_path / "raw", tmp_path, *more, data="criteo_npy"))
    done = pl.concat([frames(prepared)[s] for s in SPLITS])
    assert done["cat_26"].to_list() == [int(v) % 50 for day in raw for v in day[1][:, 25]]
    assert prepared.fitted.features.tables["cat_26"][0].cardinality == 50


MISTAKES = [  # where in the specification, what is there instead, what is told
    ("source_spec.test", None, r"feature_spec.yaml: source_spec.test: must be set"),
    ("source_spec.valid", [], r"source_spec.valid: no such key; did you mean validation"),
    ("channel_spec", None, r"channel_spec: must be set"),
    ("channel_spec.categorical.0", "c_smal", r"c_smal is not in .*did you mean c_small\?"),
    ("channel_spec.user", [], r"channel_spec.user: no such key"),
    ("channel_spec.label", [], r"channel_spec.label=.*is empty"),
    ("feature_spec.c_small.dtype", "int9", r"c_small.dtype=int9: must be a numeric type"),
    ("feature_spec.c_small.cardinality", 0, r"cardinality=0: must be at least 1"),
    ("feature_spec.c_small.cardinality", 99, r"c_small is not a whole number from 0 to 98 .*line 2"),
    ("source_spec.train.0", None, r"source_spec.train: no chunk has the feature n_0"),
    ("source_spec.train.0.type", "csvv", r"type=csvv: .* did you mean csv\?"),
    ("source_spec.train.0.files", None, r"files: must be set"),
    ("source_spec.test.0.type", "csv", r"cannot be mixed"),
]
FILES = [  # a file, what is in it instead or added to it, what is told
    ("feature_spec.yaml", "a: [1, 2\nb: }", r"feature_spec.yaml: line 2: not YAML"),
    ("feature_spec.yaml", "- a\n", r"must have the keys feature_spec"),
    ("feature_spec.yaml", None, r"data.spec=.*: no such file"),
    ("train/c_small.bin", None, r"c_small.bin: no such file; it should hold c_sm"),
    ("train/c_large.bin", b"abc", r"c_large.bin: 803 bytes are not a whole number of rows of 4 bytes \(1 x int32\)"),
    ("train/c_large.bin", bytes(40), r"c_large.bin: 210 rows, but .*numerical_0.bin has 200"),
]


@pytest.mark.parametrize(("where", "value", "expected"), [*MISTAKES, *FILES])
def test_mistakes(tmp_path: Path, where: str, value: Any, expected: str) -> None:
    spec = made.split_binary(tmp_path / "raw", {"train": made.rows(200), "test": made.rows(100, 1)})
    if (where, value, expected) in FILES:
        file = spec.parent / where
        if value is None:
            file.unlink()
        else:
            file.write_bytes(value.encode() if isinstance(value, str) else file.read_bytes() + value)
    else:
        content = yaml.safe_load(spec.read_text())
        *path, last = (int(k) if k.isdigit() else k for k in where.split("."))
        at = content
        for key in path:
            at = at[key]
        if value is None:
            at.pop(last)
        else:
            at[last] = value
        spec.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=expected) as e:
        prepare(config(spec, tmp_path))
    assert "\n" not in str(e.value)


def test_mistakes_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.spec: missing; set it to the path of a feature_spec\.yaml"):
        check_data(data_config(compose("preprocess", ["data=nvidia_feature_spec"])))
    raw = made.days(tmp_path / "raw", 1, 10)
    np.save(tmp_path / "raw" / "day_0_dense.npy", raw[0][0][:, :12])
    with pytest.raises(UserError, match=r"day_0_dense\.npy: holds 10x12 of float32, not rows of 13"):
        check_raw_files(config(tmp_path / "raw", tmp_path, data="criteo_npy"))
    (tmp_path / "raw" / "day_0_dense.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"day_0_dense\.npy: not a NumPy array"):
        check_raw_files(config(tmp_path / "raw", tmp_path, data="criteo_npy"))
    (tmp_path / "raw" / "day_0_dense.npy").unlink()
    with pytest.raises(UserError, match=r"day_0_dense\.npy: no such file; it should hold int_1"):
        check_raw_files(config(tmp_path / "raw", tmp_path, data="criteo_npy"))


def ids(tmp_path: Path, **more: Any) -> DataConfig:
    sparse = {"s": SparseConfig(encode="id", rows=7), "b": SparseConfig(encode="id", rows=5, split=" ", max_length=2)}
    return small_config(tmp_path, **({"sparse": sparse, "max_bad_rows": 0.5} | more))


ROWS = [(i % 2, str(i % 7), " ".join(str((i + j) % 5) for j in range(i % 4))) for i in range(40)]
BAD = [(1, s, "1") for s in ("7", "-1", "1.5", "x", "")] + [(1, "2", "1 9"), (0, "2", "q"), (1, "9" * 20, "1")]


@pytest.mark.parametrize("kind", ["csv", "parquet", "typed parquet"])
def test_ids_of_csv_and_parquet(tmp_path: Path, kind: str) -> None:
    (tmp_path / "raw").mkdir()
    rows = pl.DataFrame([*ROWS, *BAD], schema=["y", "s", "b"], orient="row")
    data = ids(tmp_path)
    if kind == "csv":
        rows.write_csv(tmp_path / "raw" / "f.csv", quote_style="never")
    else:
        data.source.format = "parquet"
        if kind == "typed parquet":
            number = pl.col("s").cast(pl.Float64, strict=False)
            elements = pl.col("b").str.split(" ").list.eval(pl.element().cast(pl.Int16, strict=False))
            rows = rows.with_columns(number, elements.list.drop_nulls())
        rows.write_parquet(tmp_path / "raw" / "f.parquet")
    prepared = prepare(data)
    done = pl.concat([frames(prepared)[s] for s in SPLITS])
    assert done["s"].to_list()[:40] == [int(s) for _, s, _ in ROWS] and done["s"].dtype == pl.Int32
    assert done["b"].to_list()[:40] == [[int(v) for v in b.split()[:2]] for _, _, b in ROWS]
    assert {f.name: f.cardinality for f in prepared.fitted.features.sparse} == {"s": 7, "b": 5}
    aside = pl.read_csv(Path(f"{prepared.folder}.bad_rows.csv"))
    odd = "is not a whole number from 0 to"
    missing = "s is missing, and encode=id has no row for that"
    number = missing if kind == "typed parquet" else f"s {odd} 6"  # a cast made null of what was no number
    reasons = [f"s {odd} 6"] * 3 + [number, missing, f"b {odd} 4", f"b {odd} 4", f"s {odd} 6"]
    if kind == "typed parquet":
        reasons.pop(6)  # and of 'q' no element
    assert aside["reason"].to_list() == reasons
    pipeline = RowTransforms.load(prepared.folder)
    typed = kind == "typed parquet"
    given_rows = [{"s": int(s), "b": [int(v) for v in b.split()] if typed else b} for _, s, b in ROWS]
    assert pipeline.frame(given_rows).equals(done.head(40).drop(LABEL))
    with pytest.raises(UserError, match=r"column s: .*7.* is not a whole number"):
        pipeline({"s": 7, "b": "1" if kind != "typed parquet" else [1]})


def command(run: Any, name: str, *arguments: str, cwd: Path) -> str:
    done = run(f"recsys.{name}", *arguments, cwd=cwd, env={"CUDA_VISIBLE_DEVICES": ""}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_train_plan_and_predict(tmp_path: Path, run_command: Any) -> None:
    spec = made.split_binary(tmp_path / "raw", {"train": made.rows(2000), "test": made.rows(600, 1)})
    of = ["data=nvidia_feature_spec", f"data.spec={spec}"]
    small = ["trainer.batch_size=256", "trainer.threads=1", "model.dim=8", "model.bottom_mlp=[8]"]
    command(run_forked, "train", *of, *small, "trainer.max_steps=5", "run_dir=run", cwd=tmp_path)
    assert (tmp_path / "run" / "metrics.json").exists()
    told = command(run_command, "plan", *of, "model.dim=8", "model.bottom_mlp=[8]", "cluster.devices=2", cwd=tmp_path)
    assert "c_large" in told
    rows = pl.DataFrame({n: v for n, v in made.rows(50, 3).items() if n != "label"})
    rows.with_columns(pl.col(NUMBERS).cast(pl.Float32)).write_csv(tmp_path / "rows.csv")
    command(run_forked, "predict", "run=run", "input=rows.csv", "output=scores.parquet", cwd=tmp_path)
    scores = pl.read_parquet(tmp_path / "scores.parquet")["probability"]
    assert scores.len() == 50 and scores.null_count() == 0
    wrong = rows.with_columns(pl.lit(100, pl.Int64).alias("c_small"))
    predicted = Predictor.load(str(tmp_path / "run")).predict(pl.concat([rows.cast(wrong.schema), wrong]))
    assert predicted[:50].equals(scores.alias(predicted.name)) and predicted[50:].null_count() == 50
