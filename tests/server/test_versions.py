"""Versions: which one answers, alias files, canary and shadow, reloads and rollbacks while requests come."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import threading
import time
import weakref
from pathlib import Path

import fake_models
import pytest
import requests
from served import Served, serving, until

from recsys.base.errors import UserError
from recsys.base.json_log import log
from recsys.files.atomic import write_json
from recsys.files.model_folder import SERVING
from recsys.server.model_versions import Repository, open_source, split_share

SESSION = requests.Session()
BIAS = {"1": 0.0, "2": 2.0, "3": 4.0}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for version, bias in BIAS.items():
        fake_models.write_model(tmp_path / "ctr" / version, bias=bias)
    return tmp_path


def alias(models: Path, **content: object) -> None:
    write_json(models / "ctr" / SERVING, content)


def version_of(served: Served, **headers: str) -> str:
    """Return the version that answers, from its prediction."""
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    answer = SESSION.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]}, headers=names)
    assert answer.status_code == 200, answer.text
    return {0.5: "1", 0.881: "2", 0.982: "3"}[round(answer.json()["predictions"][0], 3)]


def load(served: Served, body: object = None, action: str = "load") -> requests.Response:
    return requests.post(f"{served.url}/v2/repository/models/ctr/{action}", json=body)


def test_the_highest_version_answers_without_an_alias(models: Path) -> None:
    fake_models.write_model(models / "ctr" / "10", bias=0.0)
    assert Repository(models).choice("ctr").current == "10"
    (models / "ctr" / "notes").mkdir()  # not a version: it has no manifest
    assert Repository(models).versions("ctr") == ["1", "2", "3", "10"]


def test_folders_whose_names_cannot_be_written_are_no_models(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They would fail each line of the log, and the page that lists them."""
    for name in (b"latin-\xe9", b"two\nlines"):
        fake_models.write_model(models / os.fsdecode(name) / "1")
        fake_models.write_model(models / "ctr" / os.fsdecode(b"9" + name))
    with serving(models) as served:
        assert [m["name"] for m in requests.get(served.url).json()["models"]] == ["ctr"]
        assert version_of(served) == "3"
        log("error", "load", folder=os.fsdecode(b"latin-\xe9"))
    assert json.loads(capfd.readouterr().err.splitlines()[-1])["folder"] == "latin-\udce9"


def test_roll_forward_and_back_with_one_call(models: Path) -> None:
    alias(models, version="1")
    with serving(models) as served:
        assert version_of(served) == "1"
        assert load(served, {"parameters": {"version": "3"}}).status_code == 200
        assert version_of(served) == "3"
        assert json.loads((models / "ctr" / SERVING).read_text()) == {
            "version": "3"
        }  # for other workers, and the next start
        assert requests.post(f"{served.url}/v2/repository/models/ctr/load?version=1").status_code == 200
        assert version_of(served) == "1"
        assert load(served, action="unload").status_code == 200
        assert requests.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]}).status_code == 404
        assert requests.get(f"{served.url}/v2/health/ready").status_code == 503  # nothing is served
        assert load(served).status_code == 200
        assert version_of(served) == "1"  # the rollback is not forgotten


def test_unload_and_load_forget_nothing(models: Path) -> None:
    chosen = {"version": "1", "canary": {"version": "2", "share": 0.5}, "shadow": "3", "versions": ["2"]}
    alias(models, **chosen)
    with serving(models) as served:
        before = served.core.registry.get("ctr").choice
        assert load(served, action="unload").status_code == 200
        alias_file = models / "ctr" / SERVING
        assert json.loads(alias_file.read_text()) == chosen | {"unloaded": True}
        assert requests.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]}).status_code == 404
        assert Repository(models).choice("ctr").current is None  # for the next start, too
        assert load(served).status_code == 200
        assert json.loads(alias_file.read_text()) == chosen
        assert served.core.registry.get("ctr").choice == before
        assert {version_of(served, x_routing_key=f"{n}") for n in range(50)} == {"1", "2"}
        assert load(served, action="unload").status_code == 200
        assert load(served, {"parameters": {"version": "2"}}).status_code == 200  # ends the canary of that version
        assert json.loads(alias_file.read_text()) == {"version": "2", "shadow": "3", "versions": ["2"]}


