"""python -m recsys.report RUN_DIR... [SWEEP_DIR] [output=report.html] [users=5] [similar=10]

Compares runs with the first one on one HTML page: metrics with intervals, curves, calibration, slices, time, plans and
configs. users: also the lists of some users, side by side; similar: the items most like the most frequent ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.overrides import quoted
from recsys.files.atomic import write_text
from recsys.files.outputs import check_output
from recsys.job.fetched_runs import is_address, local_run
from recsys.schema.command_schemas import ReportConfig

USAGE = "python -m recsys.report RUN_DIR... [SWEEP_DIR] [output=report.html] [users=5] [similar=10]"


def report(cfg: ReportConfig) -> None:
    """Write the page about runs and sweeps, and print the comparison."""
    from rich.markup import escape

    from recsys.pages.elements import plain
    from recsys.report.comparison import compare
    from recsys.report.comparison_table import beaten_by_baseline, terminal, verdict
    from recsys.report.compute import scaling_runs
    from recsys.report.report_page import not_compared, page
    from recsys.report.runs import read
    from recsys.report.scaling import sentence

    if not cfg.runs:
        raise UserError(f"no run given; usage: {USAGE}")
    output = Path(cfg.output)
    check_output(output, (".html",))
    needed = None if cfg.users is None and cfg.similar is None else "best"
    run_set = read([str(local_run(run, "runs", needed)) if is_address(run) else run for run in cfg.runs])
    if not run_set.runs:
        raise UserError(f"{cfg.runs[0]}: no trial of this sweep has a folder yet")
    if left_out := run_set.left_out:
        names = ", ".join(map(str, left_out[:3])) + (" ..." if left_out[3:] else "")
        say(f"left out, because they hold no run: {len(left_out)} of {len(cfg.runs)} ({names})")
    number = len(run_set.runs)
    say(f"{number} run{'s' if number > 1 else ''}: resampling the test rows {cfg.resamples:,} times")
    groups, lists, similar = compare(run_set.runs, cfg.resamples, cfg.seed), None, None
    if cfg.users is not None:
        from recsys.report.user_lists import user_section  # its imports take seconds

        lists = user_section(cfg, groups)
    if cfg.similar is not None:
        from recsys.report.similar_section import similar_section

        similar = similar_section(cfg, groups)
    output.parent.mkdir(parents=True, exist_ok=True)
    scalings = [found for sweep in run_set.sweeps if (found := scaling_runs(sweep))]
    write_text(output, page(run_set, groups, cfg.resamples, cfg.seed, scalings, lists, similar))
    for group in groups:
        for main in group.mains:
            results.print(terminal(group, main))
            results.print(escape(verdict(group, main)))
            if (text := beaten_by_baseline(group, main)) is not None:
                results.print(escape(text))
    if lists is not None:
        for user in lists.users:
            results.print(escape(f"user {plain(user.user)}, next: {lists.followed(user, 1)}"))
    for line in not_compared(groups):
        say(line)
    for model, runs in (of_model for found in scalings for of_model in found.items()):
        results.print(escape(sentence(model, runs)))
    for run in run_set.runs:
        if not run.test:
            say(f"{run.name}: {'not finished (it has no metrics.json)' if run.metrics is None else run.last}")
    say(f"wrote {output}")


def main() -> None:
    """Run the command, whose arguments are folders or runs=[...]. A folder's name may contain a =."""
    folders, rest = command_line.folders_among(sys.argv[1:])
    runs = [f"runs=[{','.join(map(quoted, folders))}]"] if folders else []
    command_line.run("report", report, runs + rest)


if __name__ == "__main__":
    main()
