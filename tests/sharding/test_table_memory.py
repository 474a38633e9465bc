"""The memory of a plan for GPUs is what FBGEMM allocates: its kernels are built on the meta device."""

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec.distributed.planner import shard_estimators
from torchrec.distributed.planner.types import ShardingOption

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.plan import plan
from recsys.schema.command_schemas import ClusterConfig
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig, TableRule
from recsys.sharding.optimizers import OPTIMIZERS, sparse_optimizer
from recsys.sharding.planner import make_planner, quiet_torchrec, topology
from recsys.sharding.sharders import TYPES
from recsys.sharding.tables import lay_out_tables

SPEC = FeatureSpec((), (SparseFeature("a", 40_000, "a"), SparseFeature("b", 6_400, "b"), SparseFeature("c", 320, "c")))
GPUS = ClusterConfig(name="gpus", device="cuda", devices=4, nodes=2, hbm_gib=1, ddr_gib=64)
PLACES = {"fused": "DEVICE", "fused_uvm": "MANAGED", "fused_uvm_caching": "MANAGED_CACHING"}
ASSOC = 32  # rows of a set of FBGEMM's cache


def marked(kind: str) -> Any:
    """Types of several nodes are slow ones, because they split tables as the others do."""
    return pytest.param(kind, marks=() if kind in ("table_wise", "row_wise", "column_wise") else pytest.mark.slow)


def planned(
    sharding: ShardingConfig,
    optimizer: str,
    prefetch: bool = False,
    accumulate: int = 1,
    machines: ClusterConfig = GPUS,
) -> list[ShardingOption]:
    module = nn.ModuleDict({"tables": PooledEmbeddings(SPEC, 16, device=torch.device("meta"))})
    lay_out_tables(module, sharding.padding, sharding.table_dtype)
    optim = sparse_optimizer(SparseOptimConfig(name=optimizer))
    with quiet_torchrec():
        given = (sharding, optim, topology(machines), 64)
        planner, sharders = make_planner(module, *given, accumulate=accumulate, prefetch=prefetch)
        planner.plan(module, sharders)
    assert planner._best_plan is not None
    return planner._best_plan


