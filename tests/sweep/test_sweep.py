"""Which runs a sweep starts, how it is told of their ends, and what is left of it when it is killed."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faked
import pytest

from recsys.sweep import begin, command, processes, record, schedule
from recsys.sweep.watch import validations

FAKED = [sys.executable, str(Path(faked.__file__))]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for module, name, value in faked.PARTS:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(processes, "GRACE_SECONDS", 2.0)
    monkeypatch.setattr(schedule, "POLL_SECONDS", 0.02)


def sweep(*arguments: str) -> int:
    return begin.begin([*arguments, "run_dir=s"])


def found() -> Any:
    return record.load(Path("s"))


def calls(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path("s") / run / "calls.jsonl").read_text().splitlines()]


def sweeps(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """python -m recsys.sweep ARGUMENTS"""
    monkeypatch.setattr("sys.argv", ["recsys.sweep", *arguments])
    with pytest.raises(SystemExit) as e:
        command.main()
    return int(e.value.code or 0)


def until(true: Callable[[], Any], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_grid_has_every_combination_and_its_table_the_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("model.dim=8,16", "optim.sparse.lr=range(0.1,0.3,0.1)", "trainer.threads=1") == 0
    got = found()
    assert [t.values for t in got.trials] == [
        {"model.dim": d, "optim.sparse.lr": lr} for d in ("8", "16") for lr in ("0.1", "0.2")
    ]
    assert calls("3")[0]["arguments"] == ["model.dim=16", "optim.sparse.lr=0.2", "trainer.threads=1", "run_dir=s/3"]
    assert calls("0")[0]["RECSYS_SWEEP"] == "s"
    assert calls("0")[0]["RECSYS_RUN_NAME"] == "s/0"
    out = capsys.readouterr()
    assert re.findall(r"│ +(\d) │ (?:8|16)", out.out) == ["1", "3", "0", "2"]
    assert "trial 1 starts: model.dim=8 optim.sparse.lr=0.2 -> s/1" in out.err
    assert re.search(r"trial 1 ok, validation/auc 0.70000 \(\d+ s\)", out.err)
    assert "4 of 4 trials succeeded" in out.err


def test_points_of_an_own_yaml_are_combined_with_axes() -> None:
    Path("conf/sweep").mkdir(parents=True)
    points = '[[model=dlrm, model.dim=16, "model.top_mlp=[64]"], [model=wukong, model.dim=8]]'
    Path("conf/sweep/sizes.yaml").write_text(f"defaults: [grid]\npoints: {points}\n")
    assert sweep("sweep=sizes", "optim.sparse.lr=0.1,0.2") == 0
    assert [calls(n)[0]["arguments"][:-1] for n in "0123"] == [
        [*point, f"optim.sparse.lr={lr}"]
        for point in (["model=dlrm", "model.dim=16", "model.top_mlp=[64]"], ["model=wukong", "model.dim=8"])
        for lr in ("0.1", "0.2")
    ]


def test_a_failed_and_a_killed_trial_are_told_and_stop_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep("model.dim=13,17,8") == 137
    assert [t.status for t in found().trials] == ["failed", "killed", "ok"]
    out = capsys.readouterr()
    assert "trial 0 failed (2): 13 is no good" in out.err
    assert "trial 1 killed by signal 9" in out.err
    assert "1 of 3 trials succeeded, 1 failed, 1 killed" in out.err
    assert sweeps(monkeypatch, "status", "s") == 0
    out = capsys.readouterr()
    assert "failed (2): 13 is no good" in out.out and "killed by signal 9" in out.out
    assert sweeps(monkeypatch, "resume", "s") == 137  # tries both again; 13 goes well where it goes on
    assert [t.status for t in found().trials] == ["ok", "killed", "ok"]
    assert [c["arguments"][-1] for c in calls("0")] == ["run_dir=s/0", "resume=auto"]
    assert len(calls("2")) == 1


def test_a_metric_that_is_not_defined_names_one_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("model.dim=8", "sweep.metric=test/pr_auc") == 1
    assert "sweep.metric=test/logloss" in capsys.readouterr().err
    assert found().trials[0].runs[0].metrics["test/logloss"] == 0.3


def test_seeds_are_no_axis_but_runs_of_every_trial(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep("optim.sparse.lr=0.1,0.2", "seed=0,1,4") == 0
    trials = found().trials
    assert [[r.folder for r in t.runs] for t in trials] == [[f"{n}/seed-{s}" for s in (0, 1, 4)] for n in range(2)]
    assert calls("1/seed-4")[0]["arguments"] == ["optim.sparse.lr=0.2", "seed=4", "run_dir=s/1/seed-4"]
    values = [0.7, 0.8, 1.1]
    assert trials[1].mean["validation/auc"] == pytest.approx(statistics.fmean(values))
    assert trials[1].deviation["validation/auc"] == pytest.approx(statistics.stdev(values))
    out = capsys.readouterr()
    assert "0.86667 ± 0.20817" in out.out
    assert "trial 1, 3 seeds: validation/auc 0.86667 ± 0.20817" in out.err
    half = 4.3026527 * statistics.stdev(values) / 3**0.5  # Student's t with two degrees of freedom
    assert f"mean {statistics.fmean(values) - half:.5f} to {statistics.fmean(values) + half:.5f}" in out.err
    assert sweeps(monkeypatch, "best", "s") == 0
    out = capsys.readouterr()
    assert "python -m recsys.train -m optim.sparse.lr=0.2 seed=0,1,4" in out.out


def test_folds_repeat_a_trial_as_seeds_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("data.split.by=time", "data.split.column=a", "data.split.origins=2", "data.split.fold=0,1") == 0
    [trial] = found().trials
    assert [r.folder for r in trial.runs] == ["0/fold-0", "0/fold-1"]
    assert "data.split.fold=1" in calls("0/fold-1")[0]["arguments"]
    assert "2 folds: validation/auc" in capsys.readouterr().err


def test_two_jobs_run_at_once_and_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    assert sweep("model.dim=8,16,32", "optim.dense.lr=2", "sweep.jobs=2") == 0
    starts = [calls(str(n))[0]["start"] for n in range(3)]
    ends = [(Path("s") / str(n) / "metrics.json").stat().st_mtime for n in range(3)]
    assert starts[1] < ends[0] and starts[2] > min(ends[:2])
    assert "trainer.threads=4" in calls("0")[0]["arguments"]


@pytest.fixture
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "device_of", lambda _: "gpu")
    monkeypatch.setattr(processes, "gpus_here", lambda: ["0", "1", "2", "3"])


@pytest.mark.slow
@pytest.mark.usefixtures("_four_gpus")
def test_jobs_have_gpus_of_their_own() -> None:
    assert sweep("model.dim=8,16,32", "optim.dense.lr=0.3", "sweep.jobs=2", "trainer.devices=2") == 0
    assert [calls(str(n))[0]["CUDA_VISIBLE_DEVICES"] for n in range(2)] == ["0,1", "2,3"]
    assert calls("2")[0]["CUDA_VISIBLE_DEVICES"] in ("0,1", "2,3")


@pytest.mark.usefixtures("_four_gpus")
def test_more_jobs_than_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert begin.begin(["model.dim=8,16", "sweep.jobs=3", "trainer.devices=2", "run_dir=t"]) == 2
    assert (
        "sweep.jobs=3: 3 concurrent runs with trainer.devices=2 need 6 GPUs, but there are 4" in capsys.readouterr().err
    )
    assert not Path("t").exists()


@pytest.mark.slow
def test_random_draws_different_trials_by_a_seed() -> None:
    axes = ["model.dim=interval(8,64)", "optim.sparse.lr=tag(log,interval(0.001,0.3))"]
    assert sweep("sweep=random", "sweep.trials=3", *axes) == 0
    first = [t.values for t in found().trials]
    assert len({t["model.dim"] for t in first} | {t["optim.sparse.lr"] for t in first}) == 6
    assert all(8 <= int(t["model.dim"]) <= 64 and 0.001 <= float(t["optim.sparse.lr"]) <= 0.3 for t in first)
    assert begin.begin(["sweep=random", "sweep.trials=5", *axes, "run_dir=t"]) == 0
    assert [t.values for t in record.load(Path("t")).trials][:3] == first


@pytest.mark.slow
def test_optuna_finds_the_better_half_and_prunes() -> None:
    lr = "optim.sparse.lr=interval(0,0.5)"
    assert sweep("sweep=optuna", "sweep.trials=9", lr, "trainer.max_epochs=3", "optim.dense.lr=0.25") == 0
    trials = found().trials
    states = [t.status for t in trials]
    assert len(states) == 9 and set(states) == {"ok", "pruned"} and "pruned" not in states[:5]
    for t in trials:
        if t.status == "pruned":
            assert len(list(validations(Path("s") / str(t.number), "validation/auc"))) <= 3
            before = [u.mean["validation/auc"] for u in trials[: t.number] if u.status == "ok"]
            assert t.mean["validation/auc"] <= statistics.median(before)
    assert "optim.sparse.lr" in Path("s/study.journal").read_text()


@pytest.mark.slow
def test_only_the_first_seed_is_pruned() -> None:
    how = ["sweep=optuna", "sweep.trials=7", "trainer.max_epochs=3", "optim.dense.lr=0.25", "seed=0,1"]
    assert sweep(*how, "optim.sparse.lr=interval(0,0.5)") == 0
    pruned = [t for t in found().trials if t.status == "pruned"]
    assert pruned
    assert all([r.status for r in t.runs] == ["pruned", "waiting"] for t in pruned)
    assert not any((Path("s") / t.runs[1].folder).exists() for t in pruned)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grid", "optuna"])
def test_kill_9_and_resume(method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was done stays; what ran is ended and goes on in its own folder; the rest follows."""
    how = ["optim.sparse.lr=0.1,0.2,0.3,0.4"] if method == "grid" else ["sweep=optuna", "sweep.trials=4"]
    axis = [] if method == "grid" else ["optim.sparse.lr=interval(0.1,0.4)"]
    slow = ["trainer.max_epochs=3", "optim.dense.lr=0.4"]
    running = subprocess.Popen([*FAKED, "sweep", *how, *axis, *slow, "run_dir=s"], stderr=subprocess.DEVNULL)
    until(lambda: Path("s/1/metrics.csv").exists())
    [left] = processes.marked(Path("s/1"))
    os.kill(left, signal.SIGSTOP)  # else it comes to its end alone
    assert sweeps(monkeypatch, "status", "s") == 0
    out = capsys.readouterr()
    assert "running (epoch" in out.out and "validation/auc" in out.out and "resume with" not in out.err
    assert sweeps(monkeypatch, "resume", "s") == 2
    assert "s: another process is running this sweep" in capsys.readouterr().err
    running.kill()
    running.wait()
    assert sweeps(monkeypatch, "status", "s") == 0
    out = capsys.readouterr()
    assert "interrupted" in out.out and "resume with: python -m recsys.sweep resume s" in out.err
    before = found()
    assert [t.status for t in before.trials][:2] == ["ok", "interrupted"]

    assert sweeps(monkeypatch, "resume", "s") == 0
    after = found()
    assert [t.status for t in after.trials] == ["ok"] * 4
    assert [t.values for t in after.trials][:2] == [t.values for t in before.trials][:2]
    assert len({t.values["optim.sparse.lr"] for t in after.trials}) == 4
    assert len(calls("0")) == 1
    assert [("resume=auto" in c["arguments"]) for c in calls("1")] == [False, True]
    assert calls("1")[0]["pid"] == left and not processes.marked(Path("s/1"))
    if method == "optuna":
        study = Path("s/study.journal").read_text()
        assert study.count('"op_code":4') == 4  # four trials in all: the one that was running has gone on


