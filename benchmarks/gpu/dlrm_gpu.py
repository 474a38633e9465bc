"""Train NVIDIA's small DLRM and MLPerf's DLRM-DCNv2 on one GPU, with and without each option, beside bare loops.

    PYTHONPATH=benchmarks python benchmarks/gpu/dlrm_gpu.py                        # minutes, on a GPU
    PYTHONPATH=benchmarks python benchmarks/gpu/dlrm_gpu.py --device cpu --small   # a test of the script

dlrm: one id a feature, dim 128, bottom 512-256-128, top 1024-1024-512-256-1, batch 65,536, 4.2 billion weights of
tables (values of Criteo 1TB seen 15 times or more). dcnv2: MLPerf's lists, low-rank crosses, batch 6,912, an eighth of
the rows of each table, which eight GPUs share there. Each is trained by recsys with all options, with nothing switched
on, with its defaults, and with each option alone; by a loop over TorchRec's own DLRM and pipeline, which need iopath;
and the first with nn.EmbeddingBag.
"""

from collections.abc import Callable, Sequence

import torch
from contestants import Arguments, Contestants, folder, measure
from in_memory import (
    DEFAULTS,
    NOTHING,
    WARM,
    draw_batches,
    features_of,
    fitted_for,
    lengths_of,
    synchronize,
    trained,
)
from steady import Clock, Sample
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.streamable import Pipelineable
from train import Tables, bare

from recsys.distributed.ranks import ALONE, process_group
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.dlrm import DLRM as OurDLRM
from recsys.sharding.optimizers import RowwiseAdagrad

Layers = tuple[tuple[int, ...], tuple[int, ...]]  # widths of the bottom and of the top network
BARE, BAGS, PLAIN, ALL = "TorchRec's loop", "nn.EmbeddingBag loop", "recsys", "recsys, all"
OPTIONS = {  # what recsys.train is given; each is measured alone, in this order
    "pipeline": ["trainer.pipeline=sparse_dist"],
    "bf16-mixed": ["trainer.precision=bf16-mixed"],
    "compile and CUDA graphs": ["trainer.compile=true", "trainer.cuda_graphs=true"],
    "fp16 tables": ["sharding.table_dtype=fp16"],
    "tf32": ["trainer.tf32=true"],
    "compile": ["trainer.compile=true"],
    "16-mixed": ["trainer.precision=16-mixed"],
}
EVERYTHING = ["pipeline", "tf32", "bf16-mixed", "compile and CUDA graphs", "fp16 tables"]
LAYERS = (512, 256, 128), (1024, 1024, 512, 256)
TOPICS = {
    "dlrm": (["data=criteo_1tb_t15", "model=dlrm"], 65_536, 1),
    "dcnv2": (["data=criteo_1tb_multihot", "model=dlrm", "model.interaction=cross"], 6_912, 8),
}


