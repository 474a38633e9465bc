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
from recsys.job.check_built import check_job
from recsys.schema import command_schemas, data_schema, run_schema

DATA = ["data=mine", "data.root=raw"]


OUT_OF_RANGE = """
trainer.batch_size=-4 trainer.timeout_minutes=nan optim.sparse.lr=inf optim.sparse.lr=1e60 optim.sparse.beta1=1
optim.dense.lr=nan optim.dense.lr=1e39 model.init_std=nan model.dim=0 model.dim=1000000000 model.top_mlp=[64,-2]
model.dropout=1.5 checkpoint.every_minutes=0 protocol.k=[] metrics.k=[5,0] seed=4294967296 data.max_bad_rows=2
metrics_host='' data.dense.price.lag=-1 data.split.folds=2 data.label.at_least=nan trainer.validate_from=1 trainer.validate_from=-0.1 data.split.validation=nan
"""


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    folder = tmp_path_factory.mktemp("mine")
    write_mine(folder)
    with chdir(folder):
        return compose("train", DATA)


@pytest.mark.parametrize("override", OUT_OF_RANGE.split())
def test_a_number_that_cannot_be_meant(composed: DictConfig, override: str) -> None:
    cfg = composed.copy()
    key, _, value = override.partition("=")
    OmegaConf.update(cfg, key, OmegaConf.create(f"[{value.replace('nan', '.nan').replace('inf', '.inf')}]")[0])
    with pytest.raises(UserError, match=rf"^{key}(\[1\])?="):
        check_job(cfg)


def test_such_a_number_is_one_line_before_anything_is_written(commands: Commands) -> None:
    assert commands("train", *DATA, "optim.sparse.lr=nan") == (2, ["optim.sparse.lr=nan: must be a finite number"])
    assert not Path("outputs").exists()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "override"),
    [
        ("plan", "cluster.devices=0"),
        ("evaluate", "trainer.devices=0"),
        ("evaluate", "run="),
        ("predict", "batch_size=-1"),
        ("preprocess", "data.sample.rows=10"),
    ],
)
def test_every_command_checks_its_numbers(commands: Commands, command: str, override: str) -> None:
    given = {"evaluate": ["run=r"], "predict": ["run=r", "input=raw/a.csv"]}.get(command, [])
    status, [error] = commands(command, *given, override)
    assert status == 2 and error.startswith(f"{override}: ")
    assert not Path("outputs").exists()


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
