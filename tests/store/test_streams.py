"""Streams of events: each event counts once, whatever is killed, cut or repeated, and files say what they say."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import mock_kafka
import polars as pl
import pytest
from forks import ok, run_forked
from mock_kafka import kafka_cluster
from shop_events import START, YAML, events, everything, same

from recsys.base.errors import UserError
from recsys.store import follow as following
from recsys.store.definition import load_views
from recsys.store.follow import follow
from recsys.store.materialise import materialise
from recsys.store.stores import FeatureStore, open_store
from recsys.store.views import View

NOW = START + timedelta(days=41)
STREAM = YAML.replace("  key: user\n", "  stream: clicks.jsonl\n  key: user\n")


def to_json(frame: pl.DataFrame) -> str:
    return "".join(json.dumps(row, default=datetime.isoformat) + "\n" for row in frame.iter_rows(named=True))


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(following, "WAIT", 0.05)
    Path("f.yaml").write_text(STREAM)
    return load_views("f.yaml")["clicks"]


def from_files(view: View, log: pl.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the features of all users by files alone."""
    folder.mkdir()
    log.write_parquet(folder / "events-0.parquet")
    whole = open_store(f"sqlite:///{folder / 'whole.db'}", write=True)
    old = Path.cwd()
    os.chdir(folder)
    try:
        materialise({"clicks": view}, whole)
    finally:
        os.chdir(old)
    return everything(view, whole, NOW)


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[u][n], b[u][n]) for u in a for n in a[u])


def test_files_and_a_stream_give_what_files_give(view: View, store: FeatureStore, tmp_path: Path) -> None:
    """The stream holds events that the files have, too, and is read in parts; later, files have all of it."""
    log = events(3000)
    log[:1500].write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    text = to_json(log[1000:])
    cut = len(text) // 2  # within a line
    Path("clicks.jsonl").write_text(text[:cut])
    first = follow([view], store, until_end=True)["clicks"]
    with Path("clicks.jsonl").open("a") as file:
        file.write(text[cut:])
    assert first + follow([view], store, until_end=True)["clicks"] == 2000
    wanted = from_files(view, log, tmp_path / "whole")
    assert equal(everything(view, store, NOW), wanted)
    assert follow([view], store, until_end=True) == {"clicks": 0}

    log[1500:].write_parquet("events-1.parquet")
    materialise({"clicks": view}, store)
    assert equal(everything(view, store, NOW), wanted)


