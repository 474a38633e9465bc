"""Sections of what explains runs: the columns that matter, the positions of rows, and what lists show."""

from collections.abc import Iterator, Sequence

from recsys.evaluation import metrics_table
from recsys.pages.charts.bars import Part, bar, thin_bars
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cells, Column, PageTable, columns, cut
from recsys.report.runs import ReportedRun, json_or_none

MAX_RUNS = 4  # that have such a section
WIDE = 220  # pixels of a bar


def explanations(runs: Sequence[ReportedRun]) -> list[tuple[str, str, PageTable]]:
    """Return the heading, a note and a table of each run's importances, of its positions, and of its exposure."""
    return [part for run in runs[:MAX_RUNS] for part in (*_importances(run), *_positions(run), *_exposure(run))]


def _importances(run: ReportedRun) -> Iterator[tuple[str, str, PageTable]]:
    for file in sorted(run.path.glob("importance-*.json")):
        found = json_or_none(file) or {}
        for label, entries in (found.get("labels") or {}).items():
            names = [*entries[0]["loss"]]
            top = max(max(e["loss"][names[0]]["value"] for e in entries), 1e-12)
            rows: list[Cells] = []
            for e in entries:
                losses = [e["loss"][n] for n in names]
                share = min(max(losses[0]["value"] / top, 0.0), 1.0)
                values = [f"{x['value']:.5f} ± {x['high'] - x['value']:.5f}" for x in losses]
                drawn = bar([Part(share, "var(--c0)", tip=values[0])], WIDE, 14)
                rows.append([cut(", ".join(e["columns"]), 60, "wrap"), drawn, *values])
            first = metrics_table.label(names[0])
            heads = [Column("column", left=True), Column(f"worse {first}", left=True), *columns(names)]
            what = (
                f"How much worse the metrics of {plain(label)} are if a column of the {found['split']} rows is shuffled"
            )
            note = f"{what}, with 95 % intervals. Columns that move together are shuffled together."
            yield f"Importance of columns: {tail(run.name, 40)}", note, PageTable(heads, rows, first=20)


def _positions(run: ReportedRun) -> Iterator[tuple[str, str, PageTable]]:
    for split, effects in ((run.metrics or {}).get("positions") or {}).items():
        top = max(max(p["rate"] for p in effects["positions"]), 1e-12)
        learned = "examination" if "examination" in effects["positions"][0] else "bias"
        rows: list[Cells] = []
        for p in effects["positions"]:
            drawn = bar([Part(p["rate"] / top, "var(--c0)", tip=f"{p['rate']:.2%}")], WIDE, 14)
            rows.append(
                [
                    str(p["position"]),
                    f"{p['rows']:,.0f}",
                    f"{p['rate']:.2%}",
                    drawn,
                    f"{p[learned]:{'+.3f' if learned == 'bias' else '.3f'}}",
                ]
            )
        heads = columns(["position", "rows", "rate", "", learned], left=[""])
        note = (
            f"Positions alone explain {effects['explains']:.1%} of the entropy of {plain(effects['label'])} in the "
            f"{split} rows. Rates are those of the rows, {learned} is what was learned, and predictions leave it out."
        )
        yield f"Positions: {tail(run.name, 40)}", note, PageTable(heads, rows, first=20)


def _exposure(run: ReportedRun) -> Iterator[tuple[str, str, PageTable]]:
    for split, tables in ((run.metrics or {}).get("exposure") or {}).items():
        for feature, parts in tables.items():
            ks = [int(name.removeprefix("lift@")) for name in parts[0] if name.startswith("lift@")]
            longest = f"share@{max(ks)}"
            top = max(max(p["training"], p[longest]) for p in parts) or 1.0
            rows: list[Cells] = []
            for p in parts:
                shares = ((p["training"], "var(--g2)"), (p[longest], "var(--c0)"))
                drawn = thin_bars([[Part(x, paint, tip=f"{x:.2%}")] for x, paint in shares], top)
                lifts = ["–" if p[f"lift@{k}"] is None else f"{p[f'lift@{k}']:.2f}" for k in ks]
                counts = [f"{p['candidates']:,}", f"{p['training']:.1%}", f"{p[longest]:.1%}"]
                rows.append([cut(p["value"], 40), drawn, *counts, *lifts])
            names = [feature, "", "candidates", "training rows", f"places of {max(ks)}", *(f"lift@{k}" for k in ks)]
            note = (
                f"Share of the training rows (grey) and of the places of the lists of the {split} queries (colour) "
                "whose item has the value. Lift is the second divided by the first: 1 if lists show a value as often "
                "as users chose it."
            )
            heads = columns(names, left=[feature, ""])
            yield f"Exposure by {feature}: {tail(run.name, 40)}", note, PageTable(heads, rows, first=20)
