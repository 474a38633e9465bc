"""Artefacts of real runs: what they hold, that they give what recsys.predict gives, and what they refuse."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from export_command import export_message
from fake_triton import Request, TritonError, config_of, loaded, texts
from forks import ok, run_forked
from google.protobuf import text_format
from milvus_servers import free_port, lite, whole
from tritonclient.grpc import model_config_pb2

import recsys
from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.export import __main__ as export
from recsys.export.artefact import Artefact, load
from recsys.export.artefact.graph_io import SingleGraph, TableSession, open_session
from recsys.export.artefact.load_artefact import model_of, verify
from recsys.export.exported import ExportSource, Form
from recsys.export.triton import recommend, transforms
from recsys.export.write_artefact import write_artefact
from recsys.files import manifest
from recsys.files.manifest import DamagedFile
from recsys.job import run_config
from recsys.online.predictor import Predictor
from recsys.online.query_parameters import make_query
from recsys.online.recommender import Recommender
from recsys.online.row_error import RowError
from recsys.online.servable import Query
from recsys.training.evaluate_run import evaluate_ensemble
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint, open_run

SEQUENCES = ["data=sample_sequences", "data.sample.rows=3000", "trainer.threads=1"]


def trained(folder: Path, *overrides: str) -> Path:
    run = folder / "run"
    train(compose("train", [*overrides, f"data.prepared={folder / 'prepared'}", f"run_dir={run}"]))
    return run


def export_run(run: Path, output: Path, *overrides: str) -> str | None:
    return export_message(f"run={run}", f"output={output}", *overrides)


CRITEO = ["data=criteo", "data.sample.rows=3000", "trainer.threads=1", "trainer.max_epochs=1", "trainer.batch_size=256"]


def beside_a_gpu(accelerator: str) -> str:
    return "gpu" if accelerator == "auto" else accelerator


@pytest.fixture(scope="module")
def raw(run: Path) -> pl.DataFrame:
    [folder] = [f for f in (run.parent / "prepared").glob("sample-*") if f.is_dir()]
    file = folder / "train.tsv"
    columns = ["label", *(f"int_{i}" for i in range(1, 14)), *(f"cat_{i}" for i in range(1, 27))]
    text = pl.read_csv(file, separator="\t", has_header=False, new_columns=columns, infer_schema=False, quote_char=None)
    return text.tail(700).drop("label")


def test_an_artefact_is_complete(artefact: Path, run: Path) -> None:
    about = Artefact.open(artefact).about
    assert (about["name"], about["kind"], about["opset"], about["tolerance"]) == ("clicks", "ranking", 21, 1e-5)
    assert about["versions"].keys() >= {"recsys", "torch", "onnxruntime"}
    assert about["formats"] == ["onnx", "single_graph", "torchscript"]
    tested = json.loads((run / "metrics.json").read_text())["test"]
    assert about["metrics"]["run"] == tested
    assert about["metrics"]["artefact"]["auc"] == pytest.approx(tested["auc"], abs=1e-4)
    assert about["metrics"]["artefact"]["rows"] == tested["rows"]
    inputs = {s.name: s for s in Artefact.open(artefact).signature["inputs"]}
    assert len(inputs) == 39 and inputs["cat_1"].datatype == "BYTES"
    examples = json.loads((artefact / "examples.json").read_text())
    assert len(examples["rows"]) == len(examples["outputs"]["probability"]) == 256
    state = (artefact / "pipeline" / "transforms.json").read_text()
    assert str(run.parent) not in state and str(run.parent) not in (artefact / "manifest.json").read_text()


def test_an_ensemble_is_measured_on_the_cpu_beside_a_gpu(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_config, "device_of", beside_a_gpu)
    tested = json.loads((run / "metrics.json").read_text())["test"]["auc"]
    assert evaluate_ensemble([str(run)])["mean"]["auc"] == pytest.approx(tested, abs=1e-6)


def test_outputs_are_those_of_predict(artefact: Path, run: Path, raw: pl.DataFrame) -> None:
    """Raw rows with missing and unseen values, one at a time and together, in every form."""
    raw = raw.with_columns(
        pl.when(pl.int_range(pl.len()) % 3 == 0).then(pl.lit("")).otherwise(pl.col("int_2")).alias("int_2"),
        pl.when(pl.int_range(pl.len()) % 5 == 0).then(pl.lit("new!")).otherwise(pl.col("cat_3")).alias("cat_3"),
    )
    expected = Predictor.load(str(run)).predict(raw).to_numpy()
    assert expected.std() > 0.05
    model, rows = load(artefact), raw.to_dicts()
    together = model.run(model.features(rows))["probability"]
    assert np.abs(together - expected).max() < 1e-5
    by_column = model.run(model.features_of_columns(raw.to_dict(as_series=False), raw.height))["probability"]
    assert np.array_equal(by_column, together)
    alone = [model.run(model.features([row]))["probability"][0] for row in rows[:50]]
    assert np.abs(alone - expected[:50]).max() < 1e-5
    one_graph = SingleGraph(artefact / "single_graph.onnx")(rows)["probability"]
    assert np.abs(one_graph - expected).max() < 1e-5
    assert model.run(model.features([]))["probability"].shape == (0,)
    shares = model.unknown_shares(model.features(rows))
    assert shares["cat_3"] > 0.2 and set(shares) == {f"cat_{i}" for i in range(1, 27)}


def test_bad_rows_are_named(artefact: Path) -> None:
    with pytest.raises(RowError, match=r"^rows\[1\]: column int_4: 'dear' is not a number$"):
        load(artefact).features([{"int_4": "3"}, {"int_4": "dear"}])
    with pytest.raises(
        UserError, match=r"^model clicks scores rows and cannot recommend items; send rows to /predict$"
    ):
        load(artefact).recommend([Query([{}])])


def test_bad_values_of_shared_columns_are_named(artefact: Path) -> None:
    with pytest.raises(RowError, match=r"^column int_1: 'x' is not a number$"):
        load(artefact).features([{}, {}], {"int_1": "x"})
    with pytest.raises(RowError, match=r"^rows\[1\]: column int_3: 'x' is not a number$"):
        load(artefact).features([{}, {"int_3": "x"}], {"int_1": "3"})


def test_the_graph_names_no_folder_of_the_machine_that_exported_it(artefact: Path) -> None:
    assert str(Path(recsys.__file__).parent).encode() not in (artefact / "model.onnx").read_bytes()


def test_it_loads_without_torch(artefact: Path) -> None:
    code = f"""
