"""What the checks of a config must know of recsys's own models and losses before PyTorch is imported.

PyTorch, TorchRec and FBGEMM take seconds to import, and a mistake is to be reported at once. The classes declare these
facts themselves, as a base class or an attribute; tests/config/test_class_facts.py compares them with this table. A
class of your own needs no entry: it is checked after the imports.
"""

from dataclasses import dataclass

MODELS = {  # kind of model (recsys/models/protocols.py) -> module and class below recsys.models
    "ranking": (
        *("autoint.AutoInt", "bst.BST", "dcn.DCN", "dcnv2.DCNv2", "dcnv3.DCNv3", "deepfm.DeepFM", "dien.DIEN"),
        *("din.DIN", "dlrm.DLRM", "dnn.DNN", "esmm.ESMM", "eulernet.EulerNet", "fibinet.FiBiNET"),
        *("finalmlp.FinalMLP", "fm.FM", "fwfm.FwFM", "gdcn.GDCN", "hstu_rank.HSTURank", "lr.LogisticRegression"),
        *("masknet.MaskNet", "mmoe.MMoE", "pepnet.PEPNet", "ple.PLE", "rankmixer.RankMixer"),
        *("shared_bottom.SharedBottom", "sim.SIM", "stem.STEM", "target_attention.TargetAttention"),
        *("wide_deep.WideDeep", "wukong.Wukong", "xdeepfm.XDeepFM"),
    ),
    "fitted_ranking": ("gbm.GBM",),
    "retrieval": (
        *("bert4rec.BERT4Rec", "fuxi_alpha.FuXiAlpha", "gru4rec.GRU4Rec", "hstu.HSTU", "lightgcn.LightGCN", "mf.MF"),
        *("mult_vae.MultVAE", "neumf.NeuMF", "sasrec.SASRec", "simplex.SimpleX", "transformer.Transformer"),
        *("tiger.TIGER", "two_tower.TwoTower", "ultragcn.UltraGCN"),
    ),
    "closed_form": ("ease.EASE", "gf_cf.GFCF", "item_knn.ItemKNN", "popularity.Popularity", "session_knn.SessionKNN"),
}
GENERATIVE = {"tiger.TIGER"}  # they predict probabilities of items, which only the loss Likelihood reads
WIDER = {"bert4rec.BERT4Rec", "mf.MF", "mult_vae.MultVAE", "neumf.NeuMF"}  # their tables are wider than model.dim


@dataclass(frozen=True)
class LossFacts:
    """What a loss compares.

    protocol: RankingLoss, RetrievalLoss, or Tasks, which has a ranking loss for each label
    kinds: the kinds of labels that a ranking loss compares
    within_groups: whether it compares the rows of a group
    """

    protocol: str
    kinds: tuple[str, ...] = ()
    within_groups: bool = False


LOSSES = {  # class of recsys.losses
    "BinaryCrossEntropy": LossFacts("RankingLoss", ("binary",)),
    "FocalLoss": LossFacts("RankingLoss", ("binary",)),
    "MSE": LossFacts("RankingLoss", ("regression",)),
    "Huber": LossFacts("RankingLoss", ("regression",)),
    "CrossEntropy": LossFacts("RankingLoss", ("classes",)),
    "Pairwise": LossFacts("RankingLoss", ("binary", "regression"), within_groups=True),
    "Listwise": LossFacts("RankingLoss", ("binary", "regression"), within_groups=True),
    "Tasks": LossFacts("Tasks"),
    "FullSoftmax": LossFacts("RetrievalLoss"),
    "SampledSoftmax": LossFacts("RetrievalLoss"),
    "BCE": LossFacts("RetrievalLoss"),
    "BPR": LossFacts("RetrievalLoss"),
    "CosineContrastive": LossFacts("RetrievalLoss"),
    "Likelihood": LossFacts("RetrievalLoss"),
}
LOSS_OF_NAME = {  # loss.losses.LABEL -> class
    "binary_cross_entropy": "BinaryCrossEntropy",
    "focal": "FocalLoss",
    "mse": "MSE",
    "huber": "Huber",
    "cross_entropy": "CrossEntropy",
    "pairwise": "Pairwise",
    "listwise": "Listwise",
}
LOSS_OF_KIND = {"binary": "BinaryCrossEntropy", "regression": "MSE", "classes": "CrossEntropy"}  # by default


def own_model(target: str) -> tuple[str, str] | None:
    """Return module and class, and the kind, of one of recsys's own models; None for any other `_target_`."""
    name = target.removeprefix("recsys.models.")
    found = (kind for kind, names in MODELS.items() if name in names)
    return None if name == target or (kind := next(found, None)) is None else (name, kind)


def own_loss(target: str) -> LossFacts | None:
    """Return the facts of one of recsys's own losses; None for any other `_target_`."""
    package, _, name = target.rpartition(".")
    return LOSSES.get(name) if f"{package}.".startswith("recsys.losses.") else None
