"""Runs that commands name by the address of their mirror."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import fork
from small_csv import Commands

import recsys
from recsys.base.errors import UserError
from recsys.job import fetched_runs
from recsys.job.fetched_runs import FETCHED, fetch_to_resume, local_run
from recsys.job.mirror import LISTING, Mirror

URL = "memory://bucket/run"
TRAIN = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32"]


@pytest.fixture
def mirrored(commands: Commands, memory: Any) -> Commands:
    """Commands on a machine that never saw the run at URL."""
    assert commands("train", *TRAIN, "run_dir=runs/a", f"checkpoint.mirror={URL}")[0] == 0
    shutil.move("runs", "elsewhere")
    shutil.rmtree("outputs")
    return commands


def copy() -> Path:
    [run] = FETCHED.glob("*/run")
    return run


def test_each_command_takes_an_address(mirrored: Commands, memory: Any) -> None:
    memory.cp("/bucket/run", "/bucket/again", recursive=True)
    Path("in.csv").write_text("price,user\n1.0,u1\n")
    assert mirrored("report", f"runs=[{URL}]")[0] == 0 and Path("report.html").is_file()
    assert names_of(copy()) == []  # which a report does not read
    assert mirrored("predict", f"run={URL}", "input=in.csv")[0] == 0 and Path("predictions.parquet").is_file()
    status, said = mirrored.said("evaluate", f"run={URL}")
    assert status == 0 and f"written to {copy()}/evaluate-test.json" in said and "fetching" not in said
    assert json.loads((copy() / "evaluate-test.json").read_text())["test"] == pytest.approx(
        json.loads(Path("elsewhere/a/metrics.json").read_text())["test"]
    )
    assert mirrored("checkpoint", "action=inspect", f"run={URL}")[0] == 0
    run = recsys.load(URL)
    assert run.path == copy() and run.metrics == json.loads(Path("elsewhere/a/metrics.json").read_text())
    run.report("two.html", others=["memory://bucket/again"])
    args = ["start_from=memory://bucket/again", "checkpoint.mirror=null", "run_dir=runs/b"]
    status, said = mirrored.said("train", *args)
    assert status == 0 and "starting from outputs/fetched/" in said
    names = {p.name for p in copy().iterdir()}
    assert names == {p.name for p in Path("elsewhere/a").iterdir()} - {".lock", ".owner.json"} | {
        *(LISTING, "evaluate-test.json")
    }


@pytest.mark.slow
def test_exports_and_similar_items_of_an_address(commands: Commands, memory: Any) -> None:
    args = ["data=sample_sequences", "model=item_knn", "data.sample.rows=2000", "run_dir=runs/a"]
    assert commands("train", *args, f"checkpoint.mirror={URL}") == (0, [])
    shutil.rmtree("runs")
    assert commands("export", f"run={URL}", "output=exported")[0] == 0
    items = recsys.similar(URL, item="i23", k=3)["item"].to_list()
    assert commands("predict", f"run={URL}", "item=i23", "k=3")[0] == 0
    assert len(items) == 3 and Path("exported/manifest.json").is_file()


def test_a_run_goes_on_elsewhere_and_is_mirrored_again(mirrored: Commands, memory: Any) -> None:
    shutil.rmtree("elsewhere")
    for epochs, before in ((2, "05"), (3, "10")):
        status, said = mirrored.said("train", f"resume={URL}", f"trainer.max_epochs={epochs}")
        assert status == 0 and f"resuming from outputs/run/checkpoints/step-000000{before}" in said
        assert ("fetching" in said) is (epochs == 2)  # then, the folder is as new
        assert f"checkpoints/step-000000{5 * epochs:02}/state.pt" in json.loads(memory.cat(f"/bucket/run/{LISTING}"))
    status, said = mirrored.said("train", f"resume={URL}", "trainer.max_epochs=4", "run_dir=runs/c")
    assert status == 0 and "resuming from runs/c/checkpoints/step-00000015" in said
    shutil.rmtree("raw")
    status, [error] = mirrored("train", f"resume={URL}", "trainer.max_epochs=5", "run_dir=runs/d")
    assert status == 2 and error.startswith("data.root=raw: no such folder or file")


def test_what_was_started_from_a_run_goes_on_without_it(mirrored: Commands) -> None:
    args = ["start_from=elsewhere/a", "checkpoint.mirror=memory://bucket/b", "run_dir=runs/b"]
    assert mirrored("train", *args)[0] == 0
    shutil.rmtree("elsewhere")
    status, said = mirrored.said("train", "resume=memory://bucket/b", "trainer.max_epochs=2")
    assert status == 0 and "resuming from outputs/b/checkpoints/step-00000005" in said


def checkpoint(run: Path, *names: str) -> Mirror:
    for name in names:
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "state.pt").write_bytes(name.encode())
    (run / "config.yaml").write_text("model: {}\n")
    return Mirror(URL, run)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetched_runs, "_used", set())
    return tmp_path


def names_of(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").glob("*")) if run.exists() else []


def test_only_the_checkpoints_that_are_needed(here: Path) -> None:
    checkpoint(
        here / "a", *(f"{kind}-0000000{n}" for kind in ("best", "step") for n in (1, 2, 3)), "step-00000004"
    ).copy()
    assert names_of(local_run(URL, checkpoint=None)) == []
    assert names_of(local_run(URL)) == ["best-00000003", "step-00000004"]
    run = local_run(URL, checkpoint="best-00000002")
    assert names_of(run) == ["best-00000002", "best-00000003", "step-00000004"]
    assert names_of(fetch_to_resume(URL, None)) == names_of(here / "a")  # which are mirrored again


def test_a_copy_is_fetched_again_where_the_run_has_gone_on(here: Path, memory: Any) -> None:
    checkpoint(here / "a", "step-00000001").copy()
    first = local_run(URL)
    (first / "evaluate-test.json").write_text("{}")
    memory.rm("/bucket/run/checkpoints", recursive=True)
    assert local_run(URL) == first  # nothing is fetched
    checkpoint(here / "a", "step-00000002").copy()
    shutil.rmtree(here / "a/checkpoints/step-00000001")
    Mirror(URL, here / "a").copy()
    second = local_run(URL)
    assert names_of(second) == ["step-00000002"] and second != first
    assert names_of(first) == ["step-00000001"]  # this process may read it yet


def test_unused_copies_lose_their_checkpoints(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(here / "a", "step-00000001").copy()
    monkeypatch.setattr(fetched_runs, "_use", lambda _: None)  # as of a process that has ended
    first = local_run(URL)
    checkpoint(here / "a", "step-00000002").copy()
    assert names_of(local_run(URL)) == ["step-00000002"]
    assert names_of(first) == [] and (first / "config.yaml").exists()


def test_a_run_that_goes_on_while_it_is_fetched(here: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, get = checkpoint(here / "a", "step-00000001"), memory.get_file
    mirror.copy()

    def moved_on(source: str, target: str) -> None:
        if source.endswith("step-00000001/state.pt"):
            shutil.rmtree(here / "a/checkpoints/step-00000001")
            checkpoint(here / "a", "step-00000002").copy()
        get(source, target)

    monkeypatch.setattr(memory, "get_file", moved_on)
    assert names_of(local_run(URL)) == ["step-00000002"]


def test_two_at_once(here: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(here / "a", "best-00000001", "step-00000002").copy()
    fetched, get = list[str](), type(memory).get_file

    def counted(fs: Any, source: str, target: str) -> None:
        fetched.append(source)
        get(fs, source, target)

    monkeypatch.setattr(type(memory), "get_file", counted)  # each thread has a store of its own
    found = list[list[str]]()
    for door in (lambda: local_run(URL), lambda: fetch_to_resume(URL, "runs/a")):
        fetched.clear()
        threads = [threading.Thread(target=lambda door=door: found.append(names_of(door()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(fetched) == len({*fetched}) == 3
    assert found == [["best-00000001", "step-00000002"]] * 8


DOORS: list[tuple[str, Callable[[str], Path]]] = [
    ("run", local_run),
    ("resume", lambda url: fetch_to_resume(url, "runs/a")),
]


@pytest.mark.parametrize(("key", "door"), DOORS, ids=["run", "resume"])
def test_what_is_no_run_is_said_in_one_line(
    here: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, key: str, door: Callable[[str], Path]
) -> None:
    def said(url: str) -> str:
        with pytest.raises(UserError) as raised:
            door(url)
        assert str(raised.value).startswith(f"{key}={url}: ") and "\n" not in str(raised.value)
        return str(raised.value).partition(f"{url}: ")[2]

    assert said("memory://bucket/none").startswith("has no copy of a run")
    assert said("nope://bucket/run").startswith("cannot be reached")
    checkpoint(here / "a", "step-00000001").copy()
    memory.pipe("/bucket/run/checkpoints/step-00000001/state.pt", b"st")
    assert said(URL).startswith("checkpoints/step-00000001/state.pt is not as it was copied")
    memory.rm("/bucket/run/checkpoints/step-00000001/state.pt")
    assert said(URL).startswith("checkpoints/step-00000001/state.pt cannot be fetched")
    for listing in (b"{", b"[]", b'{"config.yaml": 1}', b'{"config.yaml": [1, "x"]}', b'{"": [1, 1]}', b"\xff"):
        memory.pipe(f"/bucket/run/{LISTING}", listing)
        assert said(URL).startswith(f"{LISTING} is damaged")
    assert names_of(here / "runs/a") == []


def test_a_missing_package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.base.packages.is_installed", lambda _: False)
    with pytest.raises(UserError, match=r"^run=s3://bucket/run: needs s3fs, which is not installed"):
        local_run("s3://bucket/run")


@pytest.mark.parametrize("store", ["file", pytest.param("s3", marks=pytest.mark.slow)])
def test_on_stores(
    commands: Commands, tmp_path: Path, request: pytest.FixtureRequest, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "s3":
        request.getfixturevalue("s3")
    url = f"file://{tmp_path}/bucket/run" if store == "file" else "s3://bucket/run"
    assert commands("train", *TRAIN, "run_dir=runs/a", f"checkpoint.mirror={url}")[0] == 0
    for place in ("b", "c"):
        for folder in ("conf", "raw"):
            shutil.copytree(folder, f"{place}/{folder}")
    monkeypatch.chdir("b")
    Path("in.csv").write_text("price,user\n1.0,u1\n")
    assert commands("report", f"runs=[{url}]")[0] == 0
    status, said = commands.said("evaluate", f"run={url}")
    assert status == 0 and "fetching" in said and "00000005 on 20 test rows" in said
    assert commands("predict", f"run={url}", "input=in.csv")[0] == 0
    assert commands("checkpoint", "action=inspect", f"run={url}")[0] == 0
    first = recsys.load(url).path
    assert commands("train", f"start_from={url}", "checkpoint.mirror=null", "run_dir=d")[0] == 0
    monkeypatch.chdir("../c")
    status, said = commands.said("train", f"resume={url}", "trainer.max_epochs=2")
    assert status == 0 and "resuming from outputs/run/checkpoints/step-00000005" in said
    monkeypatch.chdir("../b")
    assert "step-00000010" in names_of(recsys.load(url).path) and recsys.load(url).path != first


def test_killed_while_copying(commands: Commands, tmp_path: Path) -> None:
    """At each file of the second copy: what is fetched elsewhere is the first checkpoint, whole, or the second one."""
    url, runs = f"file://{tmp_path}/bucket/run", tmp_path / "runs"
    checkpoint(runs / "a", "step-00000001")
    Mirror(url, runs / "a").copy()
    shutil.copytree("bucket", "first")
    shutil.rmtree(runs / "a/checkpoints/step-00000001")
    checkpoint(runs / "a", "best-00000002", "step-00000002")
    found = set[str]()
    for steps in range(10):
        shutil.rmtree("bucket")
        shutil.copytree("first", "bucket")
        killed = fork(copy_and_die, url, str(runs / "a"), steps).wait(60) == -9
        run = fetch_to_resume(url, f"runs/b{steps}")
        names = names_of(run)
        assert all((run / f"checkpoints/{name}/state.pt").read_bytes() == name.encode() for name in names)
        assert names in (["step-00000001"], ["best-00000002", "step-00000002"])
        found.add(names[0])
        if not killed:
            break
    assert not killed and steps > 4 and len(found) == 2


def copy_and_die(url: str, run: str, steps: int) -> None:
    from fsspec.implementations.local import LocalFileSystem

    left = iter(range(steps))

    def dying(name: str) -> None:
        real = getattr(LocalFileSystem, name)

        def call(*args: Any, **more: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        setattr(LocalFileSystem, name, call)

    mirror = Mirror(url, Path(run))
    for name in ("put_file", "rm_file", "rmdir"):
        dying(name)
    mirror.copy()