class TorchRecBatch(Pipelineable):
    """A batch as TorchRec's DLRM reads it."""

    def __init__(self, batch: Batch) -> None:
        self.dense_features, self.sparse_features = batch.dense, batch.sparse
        self.labels = batch.labels[:, 0]
        self._batch = batch

    def to(self, device: torch.device, non_blocking: bool = False) -> "TorchRecBatch":
        return TorchRecBatch(self._batch.to(device, non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self._batch.record_stream(stream)


def torchrec_loop(
    features: FeatureSpec,
    batches: Sequence[Batch],
    steps: int,
    device: torch.device,
    layers: Layers,
) -> Callable[[], Sample]:
    """Return a round of a loop over TorchRec's DLRM with its pipeline, in bfloat16 on GPUs."""
    bottom, top = layers
    crosses = any(f.multi_valued for f in features.sparse)

    def run() -> Sample:
        from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain  # needs iopath, which the others can do without

        with process_group("cpu" if device.type == "cpu" else "gpu", None, ALONE):
            tables = [
                EmbeddingBagConfig(
                    name=f"t_{f.name}", embedding_dim=bottom[-1], num_embeddings=f.cardinality, feature_names=[f.name]
                )
                for f in features.sparse
            ]
            bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
            sizes = [len(features.dense), list(bottom), [*top, 1]]
            dlrm = DLRM_DCN(bags, *sizes, 3, bottom[-1], device) if crosses else DLRM(bags, *sizes, device)
            fused = {"optimizer": RowwiseAdagrad.kernel, "learning_rate": 0.05, "eps": 1e-8}
            sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
            model = DistributedModelParallel(
                DLRMTrain(dlrm),
                device=device,
                sharders=sharders,
                init_data_parallel=False,  # type: ignore[arg-type]
            ).to(device)
            dense = {n: p for n, p in model.named_parameters() if type(p) is nn.Parameter}
            adam = KeyedOptimizerWrapper(dense, lambda ps: torch.optim.Adam(ps, lr=0.005))  # type: ignore[arg-type]
            optimizer = CombinedOptimizer([model.fused_optimizer, adam])
            kind = TrainPipelineSparseDist if device.type == "cuda" else TrainPipelineBase
            pipeline = kind(model, optimizer, device)  # type: ignore[operator]
            given = [TorchRecBatch(b.pin_memory() if device.type == "cuda" else b) for b in batches]
            stream = iter([given[i % len(given)] for i in range(WARM + steps)])
            clock = Clock()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                for i in range(WARM + steps):
                    if i == WARM:
                        synchronize()
                        clock = Clock()
                    pipeline.progress(stream)
                synchronize()
            return clock.sample(steps * batches[0].rows)

    return run


def bags_loop(
    features: FeatureSpec,
    batches: Sequence[Batch],
    steps: int,
    device: torch.device,
    layers: Layers,
) -> Callable[[], Sample]:
    """Return a round of a loop over nn.EmbeddingBag tables with sparse gradients, in bfloat16 on GPUs."""
    bottom, top = layers

    def run() -> Sample:
        with torch.device(device):
            make = lambda f: OurDLRM(f, dim=bottom[-1], bottom_mlp=bottom, top_mlp=top, device=torch.device("meta"))  # noqa: E731
            model = bare(make, features, fbgemm=False)
        assert isinstance(model.embeddings, Tables)
        dense = [p for n, p in model.named_parameters() if "embeddings" not in n]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=0.005)]
        optimizers.append(torch.optim.SGD(model.embeddings.bags.parameters(), lr=0.05))
        given = [b.to(device) for b in batches]
        inputs = [(b.dense, (b.sparse.values().long(), b.sparse.offsets().long()), b.labels) for b in given]
        clock = Clock()
        for i in range(WARM + steps):
            if i == WARM:
                synchronize()
                clock = Clock()
            x, sparse, labels = inputs[i % len(inputs)]
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(x, sparse)
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        synchronize()
        return clock.sample(steps * batches[0].rows)

    return run


def measure_topic(given: Arguments, topic: str, share: float) -> None:
    """Measure one of TOPICS in a share of the time that is left."""
    device = torch.device(given.device, *([0] if given.device == "cuda" else []))
    data, rows, parts = TOPICS[topic]
    layers = ((16, 8), (16, 8)) if given.small else LAYERS
    rows, steps, number = (64, 3, 2) if given.small else (rows, 200, 8)
    bottom, top = (f"[{','.join(map(str, widths))}]" for widths in layers)
    model = [f"model.dim={layers[0][-1]}", f"model.bottom_mlp={bottom}", f"model.top_mlp={top}"]
    settings = [*data, *model, f"trainer.batch_size={rows}"]
    features = features_of(given.config(*settings), 50 if given.small else None, parts)
    batches = draw_batches(features, lengths_of(given.config(*settings), features), rows, number)

    def ours(name: str, *typed: str) -> Callable[[], Sample]:
        cfg = given.config(*settings, *typed)
        trace = folder() / f"trace-{topic}-{name.replace(' ', '_')}.json.gz"
        rounds = iter([trace])  # of the first round
        return lambda: trained(cfg, fitted_for(features), batches, steps, next(rounds, None))

    plain = (*NOTHING, "trainer.threads=1")
    contestants: Contestants = {
        ALL: ours("all", *plain, *(o for name in EVERYTHING for o in OPTIONS[name])),
        BARE: torchrec_loop(features, batches, steps, device, layers),
        PLAIN: ours("nothing", *plain),
        DEFAULTS: ours("defaults"),
        f"{DEFAULTS} of a long training": ours("long", *OPTIONS["compile and CUDA graphs"]),
    }
    contestants |= {f"recsys, {name}": ours(name, *plain, *typed) for name, typed in OPTIONS.items()}
    if topic == "dlrm":
        contestants[BAGS] = bags_loop(features, batches, steps, device, layers)
    about = f"{topic} on {given.device}, batch {rows:,}, {steps} steps a round"
    measure(given, topic, about, contestants, "samples", share=share)


def main() -> None:
    given = Arguments.parse(__doc__ or "")
    for i, topic in enumerate(TOPICS):
        measure_topic(given, topic, 1 / (len(TOPICS) - i))


if __name__ == "__main__":
    main()
