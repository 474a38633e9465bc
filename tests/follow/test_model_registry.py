"""The registry: versions, aliases and history, two processes at once, `kill -9` at any moment, and its command."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import fake_models
import pytest
import requests
from forks import run_forked
from served import serving

from recsys import registry as registry_command
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.files import manifest
from recsys.files.atomic import write_json
from recsys.files.json_text import append_line
from recsys.files.model_folder import HISTORY, SERVING
from recsys.follow import copy_versions, model_registry
from recsys.follow.copy_versions import copy_to_mlflow
from recsys.follow.model_registry import ModelRegistry, registered_names
from recsys.server.model_versions import Repository

SPAWN = multiprocessing.get_context("fork")


def artefact(home: Path, bias: float = 0.0) -> Path:
    """Return a folder with a file and its manifest, whose digest depends on `bias`."""
    folder = home / f"artefact_{bias}"
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_text(f"{bias}" * 1000)
    manifest.write(folder, manifest.entries_of(folder), {"name": "ctr", "bias": bias})
    return folder


def load(folder: Path, threads: int = 1, before: object = None) -> fake_models.Scorer:
    about = manifest.content(folder) or {}
    return fake_models.Scorer("ctr", "1", bias=about["bias"])


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    return ModelRegistry(tmp_path / "models", "ctr")


def events(registry: ModelRegistry) -> list[tuple[str, str]]:
    return [(e["event"], e["version"]) for e in registry.history()]


def fill(registry: ModelRegistry, home: Path, n: int = 3) -> list[str]:
    return [registry.register(artefact(home, bias=i)) for i in range(n)]


def test_the_way_of_a_version(registry: ModelRegistry, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("model: dlrm\n")
    a = registry.register(
        artefact(tmp_path), run=run, interval=("2026-01-01", "2026-01-07"), metrics={"auc": 0.8}, why="first"
    )
    assert len(a) == 12 and registry.aliases() == {"challenger": a}
    assert Repository(registry.folder.parent).choice("ctr").folders == {}  # nothing is served that is not promoted
    registry.promote(a, "the first one")
    assert registry.aliases() == {"champion": a}
    b, c = registry.register(artefact(tmp_path, 1), parent=a), registry.register(artefact(tmp_path, 2), parent=a)
    assert registry.aliases() == {"champion": a, "challenger": c}
    registry.reject(b, "worse")
    registry.canary(c, 0.1, "passed", guard={"guard": {"alpha": 0.01}})
    assert json.loads((registry.folder / SERVING).read_text())["canary"]["guard"] == {"alpha": 0.01}
    assert registry.aliases() == {"champion": a, "canary": c}
    choice = Repository(registry.folder.parent).choice("ctr")
    assert (choice.current, choice.canary, choice.share) == (a, c, 0.1)
    assert registry.rollback("errors") == a
    assert registry.aliases() == {"champion": a}
    registry.promote(c, "by hand")
    assert registry.aliases() == {"champion": c, "previous": a}
    assert registry.rollback("clicks fell") == a
    assert registry.aliases() == {"champion": a}
    names = ["registered", "promoted", "registered", "registered", "rejected", "canary", "rolled_back", "promoted"]
    assert events(registry) == list(zip([*names, "rolled_back"], [a, a, b, c, b, c, c, c, c], strict=True))
    first = registry.history()[0]
    assert first["interval"] == ["2026-01-01", "2026-01-07"] and first["metrics"] == {"auc": 0.8}
    assert first["config"] and "@" in first["who"] and first["time"].endswith("Z") and first["why"] == "first"
    assert [s["aliases"] for s in registry.summaries()] == [["champion"], [], []]


def test_the_same_artefact_is_one_version(registry: ModelRegistry, tmp_path: Path) -> None:
    a = registry.register(artefact(tmp_path))
    assert registry.register(artefact(tmp_path)) == a
    shutil.copytree(artefact(tmp_path), tmp_path / "copy")
    assert registry.register(tmp_path / "copy") == a
    registry.promote(a)
    registry.promote(a)
    assert registry.register(artefact(tmp_path)) == a
    assert events(registry) == [("registered", a), ("promoted", a)]
    b = registry.register(artefact(tmp_path, 1))
    registry.reject(b)
    registry.reject(b)
    assert registry.register(artefact(tmp_path, 1)) == b  # has been judged
    assert registry.aliases() == {"champion": a} and len(registry.history()) == 4


def test_versions_that_were_there_before_stay_served(tmp_path: Path) -> None:
    shutil.copytree(artefact(tmp_path, bias=7), tmp_path / "models" / "ctr" / "7")
    registry = ModelRegistry(tmp_path / "models", "ctr")
    new = registry.register(artefact(tmp_path))
    assert Repository(tmp_path / "models").choice("ctr").current == "7"
    registry.promote(new)
    assert registry.rollback() == "7"


def test_a_server_follows(registry: ModelRegistry, tmp_path: Path) -> None:
    a, b = fill(registry, tmp_path, 2)
    registry.promote(a)
    with serving(registry.folder.parent, loader_function=load) as served:

        def prediction() -> float:
            answer = requests.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]})
            return answer.json()["predictions"][0]

        assert prediction() == 0.5
        registry.promote(b)
        served.call(served.core.registry.reload_changed())
        assert prediction() > 0.7


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda r, v: r.promote("x" + v[0][1:]), "no such version; did you mean {v0}"),
        (lambda r, v: r.canary(v[1], 1.0), "share=1.0: "),
        (lambda r, v: r.canary(v[1], True), "share=True: "),
        (lambda r, v: r.canary(v[1], 0.1), "model ctr: has no champion yet; promote {v1}"),
        (lambda r, _: r.rollback(), "model ctr: has neither a canary nor a previous version to return to"),
        (lambda r, v: (r.promote(v[0]), r.canary(v[0], 0.1)), "version={v0}: is the champion"),
        (lambda r, v: (r.promote(v[0]), r.reject(v[0])), "version={v0}: is the champion"),
        (lambda r, _: ModelRegistry(r.folder.parent, "a/b"), "name='a/b': contains /"),
        (lambda r, _: r.register(r.folder / "none"), "artefact={folder}/none: no such folder"),
    ],
)
def test_mistakes(registry: ModelRegistry, tmp_path: Path, action: object, message: str) -> None:
    v = fill(registry, tmp_path, 2)
    with pytest.raises(UserError) as raised:
        action(registry, v)  # type: ignore[operator]
    assert message.format(v0=v[0], v1=v[1], folder=registry.folder) in str(raised.value)


def test_another_canary_must_end_first(registry: ModelRegistry, tmp_path: Path) -> None:
    a, b, c = fill(registry, tmp_path)
    registry.promote(a)
    registry.canary(b, 0.1)
    for act in (lambda: registry.canary(c, 0.1), lambda: registry.promote(c)):
        with pytest.raises(UserError, match=f"version={c}: {b} is the canary; promote it or roll it back first"):
            act()
    registry.promote(b)
    assert registry.aliases() == {"champion": b, "previous": a, "challenger": c}


def test_damaged_files(registry: ModelRegistry, tmp_path: Path) -> None:
    a, b = fill(registry, tmp_path, 2)
    damaged = artefact(tmp_path, 9)
    manifest.write(damaged, {"model.onnx": (3, "0" * 32)})
    with pytest.raises(manifest.DamagedFile, match=r"artefact_9/model\.onnx: is damaged; it has 1,000 bytes"):
        registry.register(damaged)
    assert registry.versions() == [a, b]
    with (registry.folder / HISTORY).open("a") as f:
        f.write('{"event": "promo')  # written by a process that was killed
    registry.promote(a)
    assert events(registry)[-1] == ("promoted", a) and len(events(registry)) == 3
    (registry.folder / SERVING).write_text("{")
    with pytest.raises(UserError, match=r"serving\.json: cannot be read as JSON .*; correct the file"):
        registry.aliases()
    (registry.folder / SERVING).write_text('{"chalenger": "1"}')
    with pytest.raises(UserError, match=r"chalenger: no such key; did you mean challenger\?"):
        registry.promote(b)


def test_a_change_that_was_interrupted_is_completed(
    registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends between the history and serving.json."""
    a, b = fill(registry, tmp_path, 2)
    registry.promote(a)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recsys.files.model_folder.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            registry.promote(b)
    assert registry.aliases()["champion"] == a
    assert ModelRegistry(tmp_path / "models", "ctr").aliases() == {"champion": b, "previous": a}


