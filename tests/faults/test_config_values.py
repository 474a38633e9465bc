"""Numbers that cannot be meant, and names that are empty, are one line before anything is written."""

import re
from contextlib import chdir
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter
from small_csv import Commands, write_mine

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.config.compose import compose
from recsys.job.check_built import check
from recsys.schema import command_schemas, data_schema, run_schema

DATA = ["data=mine", "data.root=raw"]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    write_mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Commands(monkeypatch, capsys)


OUT_OF_RANGE = [
    ("trainer.batch_size=-4", "trainer.batch_size=-4: must be at least 1"),
    ("trainer.batch_size=1000000000000", "trainer.batch_size=1000000000000: must be at most 16777216"),
    ("trainer.eval_batch_size=0", "trainer.eval_batch_size=0: must be at least 1"),
    ("trainer.max_epochs=0", "trainer.max_epochs=0: must be at least 1"),
    ("trainer.max_epochs=100000000000", "trainer.max_epochs=100000000000: must be at most 2147483647"),
    ("trainer.max_steps=0", "trainer.max_steps=0: must be at least 1"),
    ("trainer.timeout_minutes=1.0e30", "trainer.timeout_minutes=1e+30: must be at most 1e+06"),
    ("trainer.timeout_minutes=nan", "trainer.timeout_minutes=nan: must be a finite number"),
    ("metrics_port=0", "metrics_port=0: must be at least 1"),
    ("metrics_port=70000", "metrics_port=70000: must be at most 65535"),
    ("metrics_host=''", "metrics_host=: is empty; write a name, or leave the key out"),
    ("logging=xml", "logging=xml: must be text or json"),
    ("trainer.early_stopping.patience=-1", "trainer.early_stopping.patience=-1: must be at least 0"),
    ("optim.sparse.lr=nan", "optim.sparse.lr=nan: must be a finite number"),
    ("optim.sparse.lr=inf", "optim.sparse.lr=inf: must be a finite number"),
    ("optim.sparse.lr=-0.1", "optim.sparse.lr=-0.1: must be at least 0"),
    ("optim.sparse.lr=1.0e60", "optim.sparse.lr=1e+60: must be at most 3.4e+38"),
    ("optim.sparse.eps=-1", "optim.sparse.eps=-1: must be at least 0"),
    ("optim.sparse.beta1=1", "optim.sparse.beta1=1: must be below 1"),
    ("optim.dense.lr=nan", "optim.dense.lr=nan: must be a finite number"),
    ("optim.dense.lr=1.0e39", "optim.dense.lr=1e+39: must be at most 3.4e+38"),
    ("optim.dense.lr=-1", "optim.dense: Invalid learning rate: -1"),
    ("model.init_std=nan", "model.init_std=nan: must be a finite number"),
    ("model.init_std=-1", "model.init_std=-1: must be at least 0"),
    ("model.dim=0", "model.dim=0: must be at least 1"),
    ("model.dim=-16", "model.dim=-16: must be at least 1"),
    ("model.dim=1000000000", "model.dim=1000000000: must be at most 65536"),
    ("model.top_mlp=[64,-2]", "model.top_mlp=[64, -2]: must be at least 1"),
    ("model.top_mlp=[1000000000]", "model.top_mlp=[1000000000]: must be at most 65536"),
    ("model.dropout=1.5", "model.dropout=1.5: must be below 1"),
    ("model.dropout=nan", "model.dropout=nan: must be a finite number"),
    ("checkpoint.every_minutes=0", "checkpoint.every_minutes=0: must be above 0"),
    ("loader.buffer_rows=0", "loader.buffer_rows=0: must be at least 1"),
    ("metrics.bins=1000000000", "metrics.bins=1000000000: must be at most 1000000"),
    ("protocol.negatives=0", "protocol.negatives=0: must be at least 1"),
    ("protocol.k=[]", "protocol.k=[]: is empty"),
    ("protocol.candidates=[]", "protocol.candidates=[]: is empty"),
    ("metrics.k=[5,0]", "metrics.k[1]=0: must be at least 1"),
    ("seed=4294967296", "seed=4294967296: must be at most 4294967295"),
    ("data.max_bad_rows=nan", "data.max_bad_rows=nan: must be a finite number"),
    ("data.max_bad_rows=2", "data.max_bad_rows=2: must be at most 1"),
    ("data.dense.price.lag=-1", "data.dense.price.lag=-1: must be at least 1"),
    ("data.sparse.user.min_count=-1", "data.sparse.user.min_count=-1: must be at least 0"),
    ("data.split.folds=2", "data.split.folds=2: must be at least 3"),
    ("data.split.fold=-1", "data.split.fold=-1: must be at least 0"),
    ("data.split.seed=-1", "data.split.seed=-1: must be at least 0"),
    ("data.label.at_least=nan", "data.label.at_least=nan: must be a finite number"),
    ("data.split.validation=nan", "data.split.validation=nan: must be a finite number"),
]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    folder = tmp_path_factory.mktemp("mine")
    write_mine(folder)
    with chdir(folder):
        return compose("train", DATA)


@pytest.mark.parametrize(("override", "message"), OUT_OF_RANGE, ids=[o for o, _ in OUT_OF_RANGE])
def test_a_number_that_cannot_be_meant(composed: DictConfig, override: str, message: str) -> None:
    cfg = composed.copy()
    key, _, value = override.partition("=")
    OmegaConf.update(cfg, key, OmegaConf.create(f"[{value.replace('nan', '.nan').replace('inf', '.inf')}]")[0])
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        check(cfg)


