"""recsys.plan: sizes against closed forms and published ones, rules, plans side by side, what does not fit, the page."""

import json
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from torchrec.distributed.embedding_sharding import group_tables
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardedEmbeddingTable
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recsys.base.errors import DoesNotFit, UserError
from recsys.base.memory import GIB
from recsys.config.compose import compose
from recsys.distributed.ranks import ensure_process_group
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.plan import main, plan, try_all
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.estimate.compare import best_first
from recsys.sharding.estimate.report import PlanReport
from recsys.sharding.optimizers import OPTIMIZERS, sparse_optimizer
from recsys.sharding.planner import make_plan

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
    small = [name for name, f in compose("plan", MLPERF).data.sparse.items() if f.rows < 36]  # they would stay whole
    assert small
    found = planned("cluster=dgx_h100", "sharding=rowwise", *(f"data.sparse.{name}.rows=64" for name in small))
    assert {t.type for t in found.tables} == {"row_wise"}
    assert sum(d.ids for d in found.devices) == pytest.approx(65_536 * 26)
    # every device sends partial sums of its peers' 8192 rows x 26 features x 128 floats, and gets as many gradients
    whole = 2 * 8192 * 7 * 26 * 128 * 4
    ids = 8192 * 26 * 4 * 7 / 8 + 8192 * 26 * 4 * 7  # each id to one device, and all lengths to all
    assert found.devices[0].sent_bytes == pytest.approx(whole + ids, rel=1e-5)
    rows = [f"data.sparse.{name}.rows=64" for name in compose("plan", MLPERF).data.sparse]
    on_cpus = planned("cluster=here", "cluster.devices=8", "sharding=rowwise", *rows)
    assert on_cpus.devices[0].sent_bytes == pytest.approx(whole * 3 / 2 + ids, rel=1e-5)  # gloo sends the sums twice
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
    told = (
        r"no plan fits a100_80 \(1 device\): .* GiB over in total \(needed: 98\.\d, .*; this fits: sharding\.types=\[\]"
    )
    with pytest.raises(DoesNotFit, match=told):
        planned("cluster=a100_80", "sharding=tablewise")
    found = planned("cluster=a100_80", "sharding.kernels=[fused,fused_uvm_caching]")
    cached = [t for t in found.tables if t.kernel == "fused_uvm_caching"]
    assert cached
    assert all(t.cache_load_factor == 0.2 for t in cached)
    assert found.devices[0].hbm < 80 * GIB
    assert found.devices[0].ddr > 0


MISTAKES = """
sharding.per_table.cat_3.typs=[row_wise] | per_table.cat_3.typs: .*types
sharding.per_table.cat_33.types=[row_wise] | per_table.cat_33: matches no table; did you mean cat_
sharding.per_table.cat_3.types=[rowwise] | per_table.cat_3.types\\[0\\]=rowwise: .*row_wise
sharding.kernels=[uvm] | sharding.kernels\\[0\\]=uvm: must be fused
trainer.batch_size=1001 | not divisible by the cluster's 8 devices
data=criteo | data.sparse.cat_1.rows: must be set
features=nowhere | features=nowhere: no such file
cluster=dgx_h100 sharding.table_dtype=fp16 trainer.accumulate=2 | ^sharding.table_dtype=fp16:
cluster=dgx_h100 sharding.table_dtype=fp16 optim.sparse.name=adam cluster.device=cpu | ^sharding.table_dtype=fp16:
cluster=dgx_h100 trainer.accumulate=2 trainer.cuda_graphs=true | ^trainer.cuda_graphs=true:
cluster=dgx_h100 trainer.accumulate=2 optim.sparse.clip=1 | ^optim.sparse.clip=1.0:
"""


@pytest.mark.few(5)
@pytest.mark.parametrize("line", MISTAKES.strip("\n").split("\n"))
def test_mistakes(line: str) -> None:
    overrides, told = line.split(" | ")
    with pytest.raises(UserError, match=told.strip()):
        planned(*overrides.split())


