"""python -m recsys.plan model=dlrm data=criteo_1tb sharding=auto cluster=dgx_h100

Plans for machines that need not be here, in seconds, without allocating a table. From Python:

    found = plan(compose("plan", ["data=criteo_1tb", "cluster=dgx_h100"]))
    found.step_ms, found.devices[0].hbm
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from recsys import cli
from recsys.errors import UserError
from recsys.progress import results, say

if TYPE_CHECKING:
    from recsys.features import FeatureSpec
    from recsys.schema import ClusterConfig
    from recsys.sharding.report import PlanReport

GIB = 1 << 30
SHOWN = 16  # devices in the table; the JSON has all


def plan(cfg: DictConfig) -> PlanReport:
    """Check the config, build the model on the meta device, and let TorchRec's planner plan it for the cluster.

    Raises UserError where no plan fits: by how much, and the nearest change after which one does.
    """
    from recsys.config import check_parts
    from recsys.launch import silence
    from recsys.sharding.cluster import check_cluster

    silence()
    check_parts(cfg)
    cluster: ClusterConfig = OmegaConf.to_object(cfg.cluster)  # type: ignore[assignment]
    check_cluster(cluster)
    cfg = cfg.copy()
    cfg.cluster = cluster
    world = cluster.nodes * cluster.devices
    if cfg.trainer.batch_size % world:
        raise UserError(f"trainer.batch_size={cfg.trainer.batch_size} is not divisible by {world} devices")
    features = features_of(cfg)
    found = _plan(cfg, features)
    if isinstance(found, str):
        raise UserError(f"sharding: no plan fits {world} x {cluster.name}: {found}{_nearest(cfg, features)}")
    return found


def _plan(cfg: DictConfig, features: FeatureSpec) -> PlanReport | str:
    """The plan, or why there is none."""
    import torch
    from torchrec.distributed.planner.types import PlannerError

    from recsys.config import build_model
    from recsys.sharding.cluster import topology
    from recsys.sharding.plan import make_planner, quiet_torchrec, tables_of
    from recsys.sharding.report import optimizer_bytes, report
    from recsys.sharding.tables import pad_tables
    from recsys.task import Task

    cluster, sharding, sparse = (OmegaConf.to_object(c) for c in (cfg.cluster, cfg.sharding, cfg.optim.sparse))
    with torch.device("meta"):
        task = Task(build_model(cfg, features, torch.device("meta")))
        pad_tables(task, cfg.sharding.padding)
    machines = topology(cluster)  # type: ignore[arg-type]
    batch_size = cfg.trainer.batch_size // machines.world_size
    with quiet_torchrec():
        planner, sharders = make_planner(task, sharding, sparse, machines, batch_size)  # type: ignore[arg-type]
        try:
            planner.plan(task, sharders)
        except PlannerError:
            sizes = {t: r * d * 4 + optimizer_bytes(r, d, sparse.name) for t, (r, d) in tables_of(task).items()}  # type: ignore[union-attr]
            hbm = machines.compute_device == "cuda"
            have = sum(d.storage.hbm if hbm else d.storage.ddr for d in machines.devices)
            largest = sorted(sizes, key=lambda t: -sizes[t])[:3]
            told = ", ".join(f"{t} {sizes[t] / GIB:,.1f}" for t in largest)
            kind = "HBM" if hbm else "memory"
            return (
                f"tables and their optimizer need {sum(sizes.values()) / GIB:,.1f} GiB (largest: {told}), there are "
                f"{have / GIB:,.1f} GiB of {kind}, {have / machines.world_size / GIB:,.1f} a device"
            )
    return report(planner._best_plan or [], machines, sparse, batch_size, cluster.name)  # type: ignore[arg-type,union-attr]


def _nearest(cfg: DictConfig, features: FeatureSpec) -> str:
    """The first change, of some that cost more and more, after which a plan fits: the overrides to type."""
    changes: list[list[str]] = [
        ["sharding.types=[row_wise]"],
        ["sharding.types=[]"],
        ["sharding.types=[]", "sharding.kernels=[fused,fused_uvm_caching]"],
        ["sharding.types=[]", "sharding.kernels=[fused,fused_uvm]"],
        *([f"cluster.nodes={cfg.cluster.nodes * n}"] for n in (2, 4, 8)),
    ]
    for change in changes:
        changed = OmegaConf.merge(cfg, OmegaConf.from_dotlist(change))
        assert isinstance(changed, DictConfig)
        if changed.trainer.batch_size % (changed.cluster.nodes * changed.cluster.devices):
            continue
        if not isinstance(_plan(changed, features), str):
            return f"; this fits: {' '.join(change)}"
    return ""


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
            t.table,
            f"{t.rows:,}",
            str(t.dim),
            f"{t.bytes / GIB:.3f}",
            f"{t.optimizer / GIB:.3f}",
            t.type,
            kernel,
            where,
        )
    results.print(tables)
    devices = Table(title="devices", title_justify="left")
    names = ("device", "tables", "HBM GiB", "free", "DDR GiB", "free", "ids a step", "read MB", "sent MB", "ms a step")
    for name in names:
        devices.add_column(name, justify="right")
    shown = found.devices
    if len(shown) > SHOWN:
        shown = sorted(shown, key=lambda d: (-d.step_ms, -d.hbm))[:SHOWN]
        devices.title = f"the {SHOWN} slowest of {found.world_size} devices"
    for d in shown:
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
        path = Path(cfg.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.to_json(), indent=1) + "\n")
        say(f"written to {path}")


def main() -> None:
    """The command line."""
    cli.run("plan", _command)


if __name__ == "__main__":
    main()
