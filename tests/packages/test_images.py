"""The images of docs/deploy, built by buildah from the Dockerfiles themselves, answer and train.

The base image is a stand-in for python:3.11-slim, since no registry is asked: Debian's minimal system with this machine's
Python in /usr/local.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from forks import ok, run_forked
from served import free_port

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "debootstrap")
MISSING = [t for t in TOOLS if shutil.which(t, path=os.environ["PATH"] + ":/usr/sbin") is None]
TORCH_INDEX = os.environ.get("RECSYS_TEST_TORCH_INDEX", "")  # has builds of torch without CUDA's libraries
GIB_FREE = 12 if TORCH_INDEX else 24  # what a build takes: the training image has 6 with them
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LIBRARIES = (
    "ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,libssl3,libuuid1"
)
LEFT_OUT = ("site-packages", "test", "__pycache__")
LAUNCHER = """
from triton.runtime.build import compile_module_from_src
from recsys.base.packages import no_compiler
begin = '#include <Python.h>' + chr(10) + '#include <stdio.h>' + chr(10) + 'static struct PyModuleDef m = {'
end = 'PyModuleDef_HEAD_INIT, "launcher"}; PyMODINIT_FUNC PyInit_launcher(void) {return PyModule_Create(&m);}'
assert compile_module_from_src(begin + end, "launcher") and no_compiler(gpu=True) is None
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="a base image is made as root"),
    pytest.mark.timeout(3600),
]