@pytest.mark.slow
def test_a_study_may_be_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep("sweep=optuna", "sweep.trials=2", "optim.sparse.lr=interval(0.1,0.4)", "model.dim=8,13") in (0, 2)
    assert sweeps(monkeypatch, "resume", "s", "sweep.trials=5") in (0, 2)
    assert len(found().trials) == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupted_sweep_leaves_no_process(number: int) -> None:
    """Not even of a run that is deaf to SIGTERM, with a worker in a session of its own."""
    how = ["model.dim=19,8", "optim.dense.lr=60", "sweep.jobs=2", "run_dir=s"]
    code = "import runpy, sys; from recsys.sweep import processes; processes.GRACE_SECONDS = 2.0;"
    code += f"sys.argv = {[FAKED[1], 'sweep', *how]!r}; runpy.run_path({FAKED[1]!r}, run_name='__main__')"
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ)
    until(lambda: len(processes.marked(Path("s/0"))) == 2 and len(processes.marked(Path("s/1"))) == 1)
    running.send_signal(number)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 128 + number, said
    until(lambda: not processes.marked(Path("s/0")) + processes.marked(Path("s/1")), 60)  # a worker sleeps for 600 s
    assert [t.status for t in found().trials] == ["interrupted", "interrupted"]
    assert "interrupted; resume with: python -m recsys.sweep resume s" in said


