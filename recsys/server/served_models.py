"""The models that a worker serves: which version answers a request, and how versions are loaded and replaced."""

from __future__ import annotations

import asyncio
import gc
import glob
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from recsys.base.errors import UserError, did_you_mean
from recsys.base.json_log import log, log_failure
from recsys.files import manifest
from recsys.files.model_folder import MANIFEST, SERVING
from recsys.online.servable import Servable, TensorSpec
from recsys.server.batcher import Batcher, BatchLimits
from recsys.server.model_versions import CANARY, Choice, Source
from recsys.server.payloads import kind_of
from recsys.server.prometheus import Metrics, ModelMetrics, Observer
from recsys.server.request_error import RequestError

Loader = Callable[..., Servable]  # of a folder, with the number of `threads`
Signature = tuple[tuple[str, int, int, int], ...]  # path, time, inode and size of each file
BASELINE = "baseline"  # requests for the current version that are compared with the canary's
NUMBERS = {"INT64", "FP64"}  # types of inputs that take one another's values
MAX_KEYS = 1000  # sets of keys that are remembered
SERVED_KINDS = ("artefact", "delta")  # in the manifests of models from elsewhere


@dataclass(eq=False)
class LoadedVersion:
    """A version of a model in memory. kind: what its requests hold, and what its answers are"""

    name: str
    version: str
    servable: Servable
    batcher: Batcher
    metrics: ModelMetrics
    signature: Signature  # of its manifest, to see whether the folder holds another model now
    _unread: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)  # keys of rows -> those not read

    def __post_init__(self) -> None:
        self.kind = kind_of(self.servable)
        self._inputs = frozenset(s.name for s in self.servable.inputs)
        self._needed = frozenset(s.name for s in self.servable.inputs if not s.optional)

    def unread(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of a row that the model does not read."""
        if (found := self._unread.get(keys)) is None:
            if len(self._unread) > MAX_KEYS:
                self._unread.clear()
            known = self.servable.columns
            found = self._unread[keys] = tuple(k for k in keys if k not in known)
        return found

    @property
    def output_specs(self) -> list[TensorSpec]:
        """Return the outputs in tensors. Predictions are (rows, 1): Triton has no other shape for a batch of them."""
        outputs, batches = self.servable.outputs, self.kind.batches
        return [replace(s, shape=(-1, 1)) if batches and len(s.shape) == 1 else s for s in outputs]

    def takes(self, columns: Mapping[str, Any]) -> bool:
        """Return whether these are raw columns of the model, and all that it needs."""
        return self._needed <= columns.keys() <= self._inputs


@dataclass(frozen=True)
class ServedModel:
    """The versions of a model that are served. versions: by key, as in Choice"""

    name: str
    choice: Choice
    versions: dict[str, LoadedVersion]

    def loaded(self, key: str | None) -> LoadedVersion | None:
        """Return the version with this key."""
        return None if key is None else self.versions.get(key)

    def choose(self, routing_key: Callable[[], bytes]) -> tuple[LoadedVersion, str]:
        """Return the version that answers a request, and CANARY, BASELINE or "" if the request is not compared.

        The canary answers a share of the routing keys, always the same. The baseline is as large a share of the other
        keys, which the current version answers, so that both are compared at the same time and on as much traffic.
        """
        choice = self.choice
        assert choice.current is not None
        if choice.canary is None:
            return self.versions[choice.current], ""
        place = xxhash.xxh3_64_intdigest(self.name.encode() + b"\0" + routing_key()) / 2**64
        key = choice.canary if place < choice.share else choice.current
        compared = choice.guard is not None and place < 2 * choice.share
        return self.versions[key], (CANARY if place < choice.share else BASELINE) if compared else ""


class Registry:
    """All models of a worker. Methods run in the event loop's thread; models are loaded in another thread.

    Args:
        source: finds the folders of models.
        load: loads a folder into memory.
        limits: the limits of each batcher.
        metrics: the metrics of the process.
        threads: threads of each model.
    """

    def __init__(self, source: Source, load: Loader, limits: BatchLimits, metrics: Metrics, threads: int = 1) -> None:
        self._source, self._load, self._limits, self._metrics, self._threads = source, load, limits, metrics, threads
        self._models: dict[str, ServedModel] = {}
        self._source_names: dict[str, str] = {}  # name in requests -> name in the source
        self._lock = asyncio.Lock()

    @property
    def serves(self) -> bool:
        """Return whether a model is served."""
        return bool(self._models)

    async def load_all(self) -> list[UserError]:
        """Load what is new or has changed, and return the errors. A model with an error keeps its loaded versions."""
        errors: list[UserError] = []
        async with self._lock:
            for name in await asyncio.to_thread(self._source.names):
                try:
                    await self._apply(name, await asyncio.to_thread(self._source.choice, name))
                except UserError as e:
                    errors.append(e)
        return errors

    async def load(self, name: str, version: str | None = None) -> None:
        """Load a model, or let another version answer. Raises UserError."""
        async with self._lock:
            source_name = self._source_name(name)
            choice = await asyncio.to_thread(self._source.choice, source_name, version, load=True)
            before = dict(self._models), dict(self._source_names)
            await self._apply(source_name, choice)
            try:
                self._source.save(source_name, version)
            except UserError:  # undone: other workers and the next start read serving.json, which has not changed
                self._models, self._source_names = before
                raise

    async def unload(self, name: str) -> None:
        """Stop serving a model. Raises UserError."""
        async with self._lock:
            source_name = self._source_name(name)
            self._source.unload(source_name)
            self._models.pop(name, None)

    def _source_name(self, name: str) -> str:
        """Return the name by which the source knows a model.

        Raises RequestError if `name` is empty, or if the source holds one model, which is loaded under another name.
        """
        source_name = self._source_names.get(name, name)
        has_one_model = source_name == name and self._source.names() == [""]
        if not name or (has_one_model and self._models):
            raise self._unknown(name)
        return "" if has_one_model else source_name

    async def reload_changed(self) -> None:
        """Apply the alias files that have changed. Errors are logged, and the loaded versions stay."""
        for name in await asyncio.to_thread(self._source.changed):
            try:
                async with self._lock:
                    await self._apply(name, await asyncio.to_thread(self._source.choice, name))
            except UserError as e:
                log("error", "reload", model=name, error=str(e))
            except Exception as e:
                log_failure("reload", e, model=name)

    def names(self) -> list[str]:
        """Return the names of the models that are served."""
        return sorted(self._models)

    def find(self, name: str) -> ServedModel | None:
        """Return a model, None if it is not served any longer."""
        return self._models.get(name)

    def get(self, name: str | None) -> ServedModel:
        """Return a model; without a name, the only one. Raises RequestError."""
        if not self._models and self._source.names() == [""]:
            raise RequestError(503, "no model is loaded; the server's log says why")
        if name is None:
            if not self._models:
                raise RequestError(503, "no model is loaded; load one with POST /v2/repository/models/NAME/load")
            if len(self._models) != 1:
                names = ", ".join(self.names())
                raise RequestError(400, f"several models are served ({names}); use the path /models/NAME/...")
            return next(iter(self._models.values()))
        model = self._models.get(name)
        if model is None and name == self._source.also_named:
            model = next(iter(self._models.values()), None)
        if model is None:
            raise self._unknown(name)
        return model

    def version(
        self, name: str | None, version: str | None, routing_key: Callable[[], bytes]
    ) -> tuple[LoadedVersion, str]:
        """Return the version that answers a request, and its role as in `ServedModel.choose`. Raises RequestError."""
        model = self.get(name)
        if not version:
            return model.choose(routing_key)
        versions = {v.version: v for v in model.versions.values()}
        if version not in versions:
            hint = did_you_mean(version[:80], versions)
            raise RequestError(404, f"model {model.name}: has no version {version[:80]}{hint}")
        return versions[version], ""

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return name, version, state and reason of each version in memory or in the folder. ready: only in memory"""
        rows = []
        for name in sorted({*self._models, *(n for n in self._source.names() if n)}):
            model = self._models.get(name)
            loaded = [v.version for v in model.versions.values()] if model else []
            for version in [*self._source.versions(self._source_names.get(name, name))] or loaded:
                if version in loaded:
                    rows.append({"name": name, "version": version, "state": "READY", "reason": ""})
                elif not ready:
                    rows.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": "not loaded"})
        return rows

    def _unknown(self, name: str) -> RequestError:
        if not name:
            return RequestError(404, f"no model is named; valid: {', '.join(self.names()) or 'none'}")
        if name in self._source.names():
            load = f"load it with POST /v2/repository/models/{name}/load"
            return RequestError(404, f"model {name}: is not loaded; {load}")
        return RequestError(404, f"model {name[:80]}: no such model{did_you_mean(name[:80], self._models)}")

    async def _apply(self, source_name: str, choice: Choice) -> None:
        """Load the versions of a choice that are not in memory, then serve them.

        Replaced versions still answer the requests in their queues.
        """
        served = next((m for n, m in self._models.items() if self._source_names[n] == source_name), None)
        if choice.current is None:
            if served is not None:
                del self._models[served.name]
            return
        before = served.versions if served is not None else {}
        versions = {key: await self._version(source_name, key, path, before) for key, path in choice.folders.items()}
        _check_alike(source_name, choice, versions, served)
        current = versions[choice.current]
        name = current.name
        for key, v in versions.items():
            limits = self._limits
            if key == choice.shadow:  # it must not hold up the event loop, nor keep many rows in memory
                limits = replace(limits, inline=False, queue=limits.rows)
            v.batcher.limits = limits
            if v is not current and (v.name != name or v.version == current.version):  # from a folder of its own
                version = f"{v.version}-{key}" if v.version == current.version else v.version
                metrics = self._metrics.of_model(name, version)
                versions[key] = replace(v, name=name, version=version, metrics=metrics)
        self._models[name] = ServedModel(name, choice, versions)
        self._source_names[name] = source_name

    async def _version(self, name: str, key: str, folder: Path, before: dict[str, LoadedVersion]) -> LoadedVersion:
        signature = await asyncio.to_thread(_signature, folder)
        if key in before and before[key].signature == signature:
            return before[key]
        label = name or folder.name
        try:
            shared = {"before": list(before.values())[-1].servable} if before else {}  # what is equal is shared
            servable = await asyncio.to_thread(self._load, folder, threads=self._threads, **shared)
        except UserError as e:
            self._metrics.reloads.labels(label, "failed").inc()
            if not name:
                raise
            raise UserError(f"{e}; or choose another version in {folder.parent / SERVING}") from e
        except Exception as e:
            self._metrics.reloads.labels(label, "failed").inc()
            log_failure("load", e, folder=str(folder))
            raise UserError(f"{folder}: the model cannot be loaded ({type(e).__name__}: {e})") from e
        shown, version = (name, key) if name else (servable.name, servable.version)
        self._metrics.reloads.labels(shown, "ok").inc()
        batcher, of_version = Batcher(servable, self._limits), self._metrics.of_model(shown, version)
        batcher.observe = Observer(servable, of_version)
        loaded = LoadedVersion(shown, version, servable, batcher, of_version, signature)
        for what, seconds in (await asyncio.to_thread(_times, folder)).items():
            self._metrics.times.labels(shown, version, what).set(seconds)
        await loaded.batcher.warm_up(loaded.kind.empty())
        gc.freeze()  # so that no garbage collection looks at vocabularies: with 7,000 values, one takes 50 ms
        self._metrics.times.labels(shown, version, "served").set_to_current_time()
        log("info", "loaded", model=shown, version=version, folder=str(folder))
        return loaded


def _check_alike(name: str, choice: Choice, versions: Mapping[str, LoadedVersion], served: ServedModel | None) -> None:
    """Raise UserError if a version would get requests that it cannot answer, or would answer in another form.

    Each version that gets ordinary requests (current, canary, shadow) is compared with the version that answers now, or
    with the new current version if none answers yet. Other versions may differ: only requests that name them get them.
    """
    before = None if served is None else served.loaded(served.choice.current)
    for key in dict.fromkeys(k for k in (choice.current, choice.canary, choice.shadow) if k is not None):
        new, first = versions[key], before or versions[str(choice.current)]
        if new is not first and (why := _difference(first, new, own_name=key != choice.current)):
            fix = "serve it under another name"
            if before is not None:
                fix = f"{fix}, or unload {name} first" if name else "start the server again to serve it"
            asked = f"so it cannot answer what version {first.version} is asked"
            raise UserError(f"{choice.folders[key]}: {why}, {asked}; {fix}")


def _difference(first: LoadedVersion, new: LoadedVersion, own_name: bool) -> str | None:
    """Return the reason why a version cannot answer the requests for the first one, or None if it can.

    own_name: whether the new version may have another name than the first one
    """
    a, b = first.servable, new.servable
    if first.kind is not new.kind:
        return f"is a {new.kind.name}, not a {first.kind.name}"
    if not own_name and first.name != new.name:
        return f"is named {new.name}, not {first.name}"
    inputs = {s.name: s for s in b.inputs}
    given = {s.name: s.datatype for s in a.inputs}
    for name, datatype in given.items():
        if name not in inputs:
            return f"has no input {name}"
        if inputs[name].datatype != datatype and not {inputs[name].datatype, datatype} <= NUMBERS:
            return f"takes {inputs[name].datatype} for the input {name}, not {datatype}"
    if needed := next((s.name for s in b.inputs if not s.optional and s.name not in given), None):
        return f"needs the input {needed}"
    ours, theirs = ({s.name: (s.datatype, list(s.shape)) for s in m.outputs} for m in (b, a))
    return None if ours == theirs else f"has the outputs {ours}, not {theirs}"


def _times(folder: Path) -> dict[str, float]:
    """Return when a model was exported, and the time of its newest training event, if its manifest says so."""
    about = manifest.read_json(folder / MANIFEST)
    described: dict[str, Any] = next((about[key] for key in SERVED_KINDS if isinstance(about.get(key), dict)), {})
    times = {"events": described.get("events_until"), "exported": described.get("created")}
    found = dict[str, float]()
    for what, text in times.items():
        with suppress(ValueError, TypeError):  # it says nothing, or somebody else wrote it
            time = datetime.fromisoformat(str(text))
            found[what] = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return found


def _signature(folder: Path) -> Signature:
    """Return path, time, inode and size of a model's manifest and sources, to notice changes; links are resolved."""
    try:
        about = manifest.read_json(folder / MANIFEST)
        exported = not about.keys().isdisjoint(SERVED_KINDS)
        patterns = [] if exported else about.get(manifest.MADE_FROM, [])  # a pipeline's, of this machine
        files = [folder / MANIFEST, *(Path(f) for p in patterns for f in sorted(glob.glob(p)))]
        states = [(f, f.stat()) for f in files]
    except OSError as e:
        raise UserError(f"{folder / MANIFEST}: cannot be read ({e.strerror})") from e
    return tuple((str(f.resolve()), stat.st_mtime_ns, stat.st_ino, stat.st_size) for f, stat in states)