@pytest.mark.slow
def test_a_hashed_table_has_the_rows_that_its_config_says() -> None:
    found = planned("data=criteo", "data.sparse_defaults.encode=hash", "data.sparse_defaults.buckets=1000")
    assert {t.rows for t in found.tables} == {1001}
    found = planned("+data.sparse.cat_3.encode=hash", "+data.sparse.cat_3.buckets=99")  # whatever `rows` says
    assert next(t.rows for t in found.tables if t.table == "t_cat_3") == 100


def test_optimizer_state() -> None:
    sizes = {"rowwise_adagrad": 40, "adagrad": 160, "sgd": 0, "adam": 320, "partial_rowwise_adam": 200}
    assert {name: sum(c.state_bytes(10, 4)) for name, c in OPTIMIZERS.items()} == sizes


# NVIDIA's DeepLearningExamples, TensorFlow2/Recommendation/DLRM_and_DCNv2: README.md and doc/DLRM.md for parameters, sizes
# and machines ("the small model can be trained on a single V100-32GB GPU; the large model needs at least 8xV100-32GB",
# the extra large one a DGX A100), dataloading/generate_feature_spec.py for the rows. Their sizes are float32 weights of
# dim 128 (4.2e9 x 4 bytes = 15.6 GiB), their optimizer is SGD, which has no state.
PUBLISHED = {  # frequency threshold: parameters (1e9), GiB, largest table's GiB
    15: (4.2, 15.6, 3.9),
    3: (22.8, 84.9, 23.3),
    0: (113.0, 421.0, 140.0),
}


def nvidia(threshold: int, *overrides: str) -> PlanReport:
    return planned(f"data=criteo_1tb_t{threshold}", "optim.sparse.name=sgd", *overrides)


@pytest.mark.parametrize(("threshold", "cluster"), [(15, "v100"), (3, "dgx_v100"), (0, "dgx_a100")])
def test_nvidias_dlrms_have_their_published_sizes_and_fit_where_published(threshold: int, cluster: str) -> None:
    found = nvidia(threshold, f"cluster={cluster}")
    parameters, size, largest = PUBLISHED[threshold]
    assert sum(t.rows * t.dim for t in found.tables) / 1e9 == pytest.approx(parameters, abs=0.05)
    assert sum(t.bytes for t in found.tables) / GIB == pytest.approx(size, abs=0.1)
    assert max(t.bytes for t in found.tables) / GIB == pytest.approx(largest, abs=0.5)
    assert all(d.hbm_free >= 0 and d.ddr == 0 for d in found.devices)


@pytest.mark.few(1)
@pytest.mark.parametrize(("threshold", "cluster"), [(3, "v100"), (0, "dgx_v100")])
def test_nvidias_larger_dlrms_do_not_fit_where_the_smaller_ones_do(threshold: int, cluster: str) -> None:
    with pytest.raises(DoesNotFit, match="this fits: ") as told:
        nvidia(threshold, f"cluster={cluster}")
    m = told.value.infeasible
    assert m.needed > m.room
    assert m.bytes_over >= m.needed - m.room


@pytest.mark.slow
def test_nvidias_dlrm_of_dim_512_is_1680_gb_and_fits_four_dgx_a100() -> None:
    """README.md, Multi-node training: 'a 1.68 TB variant', --embedding_dim 512, sbatch -n 32 -N 4: 1684 GiB."""
    found = nvidia(0, "cluster=dgx_a100", "cluster.nodes=4", "model.dim=512")
    assert sum(t.bytes for t in found.tables) / GIB == pytest.approx(1684, abs=1)
    assert found.world_size == 32
    assert all(d.hbm_free >= 0 for d in found.devices)
    with pytest.raises(DoesNotFit):
        nvidia(0, "cluster=dgx_a100", "model.dim=512")


def test_bags_as_long_as_expected_are_looked_up() -> None:
    """MLPerf's multi-hot DLRM-DCNv2: 214 ids a row instead of 26."""
    one = planned("sharding=tablewise")
    many = planned("sharding=tablewise", "data=criteo_1tb_multihot")
    assert sum(d.ids for d in one.devices) == 65_536 * 26
    assert sum(d.ids for d in many.devices) == 65_536 * 214
    assert {t.table: t.ids_a_row for t in many.tables}["t_cat_21"] == 100
    assert sum(t.bytes for t in many.tables) == sum(t.bytes for t in one.tables)
    assert many.step_ms > one.step_ms


