"""A run folder says what made it, each start of it, and its config.yaml makes it again wherever the data lies."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from small_csv import Commands

from recsys.base.secrets import MASK
from recsys.files import starts
from recsys.files.run_files import STARTS

MINE = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32", "run_dir=runs/a"]
GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}


def entries(run: str) -> list[dict[str, Any]]:
    found = json.loads((Path(run) / STARTS).read_text())
    assert isinstance(found, list)
    return found


def test_a_run_that_was_resumed_is_repeated_from_its_config(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)
    for command in (["init", "-q"], ["add", "conf"], ["commit", "-qm", "."]):
        subprocess.run(["git", *command], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commands("train", *MINE)[0] == 0
    Path("conf/data/mine.yaml").write_text(Path("conf/data/mine.yaml").read_text() + "# more\n")
    assert commands("train", *MINE, "trainer.max_epochs=2", "resume=auto")[0] == 0
    first, second = entries("runs/a")
    assert first["git"] == {"commit": commit, "changed": 0, "untracked": 3}  # raw, outputs, runs
    assert (second["git"]["commit"], second["git"]["changed"]) == (commit, 1)
    assert (first["resumed"], first["changed"], first["how"]) == (False, {}, "finished")
    assert (second["resumed"], second["changed"]) == (True, {"trainer.max_epochs": [1, 2]})
    assert first["start"] <= first["end"] <= second["start"] <= second["end"]
    assert "trainer.threads=1" in first["command"] and first["command"].startswith("python -m recsys.train ")
    assert {"recsys", "python", "torch", "torchrec", "polars", "numpy", "pytorch-lightning"} <= first["packages"].keys()
    assert second["packages"] == {}
    assert (first["threads"], first["processes"], first["precision"]) == (1, 1, "32-true")
    assert first["data"] == json.loads(Path("runs/a/data.json").read_text())["contents"]
    said = starts.line(Path("runs/a"))
    assert said is not None and f"commit {commit[:12]};" in said and "2 starts" in said

    shutil.move("raw", "moved")
    repeat = ["--config-dir=runs/a", "--config-name=config", "run_dir=runs/b", "data.root=moved"]
    before = {*Path().iterdir()}
    status, told = commands.said("train", *repeat)
    assert status == 0 and "[INFO]" not in told
    assert {*Path().iterdir()} == before  # Hydra makes no folder of its own
    a, b = (json.loads(Path(f"runs/{run}/metrics.json").read_text()) for run in "ab")
    assert (a["test"], a["validation"]) == (b["test"], b["validation"])
    predictions = [Path(f"runs/{run}/test_predictions.parquet").read_bytes() for run in "ab"]
    assert predictions[0] == predictions[1]
    assert len(entries("runs/b")) == 1


def trained(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """Return the config that the command trains with."""
    from recsys import train

    configs = list[Any]()
    with monkeypatch.context() as patch:
        patch.setattr("recsys.training.run.train", configs.append)
        patch.setattr("sys.argv", ["recsys.train", *arguments])
        with pytest.raises(SystemExit):
            train.main()  # type: ignore[attr-defined]
    return configs[0]


def test_a_run_that_started_from_another_is_repeated_from_it(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands("train", *MINE)[0] == 0
    assert commands("train", *MINE[:-1], "start_from=runs/a", "run_dir=runs/b", "seed=7")[0] == 0
    cfg = trained(monkeypatch, "--config-dir=runs/b", "--config-name=config", "run_dir=runs/c")
    assert (cfg.start_from, cfg.seed, cfg.run_dir, cfg.data.root) == ("runs/a", 7, "runs/c", "raw")
    cfg = trained(monkeypatch, "--config-dir=runs/b", "--config-name=config", "run_dir=runs/c", "start_from=runs/b")
    assert (cfg.start_from, cfg.seed) == ("runs/b", 7)


def test_each_start_says_itself_what_machines_hear(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands.said("train", *MINE)[0] == 0
    file = Path("runs/a/config.yaml")
    text = (
        file.read_text().replace("logging: text", "logging: json").replace("metrics_port: null", "metrics_port: 9459")
    )
    file.write_text(text.replace("metrics_host: 127.0.0.1", "metrics_host: 0.0.0.0"))
    assert "json" in text and "9459" in text
    for command in ("resume=runs/a", "start_from=runs/a"):
        cfg = trained(monkeypatch, command)
        assert (cfg.logging, cfg.metrics_port, cfg.metrics_host) == ("text", None, "127.0.0.1")
        assert trained(monkeypatch, command, "logging=json").logging == "json"


def test_how_a_start_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["recsys.train", "logger.mine.api_key=hidden", "seed=1"])
    starts.begin(tmp_path, {"resumed": False})
    assert (entries(".")[0]["end"], entries(".")[0]["how"]) == (None, None)  # as if it were killed
    starts.end(RuntimeError("the data at s3://me:hidden@host\nand more"))  # pragma: allowlist secret
    [entry] = entries(".")
    assert entry["how"] == f"RuntimeError: the data at s3://{MASK}@host"
    assert entry["command"] == f"python -m recsys.train logger.mine.api_key={MASK} seed=1"
    starts.end(None)  # of a start that has ended
    assert entries(".") == [entry]


def test_two_starts_in_a_second_end_each_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_time", lambda: "2026-01-01T00:00:00Z")
    for error in (RuntimeError("first"), None):
        starts.begin(tmp_path, {"resumed": False})
        starts.end(error)
    assert [e["how"] for e in entries(str(tmp_path))] == ["RuntimeError: first", "finished"]


def test_packages_that_a_later_start_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ({"a": "1", "b": "1"}, {"a": "2", "c": "1"}, {"a": "2", "c": "1"}):
        monkeypatch.setattr(starts, "_packages", lambda found=found: found)
        starts.begin(tmp_path, {})
    starts.end(None)
    assert [e["packages"] for e in entries(str(tmp_path))] == [
        {"a": "1", "b": "1"},
        {"a": "2", "b": None, "c": "1"},
        {},
    ]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '[{"git": 1}]'])
def test_a_damaged_file_says_nothing_and_is_started_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / STARTS).write_text(text)
    assert starts.line(tmp_path) is None
    starts.begin(tmp_path, {})
    starts.end(None)
    assert entries(str(tmp_path))[-1]["how"] == "finished"
