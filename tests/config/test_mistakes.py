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
from small_csv import write_mine

from recsys.base import packages
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose, compose_file
from recsys.job.check_built import check_target
from recsys.job.run_config import RunConfig
from recsys.training.run import check_inputs, train


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set of the user's, which is also where commands run."""
    write_mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """(exit status, what standard error says after 'error: ')."""
    monkeypatch.setattr("sys.argv", ["recsys.train", *overrides])
    status = command_line.status("train", lambda cfg: train(cfg) and None)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return status, lines[0].removeprefix("error: ")


MISTAKES = """
model=dlmr | ^model=dlmr: no such choice; did you mean dlrm\\?$
modle=dlrm | ^modle: no such key; did you mean model\\?$
+data.weight=w | ^data.weight: exists already; leave out the \\+
data.weight=w | ^data.weight=w: has keys of its own; did you mean data.weight.column=w\\?$
+data.xyzzy=w | ^data.xyzzy: no such key; valid: dense,
+trainer.batchsize=8 | ^trainer.batchsize: .*batch_size
data.sparse.user.min_cuont=3 | min_cuont: .*min_count
+model.botom_mlp=[8] | ^model.botom_mlp: recsys.models.dlrm.DLRM .*bottom_mlp
loss=focal loss.alpha=1 | ^loss.alpha=1:
data=sample_sequences data.root=null model=sasrec loss.count=0 | ^loss.count=0:
data=sample_tasks data.root=null loss=tasks loss.balance=grad | ^loss.balance='grad': .*gradnorm
data=sample_tasks data.root=null loss=tasks +loss.weights.click=-1 | ^loss.weights=.*click
optim.dense.lr=-1 | ^optim.dense: .*Invalid learning rate: -1
engine.options.spark.x=1 | ^engine.master, engine.options:
optim.sparse.lr=0.1,0.2 | ^optim.sparse.lr=0.1,0.2: several values make a sweep; add -m
sweep=optuna | ^sweep=optuna: applies only to sweeps
model.dim=8 sweep.jobs=2 | ^sweep.jobs=2:
seed=-1 | ^seed=-1:
trainer.precision=17 | ^trainer.precision=17:
schedule=plateau checkpoint.monitor=validation/logloss | ^optim.scheduler.mode=max: .*mode=min$
trainer.early_stopping.monitor=validation/calibration | ^\\S*early_stopping.monitor=validation/calibration:
model=3 | must be a string or a list
model.dim=large | ^model.dim='large':
model=dcn model.dim=18 sharding.padding=off | ^model.dim=18: must be a multiple of 4 .*sharding.padding=16
sharding.padding=32 | ^sharding.padding=32:
model.bottom_mlp=[8,4] | bottom_mlp ends at width 4.*dim=16
model._target_=recsys.models.dlrm.DLMR | recsys.models.dlrm has no DLMR; did you mean DLRM\\?
sharding=columnwise sharding.column_block=6 | ^sharding.column_block=6:
trainer.devices=512 trainer.batch_size=512 | ^trainer.devices=512: there are at most \\d+ processes
trainer.devices=3 | ^trainer.batch_size=2048 is not divisible by 3 processes
optim.sparse.name=adamm | ^optim.sparse.name=adamm: .*adam
optim.sparse.every_row=true | applies only to Adam
optim.dense._target_=torch.optim.Adma | torch.optim has no Adma; did you mean Adam
+optim.dense.momentumm=0.9 | ^optim.dense.momentumm: torch.optim.Adam has no such parameter
data.root=/nowhere/at/all | ^data.root=/nowhere/at/all: no such folder or file
data.root= | ^data.root=: is empty
data.source.files=['*.tsv'] | no file matches \\*.tsv \\(the folder holds a.csv\\)
data.sparse.user.column=usr | ^data.sparse.user: a.csv has no column usr; did you mean user\\?;
data.label.column=click | ^data.label: .*clicked
data.group.by=usr | ^data.group.by: .*user
data.sequences.max_length=3 | ^data.sequences: needs data.group
data.dense.price.vectors={file:x.npy} | ^data.dense.price.vectors: no such file: raw/x.npy
data.sparse=[user] | ^data.sparse: must be a mapping
outputs/dcn | ^outputs/dcn: must be KEY=VALUE, such as resume=outputs/dcn$
data.k_core=user:5 | ^data.k_core=user:5: must be a mapping
data.split.by=tiem | ^data.split.by=tiem:
data.dense.price.fill=medain | ^data.dense.price.fill=medain: .*median
data.dense.price.transform=[{clip:{uper:1}}] | clip has no option uper; did you mean upper\\?
data.dense.price.transform=[lg] | ^data.dense.price.transform: .*log
data.sparse.user.cross=[user,prise] | ^data.sparse.user: .*price
data.sparse.user.encode=hahs | ^data.sparse.user.encode=hahs: .*hash
data.sparse_defaults.encode=hash | ^data.sparse.user.buckets: missing
resume=/nowhere | ^resume=/nowhere: is not a run folder
resume= | ^resume=: is empty
checkpoint.monitor=validation/acu | ^checkpoint.monitor=validation/acu: .*validation/auc
trainer.early_stopping=null | ^trainer.early_stopping=null: .*; set trainer.early_stopping.patience=null \\(
data.root=${oc.env:NOSUCHVAR} | ^data.root: the environment variable NOSUCHVAR is not set
run_dir=raw/a.csv/run/1 | ^run_dir=raw/a.csv/run/1: .*/raw/a.csv is not a folder
run_dir=/proc/run | ^run_dir=/proc/run: cannot be written
data.prepared=/proc/p | ^data.prepared=/proc/p: cannot be written
run_dir=LONG | ^run_dir=x{77}\\.\\.\\.: .* is longer than 255 bytes
run_dir=. | ^run_dir=.: contains the raw files
run_dir=raw | ^run_dir=raw: contains the raw files
data.prepared=raw | ^data.prepared=raw: is data.root, the folder of raw files
loader=null loader.shuffle=false | .
data.dense.price={fill:[} | .
"""


