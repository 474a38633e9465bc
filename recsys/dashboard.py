"""python -m recsys.dashboard project=recsys [entity=TEAM] [columns=[optim.sparse.lr,model.dim]]

Creates a workspace in a W&B project, with panels for runs, learning, speed, memory, calibration, tables and sweeps. If
you are not logged in to W&B, it writes the workspace's definition to a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.files.atomic import write_text
from recsys.files.outputs import check_output
from recsys.schema.command_schemas import DashboardConfig

CURVES = ("roc", "pr", "calibration")


def workspace(project: str, entity: str, name: str, columns: list[str], metric: str) -> Any:
    """Return the workspace as an object of wandb's API.

    Args:
        entity: the team or user that owns it; empty without a login.
        columns: config keys that are axes of the sweep panels.
        metric: key of a run's summary that the sweeps optimise.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    def line(title: str, *y: str, regex: str | None = None, **more: Any) -> Any:
        metrics = {"metric_regex": regex} if regex else {"y": list(y)}
        return wr.LinePlot(title=title, x="trainer/global_step", **metrics, **more)

    axes = [wr.ParallelCoordinatesPlotColumn(wr.Config(c), log=c.endswith("lr")) for c in columns]
    axes.append(wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(metric)))
    sections = {
        "Runs": [wr.ScalarChart(title=metric, metric=wr.SummaryMetric(metric)), wr.RunComparer(diff_only="split")],
        "Learning": [
            line("training loss", "train/loss", smoothing_factor=0.5, smoothing_type="exponential"),
            line("validation AUC, NDCG", "validation/auc", "validation/gauc", "validation/ndcg@10"),
            line("validation logloss, NE", "validation/logloss", "validation/ne"),
            line("learning-rate factor", "train/lr_factor"),
            line("norm of the dense gradient", "train/grad_norm"),
        ],
        "Throughput": [
            line("samples per second", "train/samples_per_second"),
            line("share of time spent waiting for the loader", "train/loader_wait", range_y=(0, 1)),
        ],
        "Memory": [
            line("process", regex="system/proc.memory.rssMB"),
            line("GPUs", regex="system/gpu\\..*\\.memoryAllocatedBytes"),
            line("GPU utilisation", regex="system/gpu\\..*\\.gpu$"),
        ],
        "Calibration": [
            line("predicted / observed", "validation/calibration"),
            line("calibration error", "validation/ece"),
            wr.MediaBrowser(title="curves of the test rows", media_keys=[f"test/{c}" for c in CURVES]),
        ],
        "Tables": [
            line("norm of a row", regex="tables/.*/norm"),
            line("share of rows touched", regex="tables/.*/touched", range_y=(0, 1)),
        ],
        "Sweeps": [wr.ParallelCoordinatesPlot(axes), wr.ParameterImportancePlot(with_respect_to=metric)],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[ws.Section(name=n, panels=panels, is_open=True) for n, panels in sections.items()],
        runset_settings=ws.RunsetSettings(
            order=[ws.Ordering(ws.Summary(metric), ascending=False)],
            pinned_columns=[
                *(f"summary:{metric}", "run:group", "run:jobType", "run:tags"),
                *("config:" + c.replace(".", ".value.", 1) for c in columns),
            ],
        ),
    )


def definition(workspace: Any) -> dict[str, Any]:
    """Return the JSON that would be sent to W&B."""
    # private: save() needs an account
    text = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True)
    result = json.loads(text)
    assert isinstance(result, dict)
    return result


def _command(cfg: DashboardConfig) -> None:
    import wandb

    if not cfg.project.strip("/ "):
        raise UserError("project: must be the name of a W&B project, such as project=recsys")
    output = Path(cfg.output)
    check_output(output, (".json",))
    logged_in = wandb.login(prompt=False)
    entity = cfg.entity or (wandb.Api().default_entity if logged_in else None)
    result = workspace(cfg.project, entity or "", cfg.name, cfg.columns, cfg.metric)
    if not logged_in:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, json.dumps(definition(result), indent=1) + "\n")
        say(f"not logged in to W&B (run `wandb login`): wrote the workspace's definition to {output} instead")
        return
    result.save()
    say(f"the workspace is at {result.url}")


def main() -> None:
    """Run the command with this process's overrides."""
    command_line.run("dashboard", _command)


if __name__ == "__main__":
    main()
