"""A key that is set is read, or something is said: each key with each kind of model.

`KEYS` has another value for each key that should show in what a tiny run makes. `UNSEEN` has those that cannot: keys of
speed, of places, and those whose effect needs more rows, processes or a failure.
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest
from case import Case, Trial
from omegaconf import OmegaConf
from relations import figures
from settings import complete, drawn

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.schema.fields import flatten

KINDS = {
    "ranking": complete("ranking", {"model": "dlrm", "batches": "small"}),
    "trees": complete("ranking", {"model": "gbm"}),
    "retrieval": complete("retrieval", {"model": "sasrec", "batches": "small", "lists": "short"}),
    "closed_form": complete("retrieval", {"items": "file", "lists": "short"}),
    "generative": complete("retrieval", {"model": "tiger", "batches": "small", "lists": "short"}),
}
KEYS = [  # another value of each key, with what it needs
    *("metrics.gauc=user", "metrics.k=[2]", "metrics.slices=[item]", "metrics.slice_values=3", "metrics.bins=5"),
    *("metrics.exact_rows=10", "metrics.predictions=false"),
    *("protocol.candidates=[uniform] protocol.lists=[]", "protocol.k=[3]", "protocol.negatives=7", "protocol.seed=5"),
    *("protocol.filter_history=false", "protocol.rank_repeats=true", "protocol.lists=[]"),
    "protocol.exposure=[brand]",
    *("optim.dense.lr=0.3", "optim.dense._target_=torch.optim.SGD", "optim.sparse.name=sgd", "optim.sparse.lr=0.9"),
    *("optim.sparse.eps=0.5", "optim.sparse.beta1=0.1", "optim.sparse.beta2=0.1", "optim.sparse.weight_decay=0.1"),
    *("optim.sparse.clip=0.0001", "optim.clip_norm=0.0001", "optim.ema=0.5", "schedule=cosine", "optim.interval=step"),
    *("trainer.max_epochs=5", "trainer.max_steps=2", "trainer.batch_size=32", "trainer.accumulate=2"),
    *("trainer.precision=bf16-mixed", "trainer.loss_scale=8", "trainer.tf32=true", "trainer.log_every_n_steps=1"),
    *("trainer.validate_every=2", "trainer.validate_every_n_steps=2", "trainer.max_time=00:00:00:00"),
    "trainer.validate_from=0.7",
    *("trainer.early_stopping.patience=1 trainer.max_epochs=30",),
    *("loader.shuffle=false", "calibration=platt", "debug.train_batches=1"),
    *("checkpoint.every_n_steps=1 checkpoint.keep_last=2",),
    *("data.label.at_least=1.5", "data.label.positive=['0']", "data.label.kind=regression", "data.label.log=true"),
    *(
        "data.label.only_if=like",
        "data.label.otherwise=0",
        "+data.labels.like={}",
        "data.weight.column=weight",
        "data.sample_negatives=0.5",
        "data.position.column=ts",
        "data.position.column=ts data.position.bias=examination",
        "data.position.column=ts data.position.features=[item]",
        "data.position.column=ts data.position.first=5",
    ),
    *("data.split.column=ts", "data.split.seed=4", "data.split.validation=0.3", "data.split.test=0.3"),
    *("data.split.folds=3", "data.split.fold=1", "data.split.origins=3", "data.split.window=3600"),
    *("data.split.train_files=[x.csv]", "data.split.validation_files=[x.csv]", "data.split.test_files=[x.csv]"),
    *("data.group.gap=20", "data.sequences.min_length=6", "data.sequences.stride=1"),
    *("data.sequences.held_out=all", "data.sequences.reverse=true", "data.semantic_ids.method=rqvae"),
    *("data.semantic_ids.levels=4", "data.semantic_ids.size=5", "data.semantic_ids.seed=3"),
    *("data.items.ids=false",),
    *("+data.sparse.item.min_count=25", "+data.sparse.item.capacity=9", "+data.sparse.item.max_length=1"),
    *("+data.sparse.item.pooling=mean", "+data.sparse.item.vectors={file: vectors.parquet, key: item} model.dim=4"),
]
# or begins with: what `data` reads has its own checks, and a model's keys are those of its class
UNSEEN = tuple(
    """data.name data.root data.spec data.prepared data.source. data.derive data.where data.k_core data.items. data.dense
    data.sparse data.label.column data.label.classes data.split.by data.split.rows data.split.validation_rows
    data.split.context_files data.group. data.sequences. data.semantic_ids. data.max_bad_rows data.keep_read data.verify
    data.sample model. loss dims numeric sharding. optim.sparse.every_row trainer.accelerator trainer.devices
    trainer.eval_batch_size trainer.recompute trainer.compile trainer.cuda_graphs trainer.pipeline trainer.threads
    trainer.save_on_interrupt trainer.timeout_minutes trainer.early_stopping. loader.balance_lists loader.buffer_rows
    loader.unknown loader.keep_mb checkpoint.every_minutes checkpoint.keep_best checkpoint.monitor checkpoint.mode
    checkpoint.mirror engine. debug. sweep. logger logging metrics_ seed run_dir resume start_from""".split()
)


def test_every_key_is_tried_or_cannot_show() -> None:
    keys = flatten(OmegaConf.to_container(compose("train", ["data=sample_interactions"])))
    tried = {part.split("=")[0].lstrip("+") for key in KEYS for part in key.split(" ")}
    tried |= {"data.labels", "optim.scheduler"}  # as data.labels.like and schedule
    assert not [key for key in keys if key not in tried and not key.startswith(UNSEEN)]


def made(run: Trial) -> dict[str, Any]:
    """Return what a run made: features, figures, predictions or ranks, and the names of its files."""
    path = run.run.path
    tables = {f.name: pl.read_parquet(f).to_dicts() for f in path.glob("test_*.parquet")}
    log = len((path / "metrics.csv").read_text().splitlines()) if (path / "metrics.csv").exists() else 0
    files = sorted({re.sub(r"events.*", "events", str(f.relative_to(path))) for f in path.rglob("*")})
    measured = {split: figures(run.metrics[split]) for split in ("validation", "test")}
    parts = {section: run.metrics.get(section) for section in ("slices", "exposure")}
    return {"features": run.features, "log": log, "files": files} | parts | measured | tables


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {kind: Case(chosen, tmp_path_factory.mktemp(kind)) for kind, chosen in KINDS.items()}


CHOICE_KEYS = ("optim.sparse.name", "optim.sparse.lr")  # which optim=adam sets with those of weights
TRIED = [(kind, key) for kind in KINDS for key in KEYS if kind != "generative" or not key.startswith(CHOICE_KEYS)]
DRAWN = drawn(len(TRIED))


@pytest.mark.parametrize(
    ("kind", "key"), [pytest.param(*t, marks=[] if i in DRAWN else pytest.mark.slow) for i, t in enumerate(TRIED)]
)
def test_a_key_is_read_or_something_is_said(kind: str, key: str, bases: dict[str, Case]) -> None:
    case, name = bases[kind], key.split("=")[0].lstrip("+")
    try:
        run = case.train(*re.split(r" (?=[a-z_.]+=)", key))
    except UserError:
        return  # one line
    unread = [line for line in run.said.splitlines() if line.startswith("no effect")]
    said = {*run.said.splitlines(), *unread} - ({*case.base.said.splitlines()} - {*unread})
    assert made(run) != made(case.base) or any(f"{name}" in line for line in said), f"{kind}: {key}: unread and silent"
