"""Every YAML in conf/ starts with its command, composes, passes the check and builds on the meta device."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import feature_specs
import pytest
import torch

from recsys.base.errors import UserError
from recsys.config.compose import compose, compose_file, conf_dir
from recsys.data.features.resolved_data import feature_spec
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.job.build import build_model
from recsys.job.check_built import check_job
from recsys.job.run_config import RunConfig
from recsys.stages.assemble import build_parts
from recsys.sweep.begin import _config
from recsys.sweep.search import check_method
from recsys.sweep.space import read_space

YAMLS = sorted(conf_dir().rglob("*.yaml"))
NAMED = {str(p.relative_to(conf_dir())): p for p in YAMLS}
SINGLE = (SparseFeature("a", 10**9, "a"), SparseFeature("b", 7, "b"))
HISTORY = tuple(SparseFeature(f"{f.name}s", f.cardinality, f.table, multi_valued=True, sequence=True) for f in SINGLE)
SPEC = FeatureSpec(dense=(DenseFeature("x", unit=True),), sparse=SINGLE + HISTORY)
SEVERAL = replace(SPEC, labels=(BinaryLabel("click"), BinaryLabel("bought")))


def check_pipeline(path: Path, overrides: list[str]) -> None:
    """Compose and build a pipeline's file, or the sample with the choice of a group."""
    group = path.parent.relative_to(conf_dir() / "pipeline")
    file = path if group == Path() else conf_dir() / "pipeline" / "sample.yaml"
    assert group == Path() or f"{group}={path.stem}" in overrides, "the command does not use it"
    build_parts(compose_file(file, ["root=DIR", *overrides]))


def test_a_list_is_a_tuple() -> None:
    """YAML has no tuples, and Adam's betas are one."""
    check_job(compose("train", ["+optim.dense.betas=[0.9,0.98]"]))
    with pytest.raises(UserError, match=r"^optim.dense.betas=\[0.9, 'x'\]: "):
        check_job(compose("train", ["+optim.dense.betas=[0.9,x]"]))


def test_some_were_found() -> None:
    assert len(YAMLS) > 20


ALIKE = re.compile(  # and those of data, which tests/data/test_every_config.py composes, too
    r"experiment/(frappe_(?!dlrm)|beauty_(?!sasrec.yaml)|movielens_100k_ctr)|schedule/(?!cosine)|debug/(?!fast)|data/(?!criteo.yaml)"
)


@pytest.mark.few(80)
@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=pytest.mark.slow if ALIKE.match(n) else [], id=n) for n, p in NAMED.items()]
)
def test_yaml(path: Path, tmp_path: Path) -> None:
    first, *others = path.read_text().splitlines()
    if first.startswith("# @package"):
        first = next(line for line in others if line.startswith("# python"))
    found = re.match(r"# python -m recsys\.(\w+) ?(.*)", first)
    assert found, f"{path} starts with {first!r}, not with its command"
    if "DIR/feature_spec.yaml" in found[2]:  # whose features are not the YAML's
        rows = feature_specs.rows(10)
        feature_specs.split_binary(tmp_path, {"train": rows, "test": rows})
    command, arguments = found[1], shlex.split(found[2].replace("DIR/", f"{tmp_path}/"))
    if path.parent != conf_dir() and path.is_relative_to(conf_dir() / "pipeline"):
        check_pipeline(
            path,
            [a for a in arguments if a not in ("demo", "evaluate", "...") and not a.startswith(("run=", "output="))],
        )
        return
    if "-m" in arguments:
        arguments.remove("-m")
        space = read_space(arguments)
        check_method(space, _config(space, arguments)[0].sweep)
        arguments = [*(a for a in arguments if a.startswith("sweep")), *space.overrides(space.ends()[0])]
    cfg = compose(command, arguments)
    group = path.parent.relative_to(conf_dir())
    if group != Path():
        assert any(a.split("=")[0] == str(group) for a in arguments) or path.stem in ("default",), (
            "the command does not use it"
        )
    if command == "train":
        cfg.trainer.devices = 1
        check_job(cfg)
        with torch.device("meta"):
            run = RunConfig.of(cfg)
            data = run.data
            ranked = SEVERAL if len(data.labels) > 1 else SPEC
            # it may name features of its data
            names = group == Path("experiment") or any(a.startswith("model.") for a in arguments)
            spec = ranked if run.kind.scores_rows and not names else feature_spec(data, lambda *_: 7)
            assert isinstance(build_model(run, spec, torch.device("meta")), torch.nn.Module)
