"""python -m recsys.plan model=dlrm data=criteo_1tb sharding=auto cluster=dgx_h100

Plans for machines that need not be here, in seconds, without allocating a table. From Python:

    report = plan(compose("plan", ["data=criteo_1tb", "cluster=dgx_h100"]))
    report.step_ms, report.devices[0].hbm
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError
from recsys.progress import results, say

if TYPE_CHECKING:
    from recsys.features import FeatureSpec
    from recsys.sharding.report import PlanReport

GIB = 1 << 30


def plan(cfg: DictConfig) -> PlanReport:
    """Check the config, build the model on the meta device, and let TorchRec's planner plan it for the cluster.

    Raises UserError where no plan fits, with a table of what does not and the nearest plan that does.
    """
    import torch
    from torchrec.distributed.planner.types import PlannerError

    from recsys.config import build_model, check_parts
    from recsys.sharding.cluster import check_cluster, topology
    from recsys.sharding.plan import make_planner, quiet_torchrec
    from recsys.sharding.report import report
    from recsys.task import Task

    check_parts(cfg)
    cluster, sharding, sparse = (OmegaConf.to_object(c) for c in (cfg.cluster, cfg.sharding, cfg.optim.sparse))
    check_cluster(cluster)
    world = cluster.nodes * cluster.devices
    if cfg.trainer.batch_size % world:
        raise UserError(f"trainer.batch_size={cfg.trainer.batch_size} is not divisible by {world} devices")
    with torch.device("meta"):
        task = Task(build_model(cfg, features_of(cfg), torch.device("meta")))
    machines = topology(cluster)
    batch_size = cfg.trainer.batch_size // world
    with quiet_torchrec():
        planner, sharder = make_planner(task, sharding, sparse, machines, batch_size)
        try:
            planner.plan(task, [sharder])
        except PlannerError as e:
            raise UserError(does_not_fit(e, task, cfg)) from e
    return report(planner._best_plan or [], machines, sparse, batch_size, cluster.name)


def does_not_fit(error: Exception, task: Any, cfg: DictConfig) -> str:
    """One line: what is too large, by how much, and the nearest change after which a plan fits."""
    return " ".join(str(error).split())[:300]


def features_of(cfg: DictConfig) -> FeatureSpec:
    """Of prepared data (`features=`), else of the expected rows that the data's YAML gives."""
    from recsys.config import data_config
    from recsys.data.transforms import dense_columns, sparse_columns
    from recsys.features import DenseFeature, FeatureSpec, SparseFeature

    if cfg.features is not None:
        path = Path(cfg.features)
        path = path / "features.json" if path.is_dir() else path
        if not path.exists():
            raise UserError(f"features={cfg.features}: no such file; a run's folder and prepared data hold one")
        return FeatureSpec.load(path)
    data = data_config(cfg)
    sparse = sparse_columns(data)
    for name, c in sparse.items():
        if c.rows is None:
            raise UserError(f"data.sparse.{name}.rows: set it, the rows expected, or features=FOLDER of prepared data")
    return FeatureSpec(
        dense=tuple(DenseFeature(name) for name in dense_columns(data)),
        sparse=tuple(
            SparseFeature(n, c.rows or 0, c.table or n, "mean" if c.pooling == "mean" else "sum", c.split is not None)
            for n, c in sparse.items()
        ),
    )


def show(found: PlanReport) -> None:
    """Tables of the tables and of the devices."""
    from rich.table import Table

    tables = Table(title=f"plan for {found.cluster}: {found.world_size} devices", title_justify="left")
    for name in ("table", "rows", "dim", "GiB", "optimizer GiB", "type", "kernel", "devices"):
        tables.add_column(name, justify="left" if name in ("table", "type", "kernel", "devices") else "right")
    for t in sorted(found.tables, key=lambda t: -t.bytes):
        ranks = sorted(set(t.ranks))
        where = "all" if len(ranks) == found.world_size > 1 else ",".join(map(str, ranks))
        kernel = t.kernel + (f" {t.cache_load_factor:.0%}" if t.cache_load_factor else "")
        tables.add_row(
            t.table, f"{t.rows:,}", str(t.dim), f"{t.bytes / GIB:.3f}", f"{t.optimizer / GIB:.3f}", t.type, kernel, where
        )
    results.print(tables)
    devices = Table(title="devices", title_justify="left")
    names = ("device", "tables", "HBM GiB", "free", "DDR GiB", "free", "ids a step", "read MB", "sent MB", "ms a step")
    for name in names:
        devices.add_column(name, justify="right")
    for d in found.devices:
        numbers = (d.hbm / GIB, d.hbm_free / GIB, d.ddr / GIB, d.ddr_free / GIB)
        devices.add_row(
            str(d.rank), str(d.tables), *(f"{n:,.1f}" for n in numbers), f"{d.ids:,.0f}",
            f"{d.lookup_bytes / 1e6:,.1f}", f"{d.sent_bytes / 1e6:,.1f}", f"{d.step_ms:.2f}",
        )  # fmt: skip
    results.print(devices)
    size = sum(t.bytes for t in found.tables) / GIB
    say(
        f"{size:,.1f} GiB of weights; a step of {found.batch_size:,} rows: {found.step_ms:.2f} ms in the embeddings "
        f"(estimated), bound by {found.bound}; imbalance {found.imbalance:.2f}"
    )


def _command(cfg: DictConfig) -> None:
    found = plan(cfg)
    show(found)
    if cfg.output is not None:
        from recsys.sharding.picture import html

        folder = Path(cfg.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")
        (folder / "plan.html").write_text(html(found))
        say(f"written to {folder}: plan.json plan.html")


def main() -> None:
    """The command line."""
    cli.run("plan", _command)


if __name__ == "__main__":
    main()