def test_what_a_guard_undoes_is_not_done_again(registry: ModelRegistry, tmp_path: Path) -> None:
    """The server's guard ends a canary: the registry must not take that for an interrupted change."""
    a, b = fill(registry, tmp_path, 2)
    registry.promote(a)
    for _ in range(2):
        registry.canary(b, 0.1)
        alias = json.loads((registry.folder / SERVING).read_text())
        del alias["canary"]
        write_json(registry.folder / SERVING, alias)
        assert ModelRegistry(tmp_path / "models", "ctr").aliases() == {"champion": a}


def _register_many(models: Path, home: Path, numbers: list[int]) -> None:
    registry = ModelRegistry(models, "ctr")
    for i in numbers:
        version = registry.register(home / f"artefact_{i}")
        registry.promote(version)


def test_two_processes(tmp_path: Path) -> None:
    for i in range(8):
        artefact(tmp_path, i)
    models = tmp_path / "models"
    orders = [list(range(8)), list(reversed(range(8)))]
    workers = [SPAWN.Process(target=_register_many, args=(models, tmp_path, o)) for o in orders]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
        assert w.exitcode == 0
    check(models, 8)


def _work(models: Path, home: Path, seed: int) -> None:
    registry, draw = ModelRegistry(models, "ctr"), random.Random(seed)
    while True:
        try:
            v = registry.register(home / f"artefact_{draw.randrange(6)}")
            if draw.random() < 0.5:
                registry.canary(v, 0.1)
            draw.choice([lambda: registry.promote(v), registry.rollback, lambda: registry.reject(v)])()
        except UserError:
            continue


