"""A registry of a model's versions, which is a folder of models that `python -m recsys.serve FOLDER` serves.

FOLDER/NAME/            the versions, serving.json and history.jsonl (recsys.files.model_folder)
FOLDER/NAME/VERSION/    VERSION is the first 12 digits of the digest of the artefact's manifest
FOLDER/NAME/.applied/   artefacts made of deltas (recsys.export.artefact.apply_delta)

Several processes may change a registry: a lock orders them. A change is written to the history first, with serving.json
before and after it, and then to serving.json, in one rename. If the process is killed in between, whoever opens the
registry next completes the change.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock

from recsys.base.errors import UserError, did_you_mean
from recsys.export.artefact.apply_delta import RESULT, Delta, chain, full_artefact, is_delta, result_of
from recsys.export.artefact.folder import bytes_of
from recsys.files import manifest
from recsys.files.atomic import remove_folder, whole_folder
from recsys.files.model_folder import HISTORY, MANIFEST, ModelFolder
from recsys.files.user_files import check_name
from recsys.server.model_versions import check_model

COPYING = ".register.lock"  # held while an artefact is copied
DIGITS = 12
ROLES = ("champion", "canary", "challenger", "previous")


class ModelRegistry:
    """The versions of one model.

    folder: folder of models, which is created when a version is registered
    name: name of the model, a folder in it

    Raises UserError if the name cannot be that of a folder, or serving.json cannot be read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        check_name(name, "name", "clicks")
        self.folder, self.name, self._model = folder / name, name, ModelFolder(folder / name)
        if self._interrupted() is not None:
            with self._changing():
                pass

    def versions(self) -> list[str]:
        """Return the versions that are registered, oldest first."""
        return list(dict.fromkeys(e["version"] for e in self._registrations()))

    def aliases(self) -> dict[str, str]:
        """Return the version of each role in ROLES that has one."""
        s = self._model.serving()
        canary = None if s.canary is None else s.canary.version
        named = {"champion": s.version, "canary": canary, "challenger": s.challenger, "previous": s.previous}
        return {role: version for role, version in named.items() if version is not None}

    def champion_run(self) -> Path | None:
        """Return the run folder of the champion; None without one. Raises UserError if the folder is gone."""
        version = self.aliases().get("champion")
        run = next((e.get("run") for e in self.summaries() if e["version"] == version), None)
        if version is not None and (run is None or not (Path(run) / "config.yaml").exists()):
            hint = "restore it, or promote a version whose run is there"
            raise UserError(f"registry {self.folder}: the run of the champion {version} is gone ({run}); {hint}")
        return None if run is None else Path(run)

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of history.jsonl, oldest first: time, event, version, who, why and more."""
        return self._model.history()

    def path(self, version: str) -> Path:
        """Return the folder of a version. Raises UserError if it is not registered."""
        self._check_version(version)
        return self.folder / version

    def chain(self, version: str) -> list[str]:
        """Return a version, the one that its delta is based on, and so on; the last one is a full artefact.

        Raises UserError if one of them is gone, so that no server could make the artefact.
        """
        if not (self.folder / version / MANIFEST).is_file():
            raise UserError(f"{self.folder / version}: is gone; restore the folder, or choose another version")
        return [folder.name for folder in chain(self.folder / version)]

    def _verify(self, version: str) -> None:
        """Raise UserError if a file of a version, or of those that its delta is based on, is not as it was written."""
        for name in self.chain(version):
            try:
                manifest.check(self.folder / name)
            except manifest.DamagedFile as e:
                raise UserError(f"version={version}: {e}; restore its folder, or choose another version") from e

    def missing(self) -> list[str]:
        """Return a line for each role whose version has no folder, so that no server can start it."""
        gone = {role: v for role, v in self.aliases().items() if not (self.folder / v / MANIFEST).is_file()}
        what = "is not there; restore its folder, or promote another version"
        return [f"the {role} {version} {what}" for role, version in gone.items()]

    def artefact(self, version: str) -> Path:
        """Return the folder of a version's full artefact, which is made if the version is a delta. Raises UserError."""
        return full_artefact(self.path(version))

    def register(
        self,
        artefact: Path,
        *,
        run: Path | None = None,
        parent: str | None = None,
        interval: tuple[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        why: str = "",
        items: bool = False,
    ) -> str:
        """Copy an artefact into the registry, make it the challenger, and return its version.

        Nothing happens if this version is registered and has been judged, or has a role already. A delta stays one: it
        is copied, and applied once to prove that it can be.

        Raises UserError if the folder is not an artefact, or is a delta of an artefact that is not among the versions;
        DamagedFile if a file of the artefact is not as it was written.

        artefact: a folder that `python -m recsys.export` wrote: an artefact, or a delta of one of the versions
        run: the run folder that it was exported from
        parent: the version whose weights its training started from
        interval: first and last day (or time) of the data that it was trained on
        why: one sentence for the history
        items: whether no training has made it, but new items of a version
        """
        check_model(artefact, "artefact")
        manifest.check(artefact)
        base = self._base(artefact) if is_delta(artefact) else None
        version = digest(artefact / (MANIFEST if base is None else RESULT))
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._changing():  # before the folder exists: without serving.json, a server serves the highest version
            if "version" not in (content := self._model.content()):
                served = self._model.versions()
                self._model.write({"version": served[-1] if served else None, **content})
        with FileLock(self.folder / COPYING):
            if not (self.folder / version / MANIFEST).exists():
                with whole_folder(self.folder / version) as building:
                    shutil.copytree(artefact, building, dirs_exist_ok=True)
                    manifest.check(building)
                try:
                    full_artefact(self.folder / version)  # a delta must, with its bases, make the artefact
                except UserError:
                    remove_folder(self.folder / version)
                    raise
        with self._changing():
            last = next((e["event"] for e in reversed(self.history()) if e.get("version") == version), None)
            if last not in (None, "registered") or version in self.aliases().values():
                return version
            config, folder = run / "config.yaml" if run is not None else None, self.folder / version
            stored: dict[str, Any] = {"delta_of": None, "bytes": bytes_of(folder)}
            if is_delta(folder):
                stored |= {"delta_of": self.chain(version)[1], "full_bytes": bytes_of(full_artefact(folder))}
            about = {
                "run": None if run is None else str(run),
                "parent": parent,
                "interval": None if interval is None else list(interval),
                "config": xxhash.xxh3_128_hexdigest(config.read_bytes()) if config and config.is_file() else None,
                "metrics": dict(metrics or {}),
                **stored,
                **({"items": True} if items else {}),
            }
            before = self._model.content()
            if before.get("challenger") != version:
                self._change("registered", version, why, before | {"challenger": version}, about)
        return version

    def canary(self, version: str, share: float, why: str = "", guard: Mapping[str, Any] | None = None) -> None:
        """Let a version answer a share of the requests.

        Raises UserError if there is no such version, no champion, another canary, or the share is out of range.

        share: above 0 and below 1
        why: one sentence for the history
        guard: further keys of the canary in serving.json, which the server's guard reads
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise UserError(f"share={share}: must be above 0 and below 1, such as 0.05")
        with self._changing():
            self._check_version(version)
            self._verify(version)
            roles, before = self.aliases(), self._model.content()
            if "champion" not in roles:
                raise UserError(f"model {self.name}: has no champion yet; promote {version} instead of a canary")
            if version == roles["champion"]:
                raise UserError(f"version={version}: is the champion, which cannot be its own canary; name another one")
            if roles.get("canary", version) != version:
                raise UserError(f"version={version}: {roles['canary']} is the canary; promote it or roll it back first")
            value = {"version": version, "share": float(share), **(guard or {})}
            after = _without(before, challenger=version) | {"canary": value}
            if after != before:
                self._change("canary", version, why, after, {"share": float(share)})

    def promote(self, version: str, why: str = "") -> None:
        """Make a version the champion; the champion becomes `previous`. Nothing happens if it is the champion.

        Raises UserError if there is no such version, or another version is the canary.
        """
        with self._changing():
            self._check_version(version)
            roles, before = self.aliases(), self._model.content()
            if roles.get("champion") == version:
                return
            self._verify(version)
            if roles.get("canary", version) != version:
                raise UserError(f"version={version}: {roles['canary']} is the canary; promote it or roll it back first")
            after = _without(before, challenger=version, previous=version, canary=True) | {"version": version}
            if "champion" in roles:
                after["previous"] = roles["champion"]
            self._change("promoted", version, why, after)

    def rollback(self, why: str = "") -> str | None:
        """End the canary if there is one, else return to the previous champion. Return the champion, if there is one.

        A canary has served only a share of the requests, so it goes first and the champion stays. After a return to
        the previous champion, there is no `previous`: a second rollback is an error, not a return to what failed.

        Raises UserError if there is neither a canary nor a previous champion.
        """
        with self._changing():
            roles, before = self.aliases(), self._model.content()
            if "canary" in roles:
                self._change("rolled_back", roles["canary"], why, _without(before, canary=True))
                return roles.get("champion")
            if "previous" not in roles:
                raise UserError(
                    f"model {self.name}: has neither a canary nor a previous version to return to; promote one of "
                    f"{', '.join(self.versions()) or 'the versions that you register'}"
                )
            self._verify(roles["previous"])
            after = _without(before, previous=True) | {"version": roles["previous"]}
            self._change("rolled_back", roles.get("champion", roles["previous"]), why, after)
            return roles["previous"]

    def _base(self, delta: Path) -> str:
        """Return the version to which a delta applies. Raises UserError."""
        wanted = Delta.open(delta).about["base"]
        for version in self.versions():
            if result_of(self.folder / version) == wanted:
                self.chain(version)
                return version
        raise UserError(
            f"{delta}: is a delta of the artefact with the digest {wanted}, which is not among the versions of "
            f"{self.name}; register that artefact first"
        )

    def reject(self, version: str, why: str = "") -> None:
        """Say in the history that a version has not passed; it is no longer the challenger.

        Raises UserError if there is no such version, or it answers requests.
        """
        with self._changing():
            self._check_version(version)
            roles, before = self.aliases(), self._model.content()
            if version in (roles.get("champion"), roles.get("canary")):
                role = "champion" if version == roles.get("champion") else "canary"
                raise UserError(f"version={version}: is the {role}, which answers requests; roll it back instead")
            last = next(e["event"] for e in reversed(self.history()) if e.get("version") == version)
            if last != "rejected":
                self._change("rejected", version, why, _without(before, challenger=version))

    def summaries(self) -> list[dict[str, Any]]:
        """Return each version's registration and its roles, oldest first."""
        roles = self.aliases()
        latest = {e["version"]: e for e in self._registrations()}
        return [e | {"aliases": [r for r in ROLES if roles.get(r) == v]} for v, e in latest.items()]

    def _registrations(self) -> list[dict[str, Any]]:
        return [e for e in self.history() if e.get("event") == "registered" and isinstance(e.get("version"), str)]

    def _check_version(self, version: str) -> None:
        versions = self.versions()
        if version not in versions:
            if not versions:
                raise UserError(f"version={version[:80]}: model {self.name} in {self.folder.parent} has no versions")
            raise UserError(f"version={version[:80]}: no such version{did_you_mean(version[:80], versions)}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock while the block runs, after completing the change of a process that was killed."""
        with self._model.lock():
            if (after := self._interrupted()) is not None:
                self._model.write(after)
            yield

    def _interrupted(self) -> dict[str, Any] | None:
        """Return what serving.json must hold if the last change was written to the history alone, else None."""
        last = next((e for e in reversed(self.history()) if "after" in e), None)
        if last is None or last["before"] == last["after"] or self._model.content() != last["before"]:
            return None
        return dict(last["after"])

    def _change(
        self, event: str, version: str, why: str, after: dict[str, Any], about: Mapping[str, Any] | None = None
    ) -> None:
        self._model.parse(after)
        before = self._model.content()
        if after != before:
            after = after | {"change": uuid.uuid4().hex[:DIGITS]}
        self._model.append(event, version=version, who=who(), why=why, **(about or {}), before=before, after=after)
        if after != before:
            self._model.write(after)


def digest(file: Path) -> str:
    """Return the version of an artefact: the first digits of the digest of its manifest, which is this file.

    The manifest has the digests of all other files, so equal versions have equal files.
    """
    return xxhash.xxh3_128_hexdigest(file.read_bytes())[:DIGITS]


def stored_as(registration: Mapping[str, Any]) -> str:
    """Return how a version is stored, in words; "" of a registration that does not say it."""
    size = registration.get("bytes")
    if not isinstance(size, int):
        return ""
    if (base := registration.get("delta_of")) is None:
        return f"full, {size / 1e6:,.1f} MB"
    return f"delta of {base}, {size / 1e6:,.1f} of {registration.get('full_bytes', 0) / 1e6:,.1f} MB"


def registered_names(folder: Path) -> list[str]:
    """Return the models of a registry, or of any folder of models with a history."""
    return sorted(p.parent.name for p in folder.glob(f"*/{HISTORY}"))


def who() -> str:
    """Return user@host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _without(alias: Mapping[str, Any], **keys: str | bool) -> dict[str, Any]:
    """Return aliases without keys: True removes a key whatever its value, a version removes it if it has that one."""
    return {k: v for k, v in alias.items() if k not in keys or not (keys[k] is True or v == keys[k])}
