"""Each mistake of a user's is one clear line and exit status 2, before a row is read or a process starts."""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.base import packages
from recsys.base.console import log_to
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose, compose_file
from recsys.distributed import failures
from recsys.job.check_built import check_target
from recsys.job.run_config import RunConfig
from recsys.training.run import check_raw_files, train

COLUMNS = "clicked,price,user\n"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    root = tmp_path / "raw"
    root.mkdir()
    rows = "".join(f"{i % 2},{i * 0.5},u{i % 7}\n" for i in range(200))
    (root / "a.csv").write_text(COLUMNS + rows)
    return root


@pytest.fixture
def own(tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set of the user's, which is also where commands run."""
    conf = tmp_path / "conf" / "data"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(
        "name: mine\nsource: {format: csv, files: ['*.csv']}\nlabel: {column: clicked}\n"
        "dense: {price: {}}\nsparse: {user: {}}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """(exit status, what standard error says after 'error: ')."""
    monkeypatch.setattr("sys.argv", ["recsys.train", *overrides])
    status = command_line.status("train", lambda cfg: train(cfg) and None)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return status, lines[0].removeprefix("error: ")


MISTAKES = [
    (["model=dlmr"], r"model=dlmr: no such choice; did you mean dlrm\?"),
    (["sharding=rowise"], r"sharding=rowise: no such choice; did you mean rowwise\?"),
    (["trainer.devcies=2"], r"trainer.devcies: no such key; did you mean devices\?"),
    (["modle=dlrm"], r"modle: no such key; did you mean model\?"),
    (["+data.weight=w"], r"data.weight: exists already; leave out the \+ in front of it"),
    (["data.weight=w"], r"data.weight=w: has keys of its own; did you mean data.weight.column=w\?"),
    (["+data.xyzzy=w"], r"data.xyzzy: no such key; valid: dense, "),
    (["+trainer.batchsize=8"], r"trainer.batchsize: no such key; did you mean batch_size\?"),
    (["+modle=dlrm"], r"modle: no such key; did you mean model\?"),
    (["data.sparse.user.min_cuont=3"], r"min_cuont: no such key; did you mean min_count\?"),
    (["model.botom_mlp=[8]"], r"botom_mlp.*did you mean bottom_mlp\?"),
    (
        ["+model.botom_mlp=[8]"],
        r"model.botom_mlp: recsys.models.dlrm.DLRM has no such parameter; did you mean bottom_mlp",
    ),
    (["loss=focal", "loss.alpha=1"], r"^loss.alpha=1: must be below 1$"),
    (
        ["data=sample_sequences", "data.root=null", "model=sasrec", "loss.count=0"],
        r"^loss.count=0: must be at least 1$",
    ),
    (
        ["data=sample_tasks", "data.root=null", "loss=tasks", "loss.balance=grad"],
        r"^loss.balance='grad': .* gradnorm\?$",
    ),
    (
        ["data=sample_tasks", "data.root=null", "loss=tasks", "+loss.weights.click=-1"],
        r"^loss.weights=.*click.*at least 0$",
    ),
    (["optim.dense.lr=-1"], r"optim.dense: .*Invalid learning rate: -1"),
    (["engine=sprak"], r"engine=sprak: no such choice; did you mean spark\?"),
    (["engine.options.spark.x=1"], r"engine.master, engine.options: apply only to engine=spark"),
    (
        ["optim.sparse.lr=0.1,0.2"],
        r"^optim.sparse.lr=0.1,0.2: several values make a sweep; add -m: python -m recsys.train -m ",
    ),
    (["sweep=optuna"], r"^sweep=optuna: applies only to sweeps; add -m: python -m recsys.train -m"),
    (["model.dim=8", "sweep.jobs=2"], r"^sweep.jobs=2: applies only to sweeps; add -m"),
    (["seed=-1"], r"seed=-1: must be at least 0"),
    (["trainer.precision=17"], r"trainer.precision=17: must be 32-true, bf16-mixed, 16-mixed or auto"),
    (
        ["checkpoint.mode=sideways"],
        r"checkpoint.mode=sideways: must be min or max$",
    ),
    (
        ["schedule=plateau", "checkpoint.monitor=validation/logloss"],
        r"optim.scheduler.mode=max: validation/logloss is better when it is lower; set optim.scheduler.mode=min$",
    ),
    (
        ["trainer.early_stopping.monitor=validation/calibration"],
        r"early_stopping.monitor=validation/calibration: neither large nor small values are better",
    ),
    (["trainer.threads=0"], r"trainer.threads=0: must be at least 1"),
    (["model=3"], r"must be a string or a list"),
    (["model.dim=large"], r"model.dim='large': must be a whole number"),
    (["model.dropout=much"], r"model.dropout='much': "),
    (["trainer.devices=two"], r"trainer.devices=two: must be a whole number"),
    (
        ["model=dcn", "model.dim=18", "sharding.padding=off"],
        r"model.dim=18: must be a multiple of 4 .*, or set sharding.padding=16",
    ),
    (["sharding.padding=32"], r"sharding.padding=32: must be off, 16, 64 or 128"),
    (["sharding.cache_hit_rate=1"], r"sharding.cache_hit_rate=1: must be below 1"),
    (["sharding.hbm_gib=0"], r"sharding.hbm_gib=0: must be above 0"),
    (["model.bottom_mlp=[8,4]"], r"bottom_mlp ends at width 4.*dim=16"),
    (["model._target_=recsys.models.dlrm.DLMR"], r"recsys.models.dlrm has no DLMR; did you mean DLRM\?"),
    (["sharding=columnwise", "sharding.column_block=6"], r"sharding.column_block=6: must be a multiple of 4"),
    (["trainer.devices=512", "trainer.batch_size=512"], r"trainer.devices=512: there are at most \d+ processes"),
    (["trainer.accelerator=tpu"], r"trainer.accelerator=tpu: must be auto, cpu, gpu or cuda"),
    (["trainer.devices=3"], r"trainer.batch_size=2048 is not divisible by 3 processes"),
    (["trainer.batch_size=0"], r"trainer.batch_size=0: must be at least 1"),
    (["optim.sparse.name=adamm"], r"optim.sparse.name=adamm: must be .*; did you mean adam\?"),
    (["optim.sparse.every_row=true"], r"applies only to Adam; rowwise_adagrad does not move rows"),
    (["optim.dense._target_=torch.optim.Adma"], r"torch.optim has no Adma; did you mean Adam"),
    (["+optim.dense.momentumm=0.9"], r"optim.dense.momentumm: torch.optim.Adam has no such parameter"),
    (["data.root=/nowhere/at/all"], r"data.root=/nowhere/at/all: no such folder or file"),
    (["data.source.files=['*.tsv']"], r"no file matches \*.tsv \(the folder holds a.csv\); set data.source.files"),
    (["data.sparse.user.column=usr"], r"data.sparse.user: a.csv has no column usr; did you mean user\?"),
    (["data.label.column=click"], r"data.label: a.csv has no column click; did you mean clicked\?"),
    (["data.group.by=usr"], r"data.group.by: a.csv has no column usr; did you mean user\?"),
    (["data.group.buy=user"], r"data.group.buy: no such key; did you mean by\?"),
    (["data.sequences.max_length=3"], r"data.sequences: needs data.group"),
    (["data.dense.price.vectors={file: x.npy}"], r"data.dense.price.vectors: no such file: raw/x.npy"),
    (["data.sparse=[user]"], r"^data.sparse: must be a mapping, such as \{a: 1\}, not a list"),
    (["outputs/dcn"], r"^outputs/dcn: must be KEY=VALUE, such as resume=outputs/dcn$"),
    (["data.k_core=user:5"], r"^data.k_core=user:5: must be a mapping, .* in quotes"),
    (["data.split.by=tiem"], r"data.split.by=tiem: must be order, time, random, hash, kfold, files or leave_one_out"),
    (
        ["data.dense.price.fill=medain"],
        r"data.dense.price.fill=medain: must be mean or median; did you mean median\?",
    ),
    (["data.dense.price.transform=[{clip:{uper:1}}]"], r"clip has no option uper; did you mean upper\?"),
    (["data.dense.price.cyclc=[hour]"], r"cyclc: no such key; did you mean cyclic\?"),
    (["data.sparse.user.cross=[user,prise]"], r"data.sparse.user: a.csv has no column prise; did you mean price\?"),
    (["data.dense.price.transform=[lg]"], r"data.dense.price.transform: no transform lg; did you mean log\?"),
    (["data.sparse.user.encode=hahs"], r"data.sparse.user.encode=hahs: unknown; did you mean hash\?"),
    (["data.sparse_defaults.encode=hash"], r"data.sparse.user.buckets: missing; encode=hash needs it"),
    (["resume=/nowhere"], r"resume=/nowhere: is not a run folder"),
    (
        ["checkpoint.monitor=validation/acu"],
        r"checkpoint.monitor=validation/acu: no such metric; did you mean validation/auc",
    ),
    (["trainer.early_stopping.patience.x=1"], r"patience"),
    (["trainer.early_stopping=null"], r"^trainer.early_stopping=null: .*; set trainer.early_stopping.patience=null \("),
    (["data.root=${oc.env:NOSUCHVAR}"], r"^data.root: the environment variable NOSUCHVAR is not set; set it, or"),
    (["loader=null", "loader.shuffle=false"], r"."),
    (["data.dense.price={fill: [}"], r"."),
]


@pytest.mark.few(10)
@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_mistake(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    root = [] if any(o.startswith("data.root") for o in overrides) else ["data.root=raw"]
    status, said = run(monkeypatch, capsys, "data=mine", *root, *overrides)
    assert re.search(message, said), said
    assert status == 2
    assert not (own / "outputs").exists(), "something was written before the mistake was found"


def test_accelerator_that_is_absent(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw", "trainer.accelerator=gpu")
    assert (status, "no GPU was found" in said) == (2, True)


def test_mismatched_triple(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = packages.version
    monkeypatch.setattr(packages, "version", lambda p: "1.5.0" if p == "torchrec" else real(p))
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw")
    assert status == 2
    assert re.search(
        r"torchrec 1\.5.*: these versions are not compatible; run: pip install --no-deps 'torchrec==1\.8", said
    )


def test_run_dir_with_another_config(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data=mine", "data.root=raw", "run_dir=r", "trainer.batch_size=32", "trainer.threads=1"]
    monkeypatch.setattr("sys.argv", ["recsys.train", *command])
    assert command_line.status("train", lambda cfg: train(cfg) and None) == 0
    capsys.readouterr()
    status, said = run(monkeypatch, capsys, *command, "optim.sparse.lr=0.3")
    assert status == 2
    assert said.startswith("run_dir=r: contains a run with another config: optim.sparse.lr is 0.1 there, 0.3 here")
    status, said = run(monkeypatch, capsys, *command, "data.k_core={user: 2}")  # of no keys, here of one
    assert (status, "data.k_core.user is None there, 2 here" in said) == (2, True)


def test_resuming_with_fewer_epochs_than_are_done(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data=mine", "data.root=raw", "trainer.batch_size=32", "trainer.threads=1"]
    monkeypatch.setattr("sys.argv", ["recsys.train", *command, "run_dir=r", "trainer.max_epochs=3"])
    assert command_line.status("train", lambda cfg: train(cfg) and None) == 0
    capsys.readouterr()
    status, said = run(monkeypatch, capsys, *command, "resume=r", "trainer.max_epochs=2")
    assert status == 2
    assert re.search(
        r"trainer.max_epochs=2: r/checkpoints/\S+ has already finished 3 epochs; set trainer.max_epochs=3 or more", said
    )
    monkeypatch.setattr("sys.argv", ["recsys.train", *command, "resume=r", "trainer.max_epochs=3"])
    assert command_line.status("train", lambda cfg: train(cfg) and None) == 0


def test_feature_named_twice_in_yaml(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own / "conf" / "data" / "mine.yaml"
    path.write_text(path.read_text().replace("sparse: {user: {}}", "sparse: {user: {}, user: {}}"))
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw")
    assert (status, "duplicate key user in" in said) == (2, True), said


def test_renamed_key_in_yaml(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Overrides with an old key still work; a file is the user's to change."""
    (own / "conf" / "experiment").mkdir(parents=True)
    (own / "conf" / "experiment" / "old.yaml").write_text("# @package _global_\nranking: {k: [10]}\n")
    status, said = run(monkeypatch, capsys, "experiment=old")
    assert (status, said) == (2, "experiment/old.yaml: ranking: is protocol now; rename it in your YAML file")


def test_feature_named_under_dense_and_sparse(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own / "conf" / "data" / "mine.yaml"
    path.write_text(path.read_text().replace("sparse: {user: {}}", "sparse: {user: {}, price: {}}"))
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw")
    assert (status, said[:51]) == (2, "data: price is both a dense and a sparse feature; g"), said


def test_too_many_bad_rows(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with (own / "raw" / "a.csv").open("a") as f:
        f.write("1,2\n1,cheap,u1\n7,1.0,u1\n")
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw")
    assert status == 2
    assert re.search(
        r"3 of 203 rows cannot be read, more than data.max_bad_rows=0.01: 1 row: .*such as.*a.csv line 202", said
    )
    [bad] = Path("outputs/prepared").glob("*.bad_rows.csv")
    assert re.search(r"line 202|,202,", bad.read_text()) and len(bad.read_text().splitlines()) == 4


def test_nan_loss_names_step_ranges_and_checkpoint(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [])
    status, said = run(
        monkeypatch,
        capsys,
        "data=mine",
        "data.root=raw",
        "run_dir=r",
        "trainer.batch_size=16",
        "trainer.threads=1",
        "optim.dense._target_=torch.optim.SGD",
        "optim.dense.lr=1e30",
        "checkpoint.every_n_steps=1",
    )
    assert status == 2
    assert re.search(
        r"the loss is (nan|inf) at step \d+; ranges of the dense features.*\.\..*last good checkpoint: r/", said
    )


def test_a_full_disk_is_told_in_a_line_whoever_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    log_to(None)
    assert failures.call(lambda: pl.DataFrame({"a": range(100_000)}).write_parquet("/dev/full")) == failures.USER
    assert capsys.readouterr().err == (
        "error: the disk: No space left on device; free space there, then run the same command again\n"
    )


OUT_OF_RANGE = {  # what a config is told of values outside the types of the parameters
    "losses.BCE": [
        "calibration=1.5: must be at most 1",
        "count=0: must be at least 1",
        "negatives='popular': must be uniform, popularity or in_batch; did you mean popularity?",
    ],
    "losses.BPR": [
        "count=-1: must be at least 1",
        "negatives='popular': must be uniform, popularity or in_batch; did you mean popularity?",
    ],
    "losses.BinaryCrossEntropy": [
        "label_smoothing=1: must be below 1",
        "positive_weight=0: must be above 0",
    ],
    "losses.CosineContrastive": [
        "margin=2: must be at most 1",
        "weight=-1: must be at least 0",
        "count=0: must be at least 1",
        "negatives='popular': must be uniform, popularity or in_batch; did you mean popularity?",
    ],
    "losses.CrossEntropy": [
        "label_smoothing=-0.1: must be at least 0",
    ],
    "losses.FocalLoss": [
        "gamma=-1: must be at least 0",
        "alpha=1: must be below 1",
    ],
    "losses.FullSoftmax": [
        "label_smoothing=1: must be below 1",
    ],
    "losses.Huber": [
        "delta=0: must be above 0",
    ],
    "losses.Listwise": [
        "pointwise=1: must be below 1",
    ],
    "losses.Pairwise": [
        "pointwise=1: must be below 1",
        "others=0: must be at least 1",
    ],
    "losses.SampledSoftmax": [
        "hardest=0: must be at least 1",
        "temperature=0: must be above 0",
        "negatives='popular': must be uniform, popularity or in_batch; did you mean popularity?",
    ],
    "losses.Tasks": [
        "alpha=-1: must be at least 0",
        "balance='grad': must be sum, uncertainty or gradnorm; did you mean gradnorm?",
        "weights={'click': -1}: must be at least 0",
    ],
    "models.bert4rec.BERT4Rec": [
        "mask=0: must be above 0",
        "mask=1: must be below 1",
        "mask_last=2: must be at most 1",
        "positions='middle': must be end or start",
        "init='zeros': must be pytorch or normal",
    ],
    "models.dcnv2.DCNv2": [
        "structure='unknown': must be stacked or parallel",
        "rank=0: must be at least 1",
    ],
    "models.dlrm.DLRM": [
        "interaction='unknown': must be dot, cat or cross",
        "dim=0: must be at least 1",
    ],
    "models.ease.EASE": [
        "l2=0: must be above 0",
        "max_items=0: must be at least 1",
    ],
    "models.fibinet.FiBiNET": [
        "bilinear='unknown': must be all, each or interaction",
    ],
    "models.gdcn.GDCN": [
        "structure='unknown': must be parallel or stacked",
    ],
    "models.gru4rec.GRU4Rec": [
        "layers=0: must be at least 1",
        "hidden=0: must be at least 1",
    ],
    "models.hstu.HSTU": [
        "max_length=0: must be at least 1",
    ],
    "models.ials.IALS": [
        "l2=0: must be above 0",
        "unobserved_weight=0: must be above 0",
        "power=2: must be at most 1",
        "stddev=0: must be above 0",
    ],
    "models.item_knn.ItemKNN": [
        "k=0: must be at least 1",
        "shrink=-1: must be at least 0",
    ],
    "models.masknet.MaskNet": [
        "structure='unknown': must be parallel or serial",
    ],
    "models.sasrec.SASRec": [
        "norm='none': must be queries, before or after",
        "init='zeros': must be pytorch or glorot",
    ],
    "models.session_knn.SessionKNN": [
        "k=0: must be at least 1",
        "sample_size=0: must be at least 1",
        "weighting='quadratic': must be linear or none",
        "similarity='jaccard': must be dot or cosine",
    ],
    "models.slim.SLIM": [
        "l1=-1: must be at least 0",
        "l2=0: must be above 0",
        "tolerance=-1: must be at least 0",
    ],
    "models.transformer.Transformer": [
        "merge='mean': must be sum or concat",
        "objective='both': must be causal or masked",
        "block='xl': must be plain or relative",
        "feed_forward='x': must be gelu or swiglu",
        "mask=1: must be below 1",
    ],
    "models.transition.Transition": [
        "item_weight=2: must be at most 1",
        "hop_weight=1.5: must be at most 1",
        "backward=-1: must be at least 0",
        "similar_weight=0: must be above 0",
    ],
}


@pytest.mark.parametrize(("target", "told"), OUT_OF_RANGE.items(), ids=list(OUT_OF_RANGE))
def test_a_parameter_out_of_its_range(target: str, told: list[str]) -> None:
    for message in told:
        key, given = message.partition(": must be")[0].split("=", 1)
        node = {"_target_": f"recsys.{target}", key: ast.literal_eval(given)}
        kind, given_by_caller = ("loss", ()) if target.startswith("losses.") else ("model", ("features",))
        with pytest.raises(UserError, match=f"^{kind}.{re.escape(message)}$"):
            check_target(node, kind, given=given_by_caller)


NEEDS_NO_TORCH = [  # what the config alone shows, with the parts that are not data=mine
    (["model=sasrec", "data=criteo"], r"^data=criteo: this model retrieves items; set data.items.feature"),
    (["data=sample_sequences"], r"^data=sample_sequences: the rows have no label, but this model predicts one"),
    (["data=sample_sequences", "model=sasrec", "~loss"], r"^loss: must be set for this model"),
    (["data=sample_sequences", "model=sasrec", "loss=focal"], r"^loss=.*FocalLoss: this model needs a RetrievalLoss"),
    (["data=sample_sequences", "model=ease", "loss=bpr"], r"^loss=.*BPR: this model is fitted without a loss"),
    (["loss=bpr"], r"^loss=.*BPR: this model needs a RankingLoss, such as loss=binary_cross_entropy; your own loss"),
    (["loss=mse"], r"^loss=.*MSE: is a loss of regression labels; this data has labels of kind binary$"),
    (["loss=pairwise"], r"^loss=.*Pairwise: compares the rows of a group; set data.group.by=COLUMN data.group.tog"),
    (["loss=listwise", "data.group.by=user"], r"^loss=.*Listwise: compares .* group; set data.group.together=true$"),
    (["data=sample_tasks", "loss=tasks", "+loss.losses.click=mse"], r"^loss.losses.click=mse: is a loss of regression"),
    (["data=sample_tasks", "loss=tasks", "+loss.losses.click=focl"], r"^loss.losses.click=focl: .* did you mean focal"),
    (["data=sample_tasks", "loss=tasks", "+loss.losses.clik=mse"], r"^loss.losses.clik: .* did you mean click\?$"),
    (["data=sample_tasks", "loss=tasks", "+loss.weights.clik=1"], r"^loss.weights.clik: .* did you mean click\?$"),
    (["data=sample_tasks", "loss=tasks", "+loss.losses.click=pairwise"], r"^loss=.*Tasks: compares the rows of a gr"),
    (["metrics.gauc=usr"], r"^metrics.gauc=usr: no sparse feature; did you mean user\?"),
    (["metrics.slices=[usr]"], r"^metrics.slices: no feature usr; did you mean user\?"),
    (["calibration=plat"], r"^calibration=plat: must be none, platt or isotonic; did you mean platt\?$"),
    (["resume=runs/nothere"], r"^resume=runs/nothere: is not a run folder"),
    (["resume=auto"], r"^resume=auto: needs run_dir=DIR"),
    (["data.sparse.user={vectors: {file: v.parquet}}"], r"^data.sparse.user.vectors: .* 5 numbers, .*set model.dim=5$"),
    (["data.sparse.user={vectors: {file: v.npy}}", "model=deepfm"], r"vectors have 6 numbers, .* table has 16;"),
    (
        ["data.sparse.user={vectors: {file: v.parquet, trainable: false}}", "optim.sparse.weight_decay=0.1"],
        r"^optim.sparse.weight_decay=0.1: would shrink the table user",
    ),
]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_what_the_config_alone_shows_needs_no_torch(own: Path, every: int) -> None:
    pl.DataFrame({"user": ["u1"], "vector": [[1.0] * 5]}).write_parquet(own / "raw" / "v.parquet")
    np.save(own / "raw" / "v.npy", np.zeros((3, 6), np.float32))
    code = (
        "import json, sys\nfrom recsys.config.compose import compose\nfrom recsys.base.errors import UserError\n"
        "from recsys.job.config_of import config_of\nfrom recsys.training.run import check_raw_files\nsaid = []\n"
        "for overrides in json.loads(sys.argv[1]):\n"
        "    try:\n        said.append(str(check_raw_files(config_of(overrides))))\n"
        "    except UserError as e:\n        said.append(str(e))\n"
        "print(json.dumps([said, 'torch' in sys.modules]))\n"
    )
    mine = ["data=mine", "data.root=raw"]
    overrides = [o if any(x.startswith("data=") for x in o) else [*mine, *o] for o, _ in NEEDS_NO_TORCH[::every]]
    command = [sys.executable, "-c", code, json.dumps(overrides)]
    done = subprocess.run(command, capture_output=True, text=True)
    said, torch = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else pytest.fail(done.stderr)
    for (given, message), one in zip(NEEDS_NO_TORCH[::every], said, strict=True):
        assert re.search(message, one), (given, one)
    assert not torch and not (own / "outputs").exists()


def test_calibration_of_a_loss_within_groups_is_advised_against(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = "data.group={by: user, together: true}"
    cfg = compose("train", ["data=mine", "data.root=raw", group, "loss=pairwise", "calibration=platt"])
    for share, advice in ((0.0, True), (0.3, False)):
        cfg.loss.pointwise = share
        check_raw_files(RunConfig.of(cfg))
        assert ("set loss.pointwise=0.3" in capsys.readouterr().err) == advice


@pytest.mark.parametrize(
    "override",
    ["sharding.per_table.cat_l*.types=[table_wise]", "sharding.per_table.c?t.max_rows=5", "dims.cat_*=8"],
)
def test_the_advice_for_a_glob_in_a_key_is_taken(override: str) -> None:
    with pytest.raises(UserError) as found, command_line.explained([override]):
        compose("train", [override])
    cfg = compose("train", shlex.split(str(found.value).rpartition("; write ")[2]))
    glob = override.partition("=")[0].removeprefix("sharding.per_table.").removeprefix("dims.").partition(".")[0]
    assert cfg.sharding.per_table.rule.match == glob if override.startswith("sharding") else cfg.dims == {glob: 8}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("optim.sparse", "cannot be null; set one of its keys (keys: name, lr, eps, "),
        ("data.split", "cannot be null; set data.split.column=null (keys: by, "),
        ("trainer.max_epochs", "trainer.max_epochs=null: cannot be null; leave it out for the default"),
    ],
)
def test_null_for_a_key_that_cannot_be_null(key: str, expected: str) -> None:
    with pytest.raises(UserError) as found, command_line.explained([f"{key}=null"]):
        compose("train", [f"{key}=null"])
    assert expected in str(found.value)


def test_mistakes_in_a_yaml_file_name_the_file_and_the_line(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own / "conf" / "data" / "mine.yaml"
    for text, expected in (
        ("name: mine\nsource:\n\tformat: csv\n", "conf/data/mine.yaml, line 3: a TAB cannot indent a line in YAML; "),
        ("name: mine\nsource: {format: csv\nlabel: 3\n", "conf/data/mine.yaml, line 3: not YAML: expected ',' or '}'"),
    ):
        path.write_text(text)
        status, said = run(monkeypatch, capsys, "data=mine")
        assert (status, said[: len(expected)]) == (2, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "p.yaml: lacks the schema; let it begin with defaults: [pipeline_schema, _self_]"),
        (b"k: 3", "p.yaml: lacks the schema; let it begin with defaults"),
        (b"a: " + b"[" * 20_000, "p.yaml: is nested too deeply"),
        (b"defaults: [pipeline_schema, _self_]\nk: [\n", "p.yaml, line 3: not YAML: "),
        (b"defaults: [pipeline_schema, _self_]\nk: 1.5\n", "p.yaml: k=1.5: must be a whole number"),
        (b"defaults: [pipeline_schema, _self_]\nsources: []\n", "p.yaml: Cannot merge DictConfig with ListConfig"),
        (b"\xff\xfe", "p.yaml: cannot be read (not text)"),
    ],
)
def test_mistakes_in_the_file_of_a_pipeline(own: Path, text: bytes, expected: str) -> None:
    (own / "p.yaml").write_bytes(text)
    with pytest.raises(UserError) as found, command_line.explained([], "pipeline"):
        compose_file(Path("p.yaml"))
    assert expected in str(found.value)
