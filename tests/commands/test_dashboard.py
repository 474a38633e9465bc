"""The workspace's definition names what runs log; without an account it is written."""

import json
import re
from typing import Any

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
