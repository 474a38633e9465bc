"""docs/deploy/: the image's packages suffice, and its files name what the server has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import pytest
import requests
import yaml
from empty_environments import Environment, built_wheel
from forks import ok, run_forked
from packaging.specifiers import SpecifierSet
from served import free_port, serving

from recsys.schema.command_schemas import ServeConfig
from recsys.schema.fields import defaults
from recsys.server.app import OPEN
from recsys.server.prometheus import Metrics
from recsys.server.supervisor import EXTRA_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [line for line in (DEPLOY / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
DEFAULTS = defaults(ServeConfig)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with what the image has: the requirements, and the wheel without its dependencies."""
    folder = tmp_path_factory.mktemp("image")
    environment = Environment(folder / "environment")
    environment.install("-r", str(DEPLOY / "requirements.txt"), "-c", str(DEPLOY / "constraints.txt"))
    environment.install("--no-deps", str(built_wheel(folder)))
    assert not environment.packages() & {"torch", "torchrec", "pytorch-lightning", "wandb"}
    return environment


def test_the_packages_of_the_image_are_those_of_the_project() -> None:
    extra = PROJECT["optional-dependencies"]["serve"]
    assert set(extra) <= set(REQUIREMENTS) <= {*extra, *PROJECT["dependencies"]}


@pytest.mark.slow
def test_an_artefact_is_served_with_the_packages_of_the_image(tmp_path: Path, image: Environment) -> None:
    run = ("model=dlrm", "data=sample_interactions", "debug=fast", "run_dir=run")
    ok(run_forked("recsys.train", *run, cwd=tmp_path))
    ok(run_forked("recsys.export", "run=run", "output=model", cwd=tmp_path))
    examples = json.loads((tmp_path / "model" / "examples.json").read_text())
    predictions = serve(tmp_path / "model", tmp_path, image, rows=examples["rows"][:64])
    np.testing.assert_allclose(predictions, examples["outputs"]["probability"][:64], atol=1e-6)


def test_onnxruntime_reports_nothing_to_its_maker(tmp_path: Path) -> None:
    """Importing it writes an id of the machine, and starts a thread that sends events, unless a variable says no."""
    home = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", "import recsys, onnxruntime"], env=home, check=True)
    assert list(tmp_path.rglob("*onnxruntime*")) == []


def serve(model: Path, home: Path, image: Environment, *arguments: str, rows: list[Any]) -> list[float]:
    """Start the command of the image, and return the predictions of some rows."""
    port, log = free_port(), home / "log"
    command = [image.python, "-m", "recsys.serve", str(model), f"port={port}", "grpc_port=0", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "helpers")}  # for fake_models
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env, cwd=home) as process:
        try:
            while "serving" not in log.read_text():
                assert process.poll() is None, log.read_text()
            answer = requests.post(f"http://127.0.0.1:{port}/predict", json={"rows": rows}, timeout=20)
            docs = requests.get(f"http://127.0.0.1:{port}/docs", timeout=20)
        finally:
            process.terminate()
    assert answer.status_code == 200, answer.text
    assert docs.status_code == 200, docs.text
    return answer.json()["predictions"]  # type: ignore[no-any-return]


