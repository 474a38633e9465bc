"""Deltas of artefacts: base and delta make the files of a full export, or one line says why not."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from export_command import export_message
from growing_runs import export_form, export_source, train_days, train_lists
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.features.value_index import LayeredResults, ValueIndex
from recsys.export import write_delta as write_delta_module
from recsys.export.artefact import Artefact, load
from recsys.export.artefact.apply_delta import (
    APPLIED,
    KEY,
    Delta,
    applied,
    apply_delta,
    digest_of,
    is_delta,
    write_vocabulary,
)
from recsys.export.artefact.apply_delta import chain as chain_of
from recsys.export.artefact.load_artefact import verify
from recsys.export.write_artefact import write_artefact
from recsys.export.write_delta import export_delta, write_delta
from recsys.files import manifest
from recsys.files.manifest import DamagedFile
from recsys.online.recommender import Recommender
from recsys.online.servable import Query

TABLE, SCALES = "tables/dim4.bin", "tables/dim4_scale_bias.bin"


def files(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def artefact(folder: Path, sizes: list[int], seed: int, values: dict[str, list[str]], widths: tuple[int, int]) -> Path:
    """Write what looks like an artefact: tables of random rows, one after another, and vocabularies."""
    rng = np.random.default_rng(seed)
    layout = {}
    for name, width in zip((TABLE, SCALES), widths, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rng.integers(0, 255, (sum(sizes) + 1, width), np.uint8).tofile(folder / name)
        starts = {f"t{i}": [sum(sizes[:i]), n] for i, n in enumerate(sizes)}
        layout[name] = {"row_bytes": width, "starts": starts}
    return sealed(folder, layout, values)


def sealed(folder: Path, layout: object, values: dict[str, list[str]]) -> Path:
    for table, known in values.items():
        file = folder / "pipeline" / "vocabularies" / f"{table}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        ids = pl.int_range(1, len(known) + 1, dtype=pl.Int32, eager=True).alias("id")
        write_vocabulary(pl.DataFrame({"value": pl.Series(known, dtype=pl.String), "id": ids}), file)
    (folder / "model.onnx").write_bytes(os.urandom(100))
    about = {"name": "m", "version": "1", "created": "2026-03-07T12:00:00Z", "events_until": None, "layout": layout}
    (folder / manifest.FILE).unlink(missing_ok=True)
    manifest.write(folder, manifest.entries_of(folder), {"artefact": about})
    return folder


def grown(base: Path, folder: Path, draw: st.DataObject) -> Path:
    """Write an artefact that is another one with changed, new and evicted rows and values."""
    old = json.loads((base / manifest.FILE).read_text())["artefact"]["layout"]
    layout = {}
    more = draw.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3))
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32 - 1)))
    for name, place in old.items():
        rows = np.fromfile(base / name, np.uint8).reshape(-1, place["row_bytes"])
        parts, starts, end = [], {}, 0
        for (table, (start, count)), new in zip(place["starts"].items(), more, strict=True):
            part = rows[start : start + count].copy()
            changed = rng.random(count) < 0.3
            part[changed] = rng.integers(0, 255, (changed.sum(), part.shape[1]), np.uint8)
            parts += [part, rng.integers(0, 255, (new, part.shape[1]), np.uint8)]
            starts[table] = [end, count + new]
            end += count + new
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.concatenate([*parts, rows[-1:]]).tofile(folder / name)
        layout[name] = {"row_bytes": place["row_bytes"], "starts": starts}
    values = {}
    for file in sorted((base / "pipeline" / "vocabularies").glob("*.parquet")):
        known = pl.read_parquet(file)["value"].to_list()
        evicted = draw.draw(st.sets(st.integers(0, len(known) - 1), max_size=3)) if known else set()
        fresh = iter(f"{folder.name}-{n}" for n in range(99))
        kept = [next(fresh) if i in evicted else v for i, v in enumerate(known)]
        values[file.stem] = kept + [next(fresh) for _ in range(draw.draw(st.integers(0, 3)))]
    return sealed(folder, layout, values)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    widths=st.sampled_from([(64, 8), (16, 8), (8, 4), (3, 4)]),  # fp32 or fp16, int8, int4 and rows that fit no word
    data=st.data(),
)
def test_a_chain_of_deltas_makes_the_files_of_full_exports(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], widths: tuple[int, int], data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("chain")
    values = {"a": ["x", "", "z"], "b": [f"v{i}" for i in range(20)]}
    fulls = [artefact(home / "0", sizes, 0, values, widths)]
    made = fulls[0]
    for number in ("1", "2"):
        fulls.append(grown(fulls[-1], home / number, data))
        delta = home / f"delta{number}"
        delta.mkdir()
        write_delta(fulls[-2], fulls[-1], delta)
        if digest_of(fulls[-2]) != digest_of(fulls[-1]):
            with pytest.raises(UserError, match="apply deltas in the order in which they were exported"):
                apply_delta(fulls[-1], delta, home / "wrong")
        made_before, made = made, home / f"made{number}"
        for _ in range(2):  # again with the same result
            apply_delta(made_before, delta, made)
            assert files(made) == files(fulls[-1])
    assert not (home / "wrong").exists()
    shutil.rmtree(home)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_an_index_that_shares_another_gives_the_results_of_its_own(data: st.DataObject) -> None:
    texts = st.lists(st.text("abc", max_size=2), unique=True, max_size=12)
    index = ValueIndex(pl.Series(data.draw(texts), dtype=pl.String))
    _ = index.results
    for _ in range(3):
        values = pl.Series(data.draw(texts), dtype=pl.String)
        index, alone = index.changed(values), ValueIndex(values)
        asked = pl.Series(["", None, "a", "b", "ab", "zz", *values], dtype=pl.String)
        assert index.look_up(asked).to_list() == alone.look_up(asked).to_list()
        assert list(map(index.results.__getitem__, asked)) == list(map(alone.results.__getitem__, asked))


def test_few_changes_share_the_dict_and_many_do_not() -> None:
    known = [f"v{i}" for i in range(100)]
    index = ValueIndex(pl.Series(known))
    below = index.results
    first = index.changed(pl.Series(["new", *known[1:]]))
    second = first.changed(pl.Series(["new", "newer", *known[2:], "last"]))
    for shared in (first, second):
        assert isinstance(shared.results, LayeredResults) and shared.results.below is below
    assert [second.results[v] for v in ("new", "newer", "v0", "v1", "v2", "last")] == [1, 2, 0, 0, 3, 101]
    assert below["v0"] == 1  # requests in flight see the old values
    with pytest.raises(KeyError):
        second.results[7]
    assert not isinstance(index.changed(pl.Series([f"w{i}" for i in range(100)])).results, LayeredResults)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return train_days(tmp_path_factory.mktemp("days"), 3)


@pytest.fixture(scope="module")
def chain(runs: list[Path]) -> Path:
    """A folder of versions: 1, a full artefact, and 2 and 3, deltas."""
    folder = runs[0].parent / "models" / "clicks"
    folder.mkdir(parents=True)
    write_artefact(export_source(runs[0]), export_form(version="1"), folder / "1")
    assert export_delta(export_source(runs[1]), export_form(version="2"), folder / "1", folder / "2").is_delta
    assert export_delta(export_source(runs[2]), export_form(version="3"), folder / "2", folder / "3").is_delta
    return folder


@pytest.mark.slow
def test_a_version_that_is_a_delta_answers_as_its_run(chain: Path, runs: list[Path]) -> None:
    shutil.rmtree(chain / APPLIED)
    before = load(chain / "1")
    model = load(chain / "3", before=before)  # makes version 2 on the way
    made = applied(chain / "3")
    assert verify(made).rows == 256 and Artefact.open(made).about["version"] == "3"
    recorded = json.loads((made / "examples.json").read_text())
    found = model.run(model.features(recorded["rows"]))["probability"]
    np.testing.assert_allclose(found, recorded["outputs"]["probability"], atol=1e-5)
    results = model.fitted._tables["user"].results  # type: ignore[attr-defined]
    assert isinstance(results, LayeredResults) and results.below is before.fitted._tables["user"].results  # type: ignore[attr-defined]
    about = Delta.open(chain / "3").about
    assert 200 < about["rows"] < 1500
    assert sum(len(x) for x in files(chain / "3").values()) < 0.4 * sum(len(x) for x in files(made).values())


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["fp16", "int8", "int4"])
def test_each_type_of_tables(runs: list[Path], tmp_path: Path, tables: str) -> None:
    form = export_form(tables)
    write_artefact(export_source(runs[0]), form, tmp_path / "base")
    assert export_delta(export_source(runs[1]), form, tmp_path / "base", tmp_path / "delta").is_delta
    apply_delta(tmp_path / "base", tmp_path / "delta", tmp_path / "made")
    verify(tmp_path / "made")
    write_artefact(export_source(runs[1]), form, tmp_path / "full")
    ours, theirs = (files(tmp_path / name) for name in ("made", "full"))
    assert {n for n in ours if ours[n] != theirs[n]} <= {"manifest.json"}  # it has the time of the export


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tables"), [("sasrec", "fp32"), ("sasrec", "int8"), ("two_tower", "fp32")])
def test_retrieval_models(model: str, tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New items get rows, vectors and places among the candidates; the vectors of a tower change with its weights."""
    monkeypatch.setattr(write_delta_module, "WORTH", 1.0)  # of a small model, the graph is most
    runs, form = train_lists(tmp_path, 3, model), export_form(tables)
    base = tmp_path / "models" / "0"
    write_artefact(export_source(runs[0]), form, base)
    candidates = [Artefact.open(base).about["candidates"]]
    for number, run in enumerate(runs[1:], 1):
        delta = base.parent / str(number)
        written = export_delta(export_source(run), form, base, delta)
        assert written.is_delta and written.rows < (600 if model == "sasrec" else 3500)
        base = applied(delta)
        candidates.append(Artefact.open(base).about["candidates"])
        assert verify(base).rows == 60
        recorded = json.loads((base / "examples.json").read_text())
        answers = load(delta).recommend([Query(rows) for rows in recorded["rows"]])
        expected = Recommender.load(str(run)).recommend(
            pl.DataFrame([row for rows in recorded["rows"] for row in rows])
        )
        for (_, scores), their in zip(answers, expected["scores"], strict=True):
            np.testing.assert_allclose(scores, their.to_numpy(), atol=1e-5 if tables == "fp32" else 2e-2)
    assert candidates[0] < candidates[1] < candidates[2]


