"""The manifests of docs/deploy fit the schemas of Kubernetes and JobSet; that of training starts a training."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from recsys.config.compose import compose
from recsys.job.check_config import check_config

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
OLDEST, NEWEST = "1.29", "1.37"  # minor versions of Kubernetes


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


JOB_SET = next(d for d in documents("training.yaml") if d["kind"] == "JobSet")
JOB = JOB_SET["spec"]["replicatedJobs"][0]["template"]["spec"]
POD = JOB["template"]["spec"]
[CONTAINER] = POD["containers"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", ["deployment.yaml", "training.yaml"])
def test_kubernetes_schemas(file: str, version: str) -> None:
    """No field is unknown, and each has its type; the Job of the JobSet is checked as a Job."""
    validate = pytest.importorskip("kubernetes_validate").validate
    kinds = [d for d in documents(file) if d["kind"] != "JobSet"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": JOB}
    for document in [*kinds, job]:
        validate(document, version, strict=True)
    with pytest.raises(Exception, match="replica"):
        validate({**job, "spec": {**JOB, "replica": 1}}, version, strict=True)


def test_the_schema_of_job_sets() -> None:
    """Kubeflow's trainer, which makes JobSets, has their schema: what it reads is what the file says, nothing less."""
    models = pytest.importorskip("kubeflow_trainer_api.models.jobset_v1alpha2_job_set")
    assert models.JobsetV1alpha2JobSet.from_dict(JOB_SET).to_dict() == JOB_SET


def test_the_job_set_starts_torchrun_and_a_training(tmp_path: Path) -> None:
    """The shell of the pod runs with stand-ins for python and torchrun, as each of both nodes."""
    for name in ("python", "torchrun"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\nexit $STATUS\n')
        (tmp_path / name).chmod(0o755)

    def run(index: int, status: int = 0) -> tuple[int, list[list[str]]]:
        (tmp_path / "calls").unlink(missing_ok=True)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index), "STATUS": str(status)}
        done = subprocess.run([*CONTAINER["command"], *CONTAINER["args"]], env=env, capture_output=True)
        return done.returncode, [line.split() for line in (tmp_path / "calls").read_text().splitlines()]

    status, [check, start] = run(0)
    overrides = start[start.index("recsys.train") + 1 :]
    assert status == 0 and check[-2:] == ["--cfg", "job"] and check[3:-2] == overrides[2:]
    check_config(
        compose("train", [*overrides, "data.root=null", f"run_dir={tmp_path}/a", f"data.prepared={tmp_path}/p"])
    )
    given = dict(a.removeprefix("--").split("=", 1) for a in start[1 : start.index("-m")])
    assert int(given["nnodes"]) == JOB["completions"] == JOB["parallelism"]
    assert given["nproc_per_node"] == CONTAINER["resources"]["limits"]["nvidia.com/gpu"]
    host = f"{JOB_SET['metadata']['name']}-{JOB_SET['spec']['replicatedJobs'][0]['name']}-0-0.{JOB_SET['metadata']['name']}"
    assert given["rdzv_endpoint"].partition(":")[0] == host
    assert [run(index)[1][1][-len(overrides) - 3] for index in (0, 1)] == [
        "--rdzv_conf=is_host=1",
        "--rdzv_conf=is_host=0",
    ]
    assert POD["terminationGracePeriodSeconds"] > int(given["shutdown_timeout"])
    [mistake] = JOB["podFailurePolicy"]["rules"]
    assert run(0, 2) == (2, [check]) and mistake["onExitCodes"]["values"] == [2] and mistake["action"] == "FailJob"


def test_the_pods_of_a_training() -> None:
    mounts = {m["name"]: m["mountPath"] for m in CONTAINER["volumeMounts"]}
    volumes = {v["name"]: v for v in POD["volumes"]}
    assert (
        set(mounts) == set(volumes) and mounts["shm"] == "/dev/shm" and volumes["shm"]["emptyDir"]["medium"] == "Memory"
    )
    [claim] = [d for d in documents("training.yaml") if d["kind"] == "PersistentVolumeClaim"]
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    places = [a.partition("=")[2] for a in CONTAINER["args"] if "=/" in a and "\n" not in a]
    assert len(places) == 3 and all(place.startswith(mounts["shared"] + "/") for place in places)
    assert POD["securityContext"]["runAsNonRoot"] and POD["securityContext"]["runAsUser"] == 10001
    [policy] = [d["spec"] for d in documents("training.yaml") if d["kind"] == "NetworkPolicy"]
    [ours] = [source["podSelector"] for rule in policy["ingress"] for source in rule["from"]]
    assert ours == policy["podSelector"] == {"matchLabels": JOB["template"]["metadata"]["labels"]}