def instructions_of(file: str) -> list[str]:
    """Return the instructions of a Dockerfile, each on one line, without comments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / file).read_text(), flags=re.M)
    return [line for line in re.sub(r"\\\n", "", text).splitlines() if line]


def check_dockerfile(instructions: list[str]) -> None:
    """Check its base, what it copies from the repository, where versions come from, and its user."""
    words = [line.split() for line in instructions]
    given = instructions[0].removeprefix("ARG PYTHON_IMAGE=")
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", given)
    assert version is not None and version[1] in SpecifierSet(PROJECT["requires-python"])
    assert {w[1] for w in words if w[0] == "FROM"} == {"${PYTHON_IMAGE}"} and f"ARG PYTHON_IMAGE={given}" in DOCKERFILE
    sources = [source for w in words if w[0] == "COPY" and not w[1].startswith("--") for source in w[1:-1]]
    assert sources and all((ROOT / source).exists() for source in sources)
    assert ["USER", "10001"] in words and any("--uid 10001" in line for line in instructions)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", ".venv", "outputs", "dist"} <= set(ignored) and "recsys" not in ignored and "conf" not in ignored
    installs = re.findall(r"(?:pip install|uv build) ([^&;\n]*)", "\n".join(instructions))
    free = [
        i for i in installs if not re.search("--require-hashes|-c constraints.txt|--no-deps /wheels|TORCH_INDEX", i)
    ]
    assert len(installs) > 3 and free == []


def test_the_dockerfile() -> None:
    instructions = instructions_of("Dockerfile")
    check_dockerfile(instructions)
    arguments = json.loads(next(line for line in instructions if line.startswith("CMD")).removeprefix("CMD "))
    check_arguments(arguments, "/models")
    assert f"EXPOSE {DEFAULTS['port']} {DEFAULTS['grpc_port']}" in instructions


def test_the_dockerfile_for_training() -> None:
    """It installs torchrec and fbgemm as the README says, with fbgemm's package as an argument."""
    instructions = instructions_of("train.Dockerfile")
    check_dockerfile(instructions)
    [pins] = re.findall(r"^ +pip install --no-deps (torchrec\S+ \S+)", (ROOT / "README.md").read_text(), re.M)
    fbgemm = pins.split()[1].partition("==")[0]
    text = "\n".join(instructions)
    [given] = re.findall(r"--no-deps (torchrec.*)", text)
    assert given.replace("${FBGEMM}", fbgemm) == pins and f"ARG FBGEMM={fbgemm}" in instructions
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    [cuda] = re.findall(r"--build-arg FBGEMM=(\S+)", (DEPLOY / "train.Dockerfile").read_text())
    assert given.replace("${FBGEMM}", cuda).split() == groups["cuda"]
    assert re.findall(r"\btorch==\S+\b", text) == [d for d in PROJECT["dependencies"] if d.startswith("torch==")]
    assert 'ENTRYPOINT ["python", "-m", "recsys.train"]' in instructions
    assert re.search(r"apt-get install .*\bg\+\+", text)  # Triton's launcher, and compiled code on the CPU


def test_the_health_check_of_the_image(tmp_path: Path) -> None:
    check = json.loads(re.findall(r"CMD (\[.*health.*\])", DOCKERFILE)[0])
    assert check[:2] == ["python", "-c"]
    with serving(fake_models.write_model(tmp_path / "ctr"), token="s3cret") as served:
        code = [sys.executable, "-c", check[2].replace(":8000/", f":{served.settings.port}/")]
        assert subprocess.run(code).returncode == 0
        served.core.ready = False
        assert subprocess.run(code, stderr=subprocess.DEVNULL).returncode == 1


def check_arguments(arguments: list[str], folder: str) -> dict[str, str]:
    """Check the arguments of `python -m recsys.serve`; return the settings."""
    assert arguments[0] == folder
    settings = dict(a.split("=", 1) for a in arguments[1:])
    assert set(settings) <= set(DEFAULTS) and settings["host"] == "0.0.0.0"
    return settings


