"""The page of an evaluation: the funnel, the lists of each stage, and what was lost where."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from recsys.evaluation.metrics_table import METRICS
from recsys.pages import document, footer
from recsys.pages.formatting import share
from recsys.pages.sortable_tables import Column, table

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
LABEL, WIDE, ROW, VALUE = 210, 440, 30, 200  # pixels of the funnel
NOTES = (
    "Intervals: 95 %, percentiles of resamples of the users (bootstrap); differences are paired, since all lists are "
    "made for the same users. Intervals tell how much chance is in the choice of users, not in the training of models.",
    "All lists are those that the pipeline's filters leave.",
    "NDCG, hit rate, recall and MRR: see the metrics of retrieval models. Targets that no stage knows count as missed.",
    "Latency: requests answered one at a time in one process.",
)


def page(found: Found) -> str:
    """Return the page. found: what evaluation.json holds"""
    k = found["k"]
    counts = found["counts"]
    parts = [
        f"<h1>Pipeline {escape(found['name'])}</h1>",
        f"<p>{counts['users']:,} users, {counts['targets']:,} targets, {counts['items']:,} items; lists of {k}. "
        f"{_unknown(counts)}</p>",
        _cards(found),
        "<h2>The funnel</h2>",
        "<p>The share of a user's targets that each stage still has. A stage can only lose them.</p>",
        _funnel(found["funnel"], k),
        _filters(found["funnel"]),
        "<h2>The best lists of each stage</h2>",
        _stages(found),
        "<h2>The lists, whatever the targets are</h2>",
        _lists(found),
        "<h2>Latency by stage</h2>",
        _latency(found["latency_ms"]),
    ]
    if found["calibration"]:
        parts += ["<h2>Calibration by group of users</h2>", _calibration(found["calibration"])]
    if "off_policy" in found:
        parts += ["<h2>Off-policy estimates of a list's reward</h2>", _off_policy(found["off_policy"])]
    parts.append(footer("Made by <code>python -m recsys.pipeline evaluate</code>.", NOTES))
    return document(f"Pipeline {found['name']}", "\n".join(parts), Path(__file__).parent)


def _unknown(counts: Found) -> str:
    missing = counts["targets_no_item"]
    return f"{missing:,} targets are items that neither a source nor the table of items has." if missing else ""


def _cards(found: Found) -> str:
    k = found["k"]
    cards = []
    for name in ("final", "retriever", "popularity", "best_possible"):
        if name in found:
            cards.append((f"{found[name][f'ndcg@{k}']:.4f}", f"NDCG@{k}, {STAGES[name][0]}"))
    total = found["latency_ms"].get("total", {})
    if total:
        cards.append((f"{total['p50']:.1f} ms", "a request, p50"))
    return (
        '<div class="cards">' + "".join(f"<div><b>{v}</b><span>{escape(t)}</span></div>" for v, t in cards) + "</div>"
    )


def _funnel(funnel: Found, k: int) -> str:
    rows = [(f"source {name}", s, "source") for name, s in funnel["sources"].items()]
    labels = {
        "retrieved": "any source",
        "merged": "kept by the merge",
        "filtered": "kept by filters",
        "ranked": f"best {k} by score",
        "final": f"final list of {k}",
    }
    rows += [(label, funnel[name], "") for name, label in labels.items()]
    most = funnel["possible"]["recall"]
    lines = []
    for i, (label, step, cls) in enumerate(rows):
        top = i * ROW
        width = WIDE * step["recall"]
        items = f"{share(step['recall'])} of targets in {step['items']:,.0f} items"
        lines.append(
            f'<text x="{LABEL - 10}" y="{top + 19}" text-anchor="end">{escape(label[:28])}</text>'
            f'<rect class="rest" x="{LABEL}" y="{top + 5}" width="{WIDE}" height="20" rx="3"/>'
            f'<rect class="bar {cls}" x="{LABEL}" y="{top + 5}" width="{max(width, 1):.1f}" height="20" rx="3"/>'
            f'<text class="soft" x="{LABEL + WIDE + 10}" y="{top + 19}">{items}</text>'
        )
    height = len(rows) * ROW
    x = LABEL + WIDE * most
    first = (len(rows) - 2) * ROW
    lines.append(f'<line class="most" x1="{x:.1f}" x2="{x:.1f}" y1="{first}" y2="{height}"/>')
    lines.append(
        f'<text class="soft" x="{x + 6:.1f}" y="{height + 14}">the most that {k} items can have: {share(most)}</text>'
    )
    size = f"0 0 {LABEL + WIDE + VALUE} {height + 22}"
    return f'<svg class="funnel" viewBox="{size}" role="img" aria-label="funnel">{"".join(lines)}</svg>'


def _filters(funnel: Found) -> str:
    if not funnel["filters"]:
        return ""
    rows = [
        [escape(name), f"{f['removed']:.2f}", f"{f['targets_removed']:.2f}"] for name, f in funnel["filters"].items()
    ]
    columns = [Column("filter", left=True), Column("candidates removed"), Column("targets among them")]
    more = f"<p>{share(funnel['asked_for_more'])} of the requests asked the sources for more.</p>"
    return f"<h3>Filters, a request</h3>{table(columns, rows)}{more}"


def _stages(found: Found) -> str:
    k = found["k"]
    metrics = [f"{m}@{k}" for m in ("ndcg", "hr", "recall", "mrr")]
    columns = [Column("lists", left=True)]
    columns += [Column(f"{METRICS[m.partition('@')[0]].label}@{k}") for m in metrics]
    columns += [Column(f"NDCG@{k}, 95 %"), Column("final minus this, 95 %")]
    rows = []
    for name, (label, meaning) in STAGES.items():
        if name not in found:
            continue
        own = found["intervals"][name]
        rows.append(
            [f'<span data-t="{escape(meaning)}">{escape(label)}</span>']
            + [f"{found[name][m]:.4f}" for m in metrics]
            + [f"{own['low']:.4f} to {own['high']:.4f}", _difference(found["final_minus"].get(name))]
        )
    return table(columns, rows)


def _difference(found: Found | None) -> str:
    if found is None:
        return "–"
    cls = "better" if found["low"] > 0 else "worse" if found["high"] < 0 else ""
    return f'<span class="{cls}">{found["mean"]:+.4f} ({found["low"]:+.4f} to {found["high"]:+.4f})</span>'


def _lists(found: Found) -> str:
    k = found["k"]
    names = [n for n in ("coverage", "gini", "novelty", "diversity", "popularity_lift") if f"{n}@{k}" in found["final"]]
    columns = [
        Column("lists", left=True),
        *(Column(METRICS[n].label, tooltip=METRICS[n].meaning) for n in names),
    ]
    rows = [
        [STAGES[stage][0], *(_figure(found[stage].get(f"{n}@{k}")) for n in names)]
        for stage in ("popularity", "retriever", "final")
    ]
    return table(columns, rows)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _latency(found: Found) -> str:
    columns = [Column("stage", left=True), Column("p50, ms"), Column("p99, ms")]
    return table(columns, [[name, f"{x['p50']:.2f}", f"{x['p99']:.2f}"] for name, x in found.items()])


def _calibration(found: list[Found]) -> str:
    predictions = [n for n in found[0] if n not in ("group", "users", "items", "targets")]
    columns = [
        Column("group", left=True),
        Column("users"),
        Column("listed items"),
        Column("share of targets"),
    ]
    columns += [Column(f"mean {n}") for n in predictions]
    rows = [
        [escape(str(r["group"])), f"{r['users']:,}", f"{r['items']:,}", f"{r['targets']:.4f}"]
        + [f"{r[n]:.4f}" for n in predictions]
        for r in found
    ]
    return table(columns, rows)


def _off_policy(found: Found) -> str:
    meanings = {
        "logged": "mean reward of the logged lists",
        "ips": "inverse propensity scores",
        "snips": "self-normalised inverse propensity scores",
        "dr": "doubly robust, with the ranker's prediction as the model",
    }
    rows = [
        [escape(meaning), f"{found[n]['mean']:.4f}", f"{found[n]['low']:.4f} to {found[n]['high']:.4f}"]
        for n, meaning in meanings.items()
        if n in found
    ]
    size = f"<p>{found['requests']:,} requests; the {found['items']:,} logged items tell as much as "
    size += f"{found['effective_items']:,.0f} of the pipeline's own (Kish's effective size).</p>"
    return size + table([Column("estimate", left=True), Column("reward of a list"), Column("95 %")], rows)
