"""python benchmarks/bench.py [TOPIC ...]: benchmarks, each in a process of its own, and a page of pictures of them all.

    just bench               all topics, at most two minutes each
    just bench dlrm loader   some of them
    just bench smoke         three minutes: fails if a ratio is below the spread of the recorded ones
    just bench record        what `smoke` compares with, measured anew: three times as long
    just bench page start    print the page of some topics, or of all, without measuring

Results are in benchmarks/results: a file of JSON for each topic, and report.html.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from steady import RESULTS, Ratio

from recsys.pages import render
from recsys.pages.charts.axes import Axis
from recsys.pages.charts.bars import Part, Stack, colour, lying
from recsys.pages.charts.plots import Dot, dots_in_cell
from recsys.pages.page_table import Cell, Column, PageTable, Paint

LEFT, RIGHT, WIDE = 330, 760, 860  # pixels of bars, and of a picture
HERE = Path(__file__).parent
RECORDED = 3  # number of times that `record` measures
LEEWAY = 0.05
SMOKE = RESULTS / "smoke.json"  # the ratios of short runs


@dataclass(frozen=True)
class Topic:
    """A script of this folder and its arguments. smoke: shorter ones; None to leave the topic out of smoke"""

    script: str
    arguments: tuple[str, ...] = ()
    smoke: tuple[str, ...] | None = None


TOPICS = {
    "dlrm": Topic("train", ("dlrm", "2"), ("dlrm", "1")),
    "dlrm_large": Topic("train", ("dlrm_large", "3")),
    "dcnv2": Topic("train", ("dcnv2", "3")),
    "deepfm": Topic("train", ("deepfm", "3")),
    "din": Topic("train", ("din", "3")),
    "sasrec": Topic("train", ("sasrec", "3")),
    "softmax": Topic("train", ("softmax", "2")),
    "ranking": Topic("train", ("ranking", "2")),
    "long_histories": Topic("long_histories", ("5",)),
    "table_optimizers": Topic("table_optimizers", ("5",), ("2",)),
    "host_step": Topic("host_step", ("1",)),
    "loader": Topic("loader", ("loader",), ("loader", "1000000", "3")),
    "loader_multihot": Topic("loader", ("loader_multihot",)),
    "loader_lists": Topic("loader", ("loader_lists",)),
    "prepare": Topic("prepare", ("1000000", "3"), ("200000", "3")),
    "start": Topic("start", ("3",), ("1",)),
    "online": Topic("online", ("5",), ("3",)),
    "evaluation": Topic("evaluation"),
    "scaling": Topic("scaling", ("3",)),
    "list_metrics": Topic("list_metrics", (), ("5000", "50000", "2")),
}


def run(names: Sequence[str], smoke: bool = False) -> None:
    """Run topics one after another."""
    for name in names:
        topic = TOPICS[name]
        arguments = topic.smoke if smoke and topic.smoke else topic.arguments
        subprocess.run([sys.executable, HERE / f"{topic.script}.py", *arguments], check=True, stderr=subprocess.DEVNULL)


def results(names: Sequence[str]) -> dict[str, Any]:
    """Return the results that there are of these topics."""
    files = {name: RESULTS / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def page(names: Sequence[str]) -> str:
    """Return the page of the results of these topics."""
    topics = [(name, r, [_rates(r), *_parts(r)], _paints(r), _ratios(r)) for name, r in results(names).items()]
    return render(HERE / "bench_page.html", title="Benchmarks of recsys", topics=topics)


def _rates(result: Any) -> Markup:
    """Draw the median rate of each contestant, or the seconds of a unit if it takes about a second or more."""
    rates = {
        name: statistics.median(s["units"] / s["wall"] for s in samples) for name, samples in result["samples"].items()
    }
    slow = max(rates.values()) < 10
    values = {name: 1 / rate if slow else rate for name, rate in rates.items()}
    stacks = [
        Stack(
            [Part(value, "var(--c0)" if name.startswith("recsys") else "var(--other)")],
            name,
            f"{value:.2f} s" if slow else f"{value:,.0f}" if value >= 100 else f"{value:.2g}",
        )
        for name, value in values.items()
    ]
    return lying(stacks, Axis(0, max(values.values()), LEFT, RIGHT, marks=()), wide=WIDE, thick=16)


def _parts(result: Any) -> list[Markup]:
    """Draw a bar for each whole that is measured by parts."""
    bars = []
    for name, parts in result["parts"].items():
        drawn = [Part(v, colour(i), part, f"{part}: {v:.2f}") for i, (part, v) in enumerate(parts.items())]
        total = sum(parts.values())
        stack = Stack(drawn, name, f"{total:.2f}")
        bars.append(lying([stack], Axis(0, total, LEFT, RIGHT, marks=()), wide=WIDE, thick=26))
    return bars


def _paints(result: Any) -> list[Paint]:
    """Return the legend of the parts."""
    parts = [f"{part} {v:.2f}" for of in result["parts"].values() for part, v in of.items()]
    return [Paint(name, colour(i)) for i, name in enumerate(parts)]


def _ratios(result: Any) -> PageTable:
    """Return a row for each claim."""
    columns = [Column("", left=True), *map(Column, ("by the clock", "by CPU seconds", "goal", ""))]
    bounds = (0.0, max((c[by]["high"] for c in result["claims"] for by in ("clock", "cpu")), default=1.0))
    rows: list[list[str | Cell]] = []
    for claim in result["claims"]:
        dots = [
            Dot(claim[by]["median"], colour, f"{label}: {_text(claim[by])}", claim[by]["low"], claim[by]["high"])
            for by, colour, label in (("clock", "var(--c0)", "by the clock"), ("cpu", "var(--c1)", "by CPU seconds"))
        ]
        goal = "" if claim["goal"] is None else f"{claim['goal']:g}"
        met = "met" if goal and max(claim[by]["median"] for by in ("clock", "cpu")) >= claim["goal"] else ""
        name = f"{claim['ours']} : {claim['other']}"
        picture = Cell(dots_in_cell(dots, bounds, claim["goal"]))
        rows.append([name, _text(claim["clock"]), _text(claim["cpu"]), Cell(goal, chip=met), picture])
    return PageTable(columns, rows)


def _text(ratio: Any) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} - {ratio['high']:.2f})"


def check_smoke(recorded: Any, measured: Any) -> list[str]:
    """Return a line for each ratio whose best round is below the recorded ones.

    Of a few recorded rounds, the next one is often the worst: it may be below by as much as they differ, or by LEEWAY.
    """
    slower = []
    for name, result in measured.items():
        before = {(c["ours"], c["other"]): c["cpu"] for c in recorded.get(name, {"claims": []})["claims"]}
        for claim in result["claims"]:
            known = before.get((claim["ours"], claim["other"]))
            if known and claim["cpu"]["high"] < known["low"] - max(
                known["high"] - known["low"], LEEWAY * known["median"]
            ):
                text = f"{_text(claim['cpu'])} by CPU seconds, recorded {_text(known)}"
                slower.append(f"{name}: {claim['ours']} : {claim['other']} is {text}")
    return slower


def smoke() -> dict[str, Any]:
    """Run the short topics and return their results; those of the long ones are kept."""
    names = [name for name, topic in TOPICS.items() if topic.smoke]
    kept = {name: file.read_bytes() for name in names if (file := RESULTS / f"{name}.json").is_file()}
    run(names, smoke=True)
    measured = results(names)
    for name, content in kept.items():
        (RESULTS / f"{name}.json").write_bytes(content)
    return measured


def record() -> None:
    """Run the short topics several times, and write the spread of their ratios over all of the times."""
    recorded = smoke()
    for _ in range(RECORDED - 1):
        for name, result in smoke().items():
            for known, claim in zip(recorded[name]["claims"], result["claims"], strict=True):
                for by in ("clock", "cpu"):
                    known[by] = asdict(Ratio([*known[by]["rounds"], *claim[by]["rounds"]]))
    SMOKE.write_text(json.dumps({n: {"claims": r["claims"]} for n, r in recorded.items()}, indent=1) + "\n")


def main() -> int:
    names = sys.argv[1:] or list(TOPICS)
    if names == ["record"]:
        record()
        return 0
    if names == ["smoke"]:
        if not SMOKE.is_file():
            print("smoke: nothing is recorded yet; run bench.py record first", file=sys.stderr)
            return 2
        slower = check_smoke(json.loads(SMOKE.read_text()), smoke())
        print("\n".join(slower) or "No ratio is below the spread of the recorded ones.")
        return 1 if slower else 0
    measured = names if names[0] != "page" else names[1:] or list(TOPICS)
    if unknown := [name for name in measured if name not in TOPICS]:
        print(f"{unknown[0]}: must be one of {', '.join(TOPICS)}, smoke, record or page", file=sys.stderr)
        return 2
    if names[0] == "page":
        print(page(measured))
        return 0
    run(names)
    (RESULTS / "report.html").write_text(page(list(TOPICS)))
    print(f"Page of all results: {os.path.relpath(RESULTS / 'report.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
