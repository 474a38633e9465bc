"""Artefacts that somebody forged, digests and all: each is refused in one line, and reads no file outside its folder."""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
from storage_faults import DAMAGES, copy

import recsys
from recsys.base.errors import UserError
from recsys.export.artefact import graph_io, load
from recsys.export.artefact.load_artefact import verify
from recsys.files import manifest
from recsys.online.servable import Query

SMALL = ["trainer.threads=1", "trainer.max_epochs=1", "trainer.batch_size=256"]


def exported(folder: Path, *overrides: str, options: tuple[str, ...] = ()) -> Path:
    where = [f"data.prepared={folder / 'prepared'}", f"run_dir={folder / 'run'}"]
    return recsys.train([*overrides, *SMALL, *where]).export(folder / "artefact", options)


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("ranking"), "model=lr", "data=criteo", "data.sample.rows=500")


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrieval")
    data = ["model=sasrec", "data=sample_sequences", "data.sample.rows=300"]
    return exported(folder, *data, options=("index=ivf", "name=items"))


def sealed(folder: Path, change: Callable[[dict[str, Any]], object] = dict) -> None:
    """Write the manifest of changed files anew, and of a changed description."""
    value = json.loads((folder / "manifest.json").read_text())
    change(value["artefact"])
    manifest.write(folder, manifest.entries_of(folder), {"artefact": value["artefact"]})


def seal_index(folder: Path) -> None:
    """Write the manifest of a changed index, and that of its artefact."""
    inner = json.loads((folder / "index/manifest.json").read_text())
    entries = {n: e for n, e in manifest.entries_of(folder / "index").items() if n != "manifest.json"}
    manifest.write(folder / "index", entries, {"index": inner.get("index")})
    sealed(folder)


def edit(file: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(file.read_text())
    file.write_text(json.dumps(change(value) or value))


def refused(folder: Path) -> str:
    """Load and verify an artefact, which must fail in one line; return that line."""
    messages = []
    for call in (load, verify):
        with pytest.raises(UserError) as caught:
            call(folder)
        messages.append(str(caught.value))
    assert "\n" not in "".join(messages) and str(folder) in messages[0] and len(messages[0]) < 600
    return messages[0]


def deep(_: Any) -> Any:
    value: Any = []
    for _ in range(sys.getrecursionlimit() - 200):
        value = [value]
    return {"x": value}


def signature(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda about: about["signature"]["outputs"][0].update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.pop("signature"), "artefact.signature: Field required; export the run again"),
        (signature("name", "other"), "cannot be loaded"),
        (lambda about: about.update(kind="retrieval"), "artefact.k"),
        (lambda about: about.update(name="../../evil"), "name='../../evil': contains /; choose a plain name"),
        (lambda about: about.update(name=".evil"), "begins with a dot"),
        (lambda about: about.update(version="1/../.."), "version='1/../..': contains /"),
    ],
)
def test_descriptions(ranking: Path, tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    sealed(copy, change)
    assert message in refused(copy)


def test_a_changed_name_is_damage(ranking: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    edit(copy / "manifest.json", lambda value: value["artefact"].update(name="another"))
    assert "manifest.json: is damaged; its content differs" in refused(copy)


def first_table(folder: Path) -> Path:
    return min((folder / "pipeline/vocabularies").glob("*.parquet"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: edit(file, deep), "cannot be read"),
        (lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\noid 1"), "git lfs pull"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "manifest.json: is a named pipe"),
    ],
)
def test_manifests(ranking: Path, tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    change(copy / "manifest.json")
    assert message in refused(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: edit(a / "examples.json", deep),
        lambda a: edit(a / "examples.json", lambda _: {"rows": 3, "outputs": 4}),
        lambda a: edit(a / "pipeline/transforms.json", deep),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v.update(version=3)),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v.update(data=3)),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v["dense"].clear()),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v["data"].update(root="/etc")),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v["data"]["sparse"].update(x={"table": "../../../y"})),
        lambda a: edit(a / "pipeline/transforms.json", lambda v: v["data"].update(derive={"int_1": "1 IN (FROM t)"})),
        lambda a: pl.DataFrame().write_parquet(a / "pipeline/raw.parquet"),
        lambda a: pl.DataFrame({"x": [1]}).write_parquet(first_table(a)),
        lambda a: first_table(a).unlink(),
        lambda a: (a / "model.onnx").write_bytes(b""),
        lambda a: (a / "model.onnx").unlink(),
    ],
)
def test_files(ranking: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    change(copy)
    sealed(copy)
    refused(copy)


def graph_of(inputs: dict[str, list[Any]], make: str, shape: list[int]) -> onnx.ModelProto:
    """Return a graph with a constant as its output."""
    given = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()]
    value = onnx.numpy_helper.from_array(np.zeros(shape, np.float32))
    node = onnx.helper.make_node("Constant", [], [make], value=value)
    out = onnx.helper.make_tensor_value_info(make, onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", given, [out])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of({}, "probability", [3]),
        graph_of({"dense": ["n", 13], "ids": ["n", 26]}, "probability", [3]),
        graph_of({"dense": ["n", 2]}, "probability", [1]),
        graph_of({"dense": ["n", 13]}, "other", [1]),
    ],
)
def test_graphs_of_another_shape(ranking: Path, tmp_path: Path, graph: onnx.ModelProto) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    (copy / "model.onnx").write_bytes(graph.SerializeToString())
    sealed(copy)
    refused(copy)