import sys
from recsys.export.artefact import load
model = load({str(artefact)!r})
print(model.run(model.features([{{"int_1": "3"}}]))["probability"].shape,
      [m for m in ("torch", "pytorch_lightning", "hydra", "torchrec", "wandb", "onnx") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1,) []"


def test_tables_larger_than_the_memory(artefact: Path, raw: pl.DataFrame) -> None:
    """They are mapped here and are inputs of the graph, because ONNX Runtime cannot map them; the outputs are the same."""
    model = load(artefact)
    usual, own = (open_session(artefact / "model.onnx", own_share=share) for share in (0.5, 0.0))
    assert isinstance(own, TableSession) and set(own.tables) == {"table_dim16"}
    assert [i.name for i in own.get_inputs()] == [i.name for i in usual.get_inputs()] == ["dense", "ids"]
    feed = model.features(raw.head(50).to_dicts()).feed
    assert np.array_equal(own.run(None, feed)[0], usual.run(None, feed)[0])
    parts = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [after.split("\n", 1)[0] for before, after in pairwise(parts) if str(artefact) in before.split("\n", 2)[1]]
    assert any(" rr" in f and " wr" not in f for f in flags)  # for reading, in no order


def test_verify_repeats_the_proof_and_finds_what_differs(artefact: Path, tmp_path: Path) -> None:
    found = verify(artefact)
    assert found.rows == 256 and found.difference < 1e-6
    moved = tmp_path / "elsewhere"
    shutil.copytree(artefact, moved)
    assert verify(moved).difference == found.difference
    examples = json.loads((moved / "examples.json").read_text())
    examples["outputs"]["probability"][7] += 0.01
    (moved / "examples.json").write_text(json.dumps(examples))
    about = manifest.read_json(moved / "manifest.json")
    manifest.write(moved, manifest.entries_of(moved), {"artefact": about["artefact"]})
    with pytest.raises(UserError, match=r"row 7 of examples.json gives an output that differs by 0.01 from the run's"):
        verify(moved)


def test_other_folders_are_refused(artefact: Path, run: Path, tmp_path: Path) -> None:
    hint = r"write an artefact with python -m recsys.export run=RUN output=DIR$"
    with pytest.raises(UserError, match=rf"is a run; {hint}"):
        load(run)
    with pytest.raises(UserError, match=rf"is not an artefact; {hint}"):
        load(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(artefact, copy)
    (copy / "evil.py").write_text("")
    with pytest.raises(UserError, match=r"evil.py: is not in manifest.json; remove it or export the run again$"):
        load(copy)
    (copy / "evil.py").unlink()
    (copy / "triton/clicks_model/1/__pycache__").mkdir()
    (copy / "triton/clicks_model/1/__pycache__/model.pyc").touch()  # as Triton's Python does
    load(copy)
    (copy / "examples.json").rename(tmp_path / "examples.json")
    with pytest.raises(DamagedFile, match=r"examples.json: is missing"):
        load(copy, digests=False)
    (tmp_path / "examples.json").rename(copy / "examples.json")
    about = Artefact.open(copy).about
    manifest.write(copy, manifest.read(copy) or {}, {"artefact": {**about, "format": "1"}})
    with pytest.raises(
        UserError, match=r"has format '1' of artefacts, and this version of recsys reads format 1; export"
    ):
        load(copy)


def test_tritons_configuration_is_valid(artefact: Path) -> None:
    """Triton's own schema parses it, and the ensemble connects inputs, features and outputs."""
    configs = {}
    for file in (artefact / "triton").glob("*/config.pbtxt"):
        configs[file.parent.name] = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    assert set(configs) == {"clicks", "clicks_transforms", "clicks_model"}
    whole, transforms, model = (configs[n] for n in ("clicks", "clicks_transforms", "clicks_model"))
    assert whole.platform == "ensemble" and model.backend == "onnxruntime" and transforms.backend == "python"
    assert whole.max_batch_size == 65536 and transforms.dynamic_batching.max_queue_delay_microseconds == 7000
    assert len(transforms.input) == 39 and [o.name for o in transforms.output] == ["dense", "ids"]
    first, second = whole.ensemble_scheduling.step
    assert {*first.output_map.values()} == {*second.input_map.values()} == {"dense", "ids"}
    assert [*second.output_map.values()] == ["probability"]
    assert len(transforms.model_warmup[0].inputs) == 39
    assert (artefact / "triton/clicks_model/1/tables/dim16.bin").stat().st_ino == (
        artefact / "tables/dim16.bin"
    ).stat().st_ino  # linked


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tables=int9"], "tables=int9: "),
        (["format=onxx"], "format=onxx: "),
        (["triton=true", "dense_backend=pytorch"], "dense_backend=pytorch: needs format=torchscript"),
        (["checkpoint=step-7"], "checkpoint=step-7: not in "),
        (["rows=nothing.csv"], "rows=nothing.csv: no such file"),
        (["output={there}"], "output={there}: already exists, and is not an artefact"),
    ],
)
def test_mistakes_are_one_line(overrides: list[str], message: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    found = export_run(run, tmp_path / "out", *(o.format(there=tmp_path / "there") for o in overrides))
    assert found is not None and found.startswith(message.format(there=tmp_path / "there"))
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_checkpoint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert export_run(tmp_path / "run", tmp_path / "out") == (
        f"run={tmp_path / 'run'}: is not a run folder (it has no config.yaml)"
    )
    shutil.copy(run / "config.yaml", tmp_path / "run")
    assert export_run(tmp_path / "run", tmp_path / "out") == (
        f"run={tmp_path / 'run'}: has no checkpoint, so there is nothing to export; train it to its first checkpoint"
    )


@pytest.mark.slow
def test_an_artefact_is_replaced_at_the_end(run: Path, tmp_path: Path) -> None:
    """As the docs tell to export again: until then, the old one stays."""
    for name in ("one", "two"):
        assert export_run(run, tmp_path / "served", f"name={name}") is None
        assert Artefact.open(tmp_path / "served").name == name


def test_the_command_verifies(artefact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, sys.argv = sys.argv, ["recsys.export", "verify", str(artefact)]
    try:
        with pytest.raises(SystemExit) as done:
            export.main()
    finally:
        sys.argv = before
    assert done.value.code == 0 and "256 rows agree within" in capfd.readouterr().err


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("item_knn"), "model=item_knn", *SEQUENCES)


def test_lists_are_those_of_predict(listed: Path) -> None:
    """A closed-form model: histories in, the same items and scores out as recsys.predict gives."""
    output = listed.parent / "artefact"
    assert export_run(listed, output, "triton=true") is None
    [file] = (listed.parent / "prepared").glob("sample-sequences-*/log.csv")
    log = pl.read_csv(file, infer_schema=False)
    users = log["user"].unique(maintain_order=True).head(30)
    expected = Recommender.load(str(listed)).recommend(log.filter(pl.col("user").is_in(users.implode())), 5)
    model = load(output)
    histories = {user: log.filter(pl.col("user") == user) for user in expected["user"]}
    found = model.recommend([Query(h.to_dicts(), 5) for h in histories.values()])
    for (items, scores), row in zip(found, expected.iter_rows(named=True), strict=True):
        assert items == row["items"] and np.abs(np.array(scores) - row["scores"]).max(initial=0) < 1e-5
    history = next(iter(histories.values())).to_dicts()
    without_keys = [{"item": r["item"]} for r in history]  # neither user nor time: the order is that of the rows
    assert model.recommend([Query(without_keys, 5)]) == model.recommend([Query(history, 5)])
    best = found[0][0][0]
    [(items, _)] = model.recommend([Query(history, 5, exclude=[best])])
    assert best not in items and items[0] == found[0][0][1]
    chosen = [*found[0][0][2:4], "never seen"]
    assert model.recommend([Query(history, 5, candidates=chosen)]) == [(chosen[:2], found[0][1][2:4])]
    assert model.recommend([Query(history, 5, candidates=[])]) == [([], [])]
    [(items, _)] = model.recommend([Query(history, 5, filter_history=False)])
    assert set(items) & {r["item"] for r in history}
    [(popular, scores)] = model.recommend([Query([], 3)])
    assert len(popular) == 3 and set(scores) == {0.0}
    with pytest.raises(UserError, match=r"^k=0: must be at least 1$"):
        model.recommend([Query(history, 0)])
    [(short, _)] = model.recommend([Query(history, 10**9)])  # as many as there are
    assert short[:2] == model.recommend([Query(history, 2)])[0][0] and 10 < len(set(short)) == len(short)
    check_triton(output / "triton", history, model)
    message = export_run(listed, listed.parent / "other", "format=torchscript")
    assert message == "format=torchscript: applies to models that score rows; leave it out"


def check_triton(repository: Path, history: list[dict[str, Any]], model: Any) -> None:
    """Triton's schema parses the configuration, and the Python model in it answers like the artefact."""
    [folder] = (path for path in repository.iterdir() if path.is_dir())
    config = config_of(folder)
    assert (config.backend, config.max_batch_size) == ("python", 0)
    assert [o.name for o in config.output] == ["items", "scores"]
    assert not config.model_warmup  # the column of times has no empty value, and Triton would not load the model
    [(items, scores)] = model.recommend([Query(history, 4, exclude=["nothing"])])
    rows = texts(history)
    with loaded(recommend.TritonPythonModel(), folder) as served:
        good, none, beyond, *wrong = served.execute(
            [
                Request(rows, k=4, exclude="nothing"),
                Request({}),
                Request(rows, k=10**6),
                Request(rows, k=0),
                Request(rows, filter_history="yes"),
                Request(rows, kk=3),
                Request(rows, candidates="nothing,nobody"),
                Request(rows, candidates=""),
                Request(rows | {"time": np.array([b"x"] * len(history), object)}),
                Request(rows | {"item": np.array([b"\xff"] * len(history), object)}),
            ]
        )
    assert good == {"items": list(map(str, items)), "scores": pytest.approx(scores)} and len(none["items"]) > 0
    assert beyond["items"][:2] == model.recommend([Query(history, 2)])[0][0] and len(beyond["items"]) > 4
    says = [
        "k: must be a whole number from 1 to ",
        "filter_history: must be true or false",
        "parameters.kk: no such key; did you mean k?",
        "candidates: the model knows none of them, such as 'nothing'; leave it out",
        "candidates: names no item; ",
        "history[0]: column time: 'x' is neither a number nor a time",
        "input item: a value is not UTF-8 text",
    ]
    for error, start in zip(wrong, says, strict=True):
        assert error.startswith(start) and error.code == TritonError.INVALID_ARG, error


def test_a_bad_row_in_triton_fails_its_own_request(artefact: Path) -> None:
    """With the code of a mistake of the caller, which is 400 over HTTP."""
    good, bad = texts([{"int_1": "3", "cat_1": "a"}]), texts([{"int_1": "oops", "cat_1": "a"}])
    with loaded(transforms.TritonPythonModel(), artefact / "triton" / "clicks_transforms") as model:
        [alone] = model.execute([Request(good)])
        answers = model.execute([Request(good), Request(bad), Request(good, k=3), Request(good)])
        assert model.execute([Request(good), Request(good)]) == [alone, alone]
    assert answers[0] == answers[3] == alone and set(alone) == {"dense", "ids"}
    assert answers[1] == "rows[0]: column int_1: 'oops' is not a number" and answers[2] == "parameters.k: no such key"
    assert answers[1].code == answers[2].code == TritonError.INVALID_ARG


def test_a_user_without_items_whose_items_are_numbers(tmp_path: Path) -> None:
    """A column of whole numbers has no text that stands for an unknown item. Only data.where reads `bought`."""
    data = tmp_path / "data"
    data.mkdir()
    log = {"user": [u for u in range(30) for _ in range(5)], "item": [i % 7 for i in range(150)], "time": range(150)}
    pl.DataFrame({**log, "bought": [i % 5 > 0 for i in range(150)]}).write_parquet(data / "log.parquet")
    (data / "items.csv").write_text("item,kind,price\n" + "".join(f"{i},k,{i + 1}\n" for i in range(7)))
    source = ["data.source.format=parquet", "data.source.files=[log.parquet]", f"data.root={data}"]
    run = trained(tmp_path / "out", "model=item_knn", *SEQUENCES, "data.sample=null", "data.where=bought", *source)
    pl.DataFrame(log).write_parquet(tmp_path / "other.parquet")
    message = export_run(run, tmp_path / "artefact", f"rows=[{tmp_path}/other.parquet]")
    assert message == "data.where=bought: keeps no row to compare; name files with rows=FILES"
    assert export_run(run, tmp_path / "artefact") is None
    model = load(tmp_path / "artefact")
    histories = [[{"user": 3, "item": None}], *([{"user": 3, "item": 2, "bought": bought}] for bought in (True, False))]
    (nothing, _), (known, _), (left_out, _) = model.recommend([Query(history, 3) for history in histories])
    assert len(nothing) == 3 and all(isinstance(i, int) for i in nothing) and 2 not in known and left_out == nothing
    with pytest.raises(UserError, match=r'^history\[0\]: has no column item; .*send \{"item": null, \.\.\.\}$'):
        model.recommend([Query([{"user": 3}])])
    unknown = Query([{"item": "7"}, {"item": 2.0}, {"item": None}])
    assert model.known_items(unknown) == (1, 2) and model.known_items(Query([])) == (0, 0)
    every = model.recommend([Query([], 7)])[0][0]
    without = [model.recommend([make_query([], {"k": 6, "exclude": [form]})])[0][0] for form in (2, 2.0, "2", "2.0")]
    assert without == [[i for i in every if i != 2]] * 4
    assert model.recommend([make_query([], {"k": 2, "candidates": [2.0, "5.0", "x"]})])[0][0] == [
        i for i in every if i in (2, 5)
    ]


def test_numbers_that_are_no_rows_of_a_table_get_one_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of ONNX casts modulo 2 ** 32, and NaN and infinities to 0, so that they would be other items."""
    rng = np.random.default_rng(0)
    item, shop = rng.integers(0, 100, 2000), rng.integers(0, 9, 2000)
    (tmp_path / "raw").mkdir()
    rows = pl.DataFrame({"click": (item % 3 == 0).astype(int), "item": item, "shop": shop})
    rows.write_csv(tmp_path / "raw" / "rows.csv")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "ids.yaml").write_text(
        "name: ids\nsource: {format: csv, files: [rows.csv]}\nlabel: {column: click}\n"
        "sparse: {item: {encode: id, rows: 100}, shop: {encode: id, rows: 9}}\n"
    )
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path, "model=dlrm", "data=ids", "data.root=raw", "trainer.max_epochs=1", "trainer.threads=1")
    assert export_run(run, tmp_path / "artefact", "format=single_graph") is None
    graph = onnxruntime.InferenceSession(str(tmp_path / "artefact" / "single_graph.onnx"))

    def scores(items: Sequence[float]) -> np.ndarray:
        given = np.array(items, dtype=np.float64)[:, None]
        [found] = graph.run(None, {"item": given, "shop": np.zeros_like(given)})
        return found

    known = scores(range(100))
    plain = open_session(tmp_path / "artefact" / "model.onnx", 1)
    ids = np.stack([np.arange(-1, 100), np.zeros(101, int)], axis=1).astype(np.int32)
    [expected] = plain.run(["probability"], {"ids": ids})
    np.testing.assert_allclose(known, expected[1:], atol=1e-6)
    others = (-1, 100, 3.5, 99.5, -0.5, 2**31, 2**32 + 7, 1e19, -(2.0**32) + 7, math.nan, math.inf, -math.inf)
    np.testing.assert_allclose(scores(others), np.full(len(others), expected[0]), atol=1e-6)
    assert len(np.unique(known)) > 90


@pytest.mark.slow
def test_data_without_a_form_in_one_graph_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Several labels, groups, joins and lists; the message names all that has no form, and the artefact still works."""
    folder = tmp_path_factory.mktemp("tasks")
    run = trained(folder, "model=dcnv2", "data=sample_tasks", "data.sample.rows=3000", "trainer.max_steps=5")
    message = export_run(run, folder / "artefact", "format=single_graph")
    assert message is not None and message.startswith("format=single_graph: data.source.joins has no form in ONNX; ")
    assert message.endswith("use format=onnx, which keeps the transforms beside the graph")
    assert export_run(run, folder / "artefact", "tables=int8", "precision=fp16") is None
    about: Any = Artefact.open(folder / "artefact").about
    assert len(about["signature"]["outputs"]) >= 2 and about["metrics"]["artefact"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ivf", pytest.param("usearch", marks=pytest.mark.slow)])
def test_an_index_of_the_items(kind: str, run_of_items: Path, tmp_path: Path) -> None:
    """Lists with the index are those of all items, but for a few; scores are the model's, and nothing is left out twice."""
    assert export_run(run_of_items, tmp_path / "artefact", f"index={kind}", "recall_target=0.9") is None
    about = Artefact.open(tmp_path / "artefact").about
    assert about["index"]["kind"] == kind and about["index"]["recall"] >= 0.9 and about["index"]["queries"] > 100
    check_lists_of_an_index(tmp_path / "artefact")


@pytest.mark.slow
def test_an_index_is_searched_for_each_interest(tmp_path: Path) -> None:
    run = trained(tmp_path, "model=comirec", *SEQUENCES, "trainer.max_epochs=1")
    assert export_run(run, tmp_path / "artefact", "index=ivf", "recall_target=0.9") is None
    about = Artefact.open(tmp_path / "artefact").about
    assert about["interests"] == 2 and about["index"]["recall"] >= 0.9
    check_lists_of_an_index(tmp_path / "artefact")


@pytest.mark.slow
@pytest.mark.parametrize("server", [lite, whole])
def test_items_in_a_server(server: Any, run_of_items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with an index in Milvus. What is wrong about the server is said before anything is written."""
    pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'declarative-recsys[milvus]'")
    nowhere, output = f"http://127.0.0.1:{free_port()}", tmp_path / "artefact"
    with server(tmp_path / "milvus") as (url, _):
        for wrong, message in [
            (["index=milvus"], "index=milvus: "),
            ([f"index_url={url}"], f"index_url={url}: "),
            (["index=auto", f"index_url={url}"], f"index_url={url}: "),
            (["index=milvus", f"index_url={nowhere}"], f"{nowhere}: no Milvus server can be reached there"),
        ]:
            assert (export_run(run_of_items, output, *wrong) or "").startswith(message) and not output.exists()
        assert export_run(run_of_items, output, "index=milvus", f"index_url={url}", "recall_target=0.9") is None
        about = Artefact.open(output).about["index"]
        assert about["kind"] == "milvus" and about["recall"] >= 0.9 and about["queries"] > 100
        stored = json.loads((output / "index" / "manifest.json").read_text())["index"]["server"]
        assert stored["url"] == url and set(stored) == {"url", "digest"}
        monkeypatch.setenv("RECSYS_INDEX_URL", url)
        check_lists_of_an_index(output)
        monkeypatch.setenv("RECSYS_INDEX_URL", nowhere)
        with pytest.raises(UserError, match=f": {nowhere}: no Milvus server can be reached there"):
            load(output)
        verify(output)  # which needs no index


def check_lists_of_an_index(folder: Path) -> None:
    verify(folder)
    model, exact = load(folder), model_of(Artefact.open(folder), exact=True)
    n = Artefact.open(folder).about["items"]
    histories = json.loads((folder / "examples.json").read_text())["rows"][:60]
    shared = []
    for history in histories:
        [(items, scores)], [(all_items, all_scores)] = (m.recommend([Query(history, 10)]) for m in (model, exact))
        score = dict(zip(all_items, all_scores, strict=True))
        assert len(items) == 10 and scores == sorted(scores, reverse=True)
        assert scores == pytest.approx([score.get(i, s) for i, s in zip(items, scores, strict=True)], rel=1e-5)
        shared.append(len(set(items) & set(all_items)) / 10)
    assert np.mean(shared) > 0.85
    [(items, _)] = model.recommend([Query(histories[0], 10)])
    [(others, _)] = model.recommend([Query(histories[0], 10, exclude=items[:4])])
    assert not set(others) & set(items[:4]) and len(others) == 10
    [(every, _)] = model.recommend([Query(histories[0], n, filter_history=False)])
    assert len(every) == len(set(every)) == n
    chosen = items[2:5]
    assert model.recommend([Query(histories[0], 3, candidates=chosen)]) == exact.recommend(
        [Query(histories[0], 3, candidates=chosen)]
    )


@pytest.fixture(scope="module")
def run_of_items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("gru4rec"), "model=gru4rec", *SEQUENCES, "trainer.max_steps=3")


def test_models_without_an_index(run: Path, listed: Path, tmp_path: Path) -> None:
    for source in (run, listed):
        found = export_run(source, tmp_path / "artefact", "index=auto")
        assert found == "index=auto: this model has no item vectors; leave it out"
    assert str(export_run(listed, tmp_path / "artefact", "index=faiss")).startswith("index=faiss: no such choice")
    assert not (tmp_path / "artefact").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["sasrec", "transformer", "two_tower", "neumf", "mult_vae", "ease", "gf_cf", "chebycf", "session_knn"]
)
def test_every_family_of_retrieval_models(model: str, tmp_path: Path) -> None:
    run = trained(
        tmp_path,
        f"model={model}",
        *SEQUENCES,
        *([] if model in ("ease", "gf_cf", "chebycf", "session_knn") else ["trainer.max_epochs=1"]),
    )
    assert export_run(run, tmp_path / "artefact") is None


@pytest.mark.slow
def test_histories_of_several_and_of_one_item(tmp_path: Path) -> None:
    """Both read the items' table: the last 20 items of the user, and the one before."""
    past = [
        f"data.sparse.{n}={{column: item, table: item, {of}}}"
        for n, of in (("history", "last: 20"), ("before", "lag: 1"))
    ]
    pairs = ["data.sequences=null", "data.items.feature=item", "data.sparse.user=null", "data.label.column=null", *past]
    run = trained(tmp_path, "model=two_tower", *SEQUENCES, *pairs, "trainer.max_epochs=1")
    assert export_run(run, tmp_path / "artefact") is None
    [log] = (tmp_path / "prepared").glob("sample-sequences-*/log.csv")
    raw = pl.read_csv(log, infer_schema=False)
    expected = Recommender.load(str(run)).recommend(raw, k=10)
    queries = [Query(raw.filter(user=user).to_dicts(), 10) for user in expected["user"]]
    for (items, scores), (wanted, at) in zip(
        load(tmp_path / "artefact").recommend(queries), expected.select("items", "scores").iter_rows(), strict=True
    ):
        assert items == wanted
        np.testing.assert_allclose(scores, at, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["rowwise", "columnwise"])
def test_a_checkpoint_of_two_processes_with_averaged_weights(sharding: str, tmp_path: Path) -> None:
    """Tables in shards, with padding, an EMA of the dense weights, and calibration: outputs are those of predict."""
    more = ["trainer.devices=2", f"sharding={sharding}", "optim.ema=0.9", "calibration=platt", "run_dir=run"]
    ok(run_forked("recsys.train", "model=deepfm", *CRITEO, *more, "model.batch_norm=true", cwd=tmp_path))
    ok(run_forked("recsys.export", "run=run", "output=artefact", cwd=tmp_path))
    [file] = (tmp_path / "outputs" / "prepared").glob("sample-*/train.tsv")
    columns = ["label", *(f"int_{i}" for i in range(1, 14)), *(f"cat_{i}" for i in range(1, 27))]
    raw = pl.read_csv(file, separator="\t", has_header=False, new_columns=columns, infer_schema=False, quote_char=None)
    raw = raw.tail(300).drop("label")
    expected = Predictor.load(str(tmp_path / "run")).predict(raw).to_numpy()
    model = load(tmp_path / "artefact")
    assert np.abs(model.run(model.features(raw.to_dicts()))["probability"] - expected).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"formats": ("aoti",)}, {"tables": "int4"}, {"precision": "bf16"}])