def lines(table: str) -> list[list[str]]:
    """Return the cells of a table: overrides, and the beginning of the message."""
    return [line.split(" | ") for line in table.strip("\n").replace("LONG", "x" * 300).split("\n")]


@pytest.mark.few(10)
@pytest.mark.parametrize(("overrides", "message"), lines(MISTAKES), ids=[o[:60] for o, _ in lines(MISTAKES)])
def test_mistake(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], overrides: str, message: str
) -> None:
    root = [] if "data.root" in overrides else ["data.root=raw"]
    before = sorted(own.rglob("*"))
    status, said = run(monkeypatch, capsys, "data=mine", *root, *overrides.split(" "))
    assert re.search(message, said), said
    assert status == 2
    assert sorted(own.rglob("*")) == before, "something was written before the mistake was found"


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


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("sparse: {user: {}}", "sparse: {user: {}, user: {}}", "duplicate key user in "),
        ("sparse: {user: {}}", "sparse: {user: {}, price: {}}", "data: price is both a dense and a sparse feature"),
        ("source: {", "source:\n\t{", "conf/data/mine.yaml, line 3: a TAB cannot indent a line in YAML"),
        ("'*.csv']}", "'*.csv']", "conf/data/mine.yaml, line 3: not YAML: expected ',' or '}'"),
    ],
)
def test_mistakes_in_a_yaml_file(
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    message: str,
) -> None:
    path = own / "conf" / "data" / "mine.yaml"
    path.write_text(path.read_text().replace(before, after))
    status, said = run(monkeypatch, capsys, "data=mine", "data.root=raw")
    assert (status, said[: len(message)]) == (2, message)


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
    data = ["data=mine", "data.root=raw", "run_dir=r", "trainer.batch_size=16", "trainer.threads=1"]
    far = ["optim.dense._target_=torch.optim.SGD", "optim.dense.lr=1e30", "checkpoint.every_n_steps=1"]
    status, said = run(monkeypatch, capsys, *data, *far)
    assert status == 2
    assert re.search(r"the loss is (nan|inf) at step \d+; ranges of the dense features.*last good checkpoint: r/", said)


