"""python -m recsys.doctor [data=mine data.root=DIR]

Checks the installed packages, whether torch, torchrec and fbgemm match, which devices and kernels work (it runs each),
how fast memory and disk are, and whether the data can be read. Each problem comes with the command that fixes it. The
exit status is 1 if something that training needs does not work.
"""

from recsys.base.console import results, say
from recsys.cli import command_line
from recsys.schema.command_schemas import DoctorConfig

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


def _command(cfg: DoctorConfig) -> None:
    from rich.markup import escape
    from rich.table import Table

    from recsys.doctor.checks import CHECKS

    problems = []
    for title, check in CHECKS.items():
        say(f"checking {title}")
        table = Table(title=title, title_justify="left", show_header=False)
        for finding in check(cfg):
            result = escape(finding.result) + (f"\n[bold]{escape(finding.fix)}[/]" if finding.fix else "")
            table.add_row(MARKS[finding.state], escape(finding.what), result)
            problems += [finding] if finding.state == "problem" else []
        results.print(table)
    if problems:
        say("\n".join(f"problem: {p.what}: {p.result}{f'; fix: {p.fix}' if p.fix else ''}" for p in problems))
        raise SystemExit(1)
    say("everything that training needs works")


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("doctor", _command)


if __name__ == "__main__":
    main()