def follow_until_killed(view: View, store: FeatureStore, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the process where it writes a position for the n-th time; each batch does so twice."""
    update, calls = store.update, [0]

    def killed(name: str, keys: Any, change: Any) -> int:
        calls[0] += name.endswith("#streams") and keys != ["*"]
        if calls[0] == call:
            raise KeyboardInterrupt
        return update(name, keys, change)

    with monkeypatch.context() as patch:
        patch.setattr(store, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            follow([view], store, until_end=True)


def test_what_was_written_before_a_kill_is_not_written_twice(
    view: View, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = events(2000)
    log[:10].write_parquet("events-0.parquet")
    Path("clicks.jsonl").write_text(to_json(log[10:]))
    materialise({"clicks": view}, store)
    monkeypatch.setattr(following, "BATCH", 300)
    follow_until_killed(view, store, 6, monkeypatch)  # the events of the third batch are there, and the position is not
    assert follow([view], store, until_end=True) == {"clicks": 1990 - 600}
    assert equal(everything(view, store, NOW), from_files(view, log, tmp_path / "whole"))


def test_a_changed_definition_does_not_drop_events_of_the_stream(view: View, store: FeatureStore) -> None:
    """They may no longer be in the stream, and the new definition may need what the old one left out."""
    log = events(1000)
    log[:500].write_parquet("events-0.parquet")
    Path("clicks.jsonl").write_text(to_json(log[500:]))
    materialise({"clicks": view}, store)
    follow([view], store, until_end=True)
    before = everything(view, store, NOW)
    Path("f.yaml").write_text(STREAM.replace("window: 1h", "window: 36d"))
    changed = load_views("f.yaml")["clicks"]
    for command in (lambda: materialise({"clicks": changed}, store), lambda: follow([changed], store, until_end=True)):
        with pytest.raises(UserError, match=r"^clicks: the definition has changed since the store was written, and "):
            command()
    assert equal(everything(view, store, NOW), before)


def test_a_kill_before_the_file_is_replaced_and_another_name_of_it(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    log = events(900)
    log[:1].write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    path = Path("clicks.jsonl")
    path.write_text(to_json(log[1:300]))
    follow_until_killed(view, store, 2, monkeypatch)  # after the events, before the position
    path.unlink()
    path.write_text(to_json(log[300:600]))  # perhaps with the same inode
    assert follow([view], store, until_end=True) == {"clicks": 300}
    with path.open("a") as file:
        file.write(to_json(log[600:]))
    other = replace(view, stream=f"{tmp_path}/./clicks.jsonl")
    assert follow([other], store, until_end=True) == {"clicks": 300}
    assert equal(everything(view, store, NOW), from_files(view, log, tmp_path / "whole"))


def test_a_file_that_is_replaced_or_cut(view: View, tmp_path: Path) -> None:
    """As log rotation does: the new file is read from its beginning, and the rest of the old one first."""
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    log = events(1000)
    log[:1].write_parquet("events-0.parquet")
    path = Path("clicks.jsonl")
    path.write_text(to_json(log[1:400]))
    follower_ended = threading.Event()

    def run() -> None:
        own = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
        with pytest.raises(UserError, match="Expecting value"):
            follow([view], own)
        follower_ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: read(store) == len(to_json(log[1:400])))
    path.rename("clicks.1.jsonl")
    with Path("clicks.1.jsonl").open("a") as file:  # the writer has not noticed yet
        file.write(to_json(log[400:500]))
    path.write_text(to_json(log[500:700]))
    wait_for(lambda: read(store) == len(to_json(log[1:700])))
    path.write_text("")  # cut
    time.sleep(0.6)
    path.write_text(to_json(log[700:]))
    wait_for(lambda: read(store) == len(to_json(log[1:])))
    with path.open("a") as file:
        file.write("stop\n")
    thread.join(30)
    assert follower_ended.is_set()
    log[:1].write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    assert equal(everything(view, store, NOW), from_files(view, log, tmp_path / "whole"))


def read(store: FeatureStore) -> int:
    """Return the number of bytes of the file, and of those before it, whose events are in the store."""
    [seen] = store.get("clicks#streams", [f"{Path('clicks.jsonl').resolve()} 0"])
    return 0 if seen is None else int(seen[1]["next"])


def wait_for(condition: Any) -> None:
    stop = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.02)


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with kafka_cluster() as address:
        yield address


def produce(address: str, topic: str, frame: pl.DataFrame) -> None:
    mock_kafka.produce(address, topic, ((json.loads(line)["user"], line) for line in to_json(frame).splitlines()))


def test_kafka(view: View, store: FeatureStore, tmp_path: Path, kafka: str) -> None:
    """Partitions by user; two times that the process runs; what files have already counts once."""
    topic = f"clicks-{type(store).__name__}"
    Path("f.yaml").write_text(STREAM.replace("clicks.jsonl", f"kafka://{kafka}/{topic}"))
    view = load_views("f.yaml")["clicks"]
    log = events(2000)
    log[:300].write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    produce(kafka, topic, log[200:1200])
    assert follow([view], store, until_end=True) == {"clicks": 1000}
    produce(kafka, topic, log[1200:])
    assert follow([view], store, until_end=True) == {"clicks": 800}
    assert equal(everything(view, store, NOW), from_files(view, log, tmp_path / "whole"))


def test_the_command_ends_with_one_line_and_goes_on(view: View, tmp_path: Path) -> None:
    log = events(600)
    log[:1].write_parquet("events-0.parquet")
    Path("clicks.jsonl").write_text(to_json(log[:500]))
    store = f"store=sqlite:///{tmp_path / 'f.db'}"
    command = [sys.executable, "-m", "recsys.feature_store", "follow", "definition=f.yaml", store]
    with Popen(command, stderr=PIPE, text=True) as running:
        try:
            wait_for(lambda: read(open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)) > 0)
            running.send_signal(signal.SIGTERM)
            _, err = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 128 + signal.SIGTERM
    assert err.splitlines()[-1].endswith("the store has all events until then; run the command again to go on"), err
    with Path("clicks.jsonl").open("a") as file:
        file.write(to_json(log[500:]) + '{"user": null}\n{"user": "u1", "at": "yesterday"}\n[]\n{"user"\n')
    done = run_forked("recsys.feature_store", "follow", "definition=f.yaml", store, "until_end=true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(
        "user is null; correct it, or set rejected=FILE to go on and keep such events there"
    ), done.stderr
    more = ("until_end=true", "rejected=bad.jsonl")
    ok(run_forked("recsys.feature_store", "follow", "definition=f.yaml", store, *more, cwd=tmp_path))
    bad = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [b["why"] for b in bad] == [
        "user is null",
        'at="yesterday": is not a time such as 2026-01-31T12:00:00',
        "is not a JSON object",
        "Expecting ':' delimiter: line 2 column 1 (char 8)",
    ]
    assert bad[3]["text"] == '{"user"' and "clicks.jsonl, partition 0, offset" in bad[0]["event"]
    reader = open_store(f"sqlite:///{tmp_path / 'f.db'}")
    assert equal(everything(view, reader, NOW), from_files(view, log, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        ({}, '{"user": "u1", "at": "2026-01-01", "price": NaN}', "NaN is not JSON"),
        ({"item": 10**400}, None, ""),
        ({}, "[" * 100_000, ""),
        ({"price": "cheap"}, None, 'price="cheap": is not of type Float64'),
        ({"at": 5}, None, "at=5: is not a time"),
        ({}, '{"usr": 1}', "has no user; did you mean usr?"),
    ],
)
def test_events_that_cannot_be_read(
    change: dict[str, Any], line: str | None, message: str, view: View, tmp_path: Path
) -> None:
    log = events(5)
    log.write_parquet("events-0.parquet")
    bad = {**json.loads(to_json(log[4:])), **change}
    Path("clicks.jsonl").write_text(to_json(log[:4]) + (line or json.dumps(bad)) + "\n")
    offset = len(to_json(log[:4]))
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    with pytest.raises(UserError) as found:
        follow([view], store, until_end=True)
    assert str(found.value).startswith(f"clicks.jsonl, partition 0, offset {offset}: {message}"), found.value


@pytest.mark.parametrize(
    ("stream", "override", "message"),
    [
        ("", "", "f.yaml: no view has a stream"),
        ("  stream: a.jsonl\n", "views=[click]", "views=click: no such view; did you mean clicks?"),
        ("  stream: a.jsonl\n", "", "stream=a.jsonl: no such file"),
        ("  stream: kafka://a\n", "", "stream=kafka://a: must be kafka://HOST:PORT/TOPIC"),
        ("  stream: kafka://127.0.0.1:9/a\n", "", "Broker transport failure"),
    ],
)
def test_mistakes(stream: str, override: str, message: str, view: View, tmp_path: Path) -> None:
    events(5).write_parquet("events-0.parquet")
    Path("f.yaml").write_text(YAML.replace("  key: user\n", f"{stream}  key: user\n"))
    given = ("definition=f.yaml", f"store=sqlite:///{tmp_path / 'f.db'}", "until_end=true", *filter(None, [override]))
    done = run_forked("recsys.feature_store", "follow", *given, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1], done.stderr