@dataclass
class Builder:
    """buildah, with images in a folder of its own."""

    home: Path

    def command(self, *arguments: str) -> list[str]:
        return ["buildah", "--root", f"{self.home}/images", "--runroot", f"{self.home}/run", *arguments]

    def ask(self, *arguments: str) -> str:
        env = os.environ | {"BUILDAH_ISOLATION": "chroot"}
        return ok(
            subprocess.run(self.command(*arguments), cwd=ROOT, env=env, capture_output=True, text=True)
        ).stdout.strip()

    def build(self, file: str, *arguments: str) -> str:
        """Build an image and return a container of it. The secrets tell pip and uv of this machine's certificates."""
        (self.home / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
        (self.home / "uv.toml").write_text("system-certs = true\n")
        secrets = [f"--secret=id={i},src={self.home / name}" for i, name in (("pip", "pip.conf"), ("uv", "uv.toml"))]
        how = ["--layers", "--pull=never", "--network=host", "--format=docker", *secrets, *arguments]
        self.ask("bud", *how, "--file", f"docs/deploy/{file}", "--tag", file.lower(), ".")
        return self.ask("from", "--pull-never", file.lower())

    def remove(self) -> None:
        """Remove all containers, and all images but the base."""
        self.ask("rm", "--all")
        self.ask("rmi", "--force", "train.dockerfile")
        self.ask("rmi", "--prune", "--force")

    def config(self, container: str) -> dict[str, Any]:
        return json.loads(self.ask("inspect", container))["Docker"]["config"]  # type: ignore[no-any-return]

    def start(self, container: str, *command: str, mounts: tuple[str, ...] = (), **how: Any) -> subprocess.Popen[str]:
        given = self.command("run", "--network=host", *(f"--volume={m}" for m in mounts), container, "--", *command)
        return subprocess.Popen(given, env=os.environ | {"BUILDAH_ISOLATION": "chroot"}, text=True, **how)

    def run(self, container: str, *command: str) -> str:
        with self.start(container, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            output, _ = process.communicate()
        assert process.returncode == 0, output[-3000:]
        return output


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    home = tmp_path_factory.mktemp("images")
    if shutil.disk_usage(home).free < GIB_FREE << 30:
        pytest.skip(f"less than {GIB_FREE} GiB are free")
    root = home / "base"
    made = Builder(home)
    try:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm", str(root)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"no base image: {done.stdout[-300:]}")
        base = Path(sys.base_prefix)
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        for folder in ("bin", "lib", "include"):
            shutil.copytree(
                base / folder, root / "usr/local" / folder, symlinks=True, ignore=ignored, dirs_exist_ok=True
            )
        shutil.copy(CERTIFICATES, root / str(CERTIFICATES)[1:])
        prepare = "ldconfig; python3 -m ensurepip && cd /usr/local/bin && ln -sf pip3 pip && ln -sf python3 python"
        ok(subprocess.run(["chroot", str(root), "sh", "-c", prepare], capture_output=True, text=True))
        with tarfile.open(home / "base.tar", "w") as tar:
            tar.add(root, arcname=".")
        container = made.ask("from", "scratch")
        made.ask("add", container, str(home / "base.tar"), "/")
        made.ask("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        made.ask("commit", "--rm", container, base_image())
        shutil.rmtree(root)
        (home / "base.tar").unlink()
        yield made
    finally:
        subprocess.run(made.command("rm", "--all"), capture_output=True)
        subprocess.run(made.command("rmi", "--all", "--force"), capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def base_image() -> str:
    lines = (ROOT / "docs/deploy/Dockerfile").read_text().splitlines()
    [image] = [line.partition("=")[2] for line in lines if line.startswith("ARG PYTHON_IMAGE=")]
    return f"docker.io/library/{image}"


def test_the_built_server_answers(builder: Builder, tmp_path: Path) -> None:
    run = ("model=dlrm", "data=sample_interactions", "debug=fast", "run_dir=run")
    ok(run_forked("recsys.train", *run, cwd=tmp_path))
    ok(run_forked("recsys.export", "run=run", "output=model", cwd=tmp_path))
    tmp_path.chmod(0o755)
    examples = json.loads((tmp_path / "model" / "examples.json").read_text())
    container = builder.build("Dockerfile")
    config, port = builder.config(container), free_port()
    assert (
        config["User"] == "10001"
        and "torch" not in builder.run(container, "ls", "/opt/recsys/lib/python3.11/site-packages").split()
    )
    command = [*config["Entrypoint"], *config["Cmd"], f"port={port}", "grpc_port=0"]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        builder.start(
            container, *command, mounts=(f"{tmp_path / 'model'}:/models:ro",), stdout=out, stderr=out
        ) as process,
    ):
        try:
            until = time.monotonic() + 60
            while "serving" not in log.read_text():
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.2)
            answer = requests.post(f"http://127.0.0.1:{port}/predict", json={"rows": examples["rows"][:64]}, timeout=20)
        finally:
            process.terminate()
    np.testing.assert_allclose(answer.json()["predictions"], examples["outputs"]["probability"][:64], atol=1e-6)


def test_the_built_image_trains(builder: Builder) -> None:
    """Compiled, on the CPU, as the image's user."""
    container = builder.build("train.Dockerfile", f"--build-arg=TORCH_INDEX={TORCH_INDEX}")
    config = builder.config(container)
    assert config["User"] == "10001"
    given = ("model=dlrm", "data=criteo", "data.sample.rows=4000", "debug=fast", "trainer.compile=true", "run_dir=run")
    output = builder.run(container, *config["Entrypoint"], *given)
    installed = builder.run(container, "ls", "/opt/recsys/lib/python3.11/site-packages").split()
    assert ("triton" in installed and "nvidia" in installed) == (not TORCH_INDEX)
    assert "compiled in" in output and json.loads(builder.run(container, "cat", "run/metrics.json"))["test"]
    builder.remove()


@pytest.mark.skipif(TORCH_INDEX != "", reason="RECSYS_TEST_TORCH_INDEX has no torch for GPUs")
def test_the_image_for_gpus_has_what_triton_builds_with(builder: Builder) -> None:
    """Its kernels need a driver, but the launcher is built without one."""
    container = builder.build("train.Dockerfile", "--build-arg=FBGEMM=fbgemm-gpu")
    builder.run(container, "python", "-c", LAUNCHER)
    assert "Name: fbgemm_gpu\n" in builder.run(
        container, "sh", "-c", "cat /opt/recsys/lib/*/site-packages/fbgemm_gpu-*/METADATA"
    )
    builder.remove()
