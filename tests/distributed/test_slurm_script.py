"""docs/slurm.sh with stand-ins for Slurm's commands: what it asks for. test_slurm.py runs it under a real Slurm."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "slurm.sh"
SRUN = """#!/bin/bash
printf '%s\\n' "$@" > srun.arguments
echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME" > srun.interfaces
trap 'exit 1' TERM
[ -z "$WAITS" ] && exit "$STATUS"
touch waiting
while :; do sleep .05; done
"""
SCANCEL = """#!/bin/bash
echo "$0 $@" >> calls
kill -TERM "$(cat srun.pid)"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    tools = {
        "srun": SRUN.replace("printf", "echo $$ > srun.pid; printf", 1),
        "scancel": SCANCEL,
        "scontrol": '#!/bin/bash\n[ "$1" = show ] && echo host-0 || echo "$0 $@" >> calls\n',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "host-[0-1]", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "3"}
    return job | {"PATH": f"{tmp_path}:/usr/bin:/bin", "STATUS": "0"}


def arguments(folder: Path) -> list[str]:
    return (folder / "srun.arguments").read_text().splitlines()


def test_what_srun_starts(tmp_path: Path, env: dict[str, str]) -> None:
    done = subprocess.run(["bash", SCRIPT, "model=dlrm", "run_dir=a b"], cwd=tmp_path, env=env | {"STATUS": "3"})
    given = arguments(tmp_path)
    assert done.returncode == 3 and given[:2] == ["--kill-on-bad-exit=1", "--cpus-per-task=3"]
    assert given[2:5] == ["torchrun", "--nnodes=2", "--nproc_per_node=1"] and "--rdzv_endpoint=host-0:22345" in given
    assert given[-5:] == ["recsys.train", "resume=auto", "trainer.save_on_interrupt=true", "model=dlrm", "run_dir=a b"]
    assert not (tmp_path / "calls").exists()


def test_settings_are_variables(tmp_path: Path, env: dict[str, str]) -> None:
    more = {"INTERFACE": "ib0", "IMAGE": "train.sqsh", "MOUNTS": "/shared:/shared"}
    subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=env | more, check=True)
    assert (tmp_path / "srun.interfaces").read_text() == "ib0 ib0\n"
    image = [a for a in arguments(tmp_path) if a.startswith("--container-")]
    mounts = f"--container-mounts={tmp_path}:{tmp_path},/shared:/shared"
    assert image == ["--container-image=train.sqsh", f"--container-workdir={tmp_path}", mounts]


@pytest.mark.parametrize(("seconds", "queued"), [(3600, True), (0, False)])
def test_near_the_limit_the_step_ends_and_the_job_is_queued_again(
    seconds: int, queued: bool, tmp_path: Path, env: dict[str, str]
) -> None:
    """Unless it has only just begun: then each start would be near the limit. seconds: for which it has run"""
    more = {"WAITS": "yes", "SECONDS": str(seconds)}
    with subprocess.Popen(["bash", SCRIPT], cwd=tmp_path, env=env | more, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "waiting").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        _, said = process.communicate(timeout=20)
    calls = [f"{tmp_path}/scancel --signal=TERM 12345.0", f"{tmp_path}/scontrol requeue 12345"]
    assert process.returncode == 1 and (tmp_path / "calls").read_text().splitlines() == calls[: 1 + queued]
    assert ("--signal" in said) != queued