def test_such_a_number_is_one_line_before_anything_is_written(commands: Commands) -> None:
    assert commands("train", *DATA, "optim.sparse.lr=nan") == (2, ["optim.sparse.lr=nan: must be a finite number"])
    assert not Path("outputs").exists()


EMPTY = [
    ("train", "data.root=", "data.root=: is empty; write a name, or leave the key out"),
    ("train", "run_dir=", "run_dir=: is empty; write a name, or leave the key out"),
    ("train", "run_dir=' '", "run_dir= : is empty; write a name, or leave the key out"),
    ("train", "resume=", "resume=: is empty; write a name, or leave the key out"),
    ("train", "data.prepared=", "data.prepared=: is empty; write a name, or leave the key out"),
    (
        "preprocess",
        "data.root=",
        "data.root=: is empty; write a name, or leave the key out",
    ),
    ("evaluate", "run=", "run=: is empty; write a name, or leave the key out"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("command", "override", "message"), EMPTY, ids=[f"{c} {o}" for c, o, _ in EMPTY])
def test_an_empty_name_is_not_the_current_folder(commands: Commands, command: str, override: str, message: str) -> None:
    data = [] if command == "evaluate" else ["data=mine"] if override.startswith("data.root") else DATA
    before = sorted(Path().rglob("*"))
    assert commands(command, *data, override) == (2, [message])
    assert sorted(Path().rglob("*")) == before


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("plan", "cluster.hbm_gbs=nan", "cluster.hbm_gbs=nan: must be a finite number"),
        ("plan", "cluster.devices=0", "cluster.devices=0: must be at least 1"),
        ("evaluate", "trainer.devices=0", "trainer.devices=0: must be at least 1"),
        ("predict", "batch_size=-1", "batch_size=-1: must be at least 1"),
        ("preprocess", "data.sample.rows=10", "data.sample.rows=10: must be at least 100"),
    ],
)
def test_every_command_checks_its_numbers(commands: Commands, command: str, override: str, message: str) -> None:
    given = {"evaluate": ["run=r"], "predict": ["run=r", "input=raw/a.csv"]}.get(command, [])
    assert commands(command, *given, override) == (2, [message])
    assert not Path("outputs").exists()


@pytest.mark.parametrize("rows", [99, 0, -5])
def test_a_sample_that_is_too_small_makes_no_folder(commands: Commands, rows: int) -> None:
    status, errors = commands("train", f"data.sample.rows={rows}", "run_dir=r", "data.prepared=p")
    assert (status, errors) == (2, [f"data.sample.rows={rows}: must be at least 100"])
    assert not Path("r").exists() and not Path("p").exists()


def test_every_number_of_a_schema_declares_its_range() -> None:
    """A new number gets a range, or a reason here why every number is valid."""
    without = {
        "ReportConfig.users": "COUNT_OR_NAMES: 1 to 100, or names",
        "SplitConfig.validation": "check_split: depends on test",
        "SplitConfig.test": "check_split: depends on validation",
        "LabelConfig.at_least": "any threshold",
        "LabelConfig.otherwise": "any label",
        "NamedLabelConfig.otherwise": "any label",
        "NamedLabelConfig.at_least": "any threshold",
        "DenseConfig.fill": "any number",
    }
    limits = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}
    found = set()
    for module in (data_schema, run_schema, command_schemas):
        for schema in vars(module).values():
            if not (is_dataclass(schema) and hasattr(schema, "__pydantic_fields__")):
                continue
            for name, key in TypeAdapter(schema).json_schema()["properties"].items():
                kinds = [k for k in key.get("anyOf", [key]) if k.get("type") in ("integer", "number")]
                if kinds and not any(limits & k.keys() for k in kinds):
                    found.add(f"{schema.__name__}.{name}")
    assert found == set(without)


def test_the_place_of_a_mistake_is_named() -> None:
    with pytest.raises(UserError, match=r"^data\.sparse\.x\.buckets=0: must be at least 1$"):
        parse(data_schema.DataConfig, {"name": "t", "sparse": {"x": {"buckets": 0}}}, "data")
    with pytest.raises(UserError, match=r"^data\.source\.joins\[0\]\.kye: no such key; did you mean key\?$"):
        parse(data_schema.DataConfig, {"name": "t", "source": {"joins": [{"file": "f", "kye": "k"}]}}, "data")


def test_a_run_with_a_duplicate_key_in_its_yaml(commands: Commands) -> None:
    assert commands("train", *DATA, "trainer.batch_size=32", "trainer.threads=1", "run_dir=r")[0] == 0
    text = Path("r/config.yaml").read_text()
    Path("r/config.yaml").write_text(text + "seed: 1\n")
    line = len(text.splitlines()) + 1
    message = f"duplicate key seed in r/config.yaml, line {line}; remove one of the two"
    assert commands("evaluate", "run=r") == (2, [message])
    assert commands("train", *DATA, "resume=r") == (2, [message])
    for broken, expected in (
        ("a: [", r"^r/config\.yaml, line \d+: not YAML: .*; correct the file$"),
        ("- a\n", r"^r/config\.yaml: is not the config of a run; it has no key model$"),
        ("", r"^r/config\.yaml: is not the config of a run; it has no key model$"),
    ):
        Path("r/config.yaml").write_text(broken)
        status, [error] = commands("evaluate", "run=r")
        assert status == 2 and re.search(expected, error), error
