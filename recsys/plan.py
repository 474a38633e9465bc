"""python -m recsys.plan model=dlrm data=criteo_1tb sharding=auto cluster=dgx_h100

Plans the sharding of a model's tables for a described cluster, in seconds and without allocating a table.
sharding=a,b,c compares several plans. From Python:

    report = plan(compose("plan", ["data=criteo_1tb", "cluster=dgx_h100"]))
    report.step_ms, report.devices[0].hbm
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from recsys.base.console import say
from recsys.base.errors import DoesNotFit, UserError
from recsys.cli import command_line
from recsys.files.atomic import write_text
from recsys.files.outputs import check_output
from recsys.schema.command_schemas import ClusterConfig, PlanConfig

if TYPE_CHECKING:
    from recsys.interface.features import FeatureSpec
    from recsys.job.run_config import RunConfig
    from recsys.sharding.estimate.clock import StepClock
    from recsys.sharding.estimate.compare import PlanAttempt
    from recsys.sharding.estimate.report import PlanReport
    from recsys.sharding.infeasible import Infeasibility

PLAN_KEYS = ("cluster", "features", "output")  # the other keys are keys of a training run
TRY_SECONDS = 10  # time limit of the planner for each suggested change; with hundreds of tables it can take minutes


def plan(given: DictConfig | PlanConfig) -> PlanReport:
    """Check the config, build the model on the meta device, and plan it for the cluster with TorchRec's planner.

    Raises DoesNotFit (a UserError) if no plan fits. The message says how much memory is missing and which small change
    of the config would make a plan fit; the exception's `infeasible` lists the tables.
    """
    from recsys.config.compose import object_of
    from recsys.distributed.ranks import silence
    from recsys.job.check_built import check_parts
    from recsys.job.check_config import check_config
    from recsys.job.run_config import RunConfig
    from recsys.schema.fields import plain
    from recsys.sharding.infeasible import Infeasibility
    from recsys.sharding.planner import check_cluster

    silence()
    cfg = object_of(PlanConfig, given)
    run = RunConfig.of({name: value for name, value in plain(cfg).items() if name not in PLAN_KEYS})
    check_config(run, trains=False)
    check_parts(run)
    if run.kind.fitted_at_once:
        why = "this model is fitted at once and has no embedding table to shard; choose another model"
        raise UserError(f"model: {why}")
    cluster = cfg.cluster
    check_cluster(cluster)
    world = cluster.nodes * cluster.devices
    if run.trainer.batch_size % world:
        batch = f"trainer.batch_size={run.trainer.batch_size}"
        fix = f"choose a multiple of {world}"
        raise UserError(f"{batch} is not divisible by the cluster's {world} devices; {fix}")
    prepared = None if cfg.features is None else Path(cfg.features)
    features = _features_of(run, prepared)
    result = _plan(run, cluster, features, prepared)
    if isinstance(result, Infeasibility):
        fits = _suggestion(run, cluster, features, prepared)
        raise DoesNotFit(
            f"sharding: no plan fits {cluster.name} ({world} device{'s' if world > 1 else ''}): {result}{fits}", result
        )
    clock = _clock(run, cluster, features, result)
    if isinstance(clock, str):
        result.no_clock = clock
    else:
        result.clock = clock
    return result


def _clock(run: RunConfig, cluster: ClusterConfig, features: FeatureSpec, report: PlanReport) -> StepClock | str:
    """Predict the time of a whole step, or return why it cannot be predicted."""
    import torch

    from recsys.sharding.estimate.clock import step_clock
    from recsys.sharding.estimate.dense_work import dense_work, few_rows
    from recsys.training.compiled import has_graphs

    if cluster.device == "cpu":
        return "the time outside of the tables is predicted for GPUs only"
    if not run.kind.scores_rows:
        return "the time outside of the tables is predicted for ranking models only"
    if cluster.half_tflops is None or cluster.float32_tflops is None:
        return "set cluster.half_tflops and cluster.float32_tflops to predict the time outside of the tables"
    lengths, rows = _lengths(run), report.batch_size // report.world_size
    tensor_cores = cluster.tf32_tflops is not None  # GPUs since Ampere
    half = tensor_cores if run.trainer.precision in (None, "auto") else run.trainer.precision != "32-true"
    try:
        with torch.random.fork_rng(devices=[]):
            task = run.kind.build_task(run, few_rows(features), torch.device("cpu"))
        typed = run.trainer.cuda_graphs
        graphs = has_graphs(task, run.trainer.accumulate) if typed is None else typed
        long = report.world_size == 1 and half and graphs  # as trainings of many steps are
        compiled = long if run.trainer.compile is None else run.trainer.compile
        work = dense_work(task, features, lengths, rows, half=half, compiled=compiled)
    except Exception as e:  # the plan does not depend on it; a class of the user's may need other rows
        return f"the model fails for rows that are made up: {type(e).__name__}: {e}".splitlines()[0]
    if work is None:
        return "the kernels of this model depend on the number of rows"
    pipeline = run.trainer.pipeline
    if cluster.tf32_tflops is not None and (half if run.trainer.tf32 is None else run.trainer.tf32):
        cluster = replace(cluster, float32_tflops=cluster.tf32_tflops)
    return step_clock(
        report.devices,
        work,
        cluster,
        rows=report.batch_size,
        row_bytes=4  # of an id, a length, a number and a label
        * (sum(lengths.get(f.name, 1.0) + 1 for f in features.sparse) + features.dense_width + len(features.labels)),
        pipeline="sparse_dist" if pipeline == "auto" else pipeline,
        compiled=compiled,
        graphs=compiled and graphs,
        sharding_types=len({t.type for t in report.tables} - {"data_parallel"}),
    )


def _lengths(run: RunConfig) -> dict[str, float]:
    """Return the expected number of ids per row of each feature (data.sparse.X.mean_length)."""
    return {n: c.mean_length or 1.0 for part in _tables_of(run) for n, c in part.sparse_columns.items()}


def _plan(
    run: RunConfig, cluster: ClusterConfig, features: FeatureSpec, prepared: Path | None, seconds: int | None = None
) -> PlanReport | Infeasibility:
    """Return the plan, or an Infeasibility if none fits.

    Args:
        features: the features and their cardinalities.
        prepared: prepared data, its features.json, or None.
        seconds: time limit, after which the best plan so far is returned.
    """
    import torch
    from torchrec.distributed.planner.types import PlannerError

    from recsys.data.loader.training_rows import load_factors
    from recsys.job.kinds import meta_task
    from recsys.sharding.estimate.report import report
    from recsys.sharding.infeasible import infeasible
    from recsys.sharding.optimizers import sparse_optimizer
    from recsys.sharding.planner import make_planner, quiet_torchrec, topology
    from recsys.sharding.skew import skewed
    from recsys.sharding.table_memory import usable_memory
    from recsys.sharding.tables import check_table_dtype, tables
    from recsys.training.pipelines import PREFETCH

    sharding, sparse = run.sharding, sparse_optimizer(run.optim.sparse)
    task = meta_task(run, features)
    machines = topology(cluster)
    is_fused = sparse.is_fused(torch.device(machines.compute_device), run.trainer.accumulate)
    check_table_dtype(sharding.table_dtype, is_fused)
    batch_size = run.trainer.batch_size // machines.world_size
    with quiet_torchrec():
        ids: dict[str, list[float]] = {}  # by table, the expected number of ids per row of each of its features
        if prepared is None:  # features.json has no lengths of bags: the number is taken to be 1
            lengths, parts = _lengths(run), list[Any](task.modules())
            configs = [c for m in parts if hasattr(m, "embedding_bag_configs") for c in m.embedding_bag_configs()]
            configs += [c for m in parts if hasattr(m, "embedding_configs") for c in m.embedding_configs()]
            ids = {c.name: [lengths[f] for f in c.feature_names] for c in configs}
        hot: dict[str, float] = {}
        folder = prepared if prepared is None or prepared.is_dir() else prepared.parent
        if folder is not None and run.sharding.cache_hit_rate is not None:
            hot = load_factors(folder, run.sharding.cache_hit_rate)
        accumulate, prefetch = run.trainer.accumulate, run.trainer.pipeline == PREFETCH
        given = (sharding, sparse, machines, batch_size, ids, seconds, hot, accumulate, prefetch)
        planner, sharders = make_planner(task, *given)
        try:
            planner.plan(task, sharders)
        except PlannerError:
            return infeasible(planner, sharders, task, machines, sparse)
    # private: the planner does not return the best of its plans when it runs out of time
    best = planner._best_plan or []
    result = report(best, machines, sparse, sharding.comms, batch_size, cluster, usable_memory(planner))
    if folder is not None:
        vocabularies = {name: info.vocabulary for name, info in tables(task).items()}
        result.skewed = skewed([(t.table, vocabularies[t.table], t.shards) for t in result.tables], folder)
    if not is_fused:
        for t in result.tables:
            t.kernel = "dense"  # as in training
    return result


def _tables_of(run: RunConfig) -> list[Any]:
    """Return the data config of the rows, and that of the item table if there is one."""
    return [run.data, *([] if run.data.item_table is None else [run.data.item_table])]


def _suggestion(run: RunConfig, cluster: ClusterConfig, features: FeatureSpec, prepared: Path | None) -> str:
    """Return '; this fits: OVERRIDES' for the cheapest of some changes after which a plan fits, otherwise ''."""
    from recsys.sharding.estimate.report import PlanReport

    any_type: dict[str, Any] = {"sharding.types": []}
    one_batch: dict[str, Any] = {"trainer.accumulate": 1}  # without gradients of whole tables
    changes = [
        *([(one_batch, 1)] if run.trainer.accumulate > 1 else []),
        ({"sharding.types": ["row_wise"]}, 1),
        (any_type, 1),
        (any_type | {"sharding.kernels": ["fused", "fused_uvm_caching"]}, 1),
        (any_type | {"sharding.kernels": ["fused", "fused_uvm"]}, 1),
        *(({}, n) for n in (2, 4, 8)),
    ]
    for change, times in changes:
        larger = replace(cluster, nodes=cluster.nodes * times)
        if run.trainer.batch_size % (larger.nodes * larger.devices):
            continue
        if isinstance(_plan(run.changed(change), larger, features, prepared, TRY_SECONDS), PlanReport):
            words = [f"{k}=[{','.join(v)}]" if isinstance(v, list) else f"{k}={v}" for k, v in change.items()]
            return f"; this fits: {' '.join(words or [f'cluster.nodes={larger.nodes}'])}"
    return ""


def _features_of(run: RunConfig, prepared: Path | None) -> FeatureSpec:
    """Return the features of prepared data (`features=`), otherwise those that the data's YAML declares."""
    from recsys.data.features.resolved_data import feature_spec
    from recsys.interface.features import FeatureSpec

    if prepared is not None:
        path = prepared / "features.json" if prepared.is_dir() else prepared
        if not path.exists():
            hint = "name a features.json, a run's folder or a folder of prepared data"
            raise UserError(f"features={prepared}: no such file; {hint}")
        return FeatureSpec.load(path)
    for part in _tables_of(run):
        for c in part.sparse_columns.values():
            if c.planned_rows is None:
                hint = "must be set to the expected number of table rows; or name prepared data with features=FOLDER"
                raise UserError(f"{c.key}.rows: {hint}")
    return feature_spec(run.data, lambda c: c.planned_rows or 0)


