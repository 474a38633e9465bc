"""python -m recsys.models: what it lists, and what fits a data set."""

import shutil
import sys
from pathlib import Path

import pytest

from recsys import train
from recsys.config.compose import compose, conf_dir
from recsys.job.run_config import RunConfig
from recsys.sweep import model_list


def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["recsys.models", *arguments])
    with pytest.raises(SystemExit) as done:
        model_list.run()
    return int(done.value.code or 0), capsys.readouterr().out


@pytest.mark.slow
def test_every_model_has_a_kind_and_a_paper() -> None:
    found = list(model_list.entries())
    assert [e.name for e in found] == sorted(f.stem for f in (conf_dir() / "model").glob("*.yaml"))
    kinds = {e.name: e.kind for e in found}
    assert (kinds["dlrm"], kinds["sasrec"], kinds["ease"]) == ("ranking", "retrieval", "closed form")
    papers = {e.name: e.reference for e in found}
    assert papers["esasrec"].startswith("eSASRec, 2025") and papers["transformer"] != papers["esasrec"]
    plain = {"dnn", "lr", "popularity"}  # older than any paper that could be cited
    assert {e.name for e in found if "https://" not in e.paper} == plain


@pytest.mark.parametrize("models", [pytest.param(None, marks=pytest.mark.slow), ("dlrm", "ease", "gru4rec", "sasrec")])
def test_models_that_fit_a_data_set(
    models: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if models is not None:
        (tmp_path / "model").mkdir()
        for name in models:
            shutil.copy(conf_dir() / "model" / f"{name}.yaml", tmp_path / "model")
        monkeypatch.setattr(model_list, "conf_dir", lambda: tmp_path)
    keys = ["data=sample_sequences"] + ["model.dim=8"] * (models is not None)  # which ease does not have
    code, out = listed(monkeypatch, capsys, *keys)
    [command] = [line for line in out.splitlines() if line.startswith("Train all that fit: ")]
    names = command.partition("-m model=")[2].split()[0].split(",")
    assert code == 0 and {"sasrec", "gru4rec"} <= set(names) and "dlrm" not in names
    assert ("ease" in names) == (models is None) and command.endswith(f" {' '.join(keys)}")


def test_a_sweep_over_all_models_that_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """model=zoo names the models of one kind; other swept keys do not matter."""
    begun: list[list[str]] = []
    monkeypatch.setattr("recsys.sweep.begin.begin", lambda arguments: begun.append(arguments) or 0)
    fit = {"dlrm": None, "esmm": "needs two labels", "gbm": None, "sasrec": None}
    kinds = {"sasrec": "retrieval"}
    found = [model_list.Entry(name, kinds.get(name, "ranking"), "", why) for name, why in fit.items()]
    first = ["data=sample_ratings", "optim.sparse.lr=0.1"]
    monkeypatch.setattr(model_list, "entries", lambda overrides: found if overrides == first else [])
    monkeypatch.setattr(
        sys, "argv", ["t", "-m", "model=zoo", "data=sample_ratings", "optim.sparse.lr=0.1,0.2", "seed=0,1"]
    )
    with pytest.raises(SystemExit) as done:
        train.main()
    assert done.value.code == 0
    assert begun == [["model=dlrm,gbm", "data=sample_ratings", "optim.sparse.lr=0.1,0.2", "seed=0,1"]]
    assert "model=zoo: 2 models fit: dlrm, gbm" in capsys.readouterr().err


def test_what_models_need() -> None:
    found = {
        name: model_list.needs(RunConfig.of(compose("train", [f"model={name}"])))
        for name in ("dlrm", "mmoe", "din", "ease", "mf")
    }
    assert found == {
        "dlrm": "rows with a label",
        "mmoe": "rows with two labels or more",
        "din": "rows with a label, and a history",
        "ease": "lists of items",
        "mf": "a user and an item",
    }


@pytest.mark.slow
def test_models_that_share_a_config_get_what_hydra_composes_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with other defaults, with references, and of the user's own conf/."""
    own = tmp_path / "conf" / "model"
    own.mkdir(parents=True)
    (own / "wukong.yaml").write_text("_target_: recsys.models.dnn.DNN\ndim: 8\ndeep_mlp: ['${trainer.batch_size}']\n")
    monkeypatch.chdir(tmp_path)
    found = {name: run for name, run, _ in model_list.configs(["data=frappe", "trainer.batch_size=64"])}
    for name in ("autoint", "dlrm", "sasrec", "two_tower", "xdeepfm", "wukong"):
        run = RunConfig.of(compose("train", [f"model={name}", "data=frappe", "trainer.batch_size=64"]))
        assert found[name] == run
    assert found["wukong"].model["deep_mlp"] == [64]
