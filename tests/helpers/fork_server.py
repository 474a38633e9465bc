"""Fork processes that have torch, torchrec and Lightning imported already: python fork_server.py SOCKET.

The server has run nothing but Hydra: no operator of torch, no polars (whose threads a fork would lose), so that what is
forked stands where a new interpreter stands after its imports. A client connects, sends a pickled `Request` with three
file descriptors, and reads the process's ID and, when the process has ended, its exit status. If a client goes away, its
process is killed. The server ends when its standard input is closed.
"""

import array
import atexit
import gc
import importlib
import os
import pickle
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import types
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

IMPORTED = [
    *("torch", "torchrec", "torch.distributed.run", "torch.distributed.checkpoint", "pytorch_lightning", "hydra"),
    *("pytest", "polars", "pyarrow.parquet", "recsys.evaluation.retrieval_metrics", "recsys.evaluation.binary"),
    *("recsys.models.dlrm", "recsys.training.evaluate_run", "recsys.training.trainer", "recsys.online.recommender"),
    *(
        "recsys.training.run",
        "recsys.training.run_data",
        "recsys.distributed.launch",
        "recsys.job.check_built",
        "recsys.predict",
    ),
    *("hydra._internal.core_plugins.basic_sweeper", "pydantic.type_adapter", "pydantic.types", "pyarrow.csv"),
    *("hypothesis", "sklearn.metrics"),  # for pytest's workers
    *("torch._dynamo", "onnxscript", "torch.onnx._internal.exporter._compat", "recsys.export.exported"),
]


EXECUTABLE = "RECSYS_TEST_EXECUTABLE"  # in a process's environment: its sys.executable, with which it starts others


@dataclass(frozen=True)
class Request:
    """A process to start: `python ARGUMENTS` (-m MODULE ..., -c CODE ..., FILE ...), or a call.

    call: sys.path and the pickled (function, arguments), which may need it
    """

    arguments: list[str]
    cwd: str
    env: dict[str, str]
    call: tuple[list[str], bytes] | None = None


def send(connection: socket.socket, request: Request, descriptors: list[int]) -> None:
    """Send a request with the process's standard input, output and error."""
    body = pickle.dumps(vars(request))
    head = struct.pack("!I", len(body))
    connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    connection.sendall(body)


def read_number(connection: socket.socket) -> int:
    """Read a process's ID or its exit status. Raises EOFError where the server has ended."""
    raw = connection.recv(4, socket.MSG_WAITALL)
    if len(raw) < 4:
        raise EOFError("the fork server has ended")
    number: int = struct.unpack("!i", raw)[0]
    return number


def _receive(connection: socket.socket) -> tuple[Request, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    body = connection.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
    return Request(**pickle.loads(body)), descriptors


class Server:
    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{path}.starting")
        self.listener.listen(64)
        os.rename(f"{path}.starting", path)  # clients look for this name, and may connect as soon as it is there
        self.selector = selectors.DefaultSelector()
        self.running: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a process -> its ID and its client

    def run(self) -> None:
        self.selector.register(self.listener, selectors.EVENT_READ, self._start)
        self.selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    for pid, _ in self.running.values():
                        _kill(pid)
                    return
                key.data(key.fileobj)

    def _start(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            request, descriptors = _receive(connection)
        except (OSError, struct.error):
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self.selector.close()
            listener.close()
            connection.close()
            for descriptor, (_, other) in self.running.items():
                os.close(descriptor)
                other.close()
            _become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):  # a client that is gone already: `_left` kills its process
            connection.sendall(struct.pack("!i", pid))
        process = os.pidfd_open(pid)
        self.running[process] = (pid, connection)
        self.selector.register(process, selectors.EVENT_READ, self._ended)
        self.selector.register(connection, selectors.EVENT_READ, lambda _: self._left(process))

    def _ended(self, process: int) -> None:
        pid, connection = self.running.pop(process)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
        self.selector.unregister(process)
        os.close(process)
        with suppress(KeyError):
            self.selector.unregister(connection)
        connection.close()

    def _left(self, process: int) -> None:
        pid, connection = self.running[process]
        self.selector.unregister(connection)
        _kill(pid)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a process leads a group of its own, unless it has just been forked
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _become(request: Request, descriptors: list[int]) -> NoReturn:
    """Do what a new interpreter does, and exit as it does."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    tempfile.tempdir = None  # of TMPDIR
    sys.executable = request.env.get(EXECUTABLE, sys.executable)
    status = 0
    try:
        _run(request)
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


def _run(request: Request) -> None:
    if request.call is not None:
        sys.path[:], call = request.call
        function, arguments = pickle.loads(call)
        function(*arguments)
        return
    options = list(request.arguments)
    while options[0] in ("-u", "-B"):
        options.pop(0)
    first, *rest = options
    here = os.path.dirname(first) if not first.startswith("-") else request.cwd
    given = request.env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [here, *filter(None, given)]  # in place of this file's folder
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(rest[0], vars(sys.modules["__main__"]))
    else:
        sys.argv = options
        runpy.run_path(first, run_name="__main__")


def remember(samples: str) -> None:
    """Let what is forked find the configs of all commands read, and samples that another process has written."""
    from pathlib import Path

    from remembered_configs import remember_configs
    from remembered_samples import remember_samples

    from recsys.config.compose import COMMANDS, composing, hydra_compose

    os.mkdir(samples)
    remember_samples(Path(samples))
    remember_configs()
    for command in COMMANDS:
        with composing(command):
            hydra_compose(command)


def main(path: str) -> None:
    server = Server(path)  # before the imports: clients wait for them, and not for the socket
    for module in IMPORTED:
        importlib.import_module(module)
    remember(os.path.join(os.path.dirname(path), "samples"))
    gc.collect()
    gc.freeze()  # what is imported is shared with all that are forked
    server.run()


if __name__ == "__main__":
    main(sys.argv[1])
