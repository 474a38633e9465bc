"""The page of an evaluation: the funnel, the lists of each stage, and what was lost where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from recsys.evaluation.metrics_table import METRICS
from recsys.pages import render
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.bars import Part, Stack, lying
from recsys.pages.elements import share
from recsys.pages.page_table import Cell, Cells, Column, PageTable, columns, cut

Found = Mapping[str, Any]
STAGES = {  # name in evaluation.json: label, meaning
    "popularity": ("popularity", "the items that were chosen most often before, the same for all"),
    "retriever": ("retriever alone", "the first source, in its own order"),
    "merged": ("sources, merged", "all sources, in the order of the merge"),
    "ranker": ("ranker", "the candidates that filters leave, by score"),
    "final": ("final list", "after the fourth stage"),
    "ranker_all_items": ("ranker over all items", "every item that filters leave, scored"),
    "best_possible": ("best possible", "the items with the largest expected gains"),
}
ESTIMATES = {
    "logged": "mean reward of the logged lists",
    "ips": "inverse propensity scores",
    "snips": "self-normalised inverse propensity scores",
    "dr": "doubly robust, with the ranker's prediction as the model",
}


def page(found: Found) -> str:
    """Return the page. found: what evaluation.json holds"""
    ndcg, total = f"ndcg@{found['k']}", found["latency_ms"].get("total", {})
    shown = [name for name in ("final", "retriever", "popularity", "best_possible") if name in found]
    facts = [(f"{found[name][ndcg]:.4f}", f"NDCG@{found['k']}, {STAGES[name][0]}") for name in shown]
    facts += [(f"{total['p50']:.1f} ms", "a request, p50")] if total else []
    names = ("filter", "candidates removed", "targets among them")
    removed = found["funnel"]["filters"].items()
    filters = [[name, f"{f['removed']:.2f}", f"{f['targets_removed']:.2f}"] for name, f in removed]
    times = [[name, f"{x['p50']:.2f}", f"{x['p99']:.2f}"] for name, x in found["latency_ms"].items()]
    k = found["k"]
    whole = [n for n in ("coverage", "gini", "novelty", "diversity", "popularity_lift") if f"{n}@{k}" in found["final"]]
    heads = [Column("lists", left=True), *(Column(METRICS[n].label, tooltip=METRICS[n].meaning) for n in whole)]
    lists = []
    for stage in ("popularity", "retriever", "final"):
        values = [found[stage].get(f"{n}@{k}") for n in whole]
        lists.append([STAGES[stage][0], *("–" if v is None else f"{v:.4g}" for v in values)])
    calibration = None
    if groups := found["calibration"]:
        means = [n for n in groups[0] if n not in ("group", "users", "items", "targets")]
        cells = []
        for g in groups:
            values = [g["targets"], *(g[n] for n in means)]
            cells.append([str(g["group"]), f"{g['users']:,}", f"{g['items']:,}", *(f"{v:.4f}" for v in values)])
        about = ["group", "users", "listed items", "share of targets", *(f"mean {n}" for n in means)]
        calibration = PageTable(columns(about, left=("group",)), cells)
    exposed = {column: _exposure(parts, k) for column, parts in found.get("exposure", {}).items()}
    off_policy = None
    if "off_policy" in found:
        estimates = {meaning: found["off_policy"][n] for n, meaning in ESTIMATES.items() if n in found["off_policy"]}
        rewards = [[meaning, f"{x['mean']:.4f}", _between(x)] for meaning, x in estimates.items()]
        off_policy = PageTable(columns(("estimate", "reward of a list", "95 %"), left=("estimate",)), rewards)
    return render(
        "stages/evaluate/funnel_page.html",
        found=found,
        title=f"Pipeline {found['name']}",
        facts=facts,
        funnel=_funnel(found["funnel"], found["k"]),
        filters=PageTable(columns(names, left=names[:1]), filters) if filters else None,
        stages=_stages(found),
        lists=PageTable(heads, lists),
        latency=PageTable(columns(("stage", "p50, ms", "p99, ms"), left=("stage",)), times),
        calibration=calibration,
        exposure=exposed,
        off_policy=off_policy,
    )


def _funnel(funnel: Found, k: int) -> Markup:
    """Draw the share of targets that each stage still has; the last two are at most what k items can have."""
    labels = {
        "retrieved": "any source",
        "merged": "kept by the merge",
        "filtered": "kept by filters",
        "ranked": f"best {k} by score",
        "final": f"final list of {k}",
    }
    steps = [(f"source {name}", step, "var(--c7)") for name, step in funnel["sources"].items()]
    steps += [(text, funnel[name], "var(--c0)") for name, text in labels.items()]
    bars = []
    for i, (name, step, colour) in enumerate(steps):
        note = f"{share(step['recall'])} of targets in {step['items']:,.0f} items"
        most = funnel["possible"]["recall"] if i >= len(steps) - 2 else None
        bars.append(Stack([Part(step["recall"], colour)], name[:28], note, mark=most))
    return lying(bars, Axis(0, 1, 210, 650), wide=850, thick=20)


def _stages(found: Found) -> PageTable:
    k = found["k"]
    metrics = {f"{m}@{k}": f"{METRICS[m].label}@{k}" for m in ("ndcg", "hr", "recall", "mrr")}
    names = ["lists", *metrics.values(), f"NDCG@{k}, 95 %", "final minus this, 95 %"]
    rows = []
    for name, (text, meaning) in STAGES.items():
        if name in found:
            between = _between(found["intervals"][name])
            values = [f"{found[name][m]:.4f}" for m in metrics]
            difference: str | Cell = "–"
            if (d := found["final_minus"].get(name)) is not None:
                kind = "good" if d["low"] > 0 else "bad" if d["high"] < 0 else ""
                difference = Cell(f"{d['mean']:+.4f} ({d['low']:+.4f} to {d['high']:+.4f})", kind)
            rows.append([Cell(text, tip=meaning), *values, between, difference])
    return PageTable(columns(names, left=("lists",)), rows)


def _exposure(parts: Sequence[Found], k: int) -> PageTable:
    rows: list[Cells] = []
    for p in parts:
        shares = [f"{p[name]:.1%}" for name in ("chosen", "retriever", "final")]
        rows.append([cut(p["value"], 40), f"{p['items']:,}", *shares, "–" if p["lift"] is None else f"{p['lift']:.2f}"])
    names = ["value", "items", "events", "places, retriever", f"places, final lists of {k}", "lift"]
    return PageTable(columns(names, left=["value"]), rows, first=20)


def _between(estimate: Found) -> str:
    return f"{estimate['low']:.4f} to {estimate['high']:.4f}"
