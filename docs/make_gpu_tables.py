"""python docs/make_gpu_tables.py: write the tables of docs/how_to/train/gpus.md.

They follow from the files that benchmarks/gpu wrote to benchmarks/results/gpu/CARD, and stand between the comments
`gpu: CARD NAME` and `/gpu`. The text around them is written by hand.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PAGE = ROOT / "docs" / "how_to" / "train" / "gpus.md"
PLAIN = "recsys"  # with nothing switched on
MODELS = ("dlrm", "dcnv2")
LISTS = {
    "sasrec_ml1m": "SASRec, MovieLens 1M's lengths, dim 50, 1,024 lists a batch",
    "sasrec_200": "SASRec, up to 200 items, dim 256, 512 lists",
    "sasrec_1024": "SASRec, up to 1,024 items, dim 256, 64 lists",
    "hstu_200": "HSTU, up to 200 items, dim 256, 512 lists",
    "hstu_1024": "HSTU, up to 1,024 items, dim 256, 64 lists",
}
NOT_RUN: dict[str, Any] = {"rates": [], "peak_gib": None, "problem": "not run"}


def results(card: str) -> dict[str, Any]:
    """Return the content of each file of a card by its name."""
    return {file.stem: json.loads(file.read_text()) for file in sorted((RESULTS / card).glob("*.json"))}


def rate(outcome: Any, plain: Any = None) -> str:
    """Return the median rate, with its ratio to another one, or why there is none."""
    if not outcome["rates"]:
        failed = re.match(r"failed: (\w+)", outcome["problem"])
        return f"failed: `{failed[1]}`" if failed else "not run"
    value = statistics.median(outcome["rates"])
    ratio = f" ({value / statistics.median(plain['rates']):.2f} x)" if plain is not None and plain["rates"] else ""
    return f"{value:,.0f}{ratio}"


def peak(outcome: Any) -> str:
    return "" if outcome["peak_gib"] is None else f"{outcome['peak_gib']:.1f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without the rows and the columns of which nothing was run."""
    rows = [row for row in rows if not {"", "not run"}.issuperset(row[1:])]
    shown = [i for i in range(len(head)) if not {"", "not run"}.issuperset(row[i] for row in rows)]
    lines = [[row[i] for i in shown] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |") for line in lines)


def machines(found: dict[str, Any]) -> str:
    """Say when, on what and with what the files were measured."""
    topics: dict[str, list[str]] = {}
    for name, f in found.items():
        versions = ", ".join(f"{package} {v}" for package, v in f["versions"].items())
        where = f"{f['date']} on one {f['gpu']} and {f['cores']} cores of a CPU, with {versions}"
        topics.setdefault(f"{where}, at commit {f['commit']}. {f['note']}".strip(), []).append(f"`{name}`")
    every = len(topics) == 1
    texts = [f"{'All' if every else ', '.join(names)}: {where}" for where, names in topics.items()]
    return textwrap.fill(" ".join(texts), 120, break_on_hyphens=False, break_long_words=False)


def settings(found: dict[str, Any]) -> str:
    """Return rates of DLRM and DCN-V2 with each setting."""
    outcomes = {m: found[m]["contestants"] for m in MODELS}
    names = sorted(dict.fromkeys(name for m in MODELS for name in outcomes[m]), key=lambda n: n != PLAIN)
    rows = []
    for name in names:
        row = ["recsys, nothing switched on" if name == PLAIN else name]
        for m in MODELS:
            outcome = outcomes[m].get(name, NOT_RUN)
            base = next(n for n in (PLAIN, "TorchRec's loop") if n in outcomes[m])
            row += [rate(outcome, None if name == base else outcomes[m][base]), peak(outcome)]
        rows.append(row)
    return table(["", "DLRM, samples/s", "peak GiB", "DCN-V2, samples/s", "peak GiB"], rows)


def lists(found: dict[str, Any]) -> str:
    """Return rates of models of lists."""
    half = "recsys, bf16-mixed"
    names = [PLAIN, half, f"{half}, compile and CUDA graphs", "recsys, defaults", "padded loop, bfloat16 on GPUs"]
    rows = []
    for topic, about in ((t, a) for t, a in LISTS.items() if t in found):
        of = found[topic]["contestants"]
        cells = [rate(of[n]) if n in of else "" for n in names]
        rows.append([about, *cells, peak(of.get(half) or of["recsys, defaults"])])
    head = [
        "lists/s",
        "float32",
        "bf16-mixed",
        "CUDA graphs",
        "defaults",
        "padded loop, bf16",
        "peak GiB of recsys, bf16",
    ]
    return table(head, rows)


def host_memory(found: dict[str, Any]) -> str:
    f = found["host_memory"]
    rows = [
        [name, rate(o), peak(o), f"{f['parts'][name]['hit rate']:.1%}" if name in f["parts"] else ""]
        for name, o in f["contestants"].items()
    ]
    return table(["a table of 40M x 128 and 25 small ones", "samples/s", "peak GiB", "hit rate"], rows)


def from_files(found: dict[str, Any]) -> str:
    f = found["from_files"]
    rows = [
        [name, rate(o), f"{f['parts'][name]['loader']:.0%}" if name in f["parts"] else ""]
        for name, o in f["contestants"].items()
    ]
    return table(["DLRM from files, through `recsys.train`", "samples/s", "waits for the loader"], rows)


def stacks(_: dict[str, Any]) -> str:
    """Compare the host's time of a step with the packages that recsys installs and with those of the GPU machines."""
    claims = json.loads((RESULTS.parent / "stacks.json").read_text())["claims"]
    (_, ours), (_, theirs) = (claims[0][key].split(", ", 1) for key in ("ours", "other"))
    found = []
    for claim in claims:
        ratios = claim["cpu"]
        found.append(
            f"{claim['ours'].partition(', ')[0]} {ratios['median']:.2f} ({ratios['low']:.2f} to {ratios['high']:.2f})"
        )
    text = f"Steps for a second of CPU with {ours}, over those with {theirs}, in {len(ratios['rounds'])} rounds: "
    return textwrap.fill(text + ", ".join(found) + ".", 120, break_on_hyphens=False, break_long_words=False)


def page(text: str) -> str:
    """Return the page with its tables written anew."""
    writers = {w.__name__: w for w in (machines, settings, lists, host_memory, from_files, stacks)}

    def anew(match: re.Match[str]) -> str:
        card, name = match[2], match[3]
        return f"{match[1]}\n\n{writers[name](results(card))}\n\n<!-- /gpu -->"

    return re.sub(r"(<!-- gpu: (\w+) (\w+) -->).*?<!-- /gpu -->", anew, text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
