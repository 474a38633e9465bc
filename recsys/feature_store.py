"""python -m recsys.feature_store materialise definition=features.yaml store=sqlite:///features.db [until=2026-01-31]
python -m recsys.feature_store follow definition=features.yaml store=sqlite:///features.db [views=[clicks]]
python -m recsys.feature_store join definition=features.yaml input=rows.parquet time=ts output=train.parquet
python -m recsys.feature_store join definition=features.yaml input=rows/ time=ts output=train/ engine=spark
python -m recsys.feature_store get definition=features.yaml store=sqlite:///features.db keys=[u1,u2]
python -m recsys.feature_store feast definition=features.yaml output=feast_repo

Keeps features of users, items and the like: `materialise` writes their latest values to the store that
`recsys.serve` reads, and `follow` keeps it up to date from streams of events; `join` gives rows of a training set the
values at the time of each row, by the same definition, and engine=spark joins rows beyond one machine.
`feast` writes the definition as a repository for Feast.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from recsys.base.console import say
from recsys.base.errors import UserError, did_you_mean
from recsys.cli import command_line
from recsys.files.user_files import problem_of
from recsys.schema.command_schemas import FeatureStoreConfig

if TYPE_CHECKING:
    from recsys.store.stores import FeatureStore
    from recsys.store.views import View

STREAMS = "a file of JSON lines or kafka://HOST/TOPIC"
ACTIONS = ("materialise", "follow", "join", "get", "feast")


def _command(cfg: FeatureStoreConfig) -> None:
    if cfg.action == MISSING:
        raise UserError(f"no action: must be {', '.join(ACTIONS)}; see --help")
    from recsys.store.definition import load_views

    if cfg.definition == MISSING:
        raise UserError(
            "definition: is missing; add definition=features.yaml, views (docs/how_to/serve/stored_features.md)"
        )
    if cfg.action == "get" and not cfg.keys:
        raise UserError("keys: is missing; name the keys to look up, such as keys=[u1,u2]")
    if cfg.action != "join" and cfg.engine.name != "polars":
        raise UserError(f"engine={cfg.engine.name}: applies to join, not to {cfg.action}; leave it out")
    views = load_views(cfg.definition)
    if cfg.action in ("join", "feast"):
        (_join if cfg.action == "join" else _feast)(cfg, views)
        return
    from recsys.store.stores import faults_of, open_store

    store = open_store(cfg.store, write=cfg.action in ("materialise", "follow"))
    with faults_of(cfg.store):
        {"materialise": _materialise, "follow": _follow, "get": _get}[cfg.action](cfg, views, store)


def _materialise(cfg: FeatureStoreConfig, views: Mapping[str, View], store: FeatureStore) -> None:
    from recsys.store.materialise import materialise

    for name, count in materialise(views, store, cfg.until, _rejected(cfg)).items():
        new = f"the latest values of {count:,} entities are in {cfg.store}" if count else "no file is new"
        say(f"{name}: {new}")


def _get(cfg: FeatureStoreConfig, views: Mapping[str, View], store: FeatureStore) -> None:
    from recsys.files.atomic import finite
    from recsys.store.request_features import values_at

    keys = cfg.keys
    for view in views.values():
        found = values_at(view, store, keys, time.time())
        for key in keys:
            line = {"view": view.name, "key": key, "values": finite(found.get(key))}
            sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")


def _rejected(cfg: FeatureStoreConfig) -> Path | None:
    return None if cfg.rejected is None else Path(cfg.rejected)


def _follow(cfg: FeatureStoreConfig, views: Mapping[str, View], store: FeatureStore) -> None:
    from recsys.base import interrupts
    from recsys.store.follow import follow

    names = cfg.views or [v.name for v in views.values() if v.stream is not None]
    for name in names:
        if name not in views:
            raise UserError(f"views={name}: no such view{did_you_mean(name, views)}")
        if views[name].stream is None:
            raise UserError(f"{cfg.definition}: {name}.stream: is missing; add {STREAMS}")
    if not names:
        raise UserError(f"{cfg.definition}: no view has a stream; add stream: {STREAMS}")
    interrupts.advise("the store has all events until then; run the command again to go on")
    for name in names:
        say(f"{name}: following {views[name].stream}; writing to {cfg.store}")
    followed = [views[name] for name in names]
    follow(followed, store, rejected=_rejected(cfg), properties=cfg.kafka_properties, until_end=cfg.until_end)


def _join(cfg: FeatureStoreConfig, views: Mapping[str, View]) -> None:
    import polars as pl

    from recsys.data.prepare.prepared import check_engine
    from recsys.files.atomic import whole_file
    from recsys.files.outputs import check_output

    for key in ("input", "time", "output"):
        if getattr(cfg, key) is None:
            raise UserError(f"{key}: is missing; join needs input=ROWS.parquet time=COLUMN output=FILE.parquet")
    assert cfg.input is not None and cfg.time is not None and cfg.output is not None
    check_engine(cfg.engine)
    source, output = Path(cfg.input), Path(cfg.output)
    if cfg.engine.name == "spark":
        _join_by_spark(cfg, views, source, output)
        return
    if source.is_dir():
        raise UserError(f"input={source}: is a folder; name a file, or add engine=spark")
    if problem := problem_of(source):
        raise UserError(f"input={source}: {problem}")
    check_output(output, (".parquet",), inputs=[source])
    if output.exists():
        raise UserError(f"output={output}: already exists; name a file that does not exist yet")
    from recsys.store.fitting import check_rejected
    from recsys.store.views import readable

    check_rejected(_rejected(cfg))
    with readable(f"input={source}"):
        rows = pl.read_parquet(source, glob=False)
    for view in views.values():
        view.check_values(rejected=_rejected(cfg))
        view.check_keys(rows.schema.get(view.key))
        rows = view.join(rows, cfg.time)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as building:
            rows.write_parquet(building)
    except OSError as e:
        raise UserError(f"output={output}: cannot be written ({e.strerror}); name another place") from e
    _say_joined(rows.height, views, output)


def _join_by_spark(cfg: FeatureStoreConfig, views: Mapping[str, View], source: Path, output: Path) -> None:
    from recsys.data.prepare.spark_engine import borrowed_session
    from recsys.files.outputs import check_output
    from recsys.store.spark_join import join

    if (problem := problem_of(source)) and not source.is_dir():
        raise UserError(f"input={source}: {problem}")
    check_output(output, inputs=[source])
    if output.exists():
        raise UserError(f"output={output}: already exists; name a folder that does not exist yet")
    for view in views.values():
        view.check_values()
    assert cfg.time is not None
    with borrowed_session(cfg.engine) as session:
        _say_joined(join(session, views, source, cfg.time, output), views, output)


def _say_joined(rows: int, views: Mapping[str, View], output: Path) -> None:
    say(f"{rows:,} rows with {sum(len(v.names) for v in views.values())} more columns written to {output}")


def _feast(cfg: FeatureStoreConfig, views: Mapping[str, View]) -> None:
    from recsys.store.feast import write_repository

    for view in views.values():
        view.check_values()
    if cfg.output is None:
        raise UserError("output: is missing; name the folder to write, such as output=feast_repo")
    for line in write_repository(views, Path(cfg.output)):
        say(line)
    say(f"a Feast repository is in {cfg.output}; go there and run: feast apply")


def main() -> None:
    """Run the command with this process's overrides; the action comes first."""
    command_line.run("feature_store", _command, command_line.named_words(("action",), "see --help"))


if __name__ == "__main__":
    main()
