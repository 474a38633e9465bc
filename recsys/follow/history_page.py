"""Where continuous training is: one line on the terminal, and the page ROOT/page.html."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup
from rich.table import Table

from recsys.base.console import results
from recsys.evaluation import metrics_table
from recsys.files.atomic import write_text
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.follow_state import PartitionState, span
from recsys.follow.model_registry import stored_as
from recsys.pages import render
from recsys.pages.charts.plots import Dot, across, dots, figure, upwards
from recsys.pages.page_table import Cell, Cells, PageTable, columns, cut

FILE = "page.html"
MAIN = ("auc", "ndcg@10")  # the metric of the chart: the first one that there is
EVENT_KINDS = {"promoted": "good", "rejected": "bad", "rolled_back": "bad"}
CYCLE = ("cycle", "trained on", "training", "rows", "judged on", "outcome", "version", "stored", "why")
EVENT = ("time", "event", "version", "who", "why")
MAX_CYCLES, MAX_REASONS = 20, 5  # of the cycles that are listed, and of those whose reasons are


def write_page(follower: ContinuousTraining) -> Path:
    """Write the page of a root, and return its file."""
    state = follower.state
    outcomes = [c.outcome for c in state.cycles]
    names = ("partition", "status", "why")
    refused: list[Cells] = [[n, p.status, cut(p.why, 400, "wrap")] for n, p in state.refused.items()]
    back = sum(e["event"] == "rolled_back" for e in follower.registry.history())
    facts = [(str(outcomes.count("promoted")), "promoted"), (str(outcomes.count("rejected")), "rejected by the gate")]
    facts += [(str(back), "rolled back")]
    facts += [(str(len(state.partitions)), "partitions"), (str(len(refused)), "of them not trained on")]
    stored = {v["version"]: stored_as(v) for v in follower.registry.summaries()}
    cycles: list[Cells] = []
    for c in reversed(state.cycles):
        outcome = Cell(c.outcome.replace("_", " ") or f"at step {c.step}", EVENT_KINDS.get(c.outcome, ""))
        kind = "full" if c.full else "goes on"
        cycles.append(
            [
                str(c.number),
                cut(span(c.train)),
                kind,
                f"{c.rows:,}",
                cut(", ".join(c.window)),
                outcome,
                c.version or "",
                stored.get(c.version or "", ""),
                cut(c.why, 400, "wrap"),
            ]
        )
    history: list[Cells] = []
    for e in reversed(follower.registry.history()):
        given = {n: str(e.get(n) or "") for n in EVENT}
        event = given["event"].replace("_", " ")
        history.append([given["time"], event, given["version"], given["who"], cut(given["why"], 400, "wrap")])
    page = render(
        "follow/history_page.html",
        title=f"Continuous training of {follower.settings.name}",
        facts=facts,
        chart=_chart(state.partitions),
        fresh=follower.freshness(),
        cycles=PageTable(columns(CYCLE, left=set(CYCLE) - {"cycle", "rows"}), cycles),
        refused=PageTable(columns(names, left=names), refused) if refused else None,
        history=PageTable(columns(EVENT, left=EVENT), history),
    )
    write_text(follower.root / FILE, page)
    return follower.root / FILE


def _chart(partitions: Mapping[str, PartitionState]) -> Markup | None:
    names = list(partitions)
    metric = next((m for m in MAIN if any(m in p.metrics for p in partitions.values())), None)
    if metric is None:
        return None
    values = [
        Dot(
            p.metrics[metric],
            "var(--c0)" if p.status != "bad" else "var(--c2)",
            f"{name}: {metrics_table.label(metric)} {p.metrics[metric]:.4f}, {p.status}",
            place=float(place),
            hollow=p.status == "bad",
        )
        for place, (name, p) in enumerate(partitions.items())
        if metric in p.metrics
    ]
    x, y = across([0.0, float(len(names) - 1)]), upwards([d.value for d in values])
    curve = [(d.place, d.value) for d in values if not d.hollow]
    return figure(metrics_table.label(metric), dots(values, x, y, "number of the partition", curve=curve))


def show(file: Path) -> None:
    """Print the cycles, the partitions that were refused, and the roles of versions."""
    follower = ContinuousTraining(load_settings(file))
    stored = {v["version"]: stored_as(v) for v in follower.registry.summaries()}
    names = ("cycle", "trained on", "rows", "judged on", "outcome", "version", "stored")
    cycles = Table(*names, title="cycles")
    for c in follower.state.cycles[-MAX_CYCLES:]:
        kind = " (full)" if c.full else ""
        outcome = c.outcome.replace("_", " ") or f"at step {c.step}"
        version = c.version or ""
        given = (f"{c.number}{kind}", span(c.train), f"{c.rows:,}", ", ".join(c.window), outcome)
        cycles.add_row(*given, version, stored.get(version, ""))
    results.print(cycles)
    for c in follower.state.cycles[-MAX_REASONS:]:
        if c.why:
            results.print(f"cycle {c.number}: {c.why}", markup=False)
    if refused := follower.state.refused:
        partitions = Table("partition", "status", "why", title="partitions that no champion has trained on")
        for name, partition in refused.items():
            partitions.add_row(name, partition.status, partition.why)
        results.print(partitions)
    if (fresh := follower.freshness()) is not None:
        results.print(fresh)
    roles = ", ".join(f"{role} {version}" for role, version in follower.registry.aliases().items())
    results.print(f"registry: {roles or 'no version yet'}")
    for line in follower.registry.missing():
        results.print(line)
    results.print(follower.what_waits())
