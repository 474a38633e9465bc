"""Read a folder of models: find its models and versions, and choose the versions that are served.

A folder with a manifest.json is one model. Otherwise the folder is a repository, NAME/VERSION/manifest.json, in which
NAME/serving.json may choose: {"version": "3", "canary": {"version": "4", "share": 0.05}, "shadow": "5"}. Without it,
the highest version is served. {"unloaded": true} beside these keys stops serving the model until it is loaded again.
`challenger` and `previous` are versions that recsys.registry names, and `change` is its mark; the server ignores them.
NAME/history.jsonl has a line for each event: a canary that was rolled back or has passed, a rate that is too low.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from recsys.errors import UserError, did_you_mean
from recsys.files.atomic import write_json
from recsys.files.journal import append_line, now, read_lines
from recsys.files.json_text import read_json
from recsys.server.canary_settings import GuardSettings, guard_settings, kpi_settings

MANIFEST = "manifest.json"
ALIAS, HISTORY = "serving.json", "history.jsonl"
LOCK = ".registry.lock"  # held while a registry, or a server that ends a canary, changes these files
CURRENT, CANARY, SHADOW = "current", "canary", "shadow"
CANARY_KEYS = ("version", "share", "guard")


@dataclass(frozen=True)
class Choice:
    """The versions of a model that are served.

    folders: folder of each version, by a key that is the version, or its role if the folder is one model
    current: key of the version that answers; None if the model is unloaded
    share: share of the requests that the canary answers, between 0 and 1
    guard: how the canary is compared; None if it is not
    kpi: least rates, by name, below which a retraining is asked for
    """

    folders: dict[str, Path] = field(default_factory=dict)
    current: str | None = None
    canary: str | None = None
    share: float = 0.0
    shadow: str | None = None
    guard: GuardSettings | None = None
    kpi: dict[str, float] = field(default_factory=dict)


def split_share(text: str) -> tuple[Path, float]:
    """Return the folder and the share of canary=DIR:SHARE. Raises UserError."""
    folder, colon, share = text.rpartition(":")
    try:
        number = float(share)
    except ValueError:
        number = -1.0
    if not colon or not folder or not 0 < number < 1:
        raise UserError(f"canary={text}: write a folder and the share of its requests, such as canary=models/new:0.05")
    return Path(folder), number


class OneModel:
    """A folder that holds one model. Its canary and its shadow are folders of their own."""

    def __init__(self, folder: Path, canary: str | None = None, shadow: str | None = None) -> None:
        folders, share = {CURRENT: folder}, 0.0
        if canary is not None:
            folders[CANARY], share = split_share(canary)
        if shadow is not None:
            folders[SHADOW] = Path(shadow)
        for key, value in folders.items():
            check_model(value, "model" if key == CURRENT else key)
        self._choice = Choice(
            folders, CURRENT, CANARY if canary is not None else None, share, SHADOW if shadow is not None else None
        )

    def names(self) -> list[str]:
        """Return one empty name: the model is served under the name in its manifest."""
        return [""]

    def versions(self, name: str) -> list[str]:
        return []

    def choice(self, name: str, version: str | None = None, *, load: bool = False) -> Choice:
        if version is not None:
            fix = "serve a folder of models NAME/VERSION to choose among versions"
            raise UserError(f"version {version[:80]}: this server has the folder of one model; {fix}")
        return self._choice

    def save(self, name: str, version: str | None = None) -> None:
        """Do nothing: the folder itself is the choice."""

    def unload(self, name: str) -> None:
        raise UserError("the only model of a server cannot be unloaded; stop the server")

    def changed(self) -> list[str]:
        return []


class Repository:
    """A folder of models, NAME/VERSION/manifest.json."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int, int] | None] = {n: self._signature(n) for n in self.names()}

    def names(self) -> list[str]:
        """Return the models that have at least one version."""
        folders = sorted(p for p in self._folder.iterdir() if p.is_dir() and not p.name.startswith("."))
        return [p.name for p in folders if self.versions(p.name)]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first: 9 is before 10."""
        if not _safe(name):
            return []
        found = [p.parent.name for p in (self._folder / name).glob(f"*/{MANIFEST}")]
        return sorted(filter(_safe, found), key=_natural)

    def choice(self, name: str, version: str | None = None, *, load: bool = False) -> Choice:
        """Return the versions that serving.json names.

        Args:
            name: the model.
            version: replaces the version that answers.
            load: whether to serve a model that is unloaded.

        Raises:
            UserError: the file, or a version that it names, cannot be read.
        """
        versions = self._existing(name)
        self._seen.setdefault(name, self._signature(name))
        alias = self._alias(name)
        if load:
            alias = _loaded(alias, version)
        if alias.get("unloaded") or alias.get("version", "") is None:
            return Choice()
        canary = alias.get("canary") or {}
        current, shadow = alias.get("version", versions[-1]), alias.get("shadow")
        wanted = [v for v in (current, canary.get("version"), shadow, *alias.get("versions", [])) if v is not None]
        for v in wanted:
            if v not in versions:
                raise UserError(f"model {name}: has no version {v[:80]}{did_you_mean(v[:80], versions)}")
        folders = {v: self._folder / name / v for v in wanted}
        new, kpi = canary.get("version"), alias.get("kpi", {})
        guard = None if new in (None, current) else guard_settings(canary.get("guard"), "canary.guard")
        return Choice(folders, current, new, canary.get("share", 0.0), shadow, guard, kpi)

    def save(self, name: str, version: str | None = None) -> None:
        """Let serving.json say that a model is served, and which version answers, for the next start and all workers.

        version: as for `choice`, which has checked it
        """
        before = self._alias(name)
        if (alias := _loaded(before, version)) != before:
            self._write(name, alias)

    def unload(self, name: str) -> None:
        """Let serving.json say that no version is served. What it chooses stays, for the next load."""
        self._existing(name)
        self._write(name, self._alias(name) | {"unloaded": True})

    def end_canary(self, name: str, version: str, current: str) -> bool:
        """Let `current` answer all requests, and return whether `version` was the canary. Raises UserError."""
        with FileLock(self._folder / name / LOCK):
            alias = self._alias(name)
            if alias.get("canary", {}).get("version") != version:
                return False
            self._write(name, {"version": current} | {k: v for k, v in alias.items() if k != "canary"})
        return True

    def record(self, name: str, event: str, **fields: Any) -> None:
        """Append an event to history.jsonl. Raises UserError."""
        path = self._folder / name / HISTORY
        try:
            append_line(path, {"time": now(), "event": event, **fields})
        except OSError as e:
            raise UserError(f"{path}: cannot be written ({e.strerror}); let the server write to this folder") from e

    def has_event(self, name: str, event: str, version: str) -> bool:
        """Return whether history.jsonl has an event of a version that is not older than serving.json."""
        seen = self._signature(name)
        since = 0.0 if seen is None else seen[0] / 1e9 - 0.001  # times in the file are rounded
        try:
            events = [e for e in read_lines(self._folder / name / HISTORY) if e.get("event") == event]
            times = [datetime.fromisoformat(e["time"]).timestamp() for e in events if e["version"] == version]
            return any(at >= since for at in times)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def changed(self) -> list[str]:
        """Return the models whose serving.json is not the one of the last call."""
        signatures = {n: self._signature(n) for n in list(self._seen)}  # other threads add to it
        names = [n for n, s in signatures.items() if s != self._seen[n]]
        self._seen |= signatures
        return names

    def watch(self, name: str) -> None:
        """Look for changes of a model's serving.json from now on."""
        self._seen[name] = self._signature(name)

    def _existing(self, name: str) -> list[str]:
        """Return the versions of a model. Raises UserError if it has none."""
        if not (versions := self.versions(name)):
            raise UserError(f"model {name[:80]}: no such model{did_you_mean(name[:80], self.names())}")
        return versions

    def _write(self, name: str, alias: dict[str, Any]) -> None:
        path = self._folder / name / ALIAS
        try:
            write_json(path, alias)
        except OSError as e:
            raise UserError(f"{path}: cannot be written ({e.strerror}), so that other workers would not see it") from e
        self.watch(name)

    def _alias(self, name: str) -> dict[str, Any]:
        path = self._folder / name / ALIAS
        try:
            alias = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as e:
            raise UserError(f"{path}: cannot be read as JSON ({e}); correct the file") from e
        return checked_alias(alias, path)

    def _signature(self, name: str) -> tuple[int, int, int] | None:
        try:
            stat = (self._folder / name / ALIAS).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


