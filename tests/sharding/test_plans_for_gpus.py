"""Every file of conf/sharding, and every kind of number to exchange, planned for GPUs that are not here."""

from functools import cache

import pytest

from recsys.base.errors import UserError
from recsys.config.compose import compose, conf_dir
from recsys.job.run_config import RunConfig
from recsys.plan import plan
from recsys.sharding.estimate.report import PlanReport
from recsys.sharding.sharders import BYTES, SEQUENCE_TYPES, TYPES

NAMES = sorted(p.stem for p in (conf_dir() / "sharding").glob("*.yaml"))
CLUSTERS = {
    "one": ("cluster=h100",),
    "eight": ("cluster=dgx_h100",),
    "two_hosts": ("cluster=dgx_h100", "cluster.nodes=2"),
}
POOLED = ("data=criteo_1tb_t15", "model.dim=128", "trainer.batch_size=65536")


@cache
def sequences() -> tuple[list[str], list[str]]:
    """Return a plan's overrides for unpooled tables, and those for the tables of features of items."""
    overrides = ["model=sasrec", "data=sample_sequences", "model.dim=64", "trainer.batch_size=1024"]
    data = compose("plan", overrides).data
    overrides += [f"data.sparse.{name}.rows=100000" for name in data.sparse]
    return overrides, [f"data.items.sparse.{name}.rows=1000" for name in data["items"].sparse]


def check_plan(found: PlanReport, overrides: list[str], pooled: bool) -> None:
    sharding = RunConfig.of(compose("train", [o for o in overrides if not o.startswith("cluster")])).sharding
    if found.world_size == 1:
        types = {"table_wise"}
    elif sharding.types == ["none"]:
        types = {"data_parallel"}
    else:
        # tables with too few rows for all devices stay whole, or are replicated where the file allows it
        types = set(sharding.types or (TYPES if pooled else SEQUENCE_TYPES)) | {"table_wise"}
        types |= {"row_wise", "column_wise"} if not pooled and sharding.types else set()
    assert {t.type for t in found.tables} <= types
    for t in found.tables:
        kernels = {"dense"} if t.type == "data_parallel" else set(sharding.kernels) or {"fused"}
        kernels |= {o for rule in sharding.per_table.values() for o in rule.kernels or ()}
        assert t.kernel in kernels
        copies = found.world_size if t.type == "data_parallel" else 1
        assert sum(s["rows"] * s["columns"] for s in t.shards) == copies * t.rows * t.dim
    assert all(d.hbm_free >= 0 and d.ddr_free >= 0 for d in found.devices) and found.step_ms > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_sharding_is_planned(name: str, cluster: str) -> None:
    overrides = [*POOLED, *CLUSTERS[cluster], f"sharding={name}"]
    check_plan(plan(compose("plan", overrides)), overrides, pooled=True)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_sharding_of_unpooled_tables_is_planned(name: str) -> None:
    tables, of_items = sequences()
    overrides = [*tables, *of_items, *CLUSTERS["eight"], f"sharding={name}"]
    check_plan(plan(compose("plan", overrides)), overrides, pooled=False)


def test_tables_of_features_of_items_have_a_size() -> None:
    tables, of_items = sequences()
    assert of_items
    with pytest.raises(
        UserError, match=r"^data.items.sparse.\w+.rows: must be set to the expected number of table rows"
    ):
        plan(compose("plan", [*tables, *CLUSTERS["eight"]]))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("sharding", ["rowwise", "tablewise"])
def test_every_number_type_is_exchanged_in_its_bytes(sharding: str) -> None:
    sent = {}
    for name in BYTES:
        comms = [f"sharding.comms.forward={name}", f"sharding.comms.backward={name}"]
        found = plan(compose("plan", [*POOLED, *CLUSTERS["eight"], f"sharding={sharding}", *comms]))
        sent[name] = sum(d.sent_bytes for d in found.devices)
    assert sent["fp16"] == sent["bf16"]
    assert sent["int8"] < sent["fp16"] < sent["fp32"] < 2.1 * sent["fp16"]


def test_some_were_found() -> None:
    assert len(NAMES) > 10
