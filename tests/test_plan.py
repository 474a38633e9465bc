"""recsys.plan: sizes against closed forms, rules by name and size, and what is told where nothing fits."""

import pytest

from recsys.config import compose
from recsys.errors import UserError
from recsys.plan import GIB, plan
from recsys.sharding.report import PlanReport, optimizer_bytes

MLPERF = ["data=criteo_1tb", "model.dim=128", "trainer.batch_size=65536"]


def planned(*overrides: str) -> PlanReport:
    return plan(compose("plan", [*MLPERF, *overrides]))


def test_mlperf_on_a_dgx_has_its_published_size() -> None:
    """MLPerf's DLRM-DCNv2: 204,184,588 rows in 26 tables, dim 128, 97.4 GiB."""
    found = planned("cluster=dgx_h100", "sharding=auto")
    assert sum(t.rows for t in found.tables) == 204_184_588
    assert sum(t.bytes for t in found.tables) == 204_184_588 * 128 * 4
    assert found.world_size == 8
    assert {t.table for t in found.tables} == {f"t_cat_{i}" for i in range(1, 27)}
    assert all(d.hbm > 0 and d.hbm_free > 0 for d in found.devices)


def test_row_wise_traffic_and_lookups_by_hand() -> None:
    found = planned("cluster=dgx_h100", "sharding=rowwise")
    assert {t.type for t in found.tables} == {"row_wise"}
    assert sum(d.ids for d in found.devices) == pytest.approx(65_536 * 26)
    # every device sends partial sums of its peers' 8192 rows x 26 features x 128 floats, and gets as many gradients
    whole = 2 * 8192 * 7 * 26 * 128 * 4
    assert found.devices[0].sent_bytes == pytest.approx(whole)
    held = sum(s["rows"] * s["columns"] * 4 for t in found.tables for s in t.shards)
    assert held == sum(t.bytes for t in found.tables)


def test_rules_by_name_glob_and_size() -> None:
    found = planned(
        "sharding=rowwise",
        "sharding.per_table.cat_3.types=[table_wise]",
        "sharding.per_table.small.match='cat_*'",
        "sharding.per_table.small.max_rows=200",
        "sharding.per_table.small.types=[data_parallel]",
    )
    types = {t.table: t.type for t in found.tables}
    assert types["t_cat_3"] == "table_wise"
    assert {t.type for t in found.tables if t.rows <= 200} == {"data_parallel"}
    assert {t.type for t in found.tables if t.rows > 200 and t.table != "t_cat_3"} == {"row_wise"}


def test_what_does_not_fit_is_cached_from_host_memory() -> None:
    with pytest.raises(
        UserError, match=r"need 98\.1 GiB .* there are 80\.0 GiB of HBM, .*this fits: sharding\.types=\[\]"
    ):
        planned("cluster=a100_80", "sharding=tablewise")
    found = planned("cluster=a100_80", "sharding.kernels=[fused,fused_uvm_caching]")
    cached = [t for t in found.tables if t.kernel == "fused_uvm_caching"]
    assert cached
    assert all(t.cache_load_factor == 0.2 for t in cached)
    assert found.devices[0].hbm < 80 * GIB
    assert found.devices[0].ddr > 0


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("sharding.per_table.cat_3.typs=[row_wise]", r"per_table.cat_3.typs: no such key; did you mean types"),
        ("sharding.per_table.cat_33.types=[row_wise]", r"per_table.cat_33: matches no table; did you mean cat_"),
        ("sharding.per_table.cat_3.types=[rowwise]", r"per_table.cat_3.types: no sharding type rowwise"),
        ("sharding.per_table.cat_3.min_rows=many", r"per_table.cat_3: .*many"),
        ("sharding.kernels=[uvm]", r"sharding.kernels: no kernel uvm"),
        ("sharding.cache_load_factor=2", r"cache_load_factor=2.0: must be above 0"),
        ("cluster.nodes=0", r"cluster.nodes=0: must be above 0"),
        ("trainer.batch_size=1001", r"not divisible by 8 devices"),
        ("data=criteo", r"data.sparse.cat_1.rows: set it"),
        ("features=nowhere", r"features=nowhere: no such file"),
    ],
)
def test_mistakes(override: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        planned(override)


def test_optimizer_state() -> None:
    sizes = {"rowwise_adagrad": 40, "adagrad": 160, "sgd": 0, "adam": 320, "partial_rowwise_adam": 200}
    assert {name: optimizer_bytes(10, 4, name) for name in sizes} == sizes