@pytest.fixture(autouse=True)
def no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRec's memory of the ids and vectors of a step is left out; FBGEMM asks a GPU for its memory."""
    monkeypatch.setattr(shard_estimators, "calculate_pipeline_io_cost", lambda **_: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("kernel", PLACES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [marked(t) for t in TYPES if t != "data_parallel"])
def test_fbgemm_allocates_what_is_planned(kind: str, optimizer: str, kernel: str, dtype: str) -> None:
    sharding = ShardingConfig(types=[kind], kernels=[kernel], column_block=4, table_dtype=dtype, cache_load_factor=0.25)
    prefetch = kernel == "fused_uvm_caching" and dtype == "fp32"
    compare(planned(sharding, optimizer, prefetch=prefetch), optimizer, kernel, dtype, prefetch)


def test_a_cache_is_as_wide_as_its_widest_column_block() -> None:
    """Rules may give tables of one kernel other column blocks; FBGEMM allocates all cached rows with the widest."""
    kernel, narrow = "fused_uvm_caching", {"b": TableRule(column_block=4), "c": TableRule(column_block=8)}
    sharding = ShardingConfig(types=["column_wise"], kernels=[kernel], column_block=16, per_table=narrow)
    options = planned(sharding, "sgd", machines=replace(GPUS, nodes=1, devices=2))
    rank = options[0].shards[0].rank
    assert {s.size[1] for o in options for s in o.shards if s.rank == rank} > {16}
    compare(options, "sgd", kernel, "fp32", False, [rank])


def compare(
    options: list[ShardingOption],
    optimizer: str,
    kernel: str,
    dtype: str,
    prefetch: bool,
    ranks: Collection[int] = range(8),
) -> None:
    """Build the kernels of the ranks on the meta device, and compare their bytes with the plan's."""
    for rank in ranks:
        shards = [(o, s) for o in options for s in o.shards if s.rank == rank]
        if not shards:
            continue
        built = SplitTableBatchedEmbeddingBagsCodegen(
            [(*s.size, EmbeddingLocation[PLACES[kernel]], ComputeDevice.CUDA) for _, s in shards],
            optimizer=OPTIMIZERS[optimizer].kernel,
            weights_precision=SparseType.FP32 if dtype == "fp32" else SparseType.FP16,
            cache_load_factor=options[0].cache_load_factor,
            device=torch.device("meta"),
            bounds_check_mode=BoundsCheckMode.NONE,
            prefetch_pipeline=prefetch,
        )
        tensors = [*built.named_parameters(), *built.named_buffers()]
        kinds = ("weights_", "momentum", "lxu_", "cache_index_table_map")
        sizes = {n: t.nbytes for n, t in tensors if n.startswith(kinds) and t.numel() > 8 * len(shards)}
        in_host = sum(size for n, size in sizes.items() if n.endswith("_uvm"))
        assert sum(s.storage.ddr for _, s in shards) == in_host
        on_gpu, found = sum(sizes.values()) - in_host, sum(s.storage.hbm for _, s in shards)
        slot = built.max_D_cache * shards[0][0].tensor.element_size() + 20
        assert abs(on_gpu - found) <= (ASSOC * slot if kernel == "fused_uvm_caching" else 0)


def test_gradients_of_dense_kernels_are_counted() -> None:
    """Accumulated gradients are as large as the tables, and rows of host memory cannot have them."""
    sharding = ShardingConfig(types=["row_wise"], kernels=["fused", "fused_uvm"])
    once, twice = ({o.name: o for o in planned(sharding, "adam", accumulate=n)} for n in (1, 2))
    for name, o in twice.items():
        assert o.compute_kernel == "fused"  # which becomes dense
        weights = o.tensor.nbytes
        assert (once[name].total_storage.hbm, o.total_storage.hbm) == (3 * weights, 4 * weights)
    with pytest.raises(UserError, match=r"^sharding.kernels=\[fused_uvm\]: .*trainer.accumulate=1"):
        planned(ShardingConfig(kernels=["fused_uvm"]), "adam", accumulate=2)


def test_steps_of_one_batch_are_suggested_where_gradients_of_tables_are_too_large() -> None:
    given = ["data=criteo_1tb", "cluster=h100", "model.dim=128", "sharding=cpu_gpu"]
    with pytest.raises(UserError, match=r"; this fits: trainer.accumulate=1$"):
        plan(compose("plan", [*given, "trainer.accumulate=2"]))


def test_prefetch_leaves_tables_that_fit_in_the_memory_of_the_gpu() -> None:
    """TorchRec's planner takes cached rows for rows of the GPU with a pipeline that prefetches."""
    sharding = ShardingConfig(types=["table_wise"], kernels=["fused", "fused_uvm_caching"])
    assert {o.compute_kernel for o in planned(sharding, "sgd", prefetch=True)} == {"fused"}


@pytest.mark.parametrize("prefetch", [False, True])
def test_caches_fill_the_budget(prefetch: bool) -> None:
    """What whole tables leave of the budget caches rows of the others, the same share on a device."""
    budget, reserved = 2_000_000, 0.15
    kernels = ["fused", "fused_uvm_caching"]
    hbm_gib = budget / (1 - reserved) / (1 << 30)
    sharding = ShardingConfig(types=["table_wise"], kernels=kernels, cache_load_factor=None, hbm_gib=hbm_gib)
    options = {o.name: o for o in planned(sharding, "rowwise_adagrad", prefetch)}
    assert options["t_a"].compute_kernel == "fused_uvm_caching"
    assert options["t_b"].compute_kernel == "fused"
    assert 0.1 < options["t_a"].cache_params.load_factor < 0.999
    used = max(sum(s.storage.hbm for o in options.values() for s in o.shards if s.rank == r) for r in range(8))
    assert 0.98 * budget < used <= budget


def test_a_plan_names_the_states_of_column_blocks() -> None:
    """A row-wise optimizer has a number for each row of each of 8 column blocks: 1.192 GiB of 40M rows."""
    overrides = ["data=criteo_1tb", "cluster=dgx_h100", "model.dim=128", "sharding=columnwise"]
    report = plan(compose("plan", overrides))
    table = next(t for t in report.tables if t.table == "t_cat_1")
    assert table.optimizer == 8 * 40_000_000 * 4 == sum(s["optimizer"] for s in table.shards)
    assert all(s["hbm"] >= 40_000_000 * (16 * 4 + 4) for s in table.shards)
