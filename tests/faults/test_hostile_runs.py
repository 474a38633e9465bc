"""A run folder from elsewhere executes nothing: its config calls no function, imports no file of its own, and reads no
environment variable."""

import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from recsys import checkpoint, evaluate, predict
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose, load_config
from recsys.files import manifest
from recsys.job.build import bind, locate
from recsys.job.check_built import check_job
from recsys.job.config_of import composed_config
from recsys.report.runs import read as read_runs
from recsys.training.evaluate_run import evaluate as evaluate_run
from recsys.training.run import train

OVERRIDES = ["data.sample.rows=1200", "trainer.batch_size=300", "trainer.threads=1", "model.dim=4", "model=deepfm"]
COMMANDS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "evaluate": (evaluate._command, ["run={run}"]),
    "predict": (predict._command, ["run={run}", "input={input}"]),
    "checkpoint": (checkpoint._command, ["action=inspect", "run={run}"]),
    "train": (train, [*OVERRIDES, "data.prepared={prepared}", "resume={run}"]),
}
TOUCH = {"_target_": "torch.save", "obj": "1", "f": "{mark}"}  # which Hydra's own blocklist lets through
NODES = {  # what a node of a hostile config may be
    "a function": TOUCH,
    "a command": {"_target_": "os.system", "command": "touch {mark}"},
    "a class": {"_target_": "subprocess.Popen", "args": ["touch", "{mark}"]},
    "positional": {"_target_": "os.system", "_args_": ["touch {mark}"]},
    "partial": {"_target_": "functools.partial", "_args_": [{"_target_": "os.system", "_args_": ["touch {mark}"]}]},
    "an import": {"_target_": "antigravity.geohash"},
}
MODEL = "recsys.models.deepfm.DeepFM"
NESTED = [
    {"_target_": MODEL, "dim": TOUCH},
    {"_target_": MODEL, "deep": [TOUCH]},
    {"_target_": MODEL, "dim": 4, "x": {"y": TOUCH}},
    {"_target_": MODEL, "_args_": [TOUCH]},
]
SCHEDULE = {"_target_": "torch.optim.lr_scheduler.LambdaLR", "lr_lambda": TOUCH | {"_partial_": True}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    return train(compose("train", [*OVERRIDES, f"data.prepared={home / 'prepared'}", f"run_dir={home / 'run'}"])).path


@pytest.fixture
def hostile(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Path(shutil.copytree(trained, tmp_path / "theirs"))


def change(run: Path, key: str, value: Any) -> None:
    """Set a key of a run's config.yaml, with the path of the mark filled in."""

    def filled(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: filled(x) for k, x in v.items()}
        return [filled(x) for x in v] if isinstance(v, list) else str(v).format(mark=run.parent / "mark")

    cfg = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(cfg, key, filled(value), merge=False, force_add=True)
    OmegaConf.save(cfg, run / "config.yaml")


def says(command: str, run: Path, trained: Path, monkeypatch: Any, capsys: Any) -> str:
    """Run a command on the run, and return its error."""
    function, arguments = COMMANDS[command]
    raw = next((trained.parent / "prepared").rglob("*.tsv*"), run / "metrics.csv")
    given = [a.format(run=run, input=raw, prepared=trained.parent / "prepared") for a in arguments]
    monkeypatch.setattr("sys.argv", [command, *given])
    capsys.readouterr()
    assert command_line.status(command, function) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    return str(errors[0])


@pytest.mark.few(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_that_calls_a_function(
    hostile: Path, trained: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(hostile, "model", TOUCH)
    said = says(command, hostile, trained, monkeypatch, capsys)
    refused = "contains a run with another config" if command == "train" else "model._target_=torch.save: must be a mo"
    assert refused in said
    assert not (hostile.parent / "mark").exists()


@pytest.mark.few(2)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("module", ["theirs.evil", "link.evil", "beside.evil"])
def test_code_that_comes_with_the_run(
    hostile: Path,
    trained: Path,
    command: str,
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Any folder below the working directory is a package of Python's: that of the run, a link to it, one beside it."""
    (hostile.parent / "beside").mkdir()
    (hostile.parent / "link").symlink_to("theirs")
    for folder in ("theirs", "beside"):
        (hostile.parent / folder / "evil.py").write_text("import pathlib\npathlib.Path('mark').touch()\n")
    change(hostile, "loss", {"_target_": f"{module}.Loss"})
    said = says(command, hostile, trained, monkeypatch, capsys)
    assert f"loss._target_={module}.Loss: " in said and f"RECSYS_TRUSTED_MODULES={module}" in said
    assert not (hostile.parent / "mark").exists()
    assert module not in sys.modules


@pytest.mark.parametrize(
    "module", ["pyspark.shell", "antigravity", "logging.handlers", "torch.utils.bottleneck.__main__"]
)
def test_no_module_is_imported_to_look_for_a_class(hostile: Path, module: str) -> None:
    """An installed package may do anything when it is imported: pyspark.shell starts Spark."""
    change(hostile, "model", {"_target_": f"{module}.X"})
    with pytest.raises(UserError, match=rf"model._target_={module}.X: "):
        load_config(hostile / "config.yaml")
    assert module == "logging.handlers" or module not in sys.modules


OWN = "import torch\nclass Own(torch.nn.Module):\n    pass\n"


@pytest.mark.parametrize("way", ["variable", "conf", "link", "import"])
def test_a_module_of_ones_own(hostile: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    name = f"own_of_{way}"
    (hostile.parent / f"{name}.py").write_text(OWN)
    change(hostile, "model", {"_target_": f"{name}.Own"})
    with pytest.raises(UserError, match=rf"model._target_={name}.Own: .*RECSYS_TRUSTED_MODULES={name}"):
        load_config(hostile / "config.yaml")
    if way == "variable":
        monkeypatch.setenv("RECSYS_TRUSTED_MODULES", f"others, {name}")
    elif way == "conf":
        (hostile.parent / "conf" / "model").mkdir(parents=True)
        (hostile.parent / "conf" / "model" / "own.yaml").write_text(f"_target_: {name}.Own\n")
    elif way == "link":  # as Hydra reads conf/
        (hostile.parent / "elsewhere").mkdir()
        (hostile.parent / "elsewhere" / "own.yaml").write_text(f"_target_: {name}.Own\n")
        (hostile.parent / "conf").mkdir()
        (hostile.parent / "conf" / "model").symlink_to(hostile.parent / "elsewhere")
        (hostile.parent / "conf" / "loop").symlink_to(hostile.parent / "conf")
    else:
        importlib.import_module(name)
    assert locate(load_config(hostile / "config.yaml").model["_target_"], "model").__name__ == "Own"
    change(hostile, "model", {"_target_": f"{name}2.Own"})  # another module, whose name begins alike
    with pytest.raises(UserError, match=rf"model._target_={name}2.Own: "):
        load_config(hostile / "config.yaml")


@pytest.mark.parametrize("name", ["{mark}", "../../mark"])
@pytest.mark.parametrize("key", ["resume", "start_from"])
def test_a_logger_writes_to_no_other_place(hostile: Path, trained: Path, key: str, name: str) -> None:
    change(hostile, "logger.mine", {"_target_": "pytorch_lightning.loggers.CSVLogger", "name": name})
    place = name.format(mark=hostile.parent / "mark")
    prepared = f"data.prepared={trained.parent / 'prepared'}"
    overrides = [prepared, f"{key}={hostile}", *([f"run_dir={hostile.parent / 'new'}"] if key == "start_from" else [])]

    def composed(*more: str) -> Any:
        return composed_config(compose("train", [*overrides, *more]), [*overrides, *more])

    with pytest.raises(UserError, match=rf"logger.mine.name={re.escape(place)}: .*\+\+logger.mine.name="):
        composed()
    assert composed(f"++logger.mine.name={place}").logger.mine.name == place  # typed by the user
    assert composed("logger=csv").logger == {}


def test_a_config_of_any_size(hostile: Path) -> None:
    with (hostile / "config.yaml").open("a") as file:
        file.write("x: [" + "1, " * 2_000_000 + "1]\n")  # takes minutes
    for read_config in (lambda: load_config(hostile / "config.yaml"), lambda: read_runs([str(hostile)])):
        with pytest.raises(UserError, match=r"config.yaml: has 5 MiB"):
            read_config()


@pytest.mark.few(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_that_reads_the_environment(
    hostile: Path, trained: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINE", "my secret")
    cfg = OmegaConf.load(hostile / "config.yaml")
    cfg.data.root = "s3://theirs/${oc.env:MINE}"
    OmegaConf.save(cfg, hostile / "config.yaml")
    said = says(command, hostile, trained, monkeypatch, capsys)
    assert "data.root=s3://theirs/${oc.env:MINE}: a run's config has no interpolations" in said
    assert "my secret" not in said


@pytest.mark.few(8)
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("key", ["model", "loss", "optim.dense", "optim.scheduler", "logger.mine"])
def test_no_key_takes_a_function_or_another_kind_of_class(hostile: Path, key: str, node: str) -> None:
    change(hostile, key, NODES[node])
    with pytest.raises(UserError, match=r"_target_=\S+: must be a"):
        check_job(load_config(hostile / "config.yaml"))
    for wrong in ("torch.nn.Linear", "torch.optim.SGD", "torch.load", "recsys.config.compose.compose"):
        right = {"torch.nn.Linear": "model", "torch.optim.SGD": "optim.dense"}
        if right.get(wrong) != key:
            with pytest.raises(UserError, match=rf"{key}._target_={wrong}: must be a"):
                locate(wrong, key)
    assert not (hostile.parent / "mark").exists()
    assert "antigravity" not in sys.modules


@pytest.mark.few(2)
@pytest.mark.parametrize("value", [*NESTED, SCHEDULE], ids=str)
def test_nothing_is_called_within_a_class_of_the_right_kind(hostile: Path, value: dict[str, Any]) -> None:
    key = "optim.scheduler" if value is SCHEDULE else "model"
    change(hostile, key, value)
    with pytest.raises(UserError, match=rf"{key}\.\S+: (must be|this parameter takes no object|is not supported)"):
        check_job(load_config(hostile / "config.yaml"))
    assert not (hostile.parent / "mark").exists()


def test_users_own_classes_and_the_objects_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_model.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, features, *, tower: nn.Module | None = None, others: list[nn.Module] = ()):\n"
        "        super().__init__()\n"
        "        self.tower = tower\n"
    )
    tower = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 1}
    own = {"_target_": "own_model.Own", "tower": tower, "others": [tower]}
    named, values = bind(OmegaConf.create(own), "model")
    assert named.__name__ == "Own"
    assert [type(v).__name__ for v in (values["tower"], *values["others"])] == ["Linear", "Linear"]
    with pytest.raises(UserError, match=r"model.tower._target_=torch.optim.SGD: must be a subclass of Module"):
        bind(OmegaConf.create(own | {"tower": {"_target_": "torch.optim.SGD"}}), "model")


def test_aliases_of_yaml(hostile: Path) -> None:
    """Nine lines that stand for a billion values."""
    names = "abcdefghi"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{n}: &{n} [{', '.join(9 * [f'*{m}'])}]" for m, n in pairwise(names)]
    (hostile / "config.yaml").write_text("model: {}\n" + "\n".join(lines) + "\n")
    for read_config in (lambda: load_config(hostile / "config.yaml"), lambda: read_runs([str(hostile)])):
        with pytest.raises(UserError, match=r"config.yaml, line 3: has an alias of YAML; write the value itself"):
            read_config()


def last(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def replaced(file: Path, make: Callable[[Path], Any]) -> None:
    file.unlink()
    make(file)


def signed(run: Path) -> None:
    """Write the digests of the files of a run again, as a forger does."""
    for folder in (run, last(run)):
        files = [folder / name for name in manifest.read(folder) or () if (folder / name).is_file()]
        manifest.write(folder, manifest.entries_of(folder, files))


FORGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a pipe as config": (lambda r: replaced(r / "config.yaml", os.mkfifo), "config.yaml: is a named pipe"),
    "a pipe as state": (lambda r: replaced(last(r) / "state.pt", os.mkfifo), "state.pt: is a named pipe"),
    "another model": (lambda r: change(r, "model.deep_mlp", [7]), r"weight .* is \[.*\], but the model's is \[.*"),
    "no model of ours": (lambda r: change(r, "model", {"_target_": "torch.nn.Identity"}), "has no parameter features"),
    "state []": (lambda r: torch.save([], last(r) / "state.pt"), "state.pt: does not hold the state of a run"),
    "half of the weights": (
        lambda r: [f.write_bytes(f.read_bytes()[:500]) for f in last(r).glob("*.distcp")],
        "is damaged and cannot be read",
    ),
    "a vocabulary of nothing": (
        lambda r: next(iter(sorted((r / "vocabularies").glob("*.parquet")))).write_bytes(b"PAR1"),
        r"vocabularies/.*.parquet: is damaged and cannot be read",
    ),
    "checkpoints as a file": (
        lambda r: (shutil.rmtree(r / "checkpoints"), (r / "checkpoints").write_text("x")),
        "checkpoint=last: not in .*checkpoints .there: none",
    ),
    "a name that leads out of the folder": (lambda r: change(r, "data.name", "../../evil"), "contains /; choose a"),
    "features of another run": (
        lambda r: (r / "features.json").write_text((r / "features.json").read_text().replace("cat_7", "age")),
        "config.yaml and features.json are of different runs: only one of them has (age|cat_7)",
    ),
    "another kind of model": (
        lambda r: change(r, "model", {"_target_": "recsys.models.gbm.GBM"}),
        "is not a checkpoint of the model in the run's config.yaml",
    ),
    "data.json without a folder": (
        lambda r: (r / "data.json").write_text('{"prepared": 5, "contents": "x"}'),
        "data.json: is damaged and cannot be read",
    ),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_run_is_one_line(hostile: Path, forgery: str) -> None:
    forge, message = FORGED[forgery]
    forge(hostile)
    if (hostile / "checkpoints").is_dir() and forgery != "a pipe as state":
        signed(hostile)
    with pytest.raises(UserError, match=message) as found:
        evaluate_run(str(hostile), checkpoint="last")
    assert "\n" not in str(found.value)
