"""The folder of a model's versions, and the files in it that say which version is what; their only reader and writer.

FOLDER/NAME/VERSION/manifest.json   a version: an artefact, or a delta of another version
FOLDER/NAME/serving.json            which versions are served, see `Serving`; without it, the highest version is
FOLDER/NAME/history.jsonl           a line for each event, oldest first; nothing is ever removed from it
FOLDER/NAME/.registry.lock          held while a registry, or a server that ends a canary, changes these files
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from recsys.base.errors import UserError
from recsys.base.parsing import StrictSettings, parse
from recsys.files.atomic import write_json
from recsys.files.json_text import append_line, now, read_json, read_lines

MANIFEST = "manifest.json"
SERVING, HISTORY, LOCK = "serving.json", "history.jsonl", ".registry.lock"
GuardedMetric = Literal["errors", "latency", "score", "click"]
MARGINS: dict[GuardedMetric, float] = {"errors": 0.01, "latency": 0.1, "score": 0.2, "click": 0.01}


def _as_version(value: object) -> str:
    """Numbers are taken as names of versions."""
    if isinstance(value, bool) or not isinstance(value, int | str) or not is_folder_name(str(value)):
        raise ValueError("must be the name of a version's folder")
    return str(value)


Version = Annotated[str, BeforeValidator(_as_version)]


class GuardSettings(StrictSettings, strict=True):
    """How a canary is compared with the version that answers: `canary.guard` of serving.json.

    alpha: probability of a false alarm, at any time and on any metric
    min_requests, min_seconds: how much the canary and the baseline must have answered, without an alarm, to pass
    quantile: of the baseline's latencies; slower requests are counted
    metrics: what is compared
    margins: by how much the canary may be worse, by metric: a difference of two shares, or of mean ranks of scores
    """

    alpha: float = Field(default=0.05, ge=1e-6, le=0.5)
    min_requests: int = Field(default=1000, ge=1, le=10**9)
    min_seconds: float = Field(default=60.0, ge=0, le=10**9)
    quantile: float = Field(default=0.95, ge=0.5, le=0.999)
    metrics: list[GuardedMetric] = Field(default=list(MARGINS), min_length=1)
    margins: dict[GuardedMetric, Annotated[float, Field(ge=0, le=0.9)]] = Field(default={}, validate_default=True)

    @field_validator("margins")
    @classmethod
    def _of_guarded_metrics(
        cls, margins: dict[GuardedMetric, float], info: ValidationInfo
    ) -> dict[GuardedMetric, float]:
        metrics = info.data.get("metrics", list(MARGINS))
        if unknown := next((name for name in margins if name not in metrics), None):
            raise ValueError(f"{unknown} is not one of metrics, {', '.join(metrics)}")
        return {name: margins.get(name, MARGINS[name]) for name in metrics}


def _as_guard(value: object) -> object:
    """Return the keys of a guard: all its defaults for null and true, and no guard for false."""
    return {} if value is None or value is True else None if value is False else value


class Canary(StrictSettings, strict=True):
    """The version that answers a share of the requests.

    guard: how it is compared; null or true in the file: by default; false: not at all
    """

    version: Version
    share: float = Field(ge=0, le=1)
    guard: Annotated[GuardSettings | None, BeforeValidator(_as_guard)] = GuardSettings()


class Kpi(StrictSettings, strict=True):
    """Least rates, below which a retraining is asked for."""

    click: float | None = Field(default=None, ge=1e-6, le=0.999)


class Serving(StrictSettings, strict=True):
    """Content of serving.json: which versions of a model are served.

    version: the version that answers; null: none, until one is promoted. Without this key, the highest one answers
    canary: the version that answers a share of the requests
    shadow: a version that is asked, too, and whose answers are compared
    versions: further versions that stay loaded
    unloaded: whether no version is served until the model is loaded again
    kpi: least rates
    challenger, previous, change: the registry's: the version that is to be judged, the champion before, and a mark that
        makes no two states of the file equal

    >>> Serving.model_validate({"version": 3, "canary": {"version": "4", "share": 0.05}}).canary.share
    0.05
    """

    version: Version | None = None
    canary: Canary | None = None
    shadow: Version | None = None
    versions: list[Version] = Field(default=[])
    unloaded: bool = False
    kpi: Kpi = Kpi()
    challenger: Version | None = None
    previous: Version | None = None
    change: str | None = None

    @property
    def answers_nothing(self) -> bool:
        """Return whether the model is unloaded, or none of its versions has been promoted."""
        return self.unloaded or ("version" in self.model_fields_set and self.version is None)


class ModelFolder:
    """The versions of one model. folder: FOLDER/NAME, which need not exist"""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / SERVING

    def versions(self) -> list[str]:
        """Return the versions that have a folder, oldest first: 9 is before 10."""
        names = [p.parent.name for p in self.folder.glob(f"*/{MANIFEST}")]

        def key(version: str) -> list[tuple[int, int, str]]:  # v9 comes before v10
            parts = re.split(r"([0-9]+)", version)
            return [(1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts]

        return sorted(filter(is_folder_name, names), key=key)

    def content(self) -> dict[str, Any]:
        """Return serving.json as it is; {} if it is missing. Raises UserError if it is not valid."""
        content = self._read()
        self.parse(content)
        return dict(content)

    def serving(self) -> Serving:
        """Return the parsed serving.json. Raises UserError if it is not valid."""
        return self.parse(self._read())

    def parse(self, content: object) -> Serving:
        """Parse a content of serving.json, in which null stands for a missing key. Raises UserError."""
        if isinstance(content, dict):
            content = {key: value for key, value in content.items() if value is not None or key == "version"}
        return parse(Serving, content, file=str(self.path))

    def _read(self) -> Any:
        try:
            return read_json(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as e:
            raise UserError(f"{self.path}: cannot be read as JSON ({e}); correct the file") from e

    def write(self, content: dict[str, Any]) -> None:
        """Replace serving.json in one rename."""
        write_json(self.path, content)

    def history(self) -> list[dict[str, Any]]:
        """Return the events, oldest first: time, event and more."""
        return read_lines(self.folder / HISTORY)

    def append(self, event: str, **fields: Any) -> None:
        """Append an event to the history."""
        append_line(self.folder / HISTORY, {"time": now(), "event": event, **fields})

    def lock(self) -> FileLock:
        """Return the lock to hold between a read and a write."""
        return FileLock(self.folder / LOCK)

    def signature(self) -> tuple[int, int, int] | None:
        """Return time in ns, inode and size of serving.json, which change with each write; None if it is missing."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


def is_folder_name(name: str) -> bool:
    """Return whether a name is that of a folder which is not hidden, in UTF-8 and without control characters.

    >>> is_folder_name("v3"), is_folder_name("../v3")
    (True, False)
    """
    return bool(name) and not name.startswith(".") and "/" not in name and name.isprintable() and len(name) <= 200