def test_other_forms(form: dict[str, Any], run: Path, tmp_path: Path) -> None:
    cfg, path = open_run(str(run))
    source = ExportSource(path, cfg, choose_checkpoint(path, "best"))
    about = write_artefact(source, Form("dlrm", **form), tmp_path / "artefact")
    assert about["metrics"]["artefact"]["auc"] == pytest.approx(about["metrics"]["run"]["auc"], abs=0.02)


@pytest.mark.slow
def test_a_repository_for_triton_that_carries_recsys(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Triton's Python imports the code beside the model, wherever the repository is copied."""
    folder = tmp_path_factory.mktemp("bundle")
    run = trained(folder, "model=popularity", *SEQUENCES)
    assert export_run(run, folder / "artefact", "triton=true", "python_path=bundle", "name=shop") is None
    shutil.move(folder / "artefact" / "triton", tmp_path / "copied")
    program = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("model", sys.argv[1])
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
config = {"parameters": {"python_path": {"string_value": "bundle"}}, "input": []}
args = {"model_config": json.dumps(config), "model_repository": sys.argv[2], "model_version": "1"}
model.TritonPythonModel().initialize(args)
print(sys.modules["recsys.online"].__file__)
"""
    own = tmp_path / "copied" / "shop"
    words = [sys.executable, "-I", "-c", program, str(own / "1" / "model.py"), str(own)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(own / "1" / "recsys")