def check(models: Path, most: int) -> None:
    """Every alias names a whole version that is registered, and the history leads to serving.json."""
    registry = ModelRegistry(models, "ctr")
    versions = registry.versions()
    assert len(versions) <= most and set(registry.aliases().values()) <= set(versions)
    for v in versions:
        assert model_registry.digest(registry.path(v) / "manifest.json") == v
    last = [e for e in registry.history() if "after" in e]
    state = last[0]["before"]
    for e in last:
        assert e["before"] == state
        state = e["after"]
    assert json.loads((registry.folder / SERVING).read_text()) == state


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_kill_at_random_moments(tmp_path: Path, seed: int) -> None:
    for i in range(6):
        artefact(tmp_path, i)
    models, draw = tmp_path / "models", random.Random(seed)
    for trial in range(12):
        workers = [SPAWN.Process(target=_work, args=(models, tmp_path, 100 * trial + k)) for k in range(2)]
        for w in workers:
            w.start()
        time.sleep(0.05 + 0.1 * draw.random())
        for w in workers:
            os.kill(w.pid, signal.SIGKILL)
            w.join()
        if (models / "ctr").exists() and registered_names(models):
            check(models, 6)
    assert len(ModelRegistry(models, "ctr").history()) > 20


def test_the_command(
    tmp_path: Path, registry: ModelRegistry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = registry.register(artefact(tmp_path), interval=("2026-01-01", "2026-01-07"), metrics={"auc": 0.81234})
    registry.promote(a, "first")
    b = registry.register(artefact(tmp_path, 1), parent=a)

    def command(action: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        code = command_line.status("registry", registry_command._command, [f"action={action}", *arguments])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    done = run_forked("recsys.registry", "list", "root=models", cwd=tmp_path)
    assert done.returncode == 0 and b in done.stdout
    code, text = command("list", "root=models")
    assert code == 0 and "champion" in text and "2026-01-01 to 2026-01-07" in text and "auc 0.8123" in text
    code, text = command("promote", "root=models", f"version={b}", "why=better")
    assert (code, text.strip()) == (0, f"ctr: {b} is the champion") and registry.history()[-1]["why"] == "better"
    assert command("rollback", "root=models")[1].strip() == f"ctr: {a} is the champion"
    code, text = command("show", "root=models", f"version={a}")
    assert code == 0 and json.loads(text)["metrics"] == {"auc": 0.81234}
    append_line(
        registry.folder / HISTORY, {"time": "2017-07-14T02:40:00Z", "event": "canary_passed", "version": a}
    )  # of a server
    shown = command("show", "root=models")[1].splitlines()
    assert len(shown) == 6 and shown[5] == f"2017-07-14T02:40:00Z  canary_passed {a}  a server"
    assert shown[1].endswith(": first")
    for arguments, key in (
        (("lst", "root=models"), "action=lst: "),
        (("list", "name=x"), "root: is missing"),
        (("list", "root=modls"), "root=modls: "),
        (("list", "root=models", "name=crt"), "name=crt: "),
        (("promote", "root=models"), f"version: is missing; name one of {a}, {b}"),
        (("rollback", "root=models", f"version={a}"), f"version={a}: "),
        (("list", "root=artefact_0.0"), "root=artefact_0.0: "),
    ):
        status, text = command(*arguments)
        assert status == 2 and text.startswith(f"error: {key}")


class _Client:
    """MLflow's registry in memory, of which the mirror uses six methods."""

    models: dict[str, list[types.SimpleNamespace]] = {}  # noqa: RUF012
    aliases: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, tracking_uri: str, registry_uri: str) -> None:
        pass

    def search_registered_models(self, query: str) -> list[str]:
        return [n for n in self.models if f"'{n}'" in query]

    def create_registered_model(self, name: str) -> None:
        self.models[name] = []

    def search_model_versions(self, query: str) -> list[types.SimpleNamespace]:
        return self.models[query.split("'")[1]]

    def create_model_version(self, name: str, source: str, tags: dict[str, str]) -> types.SimpleNamespace:
        assert source.startswith("file://")
        self.models[name].append(types.SimpleNamespace(version=len(self.models[name]) + 1, tags=tags))
        return self.models[name][-1]

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.aliases[alias] = version

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        self.aliases.pop(alias, None)


def test_mlflow(registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(registry, tmp_path, 2)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match="mlflow=x: needs the package mlflow; install it with uv pip install"):
        copy_to_mlflow(registry, "x")
    exceptions = types.SimpleNamespace(MlflowException=ValueError)
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=_Client))
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    assert copy_to_mlflow(registry, "x") == 2 and _Client.aliases == {"challenger": "2"}
    registry.promote(registry.versions()[1])
    registry.register(artefact(tmp_path, 5))
    assert copy_to_mlflow(registry, "x") == 1 and _Client.aliases == {"champion": "2", "challenger": "3"}


