"""Train a DLRM whose tables are in host memory: read from there, cached on the GPU by share of rows, or all in HBM.

    PYTHONPATH=benchmarks python benchmarks/gpu/host_memory.py                        # minutes, on a GPU
    PYTHONPATH=benchmarks python benchmarks/gpu/host_memory.py --device cpu --small   # a test of the script

One table of 40 million rows of 128 columns (19 GiB) and 25 of 10,000 rows, batch 16,384. Ids have a long tail, as the
hot rows of real tables: half of the lookups read an eighth of the rows. No batch is seen twice. The parts of
host_memory.json have, for each contestant with a cache, the share of a batch's distinct rows that the cache held, over
all steps: the caches are empty at first.
"""

from collections.abc import Callable

import torch
from contestants import Arguments, Contestants, measure
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from in_memory import NOTHING, WARM, draw_batches, fitted_for, trained
from steady import Sample
from torch import nn

from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature

IN_HBM = "in HBM"
SHARES = (0.1, 0.02, 0.5, 0.05, 0.2)  # in the order in which they are measured
PLACES = {
    IN_HBM: ["sharding.kernels=[fused]"],
    "in host memory": ["sharding.kernels=[fused_uvm]"],
    **{
        f"{share:.0%} cached": ["sharding.kernels=[fused_uvm_caching]", f"sharding.cache_load_factor={share}"]
        for share in SHARES
    },
}
PREFETCH = "10% cached, prefetch"
COUNTS = 6  # calls, ids, distinct ids, distinct ids that were not cached, and two kinds of conflicts


def tables_of(module: nn.Module) -> list[SplitTableBatchedEmbeddingBagsCodegen]:
    """Return FBGEMM's modules of a sharded model. TorchRec keeps lookups in lists, which modules() does not enter."""
    lookups = (lookup for m in module.modules() for lookup in getattr(m, "_lookups", ()))
    return [m for of in lookups for m in of.modules() if isinstance(m, SplitTableBatchedEmbeddingBagsCodegen)]


class HitRates:
    """Lets FBGEMM count the hits and misses of the caches of one run."""

    def __init__(self) -> None:
        self._tables: list[SplitTableBatchedEmbeddingBagsCodegen] = []

    def begin(self, module: nn.Module) -> None:
        """Switch the counts on, before training."""
        self._tables = [m for m in tables_of(module) if m.lxu_cache_weights.numel()]  # those with a cache
        for m in self._tables:
            m.gather_uvm_cache_stats = True
            m.uvm_cache_stats = torch.zeros(COUNTS, dtype=torch.int64, device=m.current_device)
            m.local_uvm_cache_stats = torch.zeros(COUNTS, dtype=torch.int32, device=m.current_device)

    def read(self) -> dict[str, float]:
        """Return the hit rate, or nothing if no table has a cache."""
        counts = sum((m.get_uvm_cache_stats().double().cpu() for m in self._tables), torch.zeros(COUNTS).double())
        self._tables = []
        return {"hit rate": 1 - float(counts[3] / counts[2])} if counts[2] > 0 else {}


def main() -> None:
    given = Arguments.parse(__doc__ or "")
    rows, large, small, steps = (64, 400, 20, 2) if given.small else (16_384, 40_000_000, 10_000, 100)
    sparse = [SparseFeature(f"s{i}", small if i else large, f"s{i}") for i in range(26)]
    features = FeatureSpec(dense=tuple(DenseFeature(f"d{i}") for i in range(13)), sparse=tuple(sparse))
    batches = draw_batches(features, dict.fromkeys((f.name for f in sparse), 1), rows, WARM + steps)
    layers = ["model.dim=8", "model.bottom_mlp=[8]", "model.top_mlp=[8]"]
    layers = layers if given.small else ["model.dim=128", "model.bottom_mlp=[256,128]", "model.top_mlp=[512,256]"]
    settings = ["model=dlrm", "data=criteo", *layers, f"trainer.batch_size={rows}", *NOTHING]
    settings += ["trainer.pipeline=auto", "trainer.threads=1"]
    parts: dict[str, dict[str, float]] = {}

    def contestant(name: str, overrides: list[str]) -> Callable[[], Sample]:
        cfg = given.config(*settings, *overrides)

        def run() -> Sample:
            hits = HitRates()
            sample = trained(cfg, fitted_for(features), batches, steps, begin=hits.begin)
            if rate := hits.read():
                parts[name] = rate
            return sample

        return run

    contestants: Contestants = {name: contestant(name, overrides) for name, overrides in PLACES.items()}
    if given.device == "cuda":  # TorchRec's prefetch pipeline needs one
        contestants[PREFETCH] = contestant(PREFETCH, [*PLACES["10% cached"], "trainer.pipeline=prefetch"])
    about = f"Tables in host memory on {given.device}, batch {rows:,}, {steps} steps a round"
    measure(given, "host_memory", about, contestants, "samples", parts=parts)


if __name__ == "__main__":
    main()
