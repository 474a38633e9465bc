"""Events of a stream become partitions by their time, each once, whenever the process is killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_kafka import kafka_cluster, produce

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.files import atomic
from recsys.follow import partitions
from recsys.follow.follow_settings import PartitionsConfig
from recsys.follow.partitions import collect, find_partitions, partition_name, ripe, time_of

START = 1_767_225_600  # 2026-01-01T00:00:00Z


def config(folder: Path, **more: Any) -> PartitionsConfig:
    given = {"folder": folder / "logs", "stream": str(folder / "events.jsonl"), "delay": "1h", **more}
    (folder / "logs").mkdir(exist_ok=True)
    return parse(PartitionsConfig, given, file="follow.yaml")


def send(folder: Path, times: list[Any], first: int = 0) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"id": first + i, "time": t}) + "\n" for i, t in enumerate(times))


def found(folder: Path) -> dict[str, list[int]]:
    """Return the ids of the events of each partition."""
    ids: dict[str, list[int]] = {}
    for file in sorted((folder / "logs").rglob("*.jsonl")):
        name = file.parent.relative_to(folder / "logs").as_posix()
        ids.setdefault(name, []).extend(json.loads(line)["id"] for line in file.read_text().splitlines())
    return ids


def test_events_go_where_their_time_says(tmp_path: Path) -> None:
    send(tmp_path, [START, START + 86_399, "2026-01-02T00:00:00", "2026-01-01T23:30:00-01:00"])
    assert collect(config(tmp_path), tmp_path) == 4
    assert found(tmp_path) == {"day=2026-01-01": [0, 1], "day=2026-01-02": [2, 3]}
    send(tmp_path, [START + 5], first=4)
    assert collect(config(tmp_path), tmp_path) == 1
    assert found(tmp_path)["day=2026-01-01"] == [0, 1, 4]
    assert collect(config(tmp_path), tmp_path) == 0


def test_events_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text('{"id": 1}\nno json\n{"id": 2, "time": "noon"}\n')
    send(tmp_path, [START], first=3)
    assert collect(config(tmp_path), tmp_path) == 4
    assert found(tmp_path) == {"day=2026-01-01": [3]}
    why = [json.loads(line)["why"] for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    assert why[0] == "has no time" and len(why) == 3
    assert "4 events, 3 of them rejected" in capfd.readouterr().err


DEEP = "[" * 500 + "]" * 500
HOSTILE = {
    "no seconds since 1970": ["1e400", "-1e400", "1e18", "1e20", "-1e18", "1" + "0" * 400, "NaN", "253402300800"],
    "no ISO 8601": ['"noon"', '"+010000-01-01"', "null", "true", "[1]", '{"a": 1}', "1" * 5000],
    "in the future": ["4102444800", '"9999-12-31"', '"2900-01-01T00:00:00Z"'],
}


def test_no_event_ends_the_following(tmp_path: Path) -> None:
    """Each hostile event is rejected, also in the next cycle, and the good ones around it are kept."""
    texts = [f'{{"id": 0, "time": {t}}}' for times in HOSTILE.values() for t in times]
    texts += [f'{{"id": 0, "time": {START}, "x": {DEEP}}}', DEEP * 3, '{"time": ' * 2000, "\x00", '"' + "x" * 10**6]
    good = [f'{{"id": {i}, "time": {START + i}}}' for i in range(len(texts))]
    lines = [line for pair in zip(good, texts, strict=True) for line in pair]
    (tmp_path / "events.jsonl").write_bytes("\n".join([*lines, ""]).encode() + b'{"time": 1, "x": "\xff"}\n')
    settings = config(tmp_path, clock="wall")
    assert collect(settings, tmp_path) == 2 * len(good) + 1 and collect(settings, tmp_path) == 0
    assert found(tmp_path) == {"day=2026-01-01": list(range(len(good)))}
    assert len((tmp_path / "rejected.jsonl").read_text().splitlines()) == len(texts) + 1
    (tmp_path / "logs" / "day=9999-12-31").mkdir()
    (tmp_path / "logs" / "day=9999-12-31" / "a.jsonl").touch()
    assert [p.stop is None for p in find_partitions(settings)] == [False, True]


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Names of other collectors are no files of this one; those of another root are refused, and nothing is removed."""
    other = tmp_path / "logs" / "day=2025-12-31" / "stream-web-20251231.jsonl"
    send(tmp_path, [START, START + 1])
    settings = config(tmp_path)
    other.parent.mkdir()
    other.write_text('{"id": 7, "time": 1}\n')
    assert collect(settings, tmp_path) == 2 and other.exists()
    before = found(tmp_path)
    second = tmp_path / "second"
    second.mkdir()
    with pytest.raises(UserError, match=r"partitions.folder=.*: stream-0-0+\.jsonl was collected with another root"):
        collect(settings, second)
    (tmp_path / "stream.json").unlink()
    with pytest.raises(UserError, match=r"restore its stream\.json, or name another folder"):
        collect(settings, tmp_path)
    assert found(tmp_path) == before


