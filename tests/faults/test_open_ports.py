"""A job on one machine opens no port that another machine could reach, and leaves nothing in the temporary folder."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from forks import WARM, Command

from recsys.distributed import launch

SMALL = [
    *("data.sample.rows=2000", "trainer.batch_size=128", "trainer.threads=1"),
    *("model.dim=4", "model=deepfm", "sharding=rowwise", "trainer.devices=2", "run_dir=run"),
]


def listening(home: Path) -> set[tuple[str, str]]:
    """Return (address in hexadecimal, command) of every TCP socket on which a process of this folder listens."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                sockets[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if not Path(os.readlink(process / "cwd")).is_relative_to(home):
                continue
            command = (process / "cmdline").read_text().replace("\0", " ")
            descriptors = list((process / "fd").iterdir())
        except OSError:  # it has ended
            continue
        for descriptor in descriptors:
            with suppress(OSError):  # it has been closed
                if (link := os.readlink(descriptor)) in sockets:
                    found.add((sockets[link], command))
    return found


def is_loopback(address: str) -> bool:
    """Return whether an address of /proc/net/tcp or tcp6, in the byte order of this machine, is of this host alone."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    if len(words) == 1:
        return words[0][0] == 127
    whole = b"".join(words)
    return whole == socket.inet_pton(socket.AF_INET6, "::1") or (
        whole[:12] == b"\0" * 10 + b"\xff\xff" and whole[12] == 127
    )


def start(home: Path, temporary: Path, *more: str) -> Command:
    env = {k: v for k, v in os.environ.items() if not k.endswith("_SOCKET_IFNAME")} | WARM | {"TMPDIR": str(temporary)}
    said = home / "said"
    return Command("recsys.train", *SMALL, *more, cwd=home, stdout=said, stderr=said, env=env)


@pytest.mark.slow
def test_a_job_of_two_processes_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    with socket.socket() as own:
        own.bind(("0.0.0.0", 0))
        own.listen()
        assert any(not is_loopback(address) for address, _ in listening(Path.cwd()))  # the test sees such a socket
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    job, seen = start(home, temporary), set()
    while job.poll() is None:
        seen |= listening(home)
        time.sleep(0.1)
    assert job.returncode == 0, (home / "said").read_text()[-3000:]
    assert seen, "gloo listens, on the loopback interface"
    assert not {s for s in seen if not is_loopback(s[0])}
    assert not list(temporary.glob("*recsys*")) + list(temporary.glob("*elastic*"))


@pytest.mark.slow
def test_spark_on_one_machine_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recsys.preprocess", "engine=spark", "data.sample.rows=2000", "data.prepared=p"]
    said = tmp_path / "said"
    with said.open("w") as out:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out)
    found: set[tuple[str, str]] = set()
    while running.poll() is None:
        found |= listening(tmp_path)
        time.sleep(0.1)
    assert running.returncode == 0, said.read_text()
    assert any("java" in command for _, command in found)
    assert not [command for address, command in found if not is_loopback(address)]


def test_what_a_killed_job_leaves_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with launch.private_folder() as running:
        assert running.stat().st_mode & 0o777 == 0o700
        left = tmp_path / f"{launch.PREFIX}left"
        (left / "logs").mkdir(parents=True)
        with launch.private_folder() as other:
            assert running.exists() and other.exists() and not left.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ranks_and_folder_of_a_killed_launcher_go(tmp_path: Path) -> None:
    """The ranks end with their launcher, so that a new job never shares the run's folder with them."""
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    job = start(home, temporary, "trainer.max_epochs=1000", "trainer.early_stopping.patience=null")
    while not (home / "run" / "metrics.csv").exists():
        assert job.poll() is None, (home / "said").read_text()[-3000:]
        time.sleep(0.05)
    [folder] = temporary.glob(f"{launch.PREFIX}*")
    launch.remove_if_left(folder)
    assert folder.exists()
    os.kill(job.pid, signal.SIGKILL)
    job.wait(10)
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        launch.remove_if_left(folder)
        time.sleep(0.05)
    assert not folder.exists()
