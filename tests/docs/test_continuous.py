"""The examples of docs/how_to/follow/: settings that load, and schedulers' files that their programs can read."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

from recsys.follow.follow_settings import FollowConfig, load_settings

PAGES = sorted((Path(__file__).parents[2] / "docs" / "how_to" / "follow").glob("*.md"))
PAGE = "\n".join(p.read_text() for p in reversed(PAGES))  # follow.md before checks.md


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    assert found
    return found


def test_the_settings_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    Path("follow.yaml").write_text(next(b for b in blocks("yaml") if "partitions:" in b))
    settings = load_settings(Path("follow.yaml"))
    assert (settings.first, settings.canary and settings.canary.share) == (14, 0.1)


def test_the_table_names_settings() -> None:
    for name in re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", PAGE, re.M):
        for key in re.findall(r"`([a-z_.]+)`", name):
            first, _, second = key.partition(".")
            if first in ("partitions", "increment", "full", "canary", "first", "window", "train_on", "keep_runs"):
                field = FollowConfig.model_fields[first]
                annotation = str(field.annotation)
                assert (
                    not second
                    or second in str(getattr(field.annotation, "model_fields", annotation))
                    or "Canary" in annotation
                )


def test_python_compiles() -> None:
    for block in blocks("python"):
        compile(block, "docs/how_to/follow", "exec")


def test_cron() -> None:
    [line] = blocks("cron")[0].splitlines()
    fields, command = line.split()[:5], line.split(maxsplit=5)[5]
    assert all(re.fullmatch(r"[\d*/,-]+", f) for f in fields) and "recsys.follow" in command


def test_systemd() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(blocks("ini")[0])
    assert unit["Service"]["ExecStart"].startswith("/") and unit["Install"]["WantedBy"] == "multi-user.target"


def test_kubernetes() -> None:
    job = yaml.safe_load(next(b for b in blocks("yaml") if "CronJob" in b))
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "recsys.follow"] and pod["restartPolicy"] == "Never"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