def test_the_planner_counts_the_optimizers_state() -> None:
    held = {
        o: sum(d.hbm for d in planned(f"optim.sparse.name={o}", "sharding=rowwise").devices) for o in ("sgd", "adam")
    }
    weights = 204_184_588 * 128 * 4
    assert held["adam"] - held["sgd"] == pytest.approx(2 * weights, rel=1e-6)


def test_what_does_not_fit_is_named_by_table_and_device() -> None:
    with pytest.raises(DoesNotFit) as told:
        nvidia(0, "cluster=dgx_a100", "sharding=tablewise")
    m = told.value.infeasible
    assert [t.table for t in m.tables][:3] == ["t_cat_20", "t_cat_1", "t_cat_22"]
    assert m.needed < m.room, "all together would fit"
    assert set(m.over) == {0, 1, 2}, "the three tables larger than a device"
    assert m.over[0] == pytest.approx(m.tables[0].needed - m.rooms[0])
    assert m.tables[0].weights == 292_775_614 * 128 * 4
    assert sum(n for shards in m.layout for _, n in shards) == m.needed
    assert "this fits: sharding.types=[row_wise]" in str(told.value)


def test_memory_of_the_gpu_alone_can_be_short() -> None:
    """There is room for all rows in host memory, but not for their caches and states on the GPU."""
    with pytest.raises(DoesNotFit) as told:
        planned("data=criteo_1tb", "cluster=h100", "model.dim=128", "sharding=cpu_gpu_budget", "sharding.hbm_gib=1")
    m = told.value.infeasible
    assert (m.kind, m.bytes_over) == ("HBM", m.needed - m.room)


def test_training_tells_the_same() -> None:
    huge = EmbeddingBagConfig(num_embeddings=10**12, embedding_dim=64, name="t_huge", feature_names=["f"])
    small = EmbeddingBagConfig(num_embeddings=10, embedding_dim=64, name="t_small", feature_names=["g"])
    cpu, where = torch.device("cpu"), {"batch_size": 8, "local_world_size": 1}
    module = torch.nn.Sequential(EmbeddingBagCollection(tables=[huge, small], device=torch.device("meta")))
    ensure_process_group()
    with pytest.raises(DoesNotFit, match=r"fits 1 x cpu: .*needed: 242,143.9, .*t_huge 242,143.9;") as told:
        make_plan(module, ShardingConfig(), sparse_optimizer(SparseOptimConfig()), device=cpu, **where)
    assert told.value.infeasible.tables[0].table == "t_huge"


def test_side_by_side_the_best_first() -> None:
    choices = [
        (name, compose("plan", [*MLPERF, "cluster=dgx_a100", "data=criteo_1tb_t0", f"sharding={name}"]))
        for name in ("tablewise", "rowwise", "auto")
    ]
    tried = best_first(try_all(choices))
    assert [t.name for t in tried] == ["auto", "rowwise", "tablewise"]
    assert [t.plan is not None for t in tried] == [True, True, False]

    assert json.loads(json.dumps([t.to_json() for t in tried]))[2]["tables"][0]["table"] == "t_cat_20"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ("sharding=rowwise,tablewise output=[{0}/a.json,{0}/a.html]", 0, "best: sharding="),
        ("sharding=rowwise,tablewize", 2, "error: sharding=tablewize: "),
        ("output={0}/a.pdf", 2, "must end in .json or .html"),
        ("model=dlrm,dcn", 2, "error: model=dlrm,dcn: "),
        ("sharding=rowwise,tablewise cluster=v100", 2, "error: sharding: none of rowwise, tablewise fits"),
    ],
)
def test_commands(
    arguments: str,
    status: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["recsys.plan", *MLPERF, *arguments.format(tmp_path).split()])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == status
    assert told in capfd.readouterr().err
    if status == 0:
        assert len(json.loads((tmp_path / "a.json").read_text())) == 2 and (tmp_path / "a.html").exists()


