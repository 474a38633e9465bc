"""python -m recsys.models [data=NAME] [key=value ...] [--long]

Lists the models: name, kind, the data that it needs, and year and link of its paper (--long: the whole reference). With
arguments, such as data=mine, it also says which models fit this config, why the others do not, and the sweep that
trains all that fit.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import takewhile
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from rich.table import Table

from recsys.base.console import results
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose, conf_dir, file_of_choice
from recsys.job.check_built import check_job
from recsys.job.run_config import RunConfig

PAPER = re.compile(r"(.+?): .*?, ((?:19|20)\d\d), https://(\S+?)(?=[.,]?(?:\s|$))")
LONG = "--long"


@dataclass(frozen=True)
class Entry:
    """A choice of `model`: its name, its kind, its paper (`paper_of`), and why it does not fit, if so."""

    name: str
    kind: str
    paper: str
    problem: str | None = None
    config: RunConfig | None = None

    @property
    def reference(self) -> str:
        """What the model is in one line: its name in the literature, and the year and address of its paper."""
        found = PAPER.match(self.paper)
        return self.paper.partition(":")[0] if found is None else ", ".join(found.groups())

    @cached_property
    def needs(self) -> str:
        """The data that the model needs."""
        assert self.config is not None
        return needs(self.config)


def entries(overrides: Sequence[str] = ()) -> Iterator[Entry]:
    """Yield all choices of `model`; with overrides, each is checked with them."""
    for name, run, problem in configs(overrides):
        try:
            if overrides and problem is None:
                check_job(run)
        except UserError as e:
            problem = str(e)
        yield Entry(name, run.kind.name, paper_of(name, str(run.model["_target_"])), problem, run)


def paper_of(name: str, target: str) -> str:
    """Return what the YAML of a choice cites below its command; if it cites nothing, its module's first paragraph."""
    file = file_of_choice("model", name)
    head = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines()[1:]) if file else ()
    if PAPER.match(cited := " ".join(line.strip("# ") for line in head)):
        return cited
    return " ".join((inspect.getdoc(import_module(target.rpartition(".")[0])) or "").split("\n\n")[0].split())


def configs(overrides: Sequence[str] = ()) -> Iterator[tuple[str, RunConfig, str | None]]:
    """Yield the name and the config of each choice of `model`, and why overrides of a model's keys do not fit it.

    Hydra takes a tenth of a second for a config. Models whose YAML files have the same defaults, such as a loss, differ
    in the node `model` alone, and share one, unless that node refers to others.
    """
    shared: dict[str, RunConfig] = {}
    chosen = any(o.lstrip("+~").startswith("model") for o in overrides)
    for file in sorted((conf_dir() / "model").glob("*.yaml")):
        node: Any = OmegaConf.load(file_of_choice("model", file.stem) or file)
        defaults = str(node.pop("defaults", None))
        try:
            model: Any = OmegaConf.to_container(OmegaConf.create({"model": node}), resolve=True)
        except InterpolationResolutionError:
            model = None
        problem = None
        if chosen or model is None or defaults not in shared:
            choice = [f"model={file.stem}"]
            try:
                with command_line.explained([*choice, *overrides]):
                    run = RunConfig.of(compose("train", [*choice, *overrides]))
            except UserError as e:
                if not chosen:
                    raise
                run, problem = RunConfig.of(compose("train", choice)), str(e)
            shared.setdefault(defaults, run)
        else:
            run = shared[defaults].changed(model)
        yield file.stem, run, problem


def needs(cfg: RunConfig) -> str:
    """Return the data that a model needs: the plainest of some made-up features that it can be built for."""
    import torch

    from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
    from recsys.interface.labels import BinaryLabel
    from recsys.job.build import build_model

    user, item, kind = (SparseFeature(n, 9, n) for n in ("user", "item", "kind"))
    before, kinds = (SparseFeature(f"{n}s", 9, n, multi_valued=True, sequence=True) for n in ("item", "kind"))
    rows = FeatureSpec((DenseFeature("x"),), (user, item, kind), (BinaryLabel("click"),))
    lists = FeatureSpec((), (replace(before, name="item"),), (), item="item")
    candidates = {
        "rows with a label": rows,
        "rows with two labels or more": replace(rows, labels=(BinaryLabel("click"), BinaryLabel("buy"))),
        "rows with a label, and a history": replace(rows, sparse=(user, item, kind, before)),
        "rows with a label, and a history with categories": replace(rows, sparse=(user, item, kind, before, kinds)),
    }
    if not cfg.kind.scores_rows:
        coded = replace(lists, items=FeatureSpec((), (SparseFeature("semantic_1", 9, "semantic_1"),), ()))
        candidates = {"lists of items": lists, "a user and an item": replace(lists, sparse=(user, item))}
        candidates["lists of items with semantic ids"] = coded
    for text, features in candidates.items():
        with suppress(UserError):
            build_model(cfg, features, torch.device("meta"))
            return text
    return "names of features; see its YAML"


def fitting(overrides: Sequence[str]) -> list[str]:
    """Return the names of the models that fit: ranking models or, if the data has no label, retrieval models.

    Raises:
        UserError: no model fits.
    """
    found = list(entries(overrides))
    if all(e.problem is not None for e in found):
        raise UserError(f"model=zoo: no model fits; {found[0].name}, for example: {found[0].problem}")
    fit = [e for e in found if e.problem is None]
    return [e.name for e in fit if e.kind == "ranking"] or [e.name for e in fit]


def run() -> None:
    """Run the command."""
    long = LONG in sys.argv  # the whole references of papers
    arguments = [a for a in sys.argv[1:] if a != LONG]
    if any(a in command_line.HELP for a in arguments):
        print(__doc__)
        return
    command_line.check_flags(arguments)
    if named := next((a for a in arguments if a.startswith("model=")), None):
        sys.exit(command_line.say_error(f"{named}: all models are listed; leave it out"))

    def show() -> None:
        table = Table("model", "kind", "needs", "what it is", box=None, pad_edge=False, header_style="bold")
        if arguments:
            with command_line.explained(arguments):
                compose("train", arguments)
            table.add_column("fits")
        names = []
        for entry in entries(arguments):
            names += [entry.name] if arguments and entry.problem is None else []
            fits = [entry.problem or "yes"] if arguments else []
            table.add_row(entry.name, entry.kind, entry.needs, entry.paper if long else entry.reference, *fits)
        results.print(table)
        if names:
            command = f"python -m recsys.train -m model={','.join(names)} {' '.join(arguments)}"
            results.print(f"\nTrain all that fit: {command}", soft_wrap=True)

    sys.exit(command_line.call(show, "models", arguments))
