"""Random sequences of materialise, rename, append, rotate, split, join, sort, follow and kill give the counts of plain Python."""

import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.store import materialise as materialising
from recsys.store.definition import load_views
from recsys.store.follow import follow
from recsys.store.materialise import materialise
from recsys.store.request_features import values_at
from recsys.store.stores import open_store

YAML = """
v:
  files: "logs/*.parquet"
  stream: stream.jsonl
  key: user
  time: at
  aggregates: {events: {count: "*"}, total: {sum: x}}
"""
STEPS = "new stream append rename rotate split join swap sort copy kill materialise".split()


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
def test_each_event_counts_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(materialising, "ENTITIES", 3)
    Path("logs").mkdir()
    Path("f.yaml").write_text(YAML)
    Path("stream.jsonl").touch()
    view = load_views("f.yaml")["v"]
    store = open_store("sqlite:///s.db", write=True)
    files: dict[str, list[dict[str, Any]]] = {}
    events: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []  # of the stream, and of no file yet

    def new(number: int) -> list[dict[str, Any]]:
        made = []
        for _ in range(number):
            made.append({"user": f"u{rng.randrange(12)}", "at": 1000 + len(events), "x": rng.randrange(100)})
            events.append(made[-1])
        return made

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        files[name] = rows
        pl.DataFrame(rows).write_parquet(f"logs/{name}.parquet")

    def act(step: str) -> None:
        name = rng.choice(sorted(files)) if files else None
        if step == "new":
            rows = [*pending, *new(rng.randrange(9, 40))]  # what the stream held comes to the files first
            pending.clear()
            write(f"f{rng.random()}", rows)
        elif step == "stream":
            pending.extend(rows := new(rng.randrange(1, 20)))
            with Path("stream.jsonl").open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            follow([view], store, until_end=True)
        elif name is not None and step == "append" and not pending:
            write(name, [*files[name], *new(5)])
        elif name is not None and step == "rename":
            other = f"f{rng.random()}"
            os.rename(f"logs/{name}.parquet", f"logs/{other}.parquet")
            files[other] = files.pop(name)
        elif name is not None and step == "rotate" and not pending:
            other, old = f"f{rng.random()}", files[name]
            os.rename(f"logs/{name}.parquet", f"logs/{other}.parquet")
            files[other] = old
            write(name, new(len(old) + 3))
        elif name is not None and step == "split":
            rows = files.pop(name)
            os.unlink(f"logs/{name}.parquet")
            cut = rng.randrange(1, len(rows))
            write(f"f{rng.random()}", rows[:cut])
            write(f"f{rng.random()}", rows[cut:])
        elif step == "join" and len(files) > 1:
            rows = [row for part in rng.sample(sorted(files), 2) for row in _gone(part)]
            write(f"f{rng.random()}", rows)
        elif step == "swap" and len(files) > 1:
            one, two = rng.sample(sorted(files), 2)
            for old, other in ((one, "x"), (two, one), ("x", two)):
                os.rename(f"logs/{old}.parquet", f"logs/{other}.parquet")
            files[one], files[two] = files[two], files[one]
        elif name is not None and step == "sort" and not pending:
            write(name, sorted([*files[name], *new(5)], key=lambda row: row["user"]))
        elif name is not None and step == "copy":
            Path(f"logs/copy{rng.random()}.parquet").hardlink_to(f"logs/{name}.parquet")
            for copy in Path("logs").glob("copy*"):
                materialise({"v": view}, store)
                copy.unlink()
        elif step == "kill":
            _killed(rng.randrange(1, 5))
        elif files:
            materialise({"v": view}, store)

    def _gone(name: str) -> list[dict[str, Any]]:
        os.unlink(f"logs/{name}.parquet")
        return files.pop(name)

    def _killed(call: int) -> None:
        update, calls = store.update, [0]

        def killed(*arguments: Any) -> int:
            calls[0] += 1
            if calls[0] == call:
                raise KeyboardInterrupt
            return update(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(store, "update", killed)
            with suppress(KeyboardInterrupt):
                materialise({"v": view}, store)

    act("new")
    act("materialise")
    for _ in range(40):
        act(rng.choice(STEPS))
    act("materialise")
    found = values_at(view, store, [f"u{i}" for i in range(12)], 1e6)
    counts, totals = Counter(e["user"] for e in events), Counter[str]()
    for event in events:
        totals[event["user"]] += event["x"]
    assert {u: (v["events"], v["total"]) for u, v in found.items()} == {u: (counts[u], totals[u]) for u in found}
