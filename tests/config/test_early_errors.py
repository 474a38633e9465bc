"""A wrong value of any key of a training is found before PyTorch is imported, in seconds less."""

import json
import subprocess
import sys
from typing import Any

import pytest

TRY = """
import json, sys
from copy import deepcopy
from omegaconf import OmegaConf
from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.base.parsing import parse
from recsys.job import run_config
from recsys.job.check_config import check_config
from recsys.job.run_config import RunConfig
from recsys.schema.fields import flatten
plain, taken = OmegaConf.to_container(compose("train", json.loads(sys.argv[1])), resolve=True), []
run_config.object_of = parse  # not by way of OmegaConf, which takes three quarters of the time
check_config(RunConfig.of(plain))
for key, value in flatten(plain).items():
    if key.startswith("data.") and sys.argv[2] != "True":
        continue  # the other model has tried them
    wrong = [-3, {"nosuch": 1}] if isinstance(value, list) else ["no such", -3, {"nosuch": 1}]
    for given in [[w] for w in wrong] + wrong if isinstance(value, list) else wrong:
        changed = deepcopy(plain)
        *parents, name = key.split(".")
        node = changed
        for parent in parents:
            node = node[parent]
        node[name] = given
        try:
            check_config(RunConfig.of(changed))
        except UserError:
            continue
        taken.append([key, given])
print(json.dumps([taken, "torch" in sys.modules]))
"""
FREE = (  # text of the user's, which only the files or a folder prove wrong; names of the user's
    *("data.name", "data.root", "data.prepared", "data.where", "debug.name", "run_dir", "resume", "start_from"),
    *("sweep.metric", "sweep.slurm", "data.split.rows", "data.source.rename", "data.derive", "data.items.columns"),
    "data.dense_defaults.transform",  # each feature here has its own
    *("metrics_host", "checkpoint.mirror"),  # what names and places there are is not in the config
)
LISTS_OF_TEXT = ("null_values", "files", "columns", "names", "positive")
TEXT = tuple("column separator comment quote escape encoding split time_zone table key format by order".split())
NUMBERS = (  # any number, and numbers that PyTorch takes
    *("data.label.at_least", "data.dense_defaults.fill", "optim.scheduler.factor", "optim.scheduler.patience"),
)


def may_be(key: str, value: Any, with_data: bool) -> bool:
    """Return whether the value of a key may be right, for all that the config alone shows."""
    if key in ("protocol.lists", "protocol.exposure"):
        return with_data  # ranking models do not read it
    if key in FREE or (key in NUMBERS and value == -3):
        return True
    names = value if isinstance(value, list) else [value]
    endings = LISTS_OF_TEXT if isinstance(value, list) else TEXT
    return key.startswith("data.") and key.endswith(endings) and not any(isinstance(n, dict) for n in names)


@pytest.mark.parametrize(
    ("overrides", "with_data"),
    [
        (["model=dlrm", "data=sample_interactions", "schedule=polynomial", "loss=focal", "optim=adam"], True),
        pytest.param(
            ["model=sasrec", "data=sample_sequences", "schedule=plateau", "loss=bpr"], False, marks=pytest.mark.slow
        ),
        (["model=two_tower", "data=sample_sequences", "schedule=cosine", "loss=in_batch_softmax"], False),
    ],
    ids=["dlrm", "sasrec", "two_tower"],
)
def test_every_key(overrides: list[str], with_data: bool) -> None:
    command = [sys.executable, "-c", TRY, json.dumps(overrides), str(with_data)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken, torch = json.loads(done.stdout)
    assert [(key, value) for key, value in taken if not may_be(key, value, with_data)] == []
    assert not torch
