"""python -m recsys.registry list|show|promote|rollback root=DIR [name=NAME] [version=V] [why=TEXT]
    [mlflow=URI] [wandb=true]

    list root=models                               versions of all models: aliases, when, data, parent and metrics
    show root=models name=clicks [version=V]       history of a model, or what is known of one version
    promote root=models name=clicks version=V      make a version the champion, which answers requests
    rollback root=models name=clicks               end the canary or, without one, return to the champion before

The folder is the one that `python -m recsys.serve DIR` serves; a running server follows within seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from recsys.base.console import results, say
from recsys.base.errors import UserError, did_you_mean
from recsys.cli import command_line
from recsys.schema.command_schemas import RegistryConfig

if TYPE_CHECKING:
    from recsys.follow.model_registry import ModelRegistry

ACTIONS = ("list", "show", "promote", "rollback")
USAGE = f"python -m recsys.registry {'|'.join(ACTIONS)} root=DIR [name=NAME] [version=V]"


def _command(cfg: RegistryConfig) -> None:
    if cfg.action == MISSING:
        raise UserError(f"no action: must be {', '.join(ACTIONS)}")
    from recsys.follow.model_registry import ModelRegistry, registered_names

    if cfg.root == MISSING:
        raise UserError(f"root: is missing; name the folder of models; usage: {USAGE}")
    root = Path(cfg.root)
    if not root.is_dir():
        raise UserError(f"root={root}: no such folder; name the folder of models that recsys.serve serves")
    roots = (root, root / "registry", root / "follow" / "registry")  # of recsys.follow, and of its demo
    root = next((r for r in roots if registered_names(r)), root)
    names = registered_names(root)
    if not names:
        raise UserError(f"root={root}: no model in it has a history; recsys.follow registers versions")
    if cfg.name is not None and cfg.name not in names:
        raise UserError(f"name={cfg.name}: no such model in {root}{did_you_mean(cfg.name, names)}")
    registries = [ModelRegistry(root, name) for name in (names if cfg.name is None else [cfg.name])]
    if cfg.action == "list":
        for registry in registries:
            _list(registry)
    else:
        if len(registries) > 1:
            raise UserError(f"name: is missing; name one of {', '.join(r.name for r in registries)}")
        {"show": _show, "promote": _promote, "rollback": _rollback}[cfg.action](registries[0], cfg)
    if cfg.mlflow is not None:
        from recsys.follow.copy_versions import copy_to_mlflow

        for registry in registries:
            say(f"{registry.name}: {copy_to_mlflow(registry, cfg.mlflow)} new versions in {cfg.mlflow}")
    if cfg.wandb:
        from recsys.follow import copy_versions

        for registry in registries:
            say(f"{registry.name}: {copy_versions.copy_to_wandb(registry) or 'W&B has these aliases already'}")


def _list(registry: ModelRegistry) -> None:
    from rich.table import Table

    from recsys.follow.model_registry import stored_as

    table = Table(title=registry.name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("version", "aliases", "registered", "data", "parent", "stored", "metrics"):
        table.add_column(column, no_wrap=column == "version")
    for e in reversed(registry.summaries()):
        figures = e["metrics"] if isinstance(e.get("metrics"), dict) else {}
        shown = [f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in list(figures.items())[:4]]
        interval = " to ".join(str(x) for x in e.get("interval") or ())
        when, parent = str(e.get("time"))[:19], e.get("parent") or ""
        table.add_row(e["version"], ", ".join(e["aliases"]), when, interval, parent, stored_as(e), ", ".join(shown))
    results.print(table, markup=False)
    for line in registry.missing():
        say(f"{registry.name}: {line}")


def _show(registry: ModelRegistry, cfg: RegistryConfig) -> None:
    from recsys.follow.model_registry import stored_as

    if cfg.version is None:
        for e in registry.history():
            why = f": {e['why']}" if e.get("why") else ""
            if stored := stored_as(e):
                why = f" ({stored}){why}"
            line = f"{e.get('time')}  {e.get('event')!s:<13} {e.get('version') or ''}  {e.get('who') or 'a server'}"
            results.print(line + why, markup=False, soft_wrap=True)
        return
    registry.path(cfg.version)
    [about] = [e for e in registry.summaries() if e["version"] == cfg.version]
    shown = {k: v for k, v in about.items() if k not in ("event", "before", "after")}
    results.print(json.dumps(shown, indent=1), markup=False, soft_wrap=True)


def _promote(registry: ModelRegistry, cfg: RegistryConfig) -> None:
    if cfg.version is None:
        raise UserError(f"version: is missing; name one of {', '.join(registry.versions())}")
    registry.promote(cfg.version, cfg.why)
    say(f"{registry.name}: {cfg.version} is the champion")


def _rollback(registry: ModelRegistry, cfg: RegistryConfig) -> None:
    if cfg.version is not None:
        raise UserError(f"version={cfg.version}: a rollback takes none; to choose a version, promote it")
    say(f"{registry.name}: {registry.rollback(cfg.why) or 'no version'} is the champion")


def main() -> None:
    """Run the command with this process's overrides; the action may come first."""
    command_line.run("registry", _command, command_line.named_words(("action",), f"usage: {USAGE}"))


if __name__ == "__main__":
    main()
