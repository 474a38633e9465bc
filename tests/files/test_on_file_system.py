"""Every file and folder that is no raw data must be on a file system: a path of a URL would be a local folder `s3:`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from recsys.base.errors import UserError
from recsys.base.parsing import names_of, parse, without_none
from recsys.config.compose import COMMANDS, compose
from recsys.files.user_files import on_file_system
from recsys.follow.follow_settings import FollowConfig
from recsys.schema.fields import Local, LocalRun
from recsys.store.stores import open_store

REFUSED = {  # value -> the end of the message
    "s3://bucket/run": "must be on a file system, not on an object store",
    "s3:/bucket/run": "must be on a file system, not on an object store",
    "gs://bucket": "must be on a file system, not on an object store",
    "hdfs://host:8020/run": "must be on a file system, not on an object store",
    "filecache::s3://bucket/run": "must be on a file system, not on an object store",
    "runs/s3://bucket": "must be on a file system, not on an object store",
    "file:///data/run": "is a URL; write the path itself: /data/run",
    "file:/data/run": "is a URL; write the path itself: /data/run",
    "C:\\runs\\a": "is a path of Windows",
    "c:/runs/a": "is a path of Windows",
}
# Keys whose meaning speaks of files or folders: those of inputs may be on an object store, the others are no path.
OTHERS = re.compile(
    r".*\.data\..*|train\.checkpoint\.mirror|train\.(resume|start_from)|report\.runs|(evaluate|predict|export|checkpoint)\.run|(predict|pipeline)\.input|export\.rows|new\.files|.*\.checkpoint|.*\.(file|columns|separator)"
    r"|serve\.(canary|loader)|export\.python_path|new\.create\.data|train\.model"
)


def keys(schema: Any, prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Yield each key of a schema with its type and its meaning."""
    for name, hint in get_type_hints(schema, include_extras=True).items():
        if name not in names_of(schema):
            continue
        meaning = schema.__pydantic_fields__[name].description or ""
        plain = without_none(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
        if names_of(plain):
            yield from keys(plain, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", hint, meaning


def is_local(hint: Any) -> bool:
    return hint in (Local, LocalRun) or any(is_local(part) for part in get_args(hint) if part is not None)


FOUND = [(key, hint, why) for command, schema in COMMANDS.items() for key, hint, why in keys(schema, command)]
LOCAL = sorted(key for key, hint, _ in FOUND if is_local(hint))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_path_of_this_machine(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[name])):
        on_file_system(name)


@pytest.mark.parametrize("name", ["a", "/a/b", "~/a", "a:b", "./s3:/a", "a b/c:d", "outputs/12:30:00", "c:"])
def test_what_is_a_path(name: str) -> None:
    assert on_file_system(name) == name


@pytest.mark.parametrize("key", LOCAL)
def test_each_key_of_a_path(key: str) -> None:
    kind = TypeAdapter(next(hint for name, hint, _ in FOUND if name == key))
    for value in ("s3://bucket/run", ["a", "s3:/bucket/run"]):
        with pytest.raises(ValidationError, match=r"must be on a file system|valid (string|list)"):
            kind.validate_python(value)


def test_no_key_of_a_path_is_left_out() -> None:
    assert {"train.run_dir", "train.data.prepared", "report.output", "registry.root"} <= set(LOCAL)
    paths = re.compile(r"\b(folders?|files?)\b", re.I)
    text = {k for k, hint, why in FOUND if paths.search(why) and "str" in str(hint) and k not in LOCAL}
    assert sorted(k for k in text if not OTHERS.fullmatch(k)) == []


@pytest.mark.parametrize("key", ["run_dir", "data.prepared", "start_from"])
def test_the_command_line(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{key}=s3:/bucket/run: must be on a file system"):
        compose("train", [f"{key}=s3:/bucket/run"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("key", ["root", "partitions.folder"])
def test_settings_of_follow(key: str) -> None:
    partitions = {"folder": "days"} | ({"folder": "s3://bucket/run"} if "." in key else {})
    root = "follow" if "." in key else "s3://bucket/run"
    with pytest.raises(UserError, match=rf"^{key}=s3://bucket/run: must be on a file system"):
        parse(FollowConfig, {"root": root, "train": [], "partitions": partitions})


def test_a_feature_store() -> None:
    with pytest.raises(UserError, match=r"^store=sqlite:///s3://bucket/f\.db: must be on a file system"):
        open_store("sqlite:///s3://bucket/f.db", write=True)
