"""Copy the versions and aliases of a registry to MLflow and to W&B, for those who look there.

A training with `logger.wandb` logs its model as the artifact model-RUN_ID. FOLDER/NAME/wandb.json keeps the artifact of
each version, because the run folders of old versions are removed. Nothing is read back from W&B.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from recsys.base.errors import UserError
from recsys.files.atomic import write_json
from recsys.files.model_folder import MANIFEST
from recsys.follow.model_registry import ROLES, ModelRegistry

FILE = "wandb.json"
TAG = "recsys.version"


def copy_to_wandb(registry: ModelRegistry) -> str | None:
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


def copy_to_mlflow(registry: ModelRegistry, uri: str) -> int:
    """Create what MLflow lacks, set the aliases as they are here, and return the number of new versions.

    MLflow numbers versions itself; the tag recsys.version has the version's name here. The artefacts stay where they
    are: `source` of a version is its folder. Raises UserError if MLflow is missing, or does not take the versions.

    uri: address of an MLflow server or database, such as http://localhost:5000 or sqlite:///mlflow.db
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as e:
        hint = "install it with uv pip install mlflow-skinny, or mlflow for a database"
        raise UserError(f"mlflow={uri}: needs the package mlflow; {hint}") from e
    name, roles, new = registry.name, registry.aliases(), 0
    try:
        client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)
        if not list(client.search_registered_models(f"name='{name}'")):
            client.create_registered_model(name)
        known = {v.tags[TAG]: str(v.version) for v in client.search_model_versions(f"name='{name}'") if TAG in v.tags}
        for summary in registry.summaries():
            version = summary["version"]
            if version in known or not (registry.path(version) / MANIFEST).is_file():
                continue
            tags = {TAG: version, "why": summary.get("why") or "", "parent": summary.get("parent") or ""}
            tags |= {f"metric.{k}": str(v) for k, v in (summary.get("metrics") or {}).items()}
            source = registry.path(version).resolve().as_uri()
            known[version] = str(client.create_model_version(name, source=source, tags=tags).version)
            new += 1
        for role in ROLES:
            if roles.get(role) in known:
                client.set_registered_model_alias(name, role, known[roles[role]])
            else:
                client.delete_registered_model_alias(name, role)
        return new
    except (MlflowException, ImportError) as e:
        why = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)[:200]
        raise UserError(f"mlflow={uri}: MLflow does not take the versions: {why}") from e