class _Artifact:
    """An artifact of W&B: the aliases count once they are saved."""

    def __init__(self) -> None:
        self.saved = ["best", "latest"]
        self.aliases = list(self.saved)

    def save(self) -> None:
        self.saved = list(self.aliases)


class _Wandb:
    """The parts of wandb that the mirror calls: login, and Api().artifact, which knows the artifacts that were logged."""

    def __init__(self, logged: list[str]) -> None:
        self.logged_in, self.artifacts = True, {name: _Artifact() for name in logged}

    def login(self, *, prompt: bool) -> bool:
        assert not prompt
        return self.logged_in

    def Api(self) -> _Wandb:
        return self

    def artifact(self, name: str) -> _Artifact:
        if name.removesuffix(":best") not in self.artifacts:
            raise ValueError(f"artifact '{name}' not found\nmore")
        artifact = self.artifacts[name.removesuffix(":best")]
        artifact.aliases = list(artifact.saved)
        return artifact


def test_wandb(registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "install it with uv pip install wandb" in str(copy_versions.copy_to_wandb(registry))
    wandb = _Wandb(["us/ads/model-run0", "us/ads/model-run1"])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    registry.register(artefact(tmp_path, 9))
    assert "no version has a run that was logged to W&B; train with logger=wandb" in str(
        copy_versions.copy_to_wandb(registry)
    )
    versions = []
    for i in range(3):
        run = tmp_path / f"run{i}"
        run.mkdir()
        (run / "config.yaml").write_text("logger: {wandb: {project: ads, entity: us}}\n")
        (run / "wandb_id").write_text(f"run{i}")
        versions.append(registry.register(artefact(tmp_path, i), run=run))
        registry.promote(versions[-1]) if i < 2 else None
    wandb.logged_in = False
    assert "not logged in" in str(copy_versions.copy_to_wandb(registry))
    wandb.logged_in = True
    line = str(copy_versions.copy_to_wandb(registry))
    assert line.startswith("W&B: the aliases of 2 artifacts have changed; us/ads/model-run2 of version ")
    assert "not found; upload offline runs with wandb sync" in line and "\n" not in line
    saved = {name: a.saved for name, a in wandb.artifacts.items()}
    assert saved == {
        "us/ads/model-run0": ["best", "latest", "previous"],
        "us/ads/model-run1": ["best", "latest", "champion"],
    }
    shutil.rmtree(tmp_path / "run0")  # as recsys.follow does with the runs of old versions
    wandb.artifacts["us/ads/model-run2"] = _Artifact()
    registry.canary(versions[2], 0.1)
    registry.promote(versions[2])
    assert copy_versions.copy_to_wandb(registry) == "W&B: the aliases of 3 artifacts have changed"
    assert [a.saved[2:] for a in wandb.artifacts.values()] == [[], ["previous"], ["champion"]]
    assert copy_versions.copy_to_wandb(registry) is None


@pytest.mark.parametrize("change", ["promote", "canary", "rollback"])
def test_a_damaged_version_gets_no_role(registry: ModelRegistry, tmp_path: Path, change: str) -> None:
    first, second, third = fill(registry, tmp_path)
    registry.promote(first)
    registry.promote(second)
    before = registry.aliases()
    damaged = {"promote": third, "canary": third, "rollback": first}[change]
    file = registry.folder / damaged / "model.onnx"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(UserError, match=rf"version={damaged}: .*model\.onnx.*; restore its folder, or choose another"):
        {
            "promote": lambda: registry.promote(third),
            "canary": lambda: registry.canary(third, 0.1),
            "rollback": registry.rollback,
        }[change]()
    assert registry.aliases() == before


def test_versions_that_are_gone_and_lines_that_were_cut_are_said(
    registry: ModelRegistry, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [only] = fill(registry, tmp_path, 1)
    registry.promote(only)
    path = registry.folder / HISTORY
    path.write_text(path.read_text() + '{"time": "2026-01-01", "event": "pro')
    write_json(registry.folder / SERVING, {"version": "deadbeef0000"})
    [line] = registry.missing()
    assert line.startswith("the champion deadbeef0000 is not there")
    (tmp_path / "demo" / "follow").mkdir(parents=True)
    shutil.move(registry.folder.parent, tmp_path / "demo" / "follow" / "registry")
    monkeypatch.setattr(sys, "argv", ["recsys.registry", "action=list", f"root={tmp_path / 'demo'}"])
    assert command_line.status("registry", registry_command._command) == 0
    said = capfd.readouterr()
    assert "the champion deadbeef0000 is not there" in said.err and only in said.out
    assert "line 3 cannot be read, and is left out" in said.err
