"""Ctrl-C and SIGTERM end a command with one line, at any moment.

A command installs the handlers; a program that imports recsys keeps its own.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

QUIET = "RECSYS_LAUNCHED"  # in the environment of ranks whose launcher says that the job was interrupted
SIGNALS = (signal.SIGINT, signal.SIGTERM)
RETRY = 0.02  # seconds after which an interruption that Python has swallowed is raised again


class Interrupted(BaseException):
    """A signal has ended the command. status: the exit status, as a shell reports it.

    It can be pickled: torch sends the errors of a collective save to rank 0.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number

    def __str__(self) -> str:
        return f"signal {self.status - 128}"


_advice = "run the command again"  # what to do after an interruption
_deferred = False  # whether the first signal only sets `_requested`
_requested: int | None = None
_installed = False


def install() -> None:
    """Handle SIGINT and SIGTERM from now on, if this is the main thread."""
    global _installed
    if threading.current_thread() is threading.main_thread():
        _installed = True
        sys.unraisablehook = _raise_again
        for number in SIGNALS:
            signal.signal(number, _handle)


def installed() -> bool:
    """Return whether this process is a command, whose signals are handled here."""
    return _installed


def install_again() -> None:
    """Take the signals back from a library that has installed its own handlers, if this process is a command's."""
    if _installed and all(signal.getsignal(number) is not _last for number in SIGNALS):
        install()


def advise(text: str) -> None:
    """Set what the line about an interruption says the user can do."""
    global _advice
    _advice = text


def message() -> str:
    """Return the line about an interruption."""
    return f"interrupted; {_advice}"


def defer(value: bool = True) -> None:
    """Let the first signal wait until `end` is called, so that a checkpoint can be written before."""
    global _deferred
    _deferred = value


def requested() -> bool:
    """Return whether a deferred signal has come."""
    return _requested is not None


def end() -> NoReturn:
    """Raise Interrupted for the deferred signal."""
    raise Interrupted(_requested or signal.SIGTERM)


def _handle(number: int, _: FrameType | None) -> None:
    global _requested
    if _deferred and _requested is None:
        _requested = number
        return
    for other in SIGNALS:  # a second signal does not wait for what the first one ends
        signal.signal(other, _last)
    raise Interrupted(number)


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise Interrupted again soon: Python swallows what is raised in __del__, weak references and hooks of fork."""
    error = unraisable.exc_value
    if not isinstance(error, Interrupted):
        sys.__unraisablehook__(unraisable)
        return

    def again(*_: object) -> NoReturn:
        raise error

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, RETRY)


def _last(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)  # private: of os, which documents it; without waiting for anything
