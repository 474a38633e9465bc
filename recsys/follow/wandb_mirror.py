"""Set the roles of a registry's versions as aliases of their W&B artifacts, for those who look there.

A training with `logger.wandb` logs its model as the artifact model-RUN_ID. FOLDER/NAME/wandb.json keeps the artifact of
each version, because the run folders of old versions are removed. Nothing is read back from W&B.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from recsys.files.atomic import write_json
from recsys.follow.model_registry import ROLES, ModelRegistry

FILE = "wandb.json"


def mirror_to_wandb(registry: ModelRegistry) -> str | None:
    """Set the aliases of the versions' artifacts as they are here; whatever W&B does, nothing is raised.

    Returns:
        A line about what has changed, or why nothing could; None if all is as it was.
    """
    try:
        import wandb
    except ImportError:
        return "W&B: needs the package wandb; install it with uv pip install wandb"
    file = registry.folder / FILE  # [ENTITY/]PROJECT/model-RUN_ID by version
    before: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    names = dict(before)
    for summary in registry.summaries():
        run = Path(summary.get("run") or "/nowhere")
        if (run / "wandb_id").is_file() and (run / "config.yaml").is_file():
            config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
            logger = (config.get("logger") or {}).get("wandb") or {}
            id_ = (run / "wandb_id").read_text(encoding="utf-8").strip()
            where = filter(None, [logger.get("entity"), logger.get("project") or "uncategorized"])
            names[summary["version"]] = "/".join([*where, f"model-{id_}"])
    if names != before:
        write_json(file, names)
    if not names:
        return "W&B: no version has a run that was logged to W&B; train with logger=wandb logger.wandb.offline=false"
    try:
        if not wandb.login(prompt=False):
            return "W&B: not logged in, so no aliases were set; run wandb login, then this command again"
        api = wandb.Api()
    except Exception as e:  # wandb raises errors of its own and of its transport
        return f"W&B: cannot be reached, so no aliases were set: {_line(e)}"
    changed, failed = 0, list[str]()
    for version in sorted(names, key=lambda v: v in registry.aliases().values()):  # roles are taken before given
        roles = [r for r in ROLES if registry.aliases().get(r) == version]
        try:
            artifact = api.artifact(f"{names[version]}:best")
            aliases = [a for a in artifact.aliases if a not in ROLES] + roles  # others stay
            if set(aliases) != set(artifact.aliases):
                artifact.aliases = aliases
                artifact.save()
                changed += 1
        except Exception as e:  # as above
            failed += [f"{names[version]} of version {version}: {_line(e)}"] if roles else []
    hint = "; upload offline runs with wandb sync RUN_DIR/wandb/offline-run-*, then run this command again"
    said = "; ".join([f"W&B: the aliases of {changed} artifacts have changed", *failed])
    return said + hint * bool(failed) if changed or failed else None


def _line(error: Exception) -> str:
    return next((x for x in str(error).splitlines() if x.strip()), type(error).__name__)[:200]
