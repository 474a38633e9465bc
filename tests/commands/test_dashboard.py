"""The workspace's definition names what runs log; without an account it is written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recsys.dashboard import definition, workspace

LOGGED = {
    *("train/loss", "train/samples_per_second", "train/loader_wait", "train/lr_factor", "train/grad_norm"),
    *(f"validation/{m}" for m in ("auc", "gauc", "logloss", "ne", "calibration", "ece", "ndcg@10")),
}


def panels(made: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    sections = made["spec"]["section"]["panelBankConfig"]["sections"]
    return {s["name"]: s["panels"] for s in sections}


def test_panels_show_what_is_logged() -> None:
    made = panels(definition(workspace("p", "e", "n", ["optim.sparse.lr", "model.dim"], "best/test/auc")))
    assert [*made] == ["Runs", "Learning", "Throughput", "Memory", "Calibration", "Tables", "Sweeps"]
    charts = [p["config"].get("metrics", []) for ps in made.values() for p in ps]
    shown = {m for metrics in charts for m in metrics if not m.startswith("summary_")}
    assert shown == LOGGED
    patterns = [p["config"]["metricRegex"] for p in made["Tables"]]
    assert re.fullmatch(patterns[0], "tables/t_cat_1/norm") and re.fullmatch(patterns[1], "tables/t_cat_1/touched")
    [coordinates] = [p for p in made["Sweeps"] if "Parallel" in p["viewType"]]
    assert "optim.value.sparse.lr" in json.dumps(coordinates) and "best/test/auc" in json.dumps(coordinates)


@pytest.mark.slow
def test_without_an_account(tmp_path: Path) -> None:
    env = os.environ | {"WANDB_API_KEY": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}

    def dashboard(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recsys.dashboard", *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    done = dashboard("project=mine", "entity=team", "output=boards/a.json")
    assert done.returncode == 0, done.stderr
    assert "not logged in to W&B" in done.stderr and "boards/a.json" in done.stderr
    made = json.loads((tmp_path / "boards" / "a.json").read_text())
    assert (made["entity"], made["project"]) == ("team", "mine") and len(panels(made)) == 7
    wrong = dashboard("project=")
    assert wrong.returncode == 2 and "project: must be the name of a W&B project" in wrong.stderr
