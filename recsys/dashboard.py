"""python -m recsys.dashboard project=recsys [entity=TEAM] [columns=[optim.sparse.lr,model.dim]]

Creates the workspace of panels in a W&B project: runs, learning, speed, memory, calibration, tables, sweeps. Without an
account, writes its definition to a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from recsys import cli
from recsys.console import say
from recsys.errors import UserError

CURVES = ("roc", "pr", "calibration")


def workspace(project: str, entity: str, name: str, columns: list[str], metric: str) -> Any:
    """Return the workspace as an object of wandb's API.

    columns: config keys along which sweeps are shown
    metric: key of a run's summary that sweeps optimise
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
            line("samples a second", "train/samples_per_second"),
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
            pinned_columns=[f"summary:{metric}", *("config:" + c.replace(".", ".value.", 1) for c in columns)],
        ),
    )


def definition(made: Any) -> dict[str, Any]:
    """Return the JSON that would be sent to W&B."""
    found = json.loads(
        made._to_model().model_dump_json(by_alias=True, exclude_none=True)
    )  # private: save() needs an account
    assert isinstance(found, dict)
    return found


def _command(cfg: DictConfig) -> None:
    import wandb

    if not cfg.project.strip("/ "):
        raise UserError("project: must be set to a W&B project's name")
    columns = [str(c) for c in cfg.columns]
    known = wandb.login(prompt=False)
    entity = cfg.entity or (wandb.Api().default_entity if known else None)
    made = workspace(cfg.project, entity or "", cfg.name, columns, cfg.metric)
    if not known:
        output = Path(cfg.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(definition(made), indent=1) + "\n")
        say(f"no W&B account here (`wandb login` makes it known): the workspace's definition is in {output}")
        return
    made.save()
    say(f"the workspace is at {made.url}")


def main() -> None:
    """Run the command line."""
    cli.run("dashboard", _command)


if __name__ == "__main__":
    main()