def with_data_at(artefact: Path, location: str) -> None:
    """Let the first table of the graph name another file."""
    model = onnx.load(str(artefact / "model.onnx"), load_external_data=False)
    tensor = next(i for i in model.graph.initializer if i.external_data)
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = location
    (artefact / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("ours", [True, False], ids=["mapped by us", "mapped by ONNX Runtime"])
@pytest.mark.parametrize(
    "location", ["{secret}", "../secret", "tables/../../secret", "tables/link", "tables/folder/secret"]
)
def test_tables_outside(
    ranking: Path, tmp_path: Path, location: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    size = sum(f.stat().st_size for f in (copy / "tables").iterdir())
    (tmp_path / "secret").write_bytes(bytes(size))
    os.symlink(tmp_path / "secret", copy / "tables" / "link")
    os.symlink(tmp_path, copy / "tables" / "folder")
    with_data_at(copy, location.format(secret=tmp_path / "secret"))
    monkeypatch.setattr(graph_io, "_bytes_of_tables", lambda _: (1 << 60) * ours)
    entries = {n: e for n, e in manifest.entries_of(copy).items() if "folder" not in n}
    about = json.loads((copy / "manifest.json").read_text())["artefact"]
    manifest.write(copy, entries, {"artefact": about})
    assert "which is not in this folder; it is not read" in refused(copy) or "link" not in location
    (copy / "tables" / "link").unlink()
    (copy / "tables" / "folder").unlink()
    sealed(copy)
    message = refused(copy)
    if ours and "link" not in location and "folder" not in location:
        assert "which is not in this folder; it is not read" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.save(a / "index/items.npy", np.arange(3)),
        lambda a: np.save(a / "index/items.npy", np.array([[1.5]])),
        lambda a: np.save(a / "index/items.npy", np.arange(10**6, 10**6 + 10)),
        lambda a: np.save(a / "index/items.npy", np.array([{}], object), allow_pickle=True),
        lambda a: (a / "index/engine.faiss").write_bytes(b"IwFl" + bytes(100)),
        lambda a: (a / "index/engine.faiss").write_bytes((a / "index/engine.faiss").read_bytes()[:-50]),
        lambda a: edit(a / "index/manifest.json", lambda v: v["index"].update(kind="evil")),
        lambda a: (a / "tables/items.bin").write_bytes(b"123"),
    ],
)
def test_retrieval(retrieval: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    copy = Path(shutil.copytree(retrieval, tmp_path / "copy"))
    change(copy)
    seal_index(copy)
    with pytest.raises(UserError) as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_cells_in_another_file(retrieval: Path, tmp_path: Path) -> None:
    """faiss maps the file that an index with OnDiskInvertedLists names: any of this machine, for writing."""
    import faiss

    copy = Path(shutil.copytree(retrieval, tmp_path / "copy"))
    index = faiss.read_index(str(copy / "index/engine.faiss"))
    ivf = faiss.extract_index_ivf(index)
    victim = tmp_path / "victim"
    cells = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(victim))
    for i in range(ivf.nlist):
        cells.add_entries(i, ivf.invlists.list_size(i), ivf.invlists.get_ids(i), ivf.invlists.get_codes(i))
    ivf.replace_invlists(cells, False)
    faiss.write_index(index, str(copy / "index/engine.faiss"))
    for beside in (False, True):  # also in the folder of the index, where faiss may look for it
        if beside:
            shutil.copy(victim, copy / "index" / "victim")
        seal_index(copy)
        before = victim.stat()
        with pytest.raises(UserError) as caught:
            load(copy)
        assert "cannot be loaded" in str(caught.value) and victim.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("name", ["a/" * 2500, "\ud800", "x\0y", "", "..", "/etc/passwd", "a/../../b", "n" * 300])
