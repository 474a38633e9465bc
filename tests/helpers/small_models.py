"""The ranking models of recsys.models, with small widths: class -> options."""

from typing import Any

from torch import nn

from recsys.models.autoint import AutoInt
from recsys.models.dcn import DCN
from recsys.models.dcnv2 import DCNv2
from recsys.models.dcnv3 import DCNv3
from recsys.models.deepfm import DeepFM
from recsys.models.dlrm import DLRM
from recsys.models.dnn import DNN
from recsys.models.esmm import ESMM
from recsys.models.eulernet import EulerNet
from recsys.models.fibinet import FiBiNET
from recsys.models.finalmlp import FinalMLP
from recsys.models.fm import FM
from recsys.models.fwfm import FwFM
from recsys.models.gdcn import GDCN
from recsys.models.lr import LogisticRegression
from recsys.models.masknet import MaskNet
from recsys.models.mmoe import MMoE
from recsys.models.pepnet import PEPNet
from recsys.models.ple import PLE
from recsys.models.rankmixer import RankMixer
from recsys.models.shared_bottom import SharedBottom
from recsys.models.stem import STEM
from recsys.models.wide_deep import WideDeep
from recsys.models.wukong import Wukong
from recsys.models.xdeepfm import XDeepFM

DEEP = {"dim": 8, "deep_mlp": [7, 5]}
SMALL: dict[type[nn.Module], dict[str, Any]] = {
    DLRM: {"dim": 8, "bottom_mlp": [6, 8], "top_mlp": [7, 5]},
    **dict.fromkeys((DCN, DCNv2, WideDeep, DeepFM, DNN, FiBiNET, GDCN), DEEP),
    LogisticRegression: {},
    FM: {"dim": 8},
    FwFM: {"dim": 8},
    XDeepFM: {**DEEP, "cin_layers": [3, 2]},
    AutoInt: {**DEEP, "attention_layers": 2, "head_dim": 3},
    MaskNet: {**DEEP, "blocks": [6, 5], "reduction": 0.5},
    FinalMLP: {"dim": 8, "first_mlp": [7, 6], "second_mlp": [5, 4], "gate_mlp": [3]},
    EulerNet: {"dim": 8, "layers": [4, 3]},
    DCNv3: {"dim": 8, "linear_layers": 2, "exponential_layers": 2},
    Wukong: {
        **{"dim": 8, "fm_vectors": 3, "linear_vectors": 2, "rank": 2},
        **{"fm_mlp": [6], "bottom_mlp": [5], "top_mlp": [7]},
    },
    RankMixer: {"dim": 8, "tokens": 4, "width": 12},
    PEPNet: {"dim": 8, "scenario": ["item"], "personal": ["user", "item"], "gate_width": 6, "tower_mlp": [7, 5]},
}
TASKS: dict[type[nn.Module], dict[str, Any]] = {  # these need two labels; ESMM binary ones
    SharedBottom: {"dim": 8, "bottom_mlp": [7, 6], "tower_mlp": [5]},
    MMoE: {"dim": 8, "experts": 3, "expert_mlp": [7, 6], "tower_mlp": [5]},
    PLE: {"dim": 8, "task_experts": 2, "shared_experts": 1, "expert_mlp": [16], "tower_mlp": [9]},
    ESMM: {"dim": 8, "tower_mlp": [7, 5]},
    STEM: {"dim": 8, "task_experts": 2, "expert_mlp": [7, 6], "gate_mlp": [9], "tower_mlp": [5]},
}