Source = OneModel | Repository


def _natural(version: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a version, so that v9 comes before v10."""
    parts = re.split(r"([0-9]+)", version)
    return [(1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts]


def _safe(name: str) -> bool:
    """Return whether a name is that of a folder which is not hidden, in UTF-8 and without control characters."""
    return bool(name) and not name.startswith(".") and "/" not in name and name.isprintable() and len(name) <= 200


def checked_alias(alias: Any, path: Path) -> dict[str, Any]:
    """Check the content of serving.json. Numbers are taken as names of versions."""
    example = '{"version": "3", "canary": {"version": "4", "share": 0.05}, "shadow": "5"}'
    if not isinstance(alias, dict):
        raise UserError(f"{path}: must hold a JSON object, such as {example}")
    keys = ("version", "canary", "shadow", "versions", "unloaded", "kpi", "challenger", "previous", "change")
    if unknown := next((k for k in alias if k not in keys), None):
        raise UserError(f"{path}: {unknown[:80]}: no such key{did_you_mean(unknown[:80], keys)}")
    alias = {k: v for k, v in alias.items() if v is not None or k == "version"}
    for key in ("version", "shadow", "challenger", "previous"):
        if key in alias and alias[key] is not None:
            alias[key] = _version(alias[key], path, key)
    if not isinstance(alias.get("versions", []), list):
        raise UserError(f"{path}: versions must be a list of versions to keep loaded")
    if "versions" in alias:
        alias["versions"] = [_version(v, path, "versions") for v in alias["versions"]]
    if "canary" in alias:
        alias["canary"] = _canary(alias["canary"], path)
    if "kpi" in alias:
        alias["kpi"] = kpi_settings(alias["kpi"], f"{path}: kpi")
    if not isinstance(alias.get("unloaded", False), bool):
        raise UserError(f"{path}: unloaded must be true or false")
    return alias


def _loaded(alias: dict[str, Any], version: str | None) -> dict[str, Any]:
    """Return the content of serving.json once a model is loaded. version: the one that answers, as a request names it

    A canary of that version ends.
    """
    alias = {k: v for k, v in alias.items() if k != "unloaded" and not (k == "version" and v is None)}
    if version is not None:
        alias["version"] = version
        if alias.get("canary", {}).get("version") == version:
            del alias["canary"]
    return alias


def _canary(canary: Any, path: Path) -> dict[str, Any]:
    share = canary.get("share") if isinstance(canary, dict) else None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UserError(f'{path}: canary needs a version and a share from 0 to 1: {{"version": "4", "share": 0.05}}')
    if unknown := next((k for k in canary if k not in CANARY_KEYS), None):
        raise UserError(f"{path}: canary: {unknown[:80]}: no such key{did_you_mean(unknown[:80], CANARY_KEYS)}")
    guard_settings(canary.get("guard"), f"{path}: canary.guard")
    guard = {"guard": canary["guard"]} if "guard" in canary else {}
    return {"version": _version(canary.get("version"), path, "canary.version"), "share": float(share), **guard}


def _version(value: Any, path: Path, key: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or not _safe(str(value)):
        raise UserError(f"{path}: {key} must be the name of a version's folder")
    return str(value)


def check_model(folder: Path, key: str = "model") -> None:
    """Check that a folder holds a model. Raises UserError."""
    if not folder.exists():
        raise UserError(f"{key}={folder}: no such folder; name the folder of an exported model")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{key}={folder}: has no {MANIFEST}; name the folder of an exported model")


def open_source(folder: Path, canary: str | None = None, shadow: str | None = None) -> Source:
    """Return the one model, or the repository of models, in a folder. Raises UserError if it holds neither."""
    if not folder.exists():
        raise UserError(f"model={folder}: no such folder; name an exported model, or a folder of models NAME/VERSION")
    if folder.is_file():
        raise UserError(f"model={folder}: is a file; name its folder, {folder.parent}")
    if (folder / MANIFEST).is_file():
        return OneModel(folder, canary, shadow)
    if not folder.is_dir() or not (repository := Repository(folder)).names():
        raise UserError(f"model={folder}: holds no {MANIFEST}, nor models in folders NAME/VERSION/{MANIFEST}")
    for key, value in (("canary", canary), ("shadow", shadow)):
        if value is not None:
            raise UserError(f"{key}={value}: applies to one model; for a folder of models, write NAME/{ALIAS}")
    return repository