@pytest.mark.slow
def test_a_kill_at_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th file is not written; the next run has each event once, though it reads other batches."""
    replace = Path.replace
    for at in range(1, 12):
        folder = tmp_path / str(at)
        folder.mkdir()
        send(folder, [START + 86_400 * (i % 3) + i for i in range(20)])
        writes = 0

        def crash(path: Path, target: Path, at: int = at) -> Path:
            nonlocal writes
            writes += 1
            if writes == at:
                raise KeyboardInterrupt
            return replace(path, target)

        monkeypatch.setattr(partitions, "BATCH", 7)
        monkeypatch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            collect(config(folder), folder)
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(partitions, "BATCH", 5)
        collect(config(folder), folder)
        ids = found(folder)
        assert sorted(i for day in ids.values() for i in day) == list(range(20)), at
        assert len(ids) == 3
    assert atomic.whole_file is partitions.whole_file


def test_a_topic_of_kafka(tmp_path: Path) -> None:
    """Several partitions, read in two runs."""
    with kafka_cluster() as address:
        events = [(f"u{i % 5}", json.dumps({"id": i, "time": START + 86_400 * (i % 2)})) for i in range(300)]
        produce(address, "clicks", events[:100])
        c = config(tmp_path, stream=f"kafka://{address}/clicks")
        assert collect(c, tmp_path) == 100
        produce(address, "clicks", events[100:])
        assert collect(c, tmp_path) == 200
        assert collect(c, tmp_path) == 0
    ids = found(tmp_path)
    assert sorted(ids["day=2026-01-01"]) == list(range(0, 300, 2))
    assert sorted(ids["day=2026-01-02"]) == list(range(1, 300, 2))


def test_the_last_interval_waits_for_later_events(tmp_path: Path) -> None:
    c = config(tmp_path, every="1h", pattern="day=*/hour=*")
    send(tmp_path, [START, START + 3600, START + 2 * 3600])
    collect(c, tmp_path)
    assert [p.name for p in ripe(find_partitions(c), c)] == ["day=2026-01-01/hour=00", "day=2026-01-01/hour=01"]


@given(st.integers(0, 4_000_000_000), st.sampled_from([60.0, 900.0, 3600.0, 86_400.0]))
def test_a_name_holds_the_start_of_its_interval(seconds: int, every: float) -> None:
    start = time_of(partition_name(seconds, every))
    assert start is not None and start.timestamp() == seconds // every * every


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"delay: is missing; with a stream, a partition is complete some"):
        config(tmp_path, delay=None)
    with pytest.raises(UserError, match=r"stream=.*events.jsonl: no such file; name a file of JSON lines"):
        collect(config(tmp_path), tmp_path)
    (tmp_path / "stream.json").write_text("{")
    with pytest.raises(UserError, match=r"stream.json: is damaged .*; restore it, or remove it and the stream's files"):
        collect(config(tmp_path), tmp_path)
