"""A key that a run does not read is said, with what reads it; what is left at its default is not."""

from pathlib import Path

import pytest

from recsys.config.compose import compose
from recsys.job.check_config import check_config
from recsys.job.unread_keys import RULES, matching, unread_keys, unread_line
from recsys.schema.data_schema import DataConfig
from recsys.schema.fields import defaults, flatten
from recsys.schema.run_schema import TrainConfig

ROWS, LISTS = ["model=dlrm", "data=sample_interactions"], ["model=sasrec", "data=sample_sequences"]
TREES, NEIGHBOURS = ["model=gbm", "data=sample_interactions"], ["model=item_knn", "data=sample_sequences"]
# keys with another value than the default, by the runs that do not read them, and by those that do
CASES = [
    ("optim.dense.lr=0.5", [TREES, NEIGHBOURS], [ROWS, LISTS]),
    ("trainer.max_epochs=7", [TREES, NEIGHBOURS], [ROWS, LISTS]),
    ("loader.shuffle=false", [TREES, NEIGHBOURS], [ROWS, LISTS]),
    ("loader.buffer_rows=9", [], [ROWS, LISTS, TREES, NEIGHBOURS]),
    ("trainer.validate_every=2", [TREES, NEIGHBOURS], [ROWS, LISTS]),
    ("protocol.k=[3]", [TREES, ROWS], [NEIGHBOURS, LISTS]),
    ("protocol.negatives=7", [ROWS, LISTS], [[*LISTS, "protocol.candidates=[uniform]"]]),
    ("metrics.bins=7", [LISTS, NEIGHBOURS], [ROWS, TREES]),
    ("metrics.k=[3]", [ROWS], [[*ROWS, "data.group.by=user", "data.group.together=true"]]),
    ("metrics.slice_values=3", [ROWS], [[*ROWS, "metrics.slices=[user]"]]),
    ("optim.sparse.beta1=0.5", [[*ROWS, "optim.sparse.name=adagrad"]], [[*ROWS, "optim.sparse.name=adam"]]),
    ("trainer.loss_scale=8", [ROWS], []),
    ("data.label.kind=regression", [LISTS], [ROWS]),
    ("data.split.seed=3", [[*ROWS, "data.split.by=order"]], [[*ROWS, "data.split.by=random"]]),
    ("data.split.column=user", [[*ROWS, "data.split.by=order", "data.split.column=null"]], [ROWS]),
    ("data.sequences.stride=3", [ROWS], [LISTS]),
]


def unread(*given: str) -> dict[str, str]:
    composed = compose("train", [*given])
    return unread_keys(check_config(composed), composed)


@pytest.mark.parametrize(("key", "silent", "read"), CASES)
def test_keys_are_named_where_they_have_no_effect(key: str, silent: list[list[str]], read: list[list[str]]) -> None:
    name = key.partition("=")[0]
    for given in silent:
        assert name not in unread(*given)
        assert name in unread(*given, key)
    for given in read:
        assert name not in unread(*given, key)


@pytest.mark.slow
def test_no_config_of_ours_has_such_a_key() -> None:
    for file in sorted(Path("conf/experiment").glob("*.yaml")):
        if file.stem != "gowalla":  # a part of others
            composed = compose("train", [f"experiment={file.stem}"])
            assert unread_line(check_config(composed), composed) is None, file


def test_every_rule_is_of_a_key_that_exists() -> None:
    names = [*flatten(defaults(TrainConfig)), *flatten({"data": defaults(DataConfig)}), "data.labels.x"]
    of_items = ["data.items.dense.x", "data.items.sparse.x", "optim.dense.lr", "data.sparse.x.vectors.file"] + [
        "loss.ndcg",
        "loss.others",
    ]
    for rule in RULES:
        for pattern in rule.keys:
            assert matching([*names, *of_items], [pattern]), pattern


def test_the_line_names_keys_by_what_reads_them() -> None:
    composed = compose("train", [*TREES, "optim.dense.lr=0.5", "protocol.k=[3]"])
    line = unread_line(check_config(composed), composed)
    assert line is not None and line.startswith("no effect on this run: ")
    assert "optim.dense.lr" in line and "protocol.k" in line
