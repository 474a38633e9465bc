"""python -m recsys.doctor [data=mine data.root=DIR]

Tells what is installed, whether torch, torchrec and fbgemm fit each other, which devices and kernels work (it tries
each), how fast memory and disk are, and whether the data can be read; each problem with what mends it. Exit status 1
where something that training needs does not work.
"""

from omegaconf import DictConfig

from recsys import cli
from recsys.console import results, say

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


def _command(cfg: DictConfig) -> None:
    from rich.markup import escape
    from rich.table import Table

    from recsys.doctor.checks import CHECKS

    problems = []
    for title, check in CHECKS.items():
        say(f"looking at {title}")
        table = Table(title=title, title_justify="left", show_header=False)
        for finding in check(cfg):
            told = escape(finding.found) + (f"\n[bold]{escape(finding.fix)}[/]" if finding.fix else "")
            table.add_row(MARKS[finding.state], escape(finding.what), told)
            problems += [finding] if finding.state == "problem" else []
        results.print(table)
    if problems:
        say("\n".join(f"problem: {p.what}: {p.found}; run: {p.fix}" for p in problems))
        raise SystemExit(1)
    say("all that training needs works here")


def main() -> None:
    """The command line."""
    cli.run("doctor", _command)


if __name__ == "__main__":
    main()