def test_load_alone_pins_no_version(models: Path) -> None:
    """Later versions answer: only a request that names a version chooses one."""
    with serving(models) as served:
        for _ in range(2):
            assert load(served, action="unload").status_code == 200
            assert load(served).status_code == 200
        assert version_of(served) == "3"
        assert "version" not in json.loads((models / "ctr" / SERVING).read_text())
        fake_models.write_model(models / "ctr" / "4", bias=2.0)
        assert load(served).status_code == 200
        assert version_of(served) == "2"  # has the bias of version 2


def test_a_model_that_comes_later_is_watched(models: Path) -> None:
    with serving(models) as served:
        fake_models.write_model(models / "new" / "1")
        fake_models.write_model(models / "new" / "2")
        assert requests.post(f"{served.url}/v2/repository/models/new/load").status_code == 200
        write_json(models / "new" / SERVING, {"version": "1"})
        served.call(served.core.registry.reload_changed())
        assert served.core.registry.get("new").choice.current == "1"


UNLIKE = [
    ({"kind": "retrieval"}, "is a retrieval model, not a ranking model"),
    ({"outputs": ["click"]}, "has the outputs {'click': ('FP32', [-1])}, not {'p': ('FP32', [-1])}"),
    ({"outputs": ["p", "q"]}, "has the outputs {'p': ('FP32', [-1]), 'q': ('FP32', [-1])}, not {'p': ('FP32', [-1])}"),
    ({"inputs": ["a"]}, "has no input b"),
    ({"inputs": ["a", "b:INT64"]}, "takes INT64 for the input b, not BYTES"),
    ({"inputs": ["a", "b", "c:FP64:needed"]}, "needs the input c"),
]


def test_numbers_take_the_place_of_whole_numbers(models: Path) -> None:
    """Exports of other versions of recsys may name the other type for the same column."""
    alias(models, version="1")
    fake_models.write_model(models / "ctr" / "1", inputs=["a:INT64", "b"])
    fake_models.write_model(models / "ctr" / "9", inputs=["a:FP64", "b"])
    with serving(models) as served:
        for version in ("9", "1"):
            assert load(served, {"parameters": {"version": version}}).status_code == 200


