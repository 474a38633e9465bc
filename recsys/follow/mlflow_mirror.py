"""Copy the versions and the aliases of a registry to MLflow's model registry, for those who look there."""

from __future__ import annotations

from typing import Any

from recsys.base.errors import UserError
from recsys.files.model_folder import MANIFEST
from recsys.follow.model_registry import ROLES, ModelRegistry

TAG = "recsys.version"


def mirror_to_mlflow(registry: ModelRegistry, uri: str) -> int:
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
