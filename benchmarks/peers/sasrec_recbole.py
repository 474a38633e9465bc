# /// script
# requires-python = "==3.11.*"
# dependencies = ["recbole==1.2.1", "numpy<2", "pandas<3", "setuptools<81", "torch==2.13.0"]
# ///
"""RecBole's SASRec: `sasrec_recbole.py LISTS.txt BATCH STEPS`, LISTS.txt with lines 'user item', oldest first.

A row of RecBole is a prefix of a list with one target. Its settings are the paper's where RecBole's differ.
"""

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from one_round import run
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer


class Steps:
    """The first batches of an epoch."""

    def __init__(self, loader: Any, steps: int) -> None:
        self.loader, self.steps = loader, steps

    def __iter__(self) -> Any:
        return itertools.islice(iter(self.loader), self.steps)


lists, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv[1:] = []  # RecBole reads it
with tempfile.TemporaryDirectory() as name:
    folder = Path(name, "lists")
    folder.mkdir()
    with open(lists) as source, open(folder / "lists.inter", "w") as target:
        target.write("user_id:token\titem_id:token\ttimestamp:float\n")
        target.writelines(f"{line.strip().replace(' ', '	')}\t{n}\n" for n, line in enumerate(source))
    settings = {
        "data_path": name, "checkpoint_dir": name, "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "MAX_ITEM_LIST_LENGTH": 200, "train_batch_size": batch, "hidden_size": 50, "inner_size": 50, "n_heads": 1,
        "hidden_dropout_prob": 0.2, "attn_dropout_prob": 0.0, "loss_type": "BPR", "use_gpu": False,
        "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}, "show_progress": False,
        "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full", "group_by": "user"},
    }  # fmt: skip
    config = Config(model="SASRec", dataset="lists", config_dict=settings)
    dataset = create_dataset(config)
    train, _, _ = data_preparation(config, dataset)
    model = get_model("SASRec")(config, train.dataset)
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    run(lambda: trainer._train_epoch(Steps(train, steps), 0), batch * steps)