def check_container(container: dict[str, Any], settings: dict[str, str]) -> None:
    """Check the probes, the user, the memory and the token of a container."""
    port = int(settings.get("port", DEFAULTS["port"]))
    ports = {p.get("name", p["containerPort"]): p["containerPort"] for p in container["ports"]}
    for probe, path in (("livenessProbe", OPEN[0]), ("readinessProbe", OPEN[1])):
        get = container[probe]["httpGet"]
        assert get["path"] == path and ports[get["port"]] == port
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert set(container["resources"]) == {"requests", "limits"}
    [token] = [e for e in container["env"] if e["name"] == "RECSYS_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "recsys", "key": "token"}}
    assert "RECSYS_TOKEN" in (ROOT / "conf" / "serve.yaml").read_text()


def test_the_deployment() -> None:
    by_kind = {d["kind"]: d for d in yaml.safe_load_all((DEPLOY / "deployment.yaml").read_text())}
    deployment, service = by_kind["Deployment"], by_kind["Service"]
    template = deployment["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    [container] = pod["containers"]
    settings = check_arguments(container["args"], "/models")
    check_container(container, settings)
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    wait = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > wait + float(settings["drain_s"]) + EXTRA_SECONDS
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and mounts == {"models": "/models", "tmp": "/tmp"}
    assert {v["name"] for v in pod["volumes"]} == set(mounts)
    names = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert names == {"http": DEFAULTS["port"], "grpc": DEFAULTS["grpc_port"]}
    assert {p["name"]: p["targetPort"] for p in service["spec"]["ports"]} == {"http": "http", "grpc": "grpc"}
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(names["http"])
    assert annotations["prometheus.io/path"] == "/metrics"
    assert all(isinstance(v, str) for v in annotations.values())
    check_availability(by_kind, labels, set(names))


def check_availability(by_kind: dict[str, Any], labels: dict[str, str], ports: set[str]) -> None:
    """Check what scales, spreads and protects the pods: it selects them, and the metric is one of the server's."""
    scaler, pod = by_kind["HorizontalPodAutoscaler"]["spec"], by_kind["Deployment"]["spec"]
    assert "replicas" not in pod and scaler["scaleTargetRef"] == {
        name: by_kind["Deployment"][name] if name != "name" else "recsys" for name in ("apiVersion", "kind", "name")
    }
    [metric] = [m["pods"] for m in scaler["metrics"] if m["type"] == "Pods"]
    assert metric["metric"]["name"] in {m.name for m in Metrics().registry.collect()}
    assert int(metric["target"]["averageValue"]) < int(str(DEFAULTS["queue"]))
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["minAvailable"] < scaler["minReplicas"]
    policy = by_kind["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {p["port"] for p in policy["ingress"][0]["ports"]} == ports
    spread = pod["template"]["spec"]["topologySpreadConstraints"]
    assert spread and all(s["labelSelector"]["matchLabels"] == labels for s in spread)
    assert pod["template"]["spec"]["securityContext"]["fsGroup"] == 10001


def test_the_inference_service() -> None:
    """The fields are those of KServe's v1beta1 API: ComponentExtensionSpec, and those of a pod."""
    service = yaml.safe_load((DEPLOY / "inferenceservice.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert set(service["spec"]) == {"predictor"}
    predictor = service["spec"]["predictor"]
    of_pod = {"containers", "volumes", "terminationGracePeriodSeconds", "serviceAccountName"}
    assert set(predictor) <= {"minReplicas", "maxReplicas", "timeout", "canaryTrafficPercent", *of_pod}
    [container] = predictor["containers"]
    assert container["name"] == "kserve-container" and len(container["ports"]) == 1
    settings = check_arguments(container["args"], "/mnt/models")
    check_container(container, settings)
    assert settings["grpc_port"] == "null"
    variables = {e["name"]: e.get("value") for e in container["env"]}
    assert variables["PROTOCOL"] == "v2" and re.match("[a-z0-9]+://", str(variables["STORAGE_URI"]))
    drain: Any = DEFAULTS["drain_s"]
    assert predictor["terminationGracePeriodSeconds"] > drain + EXTRA_SECONDS


def run_client(*arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "RECSYS_TOKEN"} | (
        {} if token is None else {"RECSYS_TOKEN": token}
    )
    return subprocess.run([sys.executable, DEPLOY / "client.py", *arguments], env=env, capture_output=True, text=True)


def test_the_client_as_a_command(tmp_path: Path) -> None:
    """In a folder of models, the name is that of the folder, and not the artefact's own."""
    artefact = fake_models.write_model(tmp_path / "models" / "shop" / "1", "ctr")
    (artefact / "examples.json").write_text(json.dumps({"rows": [{"a": 0.5, "b": "b1"}, {"a": None}]}))
    with serving(tmp_path / "models") as served:
        done = run_client(str(artefact), served.http, served.grpc)
        assert (done.returncode, done.stderr) == (0, "")
        (http, over_http), (grpc, over_grpc) = (line.split(" ", 1) for line in done.stdout.splitlines())
        assert (http, grpc) == ("HTTP", "gRPC") and json.loads(over_http) == pytest.approx(json.loads(over_grpc))
        assert run_client(str(artefact), served.http, served.grpc, "shop").stdout == done.stdout
        done = run_client(str(artefact), served.http, served.grpc, "ctr")
        assert done.returncode == 2 and done.stderr.startswith("error: 404: ") and "ctr" in done.stderr
    fake_models.write_model(tmp_path / "models" / "other" / "1", "other")
    with serving(tmp_path / "models") as served:
        several = "error: the server has the models other, shop; add one after both addresses\n"
        done = run_client(str(artefact), served.http, served.grpc)
        assert (done.returncode, done.stderr) == (2, several)