def test_a_killed_run_takes_its_workers_with_it() -> None:
    run = schedule.Process(
        [*schedule.TRAIN, "model.dim=19", "optim.dense.lr=60", "run_dir=s/0"], os.environ, Path("s/0")
    )
    until(lambda: len(processes.marked(Path("s/0"))) == 2)
    os.kill(calls("0")[0]["pid"], signal.SIGKILL)
    until(lambda: run.poll() is not None)
    assert run.poll() == -9 and not processes.marked(Path("s/0"))


@pytest.mark.slow
def test_submitit_runs_trials(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    how = ["sweep.launcher=slurm", "sweep.slurm.cluster=local", "sweep.slurm.partition=p", "sweep.slurm.timeout_min=3"]
    assert sweep("model.dim=8,13,17", "sweep.jobs=3", *how) == 137
    got = found()
    assert [t.status for t in got.trials] == ["ok", "failed", "killed"]
    assert all(r.job for t in got.trials for r in t.runs)
    assert "trial 1 failed (2): 13 is no good" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("heeds", [True, False])
def test_submitit_prunes_a_job_and_leaves_no_process(heeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of a job that does not heed that it is cancelled."""
    pytest.importorskip("submitit")
    from recsys.sweep.slurm import Cluster

    cluster = Cluster(Path("s"), {"cluster": "local"})
    command = [*schedule.TRAIN, "model.dim=19", "optim.dense.lr=600", "run_dir=s/0"]
    job = cluster.start(command, {}, Path("s/0"))
    until(lambda: len(processes.marked(Path("s/0"))) == 2)
    if not heeds:
        monkeypatch.setattr(job._job, "cancel", lambda **_: None)
    job.end()
    until(lambda: job.poll() is not None)
    assert not processes.marked(Path("s/0"))


MISTAKES = """
model=dlrm,dlmr | model=dlmr: no such choice; did you mean dlrm
model=dcnv2,deepfm model.cross_layers=2,3 | model.cross_layers: no such key
trainer.max_epochs=one,two | trainer.max_epochs=one: must be a whole number
optim.sparse.lr=interval(0.1,0.2) | optim.sparse.lr: a grid needs a list of values
sweep=random model.dim=interval(9,8) | the first end must be smaller than the second
sweep=random optim.sparse.lr=tag(log,interval(0,1)) | a logarithmic interval must be above 0
sweep=random optim.sparse.lr=tag(lgo,interval(0,1)) | no such tag: lgo; did you mean log
sweep=random trainer.max_epochs=2 | sweep.method=random: no key has several values
sweep=random sweep.trials=null model.dim=8,16 | sweep.method=random: set sweep.trials
sweep.method=tpe model.dim=8,16 | sweep.method=tpe: must be grid, random or optuna
sweep.trails=3 | sweep.trails: .*trials
sweep.trials=3 model.dim=8,16 | sweep.trials=3: a grid runs all its 2 trials
sweep.trials=3,4 | sweep.trials must have a single value for all trials
sweep.prune=true model.dim=8,16 | sweep.prune=true: only sweep=optuna can prune
sweep.slurm.partition=a | sweep.slurm: only used with sweep.launcher=slurm
seed=interval(0,3) | must list the seeds of each trial: seed=0,1,2
seed=a,b | seeds must be integers
seed=0,1 data.split.fold=0,1 | data.split.fold=0,1: seed repeats each trial already
resume=x model.dim=8,16 | resume a sweep with python -m recsys.sweep resume SWEEP_DIR
hydra/launcher=joblib | recsys has its own sweeper
model.dim=8, | .
"""


@pytest.mark.few(5)
@pytest.mark.parametrize("line", MISTAKES.split("\n")[1:-1])
def test_mistake(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = line.split(" | ")
    assert sweep(*arguments.split()) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ") and re.search(message, said), said
    assert not Path("s").exists()
