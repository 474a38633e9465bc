"""Run `python ARGUMENTS` in a process that the fork server forks: fork_client.py ARGUMENTS.

It ends as that process ends, and passes signals on to it; it imports nothing but the standard library.
"""

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress

from fork_server import Request, read_number, send


def forward(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    if "recsys.distributed.worker" in sys.argv:  # what such a process does for itself, whose parent is the fork server
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["RECSYS_TEST_FORKS"])
    send(connection, Request(sys.argv[1:], os.getcwd(), dict(os.environ)), [0, 1, 2])
    pid = read_number(connection)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: forward(pid, number))
    status = read_number(connection)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


main()