def test_names_in_a_manifest(ranking: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(ranking, tmp_path / "copy"))
    about = json.loads((copy / "manifest.json").read_text())["artefact"]
    manifest.write(copy, {**manifest.entries_of(copy), name: (3, "0")}, {"artefact": about})
    refused(copy)


@pytest.mark.parametrize("faults", [30, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["ranking", "retrieval"])
def test_random_damage(kind: str, faults: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A damaged artefact gives the right answer or one line; with digests that fit the damage, any answer or one line."""
    whole: Path = request.getfixturevalue(kind)
    rng, answers = np.random.default_rng(faults), Counter[str]()
    expected = answer(whole)
    files = sorted(
        f.relative_to(whole) for f in whole.rglob("*") if f.is_file() and f.suffix != ".faiss"
    )  # C++ reads it
    for i in range(faults):
        folder, file = copy(whole, tmp_path / "copy"), files[rng.integers(len(files))]
        what, forged = list(DAMAGES)[rng.integers(len(DAMAGES))], i % 2 == 0 and file.name != "manifest.json"
        (folder / file).chmod(0o644)
        DAMAGES[what](folder / file, rng)
        message = None
        try:
            if forged:
                sealed(folder)
            found = answer(folder)
        except UserError as e:
            message = str(e)
        if message is None:
            assert forged or found == expected, (i, what, file)
        else:
            assert "\n" not in message and str(folder) in message, (i, what, file, message)
        answers["answered" if message is None else "refused"] += 1
        shutil.rmtree(folder)
    assert answers["refused"] > faults / 2 and answers.total() == faults, answers


def answer(folder: Path) -> list[Any]:
    model = load(folder)
    if model.kind == "retrieval":
        return model.recommend([Query(model.example, 5)])
    return [(name, values.tolist()) for name, values in model.run(model.features(model.example)).items()]


def test_lists_that_are_longer_than_any_in_training(retrieval: Path) -> None:
    """The memory of attention grows with the square of a list's length: 80 kB of ids took 10 GB."""
    model = load(retrieval)
    longest = model.longest_history + 1

    def lists(length: int) -> dict[str, np.ndarray]:
        return {s.name: np.ones((1, 1 if s.name == "ids" else length), np.int32) for s in model.tensors}

    assert model.run_tensors(lists(longest))["query"].shape[0] == 1
    with pytest.raises(UserError, match=rf"has lists of {longest + 1}; the longest are of {longest}"):
        model.run_tensors(lists(longest + 1))
    with pytest.raises(UserError, match=r"input item: has shape \[1, 0\]; pad empty lists with -1"):
        model.run_tensors(lists(0))
