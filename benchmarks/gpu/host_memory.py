"""Train a DLRM whose tables are in host memory: read from there, cached on the GPU by share of rows, or all in HBM.

    PYTHONPATH=benchmarks python benchmarks/gpu/host_memory.py                        # minutes, on a GPU
    PYTHONPATH=benchmarks python benchmarks/gpu/host_memory.py --device cpu --small   # a test of the script

One table of 40 million rows of 128 columns (19 GiB) and 25 of 10,000 rows, batch 16,384. Ids have a long tail, as the
hot rows of real tables: half of the lookups read an eighth of the rows. gpu_hit_rates.json has, for each share, the
share of a batch's distinct rows that the cache held.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from in_memory import Arguments, draw_batches, fitted_for, folder, trained
from steady import Claim, Sample, measure

from recsys.features import DenseFeature, FeatureSpec, SparseFeature

IN_HBM = "in HBM"
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5)
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


class HitRates:
    """Lets FBGEMM count hits and misses of its caches, by contestant."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def counting(self, name: str, tables: list[Any]) -> Callable[[Any], None]:
        """Return what switches the counts on before training. tables: gets FBGEMM's modules that have a cache"""

        def begin(module: Any) -> None:
            tables.clear()
            for m in module.modules():
                if isinstance(m, SplitTableBatchedEmbeddingBagsCodegen) and not m.use_cpu and name not in (IN_HBM,):
                    m.gather_uvm_cache_stats = True
                    for counts in ("uvm_cache_stats", "local_uvm_cache_stats"):
                        setattr(m, counts, torch.zeros(COUNTS, dtype=torch.int32, device=module.device))
                    tables.append(m)

        return begin

    def read(self, name: str, tables: list[Any]) -> None:
        counts = sum((m.get_uvm_cache_stats().double().cpu() for m in tables), torch.zeros(COUNTS).double())
        if counts[2] > 0:
            self.rates[name] = 1 - float(counts[3] / counts[2])


def main() -> None:
    given = Arguments.parse(__doc__ or "")
    rows, large, small, steps = (64, 400, 20, 2) if given.small else (16_384, 40_000_000, 10_000, 100)
    sparse = [SparseFeature(f"s{i}", small if i else large, f"s{i}") for i in range(26)]
    features = FeatureSpec(dense=tuple(DenseFeature(f"d{i}") for i in range(13)), sparse=tuple(sparse))
    batches = draw_batches(features, dict.fromkeys((f.name for f in sparse), 1), rows, 2 if given.small else 16)
    layers = ["model.dim=8", "model.bottom_mlp=[8]", "model.top_mlp=[8]"]
    layers = layers if given.small else ["model.dim=128", "model.bottom_mlp=[256,128]", "model.top_mlp=[512,256]"]
    settings = ["model=dlrm", "data=criteo", *layers, f"trainer.batch_size={rows}", "trainer.threads=1"]
    hits = HitRates()

    def contestant(name: str, overrides: list[str]) -> Callable[[], Sample]:
        cfg = given.config(*settings, *overrides)
        tables: list[Any] = []

        def run() -> Sample:
            sample = trained(cfg, fitted_for(features), batches, steps, begin=hits.counting(name, tables))
            hits.read(name, tables)
            return sample

        return run

    contestants = {name: contestant(name, overrides) for name, overrides in PLACES.items()}
    if given.device == "cuda":  # TorchRec's prefetch pipeline needs one
        contestants[PREFETCH] = contestant(PREFETCH, [*PLACES["10% cached"], "trainer.pipeline=prefetch"])
    claims = [Claim(name, IN_HBM) for name in contestants if name != IN_HBM]
    claims.append(Claim(PREFETCH, "10% cached"))
    about = f"Tables in host memory on {given.device}, batch {rows:,}, {steps} steps a round"
    measure("gpu_host_memory", about, given.chosen(contestants), claims, given.rounds, "samples")
    (folder() / "gpu_hit_rates.json").write_text(json.dumps(hits.rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
