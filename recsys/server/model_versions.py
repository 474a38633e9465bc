"""Choose the versions that a server serves, from a repository NAME/VERSION or from the folder of one model.

A folder with a manifest.json is one model. Otherwise the folder is a repository, in which NAME/serving.json may choose
(recsys.files.model_folder): {"version": "3", "canary": {"version": "4", "share": 0.05}, "shadow": "5"}.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError, did_you_mean
from recsys.files.model_folder import HISTORY, MANIFEST, SERVING, GuardSettings, ModelFolder, is_folder_name

CURRENT, CANARY, SHADOW = "current", "canary", "shadow"


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
    """A folder that holds one model. Its canary and its shadow are folders of their own.

    also_named: the folder's name, by which requests may call the model, besides the name in its manifest
    """

    def __init__(self, folder: Path, canary: str | None = None, shadow: str | None = None) -> None:
        folders, share = {CURRENT: folder}, 0.0
        if canary is not None:
            folders[CANARY], share = split_share(canary)
        if shadow is not None:
            folders[SHADOW] = Path(shadow)
        for key, value in folders.items():
            check_model(value, "model" if key == CURRENT else key)
        self.also_named = folder.resolve().name
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

    also_named = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = {n: self._model(n).signature() for n in self.names()}

    def names(self) -> list[str]:
        """Return the models that have at least one version."""
        folders = sorted(p for p in self._folder.iterdir() if p.is_dir() and not p.name.startswith("."))
        return [p.name for p in folders if self.versions(p.name)]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first: 9 is before 10."""
        return self._model(name).versions() if is_folder_name(name) else []

    def choice(self, name: str, version: str | None = None, *, load: bool = False) -> Choice:
        """Return the versions that serving.json names.

        Args:
            version: replaces the version that answers.
            load: whether to serve a model that is unloaded.

        Raises:
            UserError: the file, or a version that it names, cannot be read.
        """
        versions, model = self._existing(name), self._model(name)
        self._seen.setdefault(name, model.signature())
        serving = model.parse(_loaded(model.content(), version)) if load else model.serving()
        if serving.answers_nothing:
            return Choice()
        current, canary = serving.version or versions[-1], serving.canary
        new = None if canary is None else canary.version
        wanted = [v for v in (current, new, serving.shadow, *serving.versions) if v is not None]
        for v in wanted:
            if v not in versions:
                raise UserError(f"model {name}: has no version {v[:80]}{did_you_mean(v[:80], versions)}")
        folders = {v: self._folder / name / v for v in wanted}
        kpi = serving.kpi.model_dump(exclude_none=True)
        if canary is None:
            return Choice(folders, current, shadow=serving.shadow, kpi=kpi)
        guard = None if new == current else canary.guard
        return Choice(folders, current, new, canary.share, serving.shadow, guard, kpi)

    def save(self, name: str, version: str | None = None) -> None:
        """Let serving.json say that a model is served, and which version answers, for the next start and all workers.

        version: as for `choice`, which has checked it
        """
        before = self._model(name).content()
        if (content := _loaded(before, version)) != before:
            self._write(name, content)

    def unload(self, name: str) -> None:
        """Let serving.json say that no version is served. What it chooses stays, for the next load."""
        self._existing(name)
        self._write(name, self._model(name).content() | {"unloaded": True})

    def end_canary(self, name: str, version: str, current: str) -> bool:
        """Let `current` answer all requests, and return whether `version` was the canary. Raises UserError."""
        model = self._model(name)
        with model.lock():
            content = model.content()
            canary = model.parse(content).canary
            if canary is None or canary.version != version:
                return False
            self._write(name, {"version": current} | {k: v for k, v in content.items() if k != "canary"})
        return True

    def record(self, name: str, event: str, **fields: Any) -> None:
        """Append an event to the model's history. Raises UserError."""
        with _writing(self._folder / name / HISTORY):
            self._model(name).append(event, **fields)

    def has_event(self, name: str, event: str, version: str) -> bool:
        """Return whether the history has an event of a version that is not older than serving.json."""
        model = self._model(name)
        seen = model.signature()
        since = 0.0 if seen is None else seen[0] / 1e9 - 0.001  # times in the file are rounded
        try:
            events = [e for e in model.history() if e.get("event") == event]
            times = [datetime.fromisoformat(e["time"]).timestamp() for e in events if e["version"] == version]
            return any(at >= since for at in times)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def changed(self) -> list[str]:
        """Return the models whose serving.json is not the one of the last call."""
        signatures = {n: self._model(n).signature() for n in list(self._seen)}  # other threads add to it
        names = [n for n, s in signatures.items() if s != self._seen[n]]
        self._seen |= signatures
        return names

    def watch(self, name: str) -> None:
        """Look for changes of a model's serving.json from now on."""
        self._seen[name] = self._model(name).signature()

    def _model(self, name: str) -> ModelFolder:
        return ModelFolder(self._folder / name)

    def _existing(self, name: str) -> list[str]:
        """Return the versions of a model. Raises UserError if it has none."""
        if not (versions := self.versions(name)):
            raise UserError(f"model {name[:80]}: no such model{did_you_mean(name[:80], self.names())}")
        return versions

    def _write(self, name: str, content: dict[str, Any]) -> None:
        with _writing(self._folder / name / SERVING):
            self._model(name).write(content)
        self.watch(name)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise UserError for a file that the server cannot write, so that other workers would not see the change."""
    try:
        yield
    except OSError as e:
        raise UserError(f"{path}: cannot be written ({e.strerror}); let the server write to this folder") from e


Source = OneModel | Repository


def _loaded(content: dict[str, Any], version: str | None) -> dict[str, Any]:
    """Return the content of serving.json once a model is loaded. version: the one that answers, as a request names it

    A canary of that version ends.
    """
    content = {k: v for k, v in content.items() if k != "unloaded" and not (k == "version" and v is None)}
    if version is not None:
        content["version"] = version
        if str((content.get("canary") or {}).get("version")) == version:
            del content["canary"]
    return content


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
            raise UserError(f"{key}={value}: applies to one model; for a folder of models, write NAME/{SERVING}")
    return repository