def test_tables_of_one_group_are_one_kernel_call_of_torchrecs() -> None:
    """Different dims, and rows in HBM, cached or in host memory, go into one; another pooling does not."""
    kinds = EmbeddingComputeKernel

    def table(name: str, dim: int, kernel: EmbeddingComputeKernel, pooling: PoolingType) -> ShardedEmbeddingTable:
        sizes = {"num_embeddings": 8, "embedding_dim": dim, "local_rows": 8, "local_cols": dim}
        how = {"compute_kernel": kernel, "pooling": pooling, "fused_params": {}}
        return ShardedEmbeddingTable(**sizes, **how, name=name, feature_names=[name], embedding_names=[name])

    same = [table("a", 16, kinds.FUSED, PoolingType.SUM), table("b", 128, kinds.FUSED_UVM_CACHING, PoolingType.SUM)]
    others = [table("c", 16, kinds.DENSE, PoolingType.SUM), table("d", 16, kinds.FUSED, PoolingType.MEAN)]
    [groups] = group_tables([[*same, *others]])
    assert [[t.name for t in g.embedding_tables] for g in groups] == [["a", "b"], ["c"], ["d"]]
    # ours, over the planner's options; a mean is a sum in the kernel, and divided after it
    found = planned("cluster=a100_80", "sharding.kernels=[fused,fused_uvm_caching]", "data.sparse.cat_2.pooling=mean")
    number = {t.table: t.group for t in found.tables}
    assert {t.kernel for t in found.tables} == {"fused", "fused_uvm_caching"}
    assert len(set(number.values())) == found.devices[0].groups == 1


@pytest.mark.slow
def test_the_ways_to_split_tables_between_gpu_and_host_memory(tmp_path: Path) -> None:
    """Each is a config; what lies where is checked for a GPU that is not here."""

    def kernels(*overrides: str) -> dict[str, str]:
        return {t.table: t.kernel for t in planned("cluster=a100_80", *overrides).tables}

    assert set(kernels("sharding=cpu_tables").values()) == {"fused_uvm"}
    split = planned("cluster=a100_80", "sharding=cpu_gpu_threshold")
    assert {t.table for t in split.tables if t.kernel == "fused_uvm"} == {
        t.table for t in split.tables if t.bytes >= GIB
    }
    by_rows = ["~sharding.per_table.large.min_bytes", "sharding.per_table.large.min_rows=10000"]
    assert sum(k == "fused_uvm" for k in kernels("sharding=cpu_gpu_threshold", *by_rows).values()) == 13
    small = planned("cluster=a100_80", "sharding=cpu_gpu_budget", "sharding.hbm_gib=4")
    assert 0 < small.devices[0].hbm <= 0.85 * 4 * GIB and 0 <= small.devices[0].hbm_free < GIB // 1000
    assert {t.kernel for t in small.tables} == {"fused", "fused_uvm_caching"}


def test_cache_load_factors_come_from_the_rows_frequencies(tmp_path: Path) -> None:
    """One table is used evenly, the other's first row gets nearly all lookups."""
    rows = 1_000_000
    spec = FeatureSpec((), tuple(SparseFeature(n, rows + 1, n) for n in ("even", "skewed")))
    spec.save(tmp_path / "features.json")
    (tmp_path / "vocabularies").mkdir()
    for name, first in {"even": 1, "skewed": 10**9}.items():
        counts = pl.Series("count", [first] + [1] * (rows - 1), dtype=pl.UInt32)
        counts.to_frame().write_parquet(tmp_path / "vocabularies" / f"{name}.parquet")
    arguments = ["sharding.kernels=[fused_uvm_caching]", f"features={tmp_path}", "model=dcn", "cluster=a100_80"]
    found = planned("sharding=cpu_gpu", "sharding.cache_hit_rate=0.9", *arguments)
    load = {t.table: t.cache_load_factor for t in found.tables}
    assert load == {"t_even": pytest.approx(0.9, abs=1e-5), "t_skewed": pytest.approx(2 / (rows + 1))}
    ruled = planned("sharding=cpu_gpu", "sharding.per_table.even.cache_load_factor=0.5", *arguments)
    assert {t.table: t.cache_load_factor for t in ruled.tables}["t_even"] == 0.5
