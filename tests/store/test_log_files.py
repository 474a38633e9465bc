"""What the command says of files that it cannot know; tests/faults/test_random_log_files.py renames, joins, splits and cuts."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shop_events import START, YAML, events, everything

from recsys.base.errors import UserError
from recsys.store.definition import load_views
from recsys.store.materialise import materialise
from recsys.store.stores import FeatureStore, open_store
from recsys.store.views import View

NOW = START + timedelta(days=41)
LOG = events(1200)
A, B = LOG[:800], LOG[800:]


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    Path("f.yaml").write_text(YAML.replace('"events-*.parquet"', '"logs/**/*.parquet"'))
    return load_views("f.yaml")["clicks"]


def whole(view: View, folder: Path, frame: pl.DataFrame = LOG) -> dict[str, Any]:
    """Return what a store has that read all events from one file."""
    folder.mkdir()
    frame.write_parquet(folder / "all.parquet")
    store = open_store(f"sqlite:///{folder / 'whole.db'}", write=True)
    materialise({"clicks": View(**{**vars(view), "files": (str(folder / "all.parquet"),)})}, store)
    return everything(view, store, NOW)


def test_a_name_with_other_events_keeps_those_of_the_file_before(
    view: View, store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file before was cut in place, and has grown beyond its old length."""
    B.write_parquet("logs/a.parquet")
    materialise({"clicks": view}, store)
    A.write_parquet("logs/a.parquet")
    materialise({"clicks": view}, store)
    assert "logs/a.parquet: is not the file that was read before, whose events stay" in capsys.readouterr().err
    assert everything(view, store, NOW) == whole(view, tmp_path / "whole")


def test_a_file_of_values_that_is_gone_is_said(
    view: View, store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    view = replace(view, aggregates=(), columns=tuple(c for c in A.columns if c not in (view.key, view.time))[:1])
    A.write_parquet("logs/a.parquet")
    B.write_parquet("logs/b.parquet")
    materialise({"clicks": view}, store)
    os.unlink("logs/a.parquet")
    capsys.readouterr()
    for said in ("clicks: a file that was read is gone: logs/a.parquet; the store keeps the values\n", ""):
        materialise({"clicks": view}, store)
        assert capsys.readouterr().err == said


def test_what_is_gone_or_has_lost_rows_is_said(
    view: View, store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    A.write_parquet("logs/a.parquet")
    B.write_parquet("logs/b.parquet")
    materialise({"clicks": view}, store)
    before = everything(view, store, NOW)
    os.unlink("logs/a.parquet")
    capsys.readouterr()
    assert materialise({"clicks": view}, store) == {"clicks": 0}
    said = "clicks: a file that was read is gone: logs/a.parquet; the store keeps the events\n"
    assert capsys.readouterr().err == said and everything(view, store, NOW) == before
    materialise({"clicks": view}, store)
    assert not capsys.readouterr().err  # once
    B[:300].write_parquet("logs/b.parquet")
    materialise({"clicks": view}, store)
    assert "logs/b.parquet: has lost rows since it was read" in capsys.readouterr().err
    shutil.copy("logs/b.parquet", "logs/c.parquet")
    materialise({"clicks": view}, store)
    assert "clicks: logs/c.parquet has the content of logs/b.parquet; its events count once" in capsys.readouterr().err
    A.write_parquet("logs/a.parquet")  # it is back
    materialise({"clicks": view}, store)
    assert materialise({"clicks": view}, store) == {"clicks": 0}


def test_until_leaves_the_rest_to_the_next_run(view: View, store: FeatureStore, tmp_path: Path) -> None:
    LOG.write_parquet("logs/a.parquet")
    materialise({"clicks": view}, store)
    materialise({"clicks": view}, store, until=str(START + timedelta(days=3)))
    os.rename("logs/a.parquet", "logs/b.parquet")
    materialise({"clicks": view}, store)
    assert everything(view, store, NOW) == whole(view, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 12])
def test_two_at_once(rounds: int, view: View, tmp_path: Path) -> None:
    """Processes that see different files, and are killed and started again, give what one process gives."""
    url, rng = f"sqlite:///{tmp_path / 'f.db'}", random.Random(0)
    for i in range(rounds):
        LOG[i * 100 : (i + 1) * 100].write_parquet(f"logs/{rng.random()}.parquet")
        pids = [_forked(view, url) for _ in range(3)]
        if i % 3 == 0:
            os.kill(pids[0], signal.SIGKILL)
        for pid in pids[i % 3 == 0 :]:
            assert os.waitpid(pid, 0)[1] == 0
        if i % 3 == 0:
            os.waitpid(pids[0], 0)
    store = open_store(url, write=True)
    materialise({"clicks": view}, store)
    assert everything(view, store, NOW) == whole(view, tmp_path / "whole", LOG[: rounds * 100])


def _forked(view: View, url: str) -> int:
    code = (
        "import sys\nfrom recsys.store.materialise import materialise\n"
        "from recsys.store.stores import open_store\nfrom recsys.store.definition import load_views\n"
        "materialise({'clicks': load_views('f.yaml')['clicks']}, open_store(sys.argv[1], write=True))\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, url], stderr=subprocess.DEVNULL).pid


@pytest.mark.parametrize("seconds", [-10 * 366 * 86_400, 10 * 366 * 86_400])
def test_a_clock_that_jumps(
    seconds: float, view: View, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    A.write_parquet("logs/a.parquet")
    materialise({"clicks": view}, store)
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + seconds)
        B.write_parquet("logs/b.parquet")
        if seconds < 0:  # all events are still to come; the next run reads them
            with pytest.raises(UserError, match=r"logs/b.parquet, row 0: at=2026-.*: is later than now"):
                materialise({"clicks": view}, store)
        else:
            materialise({"clicks": view}, store)
            assert materialise({"clicks": view}, store) == {"clicks": 0}
    os.rename("logs/b.parquet", "logs/c.parquet")
    materialise({"clicks": view}, store)
    assert materialise({"clicks": view}, store) == {"clicks": 0}
    assert everything(view, store, NOW) == whole(view, tmp_path / "whole")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_bytes(LFS), "is a pointer of Git LFS, not the file itself; run: git lfs pull"),
        (lambda p: p.write_bytes(b"PAR1" + bytes(100) + b"PAR1"), "cannot be read as Parquet"),
        (os.mkfifo, "is a named pipe; write what comes out of it to a file first"),
        (lambda p: p.symlink_to("gone.parquet"), "is a link to gone.parquet, which does not exist"),
        (os.mkdir, "no file matches"),
    ],
)
def test_files_that_are_none(make: Any, message: str, view: View, store: FeatureStore) -> None:
    make(Path("logs/a.parquet"))
    for act in (lambda: materialise({"clicks": view}, store), view.latest):
        with pytest.raises(UserError, match=message):
            act()


def test_files_that_are_damaged_further_in(view: View, store: FeatureStore) -> None:
    A.write_parquet("logs/a.parquet", compression="uncompressed")
    data = bytearray(Path("logs/a.parquet").read_bytes())
    data[100:4000] = bytes(3900)
    Path("logs/a.parquet").write_bytes(data)
    with pytest.raises(UserError, match=r"^clicks: logs/a.parquet: cannot be read as Parquet \("):
        materialise({"clicks": view}, store)