@pytest.mark.parametrize(("manifest", "why"), UNLIKE)
def test_a_version_that_is_unlike_the_one_that_answers_is_refused(
    models: Path, manifest: dict[str, object], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As another version, as a canary and as a shadow: the old versions answer all requests."""
    alias(models, version="1")
    other = fake_models.write_model(models / "ctr" / "9", **manifest)
    with serving(models) as served:
        answer = load(served, {"parameters": {"version": "9"}})
        says = f"{other}: {why}, so it cannot answer what version 1 is asked; serve it under another name, or unload ctr first"
        assert (answer.status_code, answer.json()["error"]) == (400, says)
        for role in ({"canary": {"version": "9", "share": 0.9}}, {"shadow": "9"}):
            alias(models, version="1", **role)
            served.call(served.core.registry.reload_changed())
            assert {version_of(served, x_routing_key=f"{n}") for n in range(20)} == {"1"}
            assert says in capfd.readouterr().err
        alias(models, version="1", versions=["9"])  # only for requests that name it
        assert load(served).status_code == 200
        assert load(served, action="unload").status_code == 200
        assert load(served, {"parameters": {"version": "9"}}).status_code == 200
    alias(models, version="1", canary={"version": "9", "share": 0.5})
    with pytest.raises(UserError, match=re.escape(why)), serving(models):
        pass


def test_another_model_in_the_folder_of_one_is_refused(tmp_path: Path) -> None:
    folder = fake_models.write_model(tmp_path / "model")
    with serving(folder) as served:
        for manifest, why in (({"name": "other"}, "is named other, not ctr"), ({"kind": "retrieval"}, "retrieval mod")):
            fake_models.write_model(folder, **manifest)
            answer = load(served)
            assert answer.status_code == 400 and why in answer.json()["error"]
            assert answer.json()["error"].endswith("version 1 is asked; start the server again to serve it")
            assert version_of(served) == "1"


def test_changes_of_the_alias_file_are_applied(models: Path) -> None:
    with serving(models) as served:
        assert version_of(served) == "3"
        poll = lambda: served.call(served.core.registry.reload_changed())  # noqa: E731
        alias(models, version=2)
        poll()
        assert version_of(served) == "2"
        (models / "ctr" / SERVING).write_text("{")
        poll()
        alias(models, version="9")
        poll()
        assert version_of(served) == "2"  # a mistake changes nothing
        alias(models, version=None)
        poll()
        assert requests.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]}).status_code == 404
        (models / "ctr" / SERVING).unlink()
        poll()
        assert version_of(served) == "3"


def test_a_version_that_cannot_be_loaded_leaves_the_old_one(models: Path) -> None:
    alias(models, version="1")
    fake_models.write_model(models / "ctr" / "4", broken=True)
    fake_models.write_model(models / "ctr" / "5", nonsense=1)
    with serving(models) as served:
        answer = load(served, {"parameters": {"version": "4"}})
        assert answer.status_code == 400 and "the model is damaged; export it again" in answer.json()["error"]
        answer = load(served, {"parameters": {"version": "5"}})
        assert answer.status_code == 400 and "the model cannot be loaded (TypeError" in answer.json()["error"]
        assert version_of(served) == "1"
        assert json.loads((models / "ctr" / SERVING).read_text()) == {"version": "1"}


def test_a_canary_answers_its_share_and_the_same_keys(models: Path) -> None:
    alias(models, version="1", canary={"version": "2", "share": 0.25})
    with serving(models) as served:
        keys = [f"user{n}" for n in range(400)]
        first = [version_of(served, x_routing_key=k) for k in keys]
        assert first == [version_of(served, x_routing_key=k) for k in keys]
        assert 70 <= first.count("2") <= 130 and set(first) == {"1", "2"}  # 100 +- 3.5 standard deviations
        assert len({version_of(served) for _ in range(5)}) == 1  # without a key, the body decides
        alias(models, version="1", canary={"version": "2", "share": 0.6})
        served.call(served.core.registry.reload_changed())
        second = [version_of(served, x_routing_key=k) for k in keys]
        assert all(b == "2" for a, b in zip(first, second, strict=True) if a == "2")  # nobody goes back
        named = requests.post(f"{served.url}/models/ctr/versions/1/predict", json={"rows": [{"a": None}]})
        assert named.json()["predictions"] == [0.5]


def test_a_shadow_gets_requests_and_never_delays_or_fails_an_answer(models: Path) -> None:
    fake_models.write_model(models / "ctr" / "8", seconds=0.2)
    fake_models.write_model(models / "ctr" / "9", fails=True)
    for shadow, status in (("2", "200"), ("9", "500"), ("8", None)):
        alias(models, version="1", shadow=shadow)
        with serving(models) as served:
            started = time.monotonic()
            assert [version_of(served) for _ in range(20)] == ["1"] * 20
            assert time.monotonic() - started < 1.5  # each of the 20 would wait for the one before
            if status is not None:
                line = (
                    rf'recsys_requests_total{{model="ctr",protocol="shadow",status="{status}",version="{shadow}"}} 20'
                )
                until(
                    lambda served=served, line=line: (
                        re.search(line, requests.get(f"{served.url}/metrics").text) is not None
                    )
                )


def test_reloads_lose_no_request(models: Path) -> None:
    """Requests come all the time while versions change; each is answered by one of the versions."""
    alias(models, version="1")
    found: list[str] = []
    failed: list[BaseException] = []
    with serving(models) as served:
        done = threading.Event()

        def ask() -> None:
            try:
                with requests.Session() as session:
                    while not done.is_set():
                        answer = session.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]})
                        found.append(f"{answer.status_code}")
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        for version in ("2", "3", "1", "2", "3"):
            time.sleep(0.05)
            assert load(served, {"parameters": {"version": version}}).status_code == 200
        done.set()
        for t in threads:
            t.join()
    assert not failed and set(found) == {"200"} and len(found) > 50


def test_a_version_that_is_replaced_frees_its_memory_and_its_thread_at_once(models: Path) -> None:
    """It must not wait until Python collects cycles: large models would be in memory several times."""
    with serving(models) as served:
        requests.post(f"{served.url}/models/ctr/predict", json={"rows": [{"a": None}]})
        [old] = [weakref.ref(v.batcher) for v in served.core.registry.get("ctr").versions.values()]
        gc.disable()
        try:
            assert load(served, {"parameters": {"version": "1"}}).status_code == 200
            end = time.monotonic() + 5
            while old() is not None and time.monotonic() < end:
                time.sleep(0.01)
            assert old() is None
        finally:
            gc.enable()


def test_a_choice_that_cannot_be_saved_changes_nothing(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is often read-only: then the worker that got the request must serve what the others serve."""

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with serving(models) as served:
        monkeypatch.setattr("recsys.files.model_folder.write_json", read_only)
        answer = load(served, {"parameters": {"version": "1"}})
        assert (answer.status_code, answer.json()["error"]) == (
            400,
            f"{models / 'ctr' / SERVING}: cannot be written (Read-only file system); let the server write to this folder",
        )
        assert version_of(served) == "3"
        assert requests.post(f"{served.url}/v2/models/ctr/versions/1/infer", json={}).status_code == 404


def test_one_folder_is_reloaded_if_it_has_changed(tmp_path: Path) -> None:
    folder = fake_models.write_model(tmp_path / "model")
    with serving(folder) as served:
        before = served.core.registry.get("ctr")
        assert load(served).status_code == 200
        assert served.core.registry.get("ctr").versions == before.versions  # nothing has changed
        fake_models.write_model(tmp_path / "new", bias=2.0, version="2")
        shutil.rmtree(folder)
        (tmp_path / "new").rename(folder)
        assert load(served).status_code == 200
        assert version_of(served) == "2"
        assert (
            load(served, {"parameters": {"version": "1"}})
            .json()["error"]
            .startswith("version 1: this server has the folder of one")
        )
        assert (
            load(served, action="unload").json()["error"]
            == "the only model of a server cannot be unloaded; stop the server"
        )
        other = requests.post(f"{served.url}/v2/repository/models/nix/load")
        assert (other.status_code, other.json()["error"]) == (404, "model nix: no such model; valid: ctr")


def test_canary_and_shadow_of_one_folder(tmp_path: Path) -> None:
    folders = [fake_models.write_model(tmp_path / v, bias=BIAS[v]) for v in ("1", "2", "3")]
    with serving(folders[0], canary=f"{folders[1]}:0.5", shadow=str(folders[2])) as served:
        assert {version_of(served, x_routing_key=f"{n}") for n in range(50)} == {"1", "2"}
        index = requests.get(served.url).json()["models"]
        assert [(m["version"], m["canary"], m["shadow"]) for m in index] == [("1", "1-canary", "1-shadow")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must have the keys version, "),
        ("{", "cannot be read as JSON"),
        ('{"verzion": "1"}', "verzion: "),
        ('{"version": "4"}', "has no version 4; valid: 1, 2, 3"),
        ('{"version": ["1"]}', "version="),
        ('{"shadow": "../1"}', "shadow=../1: "),
        ('{"canary": {"version": "2", "share": 2}}', "canary.share=2: "),
        ('{"canary": {"share": 0.1}}', "canary.version: "),
    ],
)
def test_mistakes_in_an_alias_file(models: Path, content: str, message: str) -> None:
    (models / "ctr" / SERVING).write_text(content)
    with pytest.raises(UserError, match=message):
        Repository(models).choice("ctr")