def test_why_there_is_no_delta(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    about = {"kind": "retrieval", "name": "m", "tables": "fp32", "precision": "fp32", "formats": ["onnx"]}
    before, after = (Artefact(tmp_path / name, about | {"layout": {}}) for name in ("before", "after"))
    no_delta = write_delta_module._no_delta
    assert no_delta(before, after) is None
    assert (
        no_delta(before, Artefact(after.folder, about | {"tables": "int8"}))
        == f"tables is int8, and fp32 in {before.folder}"
    )
    assert str(no_delta(Artefact(before.folder, about), after)).endswith(
        "its tables are: it has none, or an older version of recsys wrote it"
    )
    (after.folder / "index").mkdir()
    assert no_delta(before, after) == "it has index/, which is written anew as a whole"


def test_a_chain_of_versions(tmp_path: Path) -> None:
    """What a version is made of, without reading more than manifests."""

    def version(name: str, digest: str, base: str | None) -> Path:
        (tmp_path / name).mkdir()
        about = {KEY: {"base": base, "result": digest}} if base else {}
        manifest.write(tmp_path / name, {}, about | {"of": name})
        return tmp_path / name

    full = version("a", "", None)
    first = version("c", "1", digest_of(full))
    second = version("b", "2", "1")
    assert chain_of(full) == [full] and chain_of(second) == [second, first, full]
    shutil.copytree(full, tmp_path / "z")
    (first / manifest.FILE).write_text("{")  # damaged
    with pytest.raises(UserError, match=r"b: is a delta of the artefact with the digest 1, which no version in"):
        chain_of(second)
    shutil.rmtree(first)
    version("c", "1", "2")  # each is based on the other one
    with pytest.raises(UserError, match=r"is a delta of the artefact with the digest"):
        chain_of(second)


@pytest.mark.slow
def test_a_full_artefact_is_written_if_a_delta_has_no_use(
    chain: Path, runs: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [f"run={runs[1]}", f"output={tmp_path / 'out'}", f"delta_from={chain / '1'}", "name=clicks"]
    assert export_message(*given, "tables=int8") is None
    assert "is a full artefact, not a delta: tables is int8, and fp32 in" in " ".join(capfd.readouterr().err.split())
    assert Artefact.open(tmp_path / "out").about["tables"] == "int8"


@pytest.mark.slow
def test_mistakes_are_one_line(chain: Path, runs: list[Path], tmp_path: Path) -> None:
    one, two, three, out = chain / "1", chain / "2", chain / "3", tmp_path / "out"
    given = [f"run={runs[1]}", f"output={out}"]
    assert export_message("apply", str(one), str(two), f"output={tmp_path / 'made'}") is None
    assert Artefact.open(tmp_path / "made").about["version"] == "2"
    for arguments, message in (
        (["apply", str(one), str(three), *given[1:]], f"{three}: applies to the artefact with the digest"),
        (["apply", str(one), str(one), *given[1:]], f"{one}: is not a delta; "),
        (["apply", str(one), *given[1:]], "apply: name an artefact, a delta and output"),
        (["apply", str(one), str(two), f"output={one}"], f"output={one}: is read by this command"),
        ([*given, f"delta_from={tmp_path}"], f"{tmp_path}: is not an artefact"),
        (["verify", str(two)], f"{two}: is a delta of another artefact; "),
        ([*given, f"delta_from={out}"], "is the artefact that the delta is based on; "),
        ([*given, "events_until=yesterday"], "events_until=yesterday: must be a time with its zone"),
    ):
        found = export_message(*arguments)
        assert found is not None and message in found and "\n" not in found, found
    assert not out.exists()


@pytest.mark.slow
def test_what_is_damaged_or_missing_is_refused(chain: Path, tmp_path: Path) -> None:
    models = shutil.copytree(chain, tmp_path / "clicks", ignore=shutil.ignore_patterns(APPLIED))
    [rows] = (models / "2" / "rows" / "tables").glob("*.bytes.npy")
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.raises(DamagedFile, match="is damaged; its content differs from what was written"):
        load(models / "2")
    with pytest.raises(DamagedFile, match=r"2/rows/tables/.* is damaged; its content differs from what was written"):
        load(models / "3")  # is based on it
    entries = {**(manifest.read(models / "2") or {})}
    entries[f"rows/tables/{rows.name}"] = manifest.entry_of(rows)
    about = (manifest.content(models / "2") or {})[KEY]
    manifest.write(models / "2", entries, {KEY: about})
    with pytest.raises(UserError, match=r"dim8.bin does not become what was exported: the base is damaged, or"):
        load(models / "2")
    for wrong, message in (
        ({**about, "format": 9}, "has format 9 of deltas, and this version of recsys reads format 1; export"),
        ({**about, "rows": -1}, "delta.rows: Input should be greater than or equal to 0; export the run again"),
        ({**about, "result": "0"}, "is not the manifest of the result that manifest.json names"),
    ):
        manifest.write(models / "2", entries, {KEY: wrong})
        with pytest.raises(UserError, match=message):
            load(models / "2")
    assert [p.name for p in (models / APPLIED).iterdir() if p.is_dir()] == []
    assert not is_delta(models / "1") and load(models / "1").version == "1"


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_applies_leaves_nothing(chain: Path, tmp_path: Path) -> None:
    output = tmp_path / "made"
    arguments = [str(chain / "1"), str(chain / "2"), str(output)]
    delays = np.linspace(0.3, 1.5, 5)
    for delay in delays:
        running = subprocess.Popen([sys.executable, "-m", "recsys.export.artefact.apply_delta", *arguments])
        time.sleep(delay)
        running.send_signal(signal.SIGKILL)
        running.wait()
        if output.exists():
            assert digest_of(output) == Delta.open(chain / "2").about["result"]
    apply_delta(Path(arguments[0]), Path(arguments[1]), output)
    assert verify(output).rows == 256 and [p.name for p in tmp_path.iterdir()] == ["made"]


def _apply(folder: Path) -> None:
    applied(folder)


@pytest.mark.slow
def test_processes_apply_one_delta_once(chain: Path, tmp_path: Path) -> None:
    models = shutil.copytree(chain, tmp_path / "clicks", ignore=shutil.ignore_patterns(APPLIED))
    workers = [multiprocessing.get_context("fork").Process(target=_apply, args=(models / "3",)) for _ in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    made = {p.name for p in (models / APPLIED).iterdir() if p.is_dir()}
    assert made == {Delta.open(models / n).about["result"] for n in ("2", "3")}
