"""Schedules, clipping, averages, accumulation, validation in mid-epoch, time limits, debug runs: on the sample."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from checkpoint_states import state as weights

from recsys.base.console import results
from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.job.check_built import check_job
from recsys.online.predictor import Predictor
from recsys.training.callbacks import StopEarly
from recsys.training.combined_optimizer import split_parameters
from recsys.training.ema import Ema
from recsys.training.evaluate_run import evaluate
from recsys.training.results import show_tables
from recsys.training.run import train
from recsys.training.run_dir import write_manifest
from recsys.training.schedules import warmup_cosine, warmup_polynomial

ROWS = 4000
ALL = [  # every comfort at once
    *("schedule=polynomial", "optim.scheduler.warmup_steps=5", "optim.scheduler.decay_steps=40"),
    *("optim.ema=0.9", "optim.clip_norm=0.5", "trainer.accumulate=2"),
    *("trainer.validate_every_n_steps=10", "trainer.max_epochs=3", "trainer.log_every_n_steps=2"),
    *("checkpoint.keep_best=3", "checkpoint.keep_last=2", "checkpoint.every_n_steps=4"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comforts")


def run(home: Path, name: str, *more: str) -> Any:
    sample = [f"data.sample.rows={ROWS}", f"data.prepared={home / 'prepared'}", "trainer.batch_size=128"]
    where = [] if any(m.startswith("resume=") for m in more) else [f"run_dir={home / name}"]
    return train(compose("train", [*sample, "trainer.threads=1", *where, *more]))


def dense(names: Any) -> list[str]:
    return [n for n in names if n.startswith("/model/") and "embeddings" not in n]


def factors(make: Any, steps: int, **kwargs: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimizer, **kwargs)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_schedules_are_their_formulas() -> None:
    """MLPerf's: lr * step / warmup; lr; lr * ((end - step) / decay_steps)^2."""
    found = factors(warmup_polynomial, 12, warmup_steps=4, decay_start_step=6, decay_steps=4)
    decay = [1.0, 0.75**2, 0.5**2, 0.25**2, 0, 0]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, *decay])
    assert factors(warmup_polynomial, 3, total_steps=2, power=1) == pytest.approx([1, 0.5, 0])
    cosine = factors(warmup_cosine, 5, warmup_steps=1, end=0.2, total_steps=5)
    assert cosine == pytest.approx([1, *(0.2 + 0.4 * (1 + math.cos(math.pi * i / 4)) for i in range(4))])
    with pytest.raises(ValueError, match=r"decay_start_step=1: must be at least warmup_steps=2"):
        factors(warmup_polynomial, 1, warmup_steps=2, decay_start_step=1)


def test_average_of_weights() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    ema = Ema({"w": w}, 0.9)
    expected = torch.zeros(2)
    for step in range(1, 30):
        with torch.no_grad():
            w += step
        ema.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * w.detach()
    raw = w.detach().clone()
    ema.swap()
    assert torch.allclose(w, expected)
    ema.swap()
    assert torch.equal(w, raw)