def test_null_is_a_missing_key(models: Path) -> None:
    nothing = {"shadow": None, "canary": None, "versions": None, "unloaded": None, "kpi": None, "previous": None}
    write_json(models / "ctr" / SERVING, nothing)
    assert Repository(models).choice("ctr").current == "3"
    write_json(models / "ctr" / SERVING, nothing | {"version": None})
    assert Repository(models).choice("ctr").current is None


@pytest.mark.parametrize("text", ["x", "x:", ":0.5", "x:0", "x:1", "x:-1", "x:nan", "x:y"])
def test_mistakes_in_a_canary(text: str) -> None:
    with pytest.raises(UserError, match=f"^canary={text}: write a folder and the share of its requests"):
        split_share(text)


def test_mistakes_in_folders(tmp_path: Path, models: Path) -> None:
    one = fake_models.write_model(tmp_path / "one" / "1")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((tmp_path / "nix",), "model=.*nix: no such folder"),
        ((tmp_path / "empty",), "model=.*empty: holds no manifest.json"),
        ((one, f"{tmp_path / 'nix'}:0.5"), "canary=.*nix: no such folder"),
        ((one, None, str(tmp_path / "empty")), "shadow=.*empty: has no manifest.json"),
        ((models, "x:0.1"), "canary=x:0.1: applies to one model"),
    ):
        with pytest.raises(UserError, match=message):
            open_source(*arguments)
