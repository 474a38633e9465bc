"""The demo: a poisoned day is refused, and the server takes back a build with a bug."""

from pathlib import Path

import pytest

from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_demo import DAYS, POISONED, demo
from recsys.follow.follow_settings import load_settings


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    demo(tmp_path / "demo")
    follower = ContinuousTraining(load_settings(tmp_path / "demo" / "follow.yaml"))
    bad = [n for n, p in follower.state.partitions.items() if p.status == "bad"]
    assert bad == [f"day=2025-01-{POISONED + 1:02d}"] and len(follower.state.partitions) == DAYS
    events = [e["event"] for e in follower.registry.history()]
    assert [c.outcome for c in follower.state.cycles] == ["promoted"] * 9
    assert events.count("rolled_back") == 1 and events.count("canary_passed") == 8
    [back] = [e for e in follower.registry.history() if e["event"] == "rolled_back"]
    assert back["why"].startswith(("click: its click rate is lower", "score: "))
    assert "rolled back" in (follower.root / "page.html").read_text()
    assert not (tmp_path / "demo" / "coming").exists()
