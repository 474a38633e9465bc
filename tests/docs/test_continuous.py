"""The examples of docs/how_to/follow/: settings that load, and schedulers' files that their programs can read."""

import re
from pathlib import Path

import pytest
import yaml

from recsys.follow.follow_settings import load_settings

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


def test_kubernetes() -> None:
    job = yaml.safe_load(next(b for b in blocks("yaml") if "CronJob" in b))
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:3] == ["python", "-m", "recsys.follow"] and pod["restartPolicy"] == "Never"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
