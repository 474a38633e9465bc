"""Models of lists of items, and batches of lists."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.models.bert4rec import BERT4Rec
from recsys.models.comirec import ComiRec
from recsys.models.fuxi_alpha import FuXiAlpha
from recsys.models.gru4rec import GRU4Rec
from recsys.models.hstu import HSTU
from recsys.models.sasrec import SASRec
from recsys.models.transformer import Transformer

N = 13  # candidates, 0 among them
LISTS = [[3, 5, 3, 7], [], [2], [1, 2, 3, 4, 5, 6, 12], [9, 8]]
ITEM = SparseFeature("item", N, "item", multi_valued=True, sequence=True)
KIND = SparseFeature("kind", 5, "kind", multi_valued=True, sequence=True)
GAP = SparseFeature("gap", 4, "gap", multi_valued=True, sequence=True)
ALONE = FeatureSpec(dense=(), sparse=(ITEM,), labels=(), item="item")
MORE = FeatureSpec(
    dense=(DenseFeature("age"),), sparse=(SparseFeature("user", 6, "user"), ITEM, KIND, GAP), labels=(), item="item"
)

JaggedIds = Sequence[Sequence[int]]
Make = Callable[..., nn.Module]


def transformer(objective: str, block: str) -> Make:
    def make(features: FeatureSpec, **options: object) -> Transformer:
        merge = "concat" if block == "plain" else "sum"
        options = {"merge": merge, "context": features is MORE, **options}
        return Transformer(features, objective=objective, block=block, max_length=9, **options)  # type: ignore[arg-type]

    return make


ORIGINAL_SASREC = {"projection": False, "init": "glorot"}
ORIGINAL_BERT4REC = {"exact_mask": True, "output_bias": True, "positions": "start"}
CAUSAL: dict[str, Make] = {
    "sasrec": lambda f, **o: SASRec(f, max_length=9, heads=2, **{"dim": 64, **o}),
    "sasrec-original": lambda f, **o: SASRec(f, max_length=9, heads=2, **{"dim": 64, **ORIGINAL_SASREC, **o}),
    "sasrec-before": lambda f, **o: SASRec(f, max_length=9, heads=2, norm="before", **{"dim": 64, **o}),
    "sasrec-after": lambda f, **o: SASRec(f, max_length=9, heads=2, norm="after", **{"dim": 64, **o}),
    "gru4rec": lambda f, **o: GRU4Rec(f, **{"hidden": 48, "layers": 2, **o}),
    "comirec": lambda f, **o: ComiRec(f, max_length=5, hidden=24, **o),
    "hstu": lambda f, **o: HSTU(f, max_length=9, times="gap" if f is MORE else None, **o),
    "fuxi_alpha": lambda f, **o: FuXiAlpha(f, max_length=9, times="gap" if f is MORE else None, **o),
    "esasrec": lambda f, **o: Transformer(f, max_length=9, feed_forward="swiglu", gated=True, **o),
    "transformer-plain": transformer("causal", "plain"),
    "transformer-relative": transformer("causal", "relative"),
}
MASKED: dict[str, Make] = {
    "bert4rec": lambda f, **o: BERT4Rec(f, max_length=9, **o),
    "bert4rec-original": lambda f, **o: BERT4Rec(f, max_length=9, **ORIGINAL_BERT4REC, **o),
    "masked-plain": transformer("masked", "plain"),
    "masked-relative": transformer("masked", "relative"),
}
ALL = CAUSAL | MASKED


def jagged(lists: JaggedIds) -> tuple[Tensor, Tensor]:
    values = torch.tensor([i for one in lists for i in one], dtype=torch.int64)
    return values, torch.tensor([len(one) for one in lists], dtype=torch.int64)


def batch(features: FeatureSpec, lists: JaggedIds, kinds: JaggedIds | None = None) -> Batch:
    """Kinds are what is given, or follow from the items; row b is of user b, aged b."""
    bags = {
        "user": [[b % 6] for b in range(len(lists))],
        "item": lists,
        "kind": kinds or [[i % 5 for i in one] for one in lists],
        "gap": [[(i * i) % 4 for i in one] for one in lists],
    }
    names = [f.name for f in features.sparse]
    values, lengths = jagged([one for name in names for one in bags[name]])
    dense = torch.arange(float(len(lists)))[:, None].expand(-1, features.dense_width)
    sparse = KeyedJaggedTensor(names, values.int(), lengths=lengths.int())
    return Batch(dense, sparse, torch.zeros(len(lists), 0))
