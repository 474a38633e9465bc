"""Names that are markup, quotes or control characters of direction, in every text of the five pages."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from markupsafe import Markup
from raw_rows import learn
from run_folders import write_run

from recsys.base.errors import DoesNotFit
from recsys.data.features import LABEL
from recsys.data.features.resolved_data import resolve
from recsys.data.profile import page as profile_page
from recsys.data.profile import profile_rows
from recsys.loadtest.figures import COLUMNS, Measurement
from recsys.loadtest.load_page import make_page
from recsys.pages.charts.bars import Part, bar
from recsys.pages.elements import el
from recsys.report.comparison import compare
from recsys.report.report_page import page as report_page
from recsys.report.runs import read
from recsys.report.user_lists import RunList, UserLists, UserSection
from recsys.schema.data_schema import DataConfig, LabelConfig, SparseConfig
from recsys.sharding.estimate.clock import DeviceReport
from recsys.sharding.estimate.compare import PlanAttempt
from recsys.sharding.estimate.plan_page import page as plan_page
from recsys.sharding.estimate.report import PlanReport, TableReport
from recsys.sharding.infeasible import Infeasibility, TableNeed
from recsys.stages.evaluate.funnel_page import STAGES
from recsys.stages.evaluate.funnel_page import page as funnel_page

START = "\"'><img src=x onerror=alert(1)><script>"
NAME = f"{START}alert(1)<!--"  # of a column, which can be printed
HOSTILE = f"{NAME}\u202egnp"


class Tags(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def report(folder: Path) -> str:
    runs = [write_run(folder / f"{i}{HOSTILE}", 1 + i / 5, noise=i, sliced=True) for i in range(2)]
    for i, run in enumerate(runs):
        config = json.loads((run / "config.yaml").read_text())
        config["model"]["_target_"] = f"{HOSTILE}{i}"
        config["optim"][HOSTILE] = f"{HOSTILE}{i}"
        (run / "config.yaml").write_text(json.dumps(config))
        metrics = json.loads((run / "metrics.json").read_text())
        slices = metrics["slices"]["test"]
        metrics["slices"]["test"] = {HOSTILE: [e | {"value": f"{HOSTILE}{e['value']}"} for e in slices["cat_1"]]}
        metrics["train"]["time"][HOSTILE] = 0.01
        (run / "metrics.json").write_text(json.dumps(metrics))
        plan = {"table": HOSTILE, "rows": 9, "dim": 4, "type": HOSTILE, "kernel": HOSTILE, "ranks": [0]}
        (run / "plan.json").write_text(json.dumps({"world_size": 1, "tables": [plan]}))
    failed = write_run(folder / f"failed{HOSTILE}")
    (failed / "metrics.json").unlink()
    (failed / "train.log").write_text(f"error: {HOSTILE}\n")
    write_run(folder / "other rows", data=HOSTILE)
    trials = []
    for i in range(3):
        write_run(folder / HOSTILE / str(i), 1 + i / 5, noise=i)
        values = {HOSTILE: f"{HOSTILE}{i}", "lr": f"0.{i}"}
        trials.append({"number": i, "values": values, "overrides": [f"x={HOSTILE}"], "status": HOSTILE})
    (folder / HOSTILE / "sweep.json").write_text(json.dumps({"metric": "test/auc", "trials": trials}))
    found = read([str(p) for p in sorted(folder.iterdir())])
    lists = [RunList([HOSTILE, "x"], {HOSTILE: (0, 0)}, {HOSTILE: (3, 0)}) for _ in runs]
    users = [UserLists(3, HOSTILE, [HOSTILE] * 20, [HOSTILE], lists)]
    section = UserSection(found.runs[:2], users, HOSTILE, {HOSTILE: [HOSTILE] * 3})
    return report_page(found, compare(found.runs, 100, 0), 100, 0, users=section)


def profile(folder: Path) -> str:
    n = 60
    columns = {
        f"x{NAME}": pl.Series(np.arange(n) ** 2, dtype=pl.Float64),
        NAME: [f"{HOSTILE}{i % 7}" for i in range(n)],
        f"hash{NAME}": [f"{HOSTILE}{i % 5}" for i in range(n)],
        f"bag{NAME}": [[HOSTILE] * (i % 3) for i in range(n)],
    }
    frame = pl.DataFrame(columns | {LABEL: pl.Series(np.arange(n) % 2).cast(pl.Float32)})
    names = list(columns)
    sparse = {
        names[1]: SparseConfig(table=f"table{NAME}"),
        names[2]: SparseConfig(encode="hash", buckets=3),
        names[3]: SparseConfig(split=" ", table=f"table{NAME}"),
    }
    config = DataConfig(name="t", root="/raw", label=LabelConfig(), dense={names[0]: None}, sparse=sparse)
    data = resolve(config)
    which = np.arange(n).astype(np.uint8) % 3
    bad = folder / f"bad{HOSTILE}.csv"
    pl.DataFrame({name: [HOSTILE] for name in ("reason", "file", "line", "text")}).write_csv(bad)
    info = {"name": HOSTILE, "root": HOSTILE, "split": HOSTILE, "bad_rows": 1}
    return profile_page(profile_rows(data, [(frame, which)], learn(data, frame.filter(which == 0))), info, bad)


def plan(_: Path) -> str:
    def fitting(devices: int) -> PlanReport:
        tables = []
        for i in range(3):
            shard = {"rank": i % devices, "rows": 10**6, "columns": 16, "offsets": [0, 0], "hbm": 64 * 10**6 * (i + 1)}
            ranks = [i % devices]
            tables.append(TableReport(f"{HOSTILE}{i}", 10**6, 16, 64 * 10**6, 4, HOSTILE, HOSTILE, ranks, [shard]))
        reports = [DeviceReport(d, hbm=10**8, hbm_free=10**9, hbm_reserved=10**8, compute_ms=1) for d in range(devices)]
        return PlanReport(HOSTILE, devices, 64, tables, reports)

    needs = [TableNeed(HOSTILE, 10, 4, 160, 0, 160, 160, HOSTILE)]
    error = DoesNotFit(HOSTILE, Infeasibility(HOSTILE, needs, [100], [[(HOSTILE, 160)]]))
    fits = [PlanAttempt(HOSTILE, fitting(devices)) for devices in (2, 8)]
    return plan_page([*fits, PlanAttempt(HOSTILE, error=error)])


def load_test(_: Path) -> str:
    numbers: dict[str, Any] = dict.fromkeys(COLUMNS, 1.0) | {"connections": 1, "requests": 9, "offered_per_s": None}
    measured = [
        Measurement(**numbers | {"batch_size": size, "errors": 1, "error_kinds": {HOSTILE: 1}}) for size in (1, 2)
    ]
    settings = {"target": HOSTILE, "protocol": "http", "seconds": 1.0, "slo_ms": 5.0}
    return make_page(settings, HOSTILE, measured)


def funnel(_: Path) -> str:
    step, interval = {"recall": 0.5, "items": 9.0}, {"mean": 0.1, "low": 0.0, "high": 0.2}
    metrics = {f"{m}@3": 0.5 for m in ("ndcg", "hr", "recall", "mrr", "gini")}
    names = ("retrieved", "merged", "filtered", "ranked", "final", "possible")
    found: dict[str, Any] = dict.fromkeys(STAGES, metrics) | {
        "name": HOSTILE,
        "k": 3,
        "counts": {"users": 1, "targets": 2, "items": 3, "targets_no_item": 1},
        "intervals": dict.fromkeys(STAGES, interval),
        "final_minus": {"ranker": interval},
        "latency_ms": {HOSTILE: {"p50": 1.0, "p99": 2.0}},
        "calibration": [{"group": HOSTILE, "users": 1, "items": 2, "targets": 0.5, HOSTILE: 0.5}],
        "funnel": dict.fromkeys(names, step)
        | {"sources": {HOSTILE: step}, "asked_for_more": 0.5}
        | {"filters": {HOSTILE: {"removed": 1.0, "targets_removed": 0.0}}},
        "off_policy": {"requests": 1, "items": 2, "effective_items": 1.5, "ips": interval},
    }
    return funnel_page(found)


PAGES = [(report, 30), (profile, 20), (plan, 20), (load_test, 3), (funnel, 5)]


@pytest.mark.parametrize(("make", "least"), PAGES, ids=lambda x: getattr(x, "__name__", ""))
def test_hostile_names(make: Callable[[Path], str], least: int, tmp_path: Path) -> None:
    """No name opens a tag, ends an attribute or turns text around; least: how often the names are there as text."""
    page = make(tmp_path)
    seen = Tags(page)
    assert seen.tags.count("script") == 1 and "img" not in seen.tags
    assert not [name for name in seen.attributes if name.startswith("on") or not re.fullmatch(r"[a-z\d-]+", name)]
    assert "\u202e" not in page
    shown = seen.text.count(START[:9]) + sum(v.count(START[:9]) for vs in seen.attributes.values() for v in vs)
    assert shown >= least and START in seen.text + "".join(seen.attributes.get("data-t", []))


def test_an_element_escapes_attributes_and_text() -> None:
    made = el("text", HOSTILE, el("tspan", "a<b"), data_t=HOSTILE, x=1 / 3, y=-0.0, stroke=None)
    [x] = Tags(made).attributes["x"]
    assert x == "0.33" and "<tspan>a&lt;b</tspan>" in made and "<img" not in made and "\u202e" not in made
    assert isinstance(made, Markup) and made.count("stroke") == 0
    assert "<img" not in bar([Part(1.0, HOSTILE, HOSTILE, HOSTILE)], 900, 20)


def test_commands_answer_without_the_templates() -> None:
    """The packages that write pages import jinja2 only when they write one."""
    modules = ("report.report_page", "data.profile", "loadtest.load_page", "stages.evaluate.funnel_page")
    code = f"import sys; {'; '.join(f'import recsys.{m}' for m in modules)}; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