def try_all(choices: list[tuple[str, PlanConfig]]) -> list[PlanAttempt]:
    """Plan each (name, config) and return the attempts: each holds a plan or, if no plan fits, the error."""
    from recsys.sharding.estimate.compare import PlanAttempt

    tried = []
    for name, cfg in choices:
        try:
            report = plan(cfg)
        except DoesNotFit as e:
            tried.append(PlanAttempt(name, error=e))
        else:
            report.sharding = name
            tried.append(PlanAttempt(name, report))
    return tried


def _command(choices: list[tuple[str, PlanConfig]]) -> None:
    from recsys.sharding.estimate.compare import show, show_side_by_side

    outputs = [Path(p) for p in choices[0][1].output]
    for path in outputs:
        check_output(path, (".json", ".html"))
    tried = try_all(choices)
    if len(tried) > 1:
        show_side_by_side(tried)
    elif tried[0].plan is not None:
        show(tried[0].plan)
    if len(tried) > 1 or tried[0].plan is not None:
        for path in outputs:
            if path.suffix == ".html":
                from recsys.sharding.estimate.plan_page import page

                text = page(tried)
            else:
                only = tried[0].plan
                entries = [t.to_json() for t in tried] if len(tried) > 1 or only is None else only.to_json()
                text = json.dumps(entries, indent=1) + "\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
            say(f"written to {path}")
    if all(t.plan is None for t in tried):
        assert tried[0].error is not None
        if len(tried) == 1:
            raise tried[0].error
        # the first change that one of the errors suggests
        suggestions = [(t.name, *str(t.error).partition("; this fits: ")[1:]) for t in tried]
        fits = next((f"{start}sharding={name} {change}" for name, start, change in suggestions if change), "")
        raise UserError(f"sharding: none of {', '.join(t.name for t in tried)} fits{fits}")


def expand(arguments: list[str]) -> list[list[str]]:
    """Return one list of overrides for each choice of sharding=a,b."""
    choices = [a for a in arguments if re.fullmatch(r"sharding=\w+(,\w+)+", a)]
    if not choices:
        return [arguments]
    names = dict.fromkeys(choices[-1].removeprefix("sharding=").split(","))
    return [[f"sharding={name}" if a in choices else a for a in arguments] for name in names]


def main() -> None:
    """Run the command with this process's overrides; all choices are composed before the first is planned."""
    choices: list[tuple[str, PlanConfig]] = []

    def collect(cfg: PlanConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        choices.append((HydraConfig.get().runtime.choices.get("sharding", ""), cfg))

    given = sys.argv[1:]
    for arguments in expand(given):
        if code := command_line.status("plan", collect, arguments):
            sys.exit(code)
    sys.exit(command_line.call(lambda: _command(choices), "plan", given) if choices else 0)


if __name__ == "__main__":
    main()
