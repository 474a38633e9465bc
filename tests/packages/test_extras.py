"""A command without its extra says in one line what to install; each extra installs what it promises."""

import os
import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from empty_environments import Environment, built_wheel
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from without_modules import run_without

from recsys.base.errors import UserError
from recsys.base.packages import EXTRAS, check_extra, install_command
from recsys.config.compose import compose
from recsys.export.__main__ import write
from recsys.index.build_index import check_index_server
from recsys.job.check_config import check_config
from recsys.schema.command_schemas import ServeConfig
from recsys.server.supervisor import check_serve_settings
from recsys.store.stores import open_store
from recsys.store.streams import open_stream
from recsys.sweep.begin import check_sweep_settings

ROOT = Path(__file__).parents[2]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MAX_SECONDS = 4.0  # of CPU; nothing heavy may be imported before the message
SQL = ["data.source.format=sql", "data.source.query=SELECT 1"]
VIEW = "clicks: {key: user, columns: [n], files: [x.parquet], time: t}\n"
IN_TRAINING = {  # (extra, missing module, overrides of recsys.train, what the message begins with)
    ("spark", "pyspark", "engine=spark", "engine=spark"),
    ("s3", "s3fs", "data.root=s3://b/x", "data.root=s3://b/x"),
    ("gcs", "gcsfs", "data.root=gs://b/x", "data.root=gs://b/x"),
    ("sql", "duckdb", "data.root=duckdb:///x.db", "data.root=duckdb:///x.db"),
    ("sql", "sqlalchemy", "data.root=mysql://h/x", "data.root=mysql://h/x"),
    ("delta", "deltalake", "data.root=x data.source.format=delta", "data.root=x"),
    ("iceberg", "pyiceberg", "data.root=x data.source.format=iceberg", "data.root=x"),
    *(("gbm", m, f"model=gbm model.library={m}", f"model.library={m}") for m in EXTRAS["gbm"]),
}
COMMANDS = [
    *(
        (e, m, ["recsys.train", "data=criteo", *(SQL if e == "sql" else []), *given.split()])
        for e, m, given, _ in sorted(IN_TRAINING)
    ),
    ("slurm", "submitit", ["recsys.train", "-m", "sweep.launcher=slurm", "model.dim=8,16"]),
    *(("export", m, ["recsys.export", "run=x", "output=y"]) for m in EXTRAS["export"] if m != "treelite"),
    *(("serve", m, ["recsys.serve", "x"]) for m in EXTRAS["serve"]),
    ("serve", "httptools", ["recsys.loadtest", "target=http://localhost:8000", "rows=x.jsonl"]),
    ("redis", "redis", ["recsys.feature_store", "get", "definition=v.yaml", "store=redis://h:1/0", "keys=[a]"]),
    ("otel", "opentelemetry.sdk", ["recsys.serve", "model", "traces=http://localhost:4318"]),
    ("spark", "pyspark", ["recsys.preprocess", "data=criteo", "engine=spark"]),
    ("index", "faiss", ["recsys.export", "run=run", "output=y", "index=ivf"]),
    ("index", "usearch", ["recsys.export", "run=run", "output=y", "index=usearch"]),
    ("milvus", "pymilvus", ["recsys.export", "run=run", "output=y", "index=milvus", "index_url=http://h:1"]),
    ("kafka", "confluent_kafka", ["recsys.follow", "follow.yaml"]),
]
SMALL = ("redis", "otel", "stages")  # what a slow test installs unless RECSYS_TEST_EXTRAS names others