def test_a_resumed_run_is_the_whole_one(home: Path, tmp_path: Path) -> None:
    whole = run(home, "whole", *ALL)
    run(home, "part", *ALL, "trainer.max_steps=13")
    assert len(list((home / "part").glob("checkpoints/step-*"))) == 2
    part = run(home, "part", *ALL, f"resume={home / 'part'}")
    a, b = weights(whole.path, tmp_path / "a"), weights(part.path, tmp_path / "b")
    assert a.keys() == b.keys() and a
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert part.metrics["test"] == whole.metrics["test"]
    assert 1 <= len(list((home / "whole").glob("checkpoints/best-*"))) <= 3
    assert len(list((home / "whole").glob("checkpoints/step-*"))) == 2
    steps = pl.read_csv(home / "whole" / "metrics.csv")
    validated = steps.filter(pl.col("validation/auc").is_not_null())
    assert validated.height - 1 == 3 * (25 // 10)  # and once more in the end, of the best checkpoint
    assert steps["train/lr_factor"].drop_nulls().max() == pytest.approx(1)
    assert steps["train/grad_norm"].drop_nulls().len() > 5
    again = pl.read_csv(home / "part" / "metrics.csv")
    assert again["train/loss"].drop_nulls().to_list() == steps["train/loss"].drop_nulls().to_list()


def test_what_predicts_is_the_average(home: Path) -> None:
    """Evaluated and predicted in processes that know nothing of training, and unlike the weights themselves."""
    path = home / "whole"
    told = json.loads((path / "metrics.json").read_text())["test"]
    assert evaluate(str(path))["test"] == pytest.approx(told)
    predictor = Predictor.load(str(path))
    ours, _ = split_parameters(predictor.module.dmp, predictor.module.sharded.plan)
    state = torch.load(max(path.glob("checkpoints/best-*")) / "state.pt", weights_only=False)
    assert all(torch.equal(ours[name], average) for name, average in state["ema"]["average"].items())
    kept = pl.read_parquet(path / "test_predictions.parquet")
    assert kept["row"].to_list() == list(range(ROWS // 10))
    assert kept["label"].mean() == pytest.approx(kept["probability"].mean() / told["calibration"], rel=1e-5)


def test_ids_of_other_data_are_refused(home: Path, tmp_path: Path) -> None:
    """Weights of rows that now stand for other values would give wrong figures without a word."""
    other = tmp_path / "other"
    shutil.copytree(home / "whole", other)
    file = other / "vocabularies" / "cat_3.parquet"
    pl.read_parquet(file).reverse().write_parquet(file)
    write_manifest(other)
    with pytest.raises(
        UserError, match=r"other: table cat_3 was trained with different ids than those in .* Train again"
    ):
        evaluate(str(other))
    with pytest.raises(UserError, match=r"other: table cat_3 was trained with different ids than"):
        run(home, "other", *ALL, f"resume={other}")


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", pytest.param("adam", marks=pytest.mark.slow)])
def test_accumulated_batches_are_one(home: Path, tmp_path: Path, optimizer: str) -> None:
    """Two batches of 64 and one of 128 are the same rows: dense weights, tables and tables' states end alike."""
    fixed = ["optim.dense._target_=torch.optim.SGD", "optim.dense.lr=0.1", "loader.shuffle=false"]
    fixed += [f"optim.sparse.name={optimizer}", "optim.sparse.lr=0.01", "optim.sparse.eps=0.001"]
    run(home, f"one-{optimizer}", *fixed)
    run(home, f"two-{optimizer}", *fixed, "trainer.batch_size=64", "trainer.accumulate=2")
    a = weights(home / f"one-{optimizer}", tmp_path / "a")
    b = weights(home / f"two-{optimizer}", tmp_path / "b")
    assert len(dense(a)) > 5 and sum("embeddings" in k for k in a) > 26
    tensors = [k for k in a if k.startswith(("/model/", "/tables."))]
    assert {k for k in b if k.startswith(("/model/", "/tables."))} == set(tensors)
    # Adam divides small gradients by their own size, so that rounding moves a weight by a hundredth of a step of 0.01
    atol = {"rowwise_adagrad": 1e-5, "adam": 2e-4}[optimizer]
    for k in tensors:
        assert torch.allclose(a[k], b[k], atol=atol), k
    kernels = {t["kernel"] for t in json.loads((home / f"two-{optimizer}" / "plan.json").read_text())["tables"]}
    assert kernels == {"dense"}


@pytest.mark.slow
def test_average_with_batch_normalisation(home: Path, tmp_path: Path) -> None:
    """EMA averages the statistics of batch normalisation too; the checkpoint measures the same when it is loaded."""
    done = run(home, "normalised", "model.batch_norm=true", "optim.ema=0.8")
    state = torch.load(max((home / "normalised").glob("checkpoints/step-*")) / "state.pt", weights_only=False)
    averaged = [n for n in state["ema"]["average"] if n.endswith(("running_mean", "running_var"))]
    assert averaged and all(torch.isfinite(state["ema"]["average"][n]).all() for n in averaged)
    live = weights(home / "normalised", tmp_path / "w")
    means = [live[k] for k in live if k.endswith("running_mean")]
    assert not torch.allclose(means[0], state["ema"]["average"][averaged[0]], atol=1e-4)  # an average lags behind
    again = evaluate(str(done.path))
    assert again["test"]["logloss"] == pytest.approx(done.metrics["test"]["logloss"], abs=1e-6)


@pytest.mark.slow
def test_clipped_to_nothing_nothing_moves(home: Path, tmp_path: Path) -> None:
    run(home, "still", "optim.dense._target_=torch.optim.SGD", "optim.clip_norm=1e-12", "trainer.max_steps=3")
    run(home, "less", "optim.dense._target_=torch.optim.SGD", "optim.clip_norm=1e-12", "trainer.max_steps=1")
    a, b = weights(home / "still", tmp_path / "a"), weights(home / "less", tmp_path / "b")
    assert all(torch.allclose(a[k], b[k], atol=1e-9) for k in dense(a))
    with pytest.raises(
        UserError, match=r"optim\.sparse\.clip=0\.1: applies only to FBGEMM's fused kernels, which 26 tables"
    ):
        run(home, "adam", "optim=adam", "optim.sparse.clip=0.1")


def test_rates_of_tables_follow_the_schedule(home: Path, tmp_path: Path) -> None:
    """From step 1 on the factor is 0: neither dense weights nor tables move any more."""
    plain = ["optim.dense._target_=torch.optim.SGD", "optim.sparse.name=sgd", "schedule=polynomial"]
    for name, steps in {"first": 1, "later": 6}.items():
        run(home, name, *plain, "optim.scheduler.decay_steps=1", f"trainer.max_steps={steps}")
    a, b = weights(home / "first", tmp_path / "a"), weights(home / "later", tmp_path / "b")
    assert all(torch.equal(a[k], b[k]) for k in a) and any("embeddings" in k for k in a)


def test_training_stops_when_validation_no_longer_improves(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a learning rate of nearly 0, the first validation is the best."""
    rates = ["optim.sparse.lr=1e-30", "optim.dense.lr=1e-30"]
    made = run(home, "until_best", "trainer=until_best", *rates)
    said = capsys.readouterr().err
    assert "stopped after epoch 4: validation/auc has not improved for 3 validations" in said
    assert made.metrics["protocol"]["checkpoint"].endswith("best-00000025")  # of the first epoch
    shown = f"validation/auc {made.metrics['validation']['auc']:.5f}"
    assert said.count(f"  {shown} (the best so far)") == 1 and said.count(f"(best: {shown[-7:]} after step 25)") == 3
    assert f"  {shown} (the best so far)" in (home / "until_best" / "train.log").read_text()
    run(home, "all_epochs", "trainer.max_epochs=2", "data.split.validation=0", *rates)
    assert "all 2 epochs are trained; to stop early, set data.split.validation" in capsys.readouterr().err


def test_a_training_that_stops_within_its_first_epoch_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["trainer.max_epochs=2", "trainer.validate_every_n_steps=2", "trainer.early_stopping.patience=1"]
    run(home, "stops_early", *more, "optim.sparse.lr=1e-30", "optim.dense.lr=1e-30")
    assert "stopped after epoch 1: validation/auc has not improved for 1 validations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "steps", "best"),
    [
        (["trainer.max_epochs=4", "trainer.validate_from=0.5"], [50, 75, 100], "best-00000050"),
        (["trainer.max_steps=20", "trainer.validate_every_n_steps=4", "trainer.validate_from=0.5"], [12, 16, 20], None),
        (["trainer.max_steps=9", "trainer.validate_every_n_steps=3", "trainer.validate_from=0.1"], [3, 6, 9], None),
        (
            ["trainer.max_steps=24", "trainer.validate_every_n_steps=20", "trainer.validate_from=0.9"],
            [],
            "step-00000024",
        ),
        (
            ["trainer.max_epochs=2", "trainer.validate_every_n_steps=2", "trainer.early_stopping.patience=2"]
            + ["trainer.validate_from=0.5"],
            [26, 28, 30],
            "best-00000026",
        ),
    ],
)
def test_validations_begin_late(
    home: Path, tmp_path: Path, more: list[str], steps: list[int], best: str | None
) -> None:
    """With a learning rate of nearly 0, the first validation that is made is the best, and patience counts from it."""
    made = run(home, str(tmp_path / "late"), "optim.sparse.lr=1e-30", "optim.dense.lr=1e-30", *more)
    rows = pl.read_csv(made.path / "metrics.csv")
    validated = rows.filter(pl.col("validation/auc").is_not_null())["step"].to_list()[:-1]  # the last one after it
    assert [step + 1 for step in validated] == steps
    assert made.metrics["protocol"]["checkpoint"] == (best or f"best-{steps[0]:08}")
    assert made.metrics["validation"]["rows"] == ROWS // 10


def test_a_metric_of_nan_stops_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    stop: Any = StopEarly("validation/auc", 1)
    trainer = SimpleNamespace(callback_metrics={"validation/auc": torch.tensor(torch.nan)}, should_stop=False)
    for _ in range(3):
        stop.on_validation_end(trainer, None)
    stop.on_train_end(trainer, None)
    said = capsys.readouterr().err
    assert not trainer.should_stop and said.count("validation/auc is not a number") == 1 and "stopped" not in said


def test_metrics_that_are_too_many_for_the_width_are_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {s: {"auc": 0.75, "logloss": 0.5, "rows": 1000} for s in ("test", "validation")}
    for width, first in ((120, "auc"), (40, "test")):
        monkeypatch.setattr(results, "_width", width)
        show_tables(splits)
        head, *lines = (line for line in capsys.readouterr().out.splitlines() if line[0] in "┃│")
        assert head.split()[2] == first
        assert len(lines) == (2 if first == "auc" else 3) and all("…" not in line for line in lines)
    lists = {"ndcg@5": 1.0, "hr@5": 1.0, "diversity@5": math.nan, "novelty@5": math.nan, "targets": 1, "rows": 1}
    show_tables({"test": lists})  # of lists without items
    shown = capsys.readouterr().out
    assert "ndcg" in shown.lower() and "nan" not in shown and "diversity" not in shown


@pytest.mark.slow
def test_time_is_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run(
        home,
        "short",
        "trainer.max_epochs=10000",
        "trainer.early_stopping.patience=null",
        "trainer.max_time=00:00:00:03",
    )
    assert "trainer.max_time is over: stopping training at step" in capsys.readouterr().err
    assert 20 <= made.metrics["train"]["steps"] < 10_000
    assert made.metrics["test"]["rows"] == ROWS // 10
    [last] = (home / "short").glob("checkpoints/step-*")
    assert int(last.name[-8:]) == made.metrics["train"]["steps"]


@pytest.mark.slow
def test_debug(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = run(home, "fast", "debug=fast", "trainer.eval_batch_size=50").metrics
    assert fast["train"]["steps"] == 20 and fast["test"]["rows"] == 250
    assert fast["protocol"]["metrics"] == "of its first batches alone"
    run(home, "overfit", "debug=overfit", "trainer.max_epochs=60", "metrics.slices=[cat_1]")
    assert "in 60 steps: it learns" in capsys.readouterr().err
    run(home, "profile", "debug=profile")
    shown = capsys.readouterr()
    assert "slowest operators of a step" in shown.out and "recsys.backward" in shown.out
    assert (home / "profile" / "profile" / "trace.json.gz").stat().st_size > 10_000
    time = fast["train"]["time"]
    assert time.keys() == {"loader", "forward", "backward", "optimizer"}
    assert 0.2 < sum(time.values()) < 1.05


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.max_time=00:00:00:00", r"trainer\.max_time=00:00:00:00: leaves no time to train"),
        ("trainer.max_time=90m", r"trainer\.max_time=90m: must have the form DD:HH:MM:SS"),
        ("metrics.gauc=cat1", r"metrics\.gauc=cat1: no sparse feature; did you mean cat_1\?"),
        ("metrics.slices=[nothing_there]", r"metrics\.slices: no feature nothing_there"),
        (
            "+optim.scheduler._target_=torch.optim.lr_scheduler.StepLR +optim.scheduler.step_size=1 trainer.validate_from=0.5",
            r"trainer\.validate_from=0\.5: optim\.scheduler steps once per validation",
        ),
        ("schedule=plateau optim.interval=step", r"optim\.interval=step: schedule=plateau steps once per validation"),
        ("schedule=cosine optim.scheduler.warmup_steps=-1", r"optim\.scheduler\.warmup_steps=-1: must be at least 0"),
    ],
)
def test_mistakes(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_job(compose("train", override.split()))


def test_validations_between_steps() -> None:
    with pytest.raises(UserError, match=r"validate_every_n_steps=5: must be a multiple of trainer\.accumulate=2"):
        check_job(compose("train", ["trainer.accumulate=2", "trainer.validate_every_n_steps=5"]))


def test_a_schedule_that_cannot_be() -> None:
    wrong = ["schedule=polynomial", "optim.scheduler.warmup_steps=5", "optim.scheduler.decay_start_step=1"]
    with pytest.raises(UserError, match=r"optim\.scheduler: decay_start_step=1: must be at least warmup_steps=5"):
        check_job(compose("train", wrong))


@pytest.mark.slow  # test_a_resumed_run_is_the_whole_one stays
@pytest.mark.parametrize("steps", [7, 30])
def test_stopped_in_mid_epoch_it_goes_on_there(home: Path, tmp_path: Path, steps: int) -> None:
    """25 steps an epoch: neither the rest of the epoch nor its validation is lost."""
    name = f"stopped-{steps}"
    whole = run(home, f"{name}-not", "trainer.max_epochs=2")
    run(home, name, "trainer.max_epochs=2", f"trainer.max_steps={steps}")
    part = run(home, name, "trainer.max_epochs=2", f"resume={home / name}")
    assert part.metrics["train"]["steps"] == whole.metrics["train"]["steps"] == 50
    assert part.metrics["train"]["samples"] == whole.metrics["train"]["samples"]
    assert part.metrics["test"] == whole.metrics["test"]
    a, b = weights(whole.path, tmp_path / "a"), weights(part.path, tmp_path / "b")
    assert all(torch.equal(a[k], b[k]) for k in a)
    again = run(home, name, "trainer.max_epochs=2", f"resume={home / name}")  # at its end
    assert again.metrics["test"] == whole.metrics["test"] and again.metrics["train"]["time"] == {}


def test_a_schedule_is_told_how_long_training_is() -> None:
    check_job(compose("train", ["optim.scheduler={_target_: torch.optim.lr_scheduler.OneCycleLR, max_lr: 0.1}"]))


def test_a_command_whose_outputs_are_closed(tmp_path: Path) -> None:
    """As jobs of cron may start it."""
    command = f"{sys.executable} -m recsys.feature_store get definition=none.yaml store=sqlite:///s.db keys=[u]"
    for closed, said in ((">&-", "error: definition=none.yaml: no such file"), (">&- 2>&-", "")):
        done = subprocess.run(f"{command} {closed}", shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (2, said)
