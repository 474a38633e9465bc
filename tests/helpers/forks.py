"""Start processes that cost no import of torch: they are forked from a server that has imported it, one a session.

The server has run nothing: no operator of torch, no polars (whose threads a fork would lose), so that what is forked
stands where a new interpreter would after its imports.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

IMPORTED = [
    *("torch", "torchrec", "torch.distributed.run", "torch.distributed.checkpoint", "pytorch_lightning", "hydra"),
    *("pytest", "recsys.config.build", "recsys.evaluation.retrieval", "recsys.evaluation.binary", "recsys.models.dlrm"),
]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(IMPORTED)


def fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a module's function in a process of its own, which is returned: a multiprocessing.Process."""
    process = _server.Process(target=function, args=arguments)
    process.start()
    return process


class Command:
    """A command in a forked process; it has the methods of subprocess.Popen that tests need."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m MODULE ARGUMENTS` in a session of its own; what it says is added to the two files."""
        self.args = [module, *arguments]
        env = dict(os.environ if env is None else env)
        self._process = fork(_be_a_command, module, [*arguments], str(cwd), env, str(stdout), str(stderr))
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """The exit status, minus the signal where one has ended it; None while it runs."""
        found = self._process.exitcode
        assert found is None or isinstance(found, int)
        return found

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when there is one; raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        found = self.poll()
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


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
        return subprocess.CompletedProcess(started.args, status, out.read_text(), err.read_text())


def _be_a_command(
    module: str, arguments: list[str], cwd: str, env: dict[str, str], stdout: str, stderr: str
) -> NoReturn:
    """Do what a new interpreter does with -m MODULE, and exit as it does."""
    os.setsid()
    for path, number in ((stdout, 1), (stderr, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [module, *arguments]
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
        if status and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    with suppress(SystemExit):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does that ends
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