OUT_OF_RANGE = """
losses.BCE calibration=1.5 count=0 negatives='popular'
losses.BPR count=-1 negatives='popular'
losses.BinaryCrossEntropy label_smoothing=1 positive_weight=0
losses.CosineContrastive margin=2 weight=-1 count=0 negatives='popular'
losses.CrossEntropy label_smoothing=-0.1
losses.FocalLoss gamma=-1 alpha=1
losses.FullSoftmax label_smoothing=1
losses.Huber delta=0
losses.Listwise pointwise=1
losses.Pairwise pointwise=1 others=0
losses.SampledSoftmax hardest=0 temperature=0 negatives='popular'
losses.Tasks alpha=-1 balance='grad' weights={'click':-1}
models.bert4rec.BERT4Rec mask=0 mask=1 mask_last=2 positions='middle' init='zeros'
models.dcnv2.DCNv2 structure='unknown' rank=0
models.dlrm.DLRM interaction='unknown' dim=0
models.ease.EASE l2=0 max_items=0
models.fibinet.FiBiNET bilinear='unknown'
models.gdcn.GDCN structure='unknown'
models.gru4rec.GRU4Rec layers=0 hidden=0
models.hstu.HSTU max_length=0
models.ials.IALS l2=0 unobserved_weight=0 power=2 stddev=0
models.item_knn.ItemKNN k=0 shrink=-1
models.masknet.MaskNet structure='unknown'
models.sasrec.SASRec norm='none' init='zeros'
models.session_knn.SessionKNN k=0 sample_size=0 weighting='quadratic' similarity='jaccard'
models.slim.SLIM l1=-1 l2=0 tolerance=-1
models.transformer.Transformer merge='mean' objective='both' block='xl' feed_forward='x' mask=1
models.transition.Transition item_weight=2 hop_weight=1.5 backward=-1 similar_weight=0
"""


@pytest.mark.parametrize("line", OUT_OF_RANGE.split("\n")[1:-1])
def test_a_parameter_out_of_its_range(line: str) -> None:
    target, *wrong = line.split(" ")
    kind, given_by_caller = ("loss", ()) if target.startswith("losses.") else ("model", ("features",))
    for key, value in (w.split("=") for w in wrong):
        node = {"_target_": f"recsys.{target}", key: ast.literal_eval(value)}
        with pytest.raises(UserError, match=f"^{kind}.{key}=.*: must be "):
            check_target(node, kind, given=given_by_caller)


