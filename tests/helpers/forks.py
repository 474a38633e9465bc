"""Start processes that cost no import of torch: the session's fork server has imported it (fork_server.py)."""

import atexit
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from fork_server import EXECUTABLE, Request, read_number, send

HERE = Path(__file__).parent
SERVER = "RECSYS_TEST_FORKS"  # in the environment: the server's socket
WARM_PYTHON = str(HERE / "warm_python")  # runs `python ARGUMENTS` in a forked process
WARM = {EXECUTABLE: WARM_PYTHON}  # in a process's environment: those that it starts are forked as well


def start_server() -> None:
    """Start the server, which ends with this process, unless an outer process has started one."""
    if SERVER in os.environ:
        return
    path = Path(mkdtemp(prefix="forks-")) / "socket"
    command = [sys.executable, str(HERE / "fork_server.py"), str(path)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    while not path.exists():
        assert server.poll() is None
        time.sleep(0.01)
    os.environ |= {SERVER: str(path), "RECSYS_TEST_PYTHON": sys.executable}
    atexit.register(_end, server, path)


def _end(server: subprocess.Popen[bytes], path: Path) -> None:
    assert server.stdin is not None
    server.stdin.close()
    shutil.rmtree(path.parent)


class Forked:
    """A forked process; it has the methods of subprocess.Popen that tests need."""

    def __init__(self, request: Request, descriptors: list[int]) -> None:
        start_server()
        request.env[SERVER] = os.environ[SERVER]  # for what it starts
        self.args = request.arguments
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[SERVER])
        send(self._connection, request, descriptors)
        self.pid = read_number(self._connection)

    def fileno(self) -> int:
        """Return what becomes readable when the process has ended."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """Return the exit status, minus the signal where one has ended the process; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, when there is one. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = read_number(self._connection)
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(function: Callable[..., Any], *arguments: Any) -> Forked:
    """Call a module's function in a process of its own."""
    call = (list(sys.path), pickle.dumps((function, arguments)))
    return Forked(Request([], os.getcwd(), dict(os.environ), call), [0, 1, 2])


class Command(Forked):
    """A command in a forked process."""

    def __init__(
        self, module: str, *arguments: str, cwd: Path, stdout: Path, stderr: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start `python -m MODULE ARGUMENTS` in a session of its own; what it says is added to the two files."""
        env = dict(os.environ if env is None else env)
        with Path(os.devnull).open() as nothing, stdout.open("ab") as out, stderr.open("ab") as err:
            descriptors = [nothing.fileno(), out.fileno(), err.fileno()]
            super().__init__(Request(["-m", module, *arguments], str(cwd), env), descriptors)


def warm_python() -> str:
    """Return a command that stands for `python`, whose processes are forked."""
    start_server()
    return WARM_PYTHON


def ok(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return a finished process. Its exit status must be 0."""
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run_anew(
    module: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` in a new interpreter, as a user starts it, with `env` beside this process's own."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=os.environ | (env or {}), timeout=timeout
    )


def run_forked(
    module: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Do the same without the seconds that a new interpreter takes for its imports."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        started = Command(module, *arguments, cwd=cwd, stdout=out, stderr=err, env=os.environ | (env or {}))
        try:
            status = started.wait(timeout)
        except BaseException:
            started.kill()
            raise
        return subprocess.CompletedProcess(["-m", module, *arguments], status, out.read_text(), err.read_text())