def pattern(module: str, extra: str) -> str:
    return rf"needs {re.escape(module)}, which is not installed; run: {re.escape(install_command(extra))}$"


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that lets this process lack a module."""
    return lambda module: monkeypatch.setattr("recsys.base.packages.is_installed", lambda name: name != module)


def test_pip_installs_an_extra_of_the_wheel_and_uv_that_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_command("otel") == "uv sync --inexact --extra otel"
    monkeypatch.setattr("recsys.base.packages.__file__", str(tmp_path / "site-packages" / "recsys" / "packages.py"))
    assert install_command("otel") == "pip install 'declarative-recsys[otel]'"
    assert install_command("serve-gpu") == "pip uninstall -y onnxruntime && pip install 'declarative-recsys[serve-gpu]'"


def test_extras_are_those_of_the_project() -> None:
    """Every requirement of an extra has a module in EXTRAS, and every module comes from one of its requirements."""
    assert set(EXTRAS) == set(OPTIONAL)
    owners = packages_distributions()
    gpu = {r for r in OPTIONAL["serve-gpu"] if not r.startswith("onnxruntime-gpu")}
    assert gpu == {r for r in OPTIONAL["serve"] if not r.startswith("onnxruntime")}  # two packages of one module
    for extra, modules in EXTRAS.items():
        if extra == "serve-gpu":
            continue
        requirements = [Requirement(r) for r in OPTIONAL[extra]]
        promised = {canonicalize_name(r.name) for r in requirements}
        found = {m: {canonicalize_name(n) for n in owners.get(m.partition(".")[0], [m])} for m in modules}
        assert all(any(names & {package} for names in found.values()) for package in promised), extra
        for module, names in found.items():
            assert names & (promised | _required_by(requirements)), f"{extra}: {module}"


def _required_by(requirements: list[Requirement]) -> set[str]:
    names = set()
    for requirement in requirements:
        for line in distribution(requirement.name).requires or [] if requirement.extras else []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in requirement.extras):
                names.add(canonicalize_name(needed.name))
    return names


@pytest.mark.parametrize(("extra", "module", "given", "start"), sorted(IN_TRAINING))
def test_a_training_names_the_extra_early(extra: str, module: str, given: str, start: str, lacking: object) -> None:
    lacking(module)  # type: ignore[operator]
    monkeyed = [*(SQL if extra == "sql" else []), *given.split()]
    with pytest.raises(UserError, match=f"^{re.escape(start)}: {pattern(module, extra)}"):
        check_config(compose("train", ["data=criteo", *monkeyed]))


def test_other_commands_name_the_extra(lacking: object, tmp_path: Path) -> None:
    sweep = compose("train", ["sweep.launcher=slurm"]).sweep
    calls = [
        ("slurm", "submitit", lambda: check_sweep_settings(sweep)),
        ("export", "onnxscript", lambda: write(compose("export", ["run=x", "output=y"]))),
        ("serve", "uvloop", lambda: check_serve_settings(ServeConfig(models=str(tmp_path)))),
        ("redis", "redis", lambda: open_store("redis://h:1/0", write=False)),
        ("kafka", "confluent_kafka", lambda: open_stream("kafka://h:1/t", lambda _: None).__enter__()),
        ("index", "faiss", lambda: check_index_server("hnsw", None)),
        ("index", "usearch", lambda: check_index_server("usearch", None)),
        ("milvus", "pymilvus", lambda: check_index_server("milvus", "http://h:1")),
    ]
    for extra, module, call in calls:
        lacking(module)  # type: ignore[operator]
        with pytest.raises(UserError, match=pattern(module, extra)):
            call()
    assert {e for e, *_ in calls} | {e for e, *_ in IN_TRAINING} == set(EXTRAS) - {"stages", "otel", "serve-gpu"}
    # tests of these: test_a_bloom_filter_without_its_package (tests/stages), test_a_command_without_an_extra, and
    # test_cuda_without_its_provider_says_what_to_install (tests/export)


def test_modules_are_looked_for_without_imports() -> None:
    check_extra("otel", "x", "json")
    with pytest.raises(UserError, match=pattern("no_such_package.part", "otel")):
        check_extra("otel", "x", "no_such_package.part")
    assert "no_such_package" not in sys.modules


@pytest.mark.few(2)
@pytest.mark.parametrize(("extra", "module", "command"), COMMANDS, ids=[f"{c[1]}-{c[2][0]}" for c in COMMANDS])
def test_a_command_without_an_extra(extra: str, module: str, command: list[str], tmp_path: Path) -> None:
    write_files(tmp_path)
    done, seconds = run_without(module, command, tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and re.search(pattern(module, extra), last), done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert seconds < MAX_SECONDS


def write_files(folder: Path) -> None:
    """Write what the commands read before they look for packages: a run, an artefact, views, settings of `follow`."""
    import fake_models

    (folder / "run" / "checkpoints" / "best-1").mkdir(parents=True)
    (folder / "run" / "config.yaml").write_text("{}\n")
    fake_models.write_model(folder / "model")
    (folder / "arriving").mkdir()
    (folder / "v.yaml").write_text(VIEW)
    (folder / "follow.yaml").write_text(
        "root: state\ntrain: [model=dlrm, data=sample_interactions]\n"
        "partitions: {folder: arriving, pattern: 'day=*', stream: 'kafka://h:1/t', delay: 10m}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("extra", (os.environ.get("RECSYS_TEST_EXTRAS") or " ".join(SMALL)).split())
def test_an_extra_installs_what_it_promises(extra: str, tmp_path: Path) -> None:
    """In a fresh environment, over the wheel; `just extras` names all of them."""
    if extra not in EXTRAS:
        raise ValueError(f"RECSYS_TEST_EXTRAS: {extra} is no extra")
    environment = Environment(tmp_path / "environment")
    environment.install(f"{built_wheel(tmp_path)}[{extra}]")
    imports = "; ".join(f"import {m}" for m in EXTRAS[extra])
    done = environment.run(
        "-c", f"{imports}; from recsys.base.packages import check_extra; check_extra('{extra}', 'x')"
    )
    assert done.returncode == 0, done.stderr