NEEDS_NO_TORCH = """
model=sasrec data=criteo | ^data=criteo: this model retrieves items; set data.items.feature
data=sample_sequences | ^data=sample_sequences: the rows have no label, but this model predicts one
data=sample_sequences model=sasrec ~loss | ^loss: must be set for this model
data=sample_sequences model=sasrec loss=focal | ^loss=.*FocalLoss: this model needs a RetrievalLoss
data=sample_sequences model=ease loss=bpr | ^loss=.*BPR: this model is fitted without a loss
loss=bpr | ^loss=.*BPR: this model needs a RankingLoss
loss=mse | ^loss=.*MSE: is a loss of regression labels
loss=pairwise | ^loss=.*Pairwise: compares the rows of a group
loss=listwise data.group.by=user | ^loss=.*Listwise: .*set data.group.together=true$
data=sample_tasks loss=tasks +loss.losses.click=mse | ^loss.losses.click=mse: is a loss of regression
data=sample_tasks loss=tasks +loss.losses.click=focl | ^loss.losses.click=focl: .*focal
data=sample_tasks loss=tasks +loss.losses.clik=mse | ^loss.losses.clik: .*click
data=sample_tasks loss=tasks +loss.weights.clik=1 | ^loss.weights.clik: .*click
data=sample_tasks loss=tasks +loss.losses.click=pairwise | ^loss=.*Tasks: compares the rows of a gr
metrics.gauc=usr | ^metrics.gauc=usr: .*user
metrics.slices=[usr] | ^metrics.slices: .*user
calibration=plat | ^calibration=plat: .*platt
resume=auto | ^resume=auto: needs run_dir=DIR
data.sparse.user={vectors:{file:v.parquet}} | ^data.sparse.user.vectors: .* 5 numbers, .*set model.dim=5$
data.sparse.user={vectors:{file:v.npy}} model=deepfm | vectors have 6 numbers, .* table has 16;
data.sparse.user={vectors:{file:v.parquet,trainable:false}} optim.sparse.weight_decay=0.1 | ^optim.sparse.weight_decay
"""


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_what_the_config_alone_shows_needs_no_torch(own: Path, every: int) -> None:
    pl.DataFrame({"user": ["u1"], "vector": [[1.0] * 5]}).write_parquet(own / "raw" / "v.parquet")
    np.save(own / "raw" / "v.npy", np.zeros((3, 6), np.float32))
    code = (
        "import json, sys\nfrom recsys.config.compose import compose\nfrom recsys.base.errors import UserError\n"
        "from recsys.job.config_of import config_of\nfrom recsys.training.run import check_inputs\nsaid = []\n"
        "for overrides in json.loads(sys.argv[1]):\n"
        "    try:\n        said.append(str(check_inputs(config_of(overrides))))\n"
        "    except UserError as e:\n        said.append(str(e))\n"
        "print(json.dumps([said, 'torch' in sys.modules]))\n"
    )
    rows, mine = lines(NEEDS_NO_TORCH)[::every], ["data=mine", "data.root=raw"]
    overrides = [[*([] if " data=" in f" {o}" else mine), *o.split(" ")] for o, _ in rows]
    command = [sys.executable, "-c", code, json.dumps(overrides)]
    done = subprocess.run(command, capture_output=True, text=True)
    said, torch = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else pytest.fail(done.stderr)
    for (given, message), one in zip(rows, said, strict=True):
        assert re.search(message, one), (given, one)
    assert not torch and not (own / "outputs").exists()


def test_calibration_of_a_loss_within_groups_is_advised_against(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = "data.group={by: user, together: true}"
    cfg = compose("train", ["data=mine", "data.root=raw", group, "loss=pairwise", "calibration=platt"])
    for share, advice in ((0.0, True), (0.3, False)):
        cfg.loss.pointwise = share
        check_inputs(RunConfig.of(cfg))
        assert ("set loss.pointwise=0.3" in capsys.readouterr().err) == advice


@pytest.mark.parametrize(
    "override", ["sharding.per_table.cat_l*.types=[table_wise]", "sharding.per_table.c?t.max_rows=5", "dims.cat_*=8"]
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"k: 3", "p.yaml: lacks the schema; let it begin with defaults"),
        (b"a: " + b"[" * 20_000, "p.yaml: is nested too deeply"),
        (b"defaults: [pipeline_schema, _self_]\nk: [\n", "p.yaml, line 3: not YAML: "),
        (b"defaults: [pipeline_schema, _self_]\nk: 1.5\n", "p.yaml: k=1.5: must be a whole number"),
        (b"\xff\xfe", "p.yaml: cannot be read (not text)"),
    ],
)
def test_mistakes_in_the_file_of_a_pipeline(own: Path, text: bytes, expected: str) -> None:
    (own / "p.yaml").write_bytes(text)
    with pytest.raises(UserError) as found, command_line.explained([], "pipeline"):
        compose_file(Path("p.yaml"))
    assert expected in str(found.value)
