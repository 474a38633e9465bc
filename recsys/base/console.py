"""Messages, results and progress bars, for people or, with logging=json, as JSON lines for machines.

On a terminal a bar is live and shows rows/s and the remaining time. In a notebook it updates one line in place.
Elsewhere it prints a line every 10 seconds.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from recsys.base import json_log
from recsys.base.append import append
from recsys.base.printable import visible
from recsys.base.secrets import mask_text

KERNEL = "RECSYS_IN_KERNEL"  # environment variable of the ranks that a notebook's kernel starts
JSON = "RECSYS_LOGGING_JSON"  # environment variable of the ranks of a job that writes JSON lines
STAMP = "%Y-%m-%d %H:%M:%S"  # before each line of a log of text
LOG_EVERY_SECONDS = 10.0
UPDATE_EVERY_SECONDS = 0.5  # of the line of a bar in a notebook


def _in_kernel() -> bool:
    """Return whether this process is the kernel of a notebook, or a rank that the kernel has started."""
    return "ipykernel" in sys.modules or KERNEL in os.environ


def environment() -> dict[str, str]:
    """Return the environment in which ranks print where this process prints."""
    return ({KERNEL: "1"} if _in_kernel() else {}) | ({JSON: "1"} if _json else {})


def _in_notebook() -> bool:
    """Return whether a cell of a notebook shows what this process prints: a kernel, or a command that it starts."""
    return _in_kernel() or "JPY_PARENT_PID" in os.environ


class _Console(Console):
    """A console that prints control characters of texts as escapes; its own, such as colours, stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for s in super().render(renderable, options):
            yield s if s.control or s.text.isprintable() else Segment(visible(s.text), s.style)


def _console(stderr: bool) -> Console:
    """Return a console of 120 columns of plain text, or of what the terminal has.

    Cells of a notebook show text as it is, and standard error as if it were an error. The commands that a cell starts
    have a terminal, whose codes would be stored in the notebook.
    """
    if _in_notebook():
        look: dict[str, Any] = {"force_jupyter": False, "force_terminal": False, "no_color": True}
        return _Console(stderr=stderr and not _in_kernel(), width=120, highlight=False, soft_wrap=stderr, **look)
    stream: TextIO | None = sys.stderr if stderr else sys.stdout  # None if the caller has closed it
    width = None if stream is not None and stream.isatty() else 120
    return _Console(stderr=stderr, width=width, highlight=False, soft_wrap=stderr)


for _stream in (sys.stdout, sys.stderr):  # a terminal of ASCII shows other letters as escapes
    if hasattr(_stream, "reconfigure") and (_stream.encoding or "").lower() not in ("utf-8", "utf8"):
        _stream.reconfigure(errors="backslashreplace")
console = _console(stderr=True)  # messages
results = _console(stderr=False)
_open_line = 0  # letters of the line that a bar updates in place
_bars_in_place = 0  # bars that are not closed
_json = False
_library = json_log.LibraryLog()  # writes the warnings of libraries
_quiet = False
_hidden = False
_log: Path | None = None
_log_fails = False
_unlogged: list[str] = []  # messages from before the log file was known
listeners: list[Callable[[str, str, dict[str, Any]], None]] = []  # that get the event, level and fields of `emit`


def quiet(value: bool = True) -> None:
    """Suppress all messages if `value` is true; ranks other than 0 call this."""
    global _quiet
    _quiet = value
    console.quiet = value or _hidden


@contextmanager
def hidden() -> Iterator[None]:
    """Print neither messages nor results while the block runs; the log goes on."""
    global _hidden
    before, _hidden = _hidden, True
    console.quiet = results.quiet = True
    try:
        yield
    finally:
        _hidden = before
        console.quiet, results.quiet = _hidden or _quiet, _hidden


def write_json(on: bool = True) -> bool:
    """Let messages be JSON lines, or text again, and return what they were."""
    global _json
    before, _json = _json, on
    change = logging.getLogger().addHandler if on else logging.getLogger().removeHandler
    change(_library)
    return before


def is_heard() -> bool:
    """Return whether machines get events: JSON lines, or a page of metrics."""
    return _json or bool(listeners)


def emit(event: str, level: str = "info", *, always: bool = False, **fields: Any) -> None:
    """Tell listeners of an event and, with logging=json, write it as a line to standard error and to the run's log.

    always: also on ranks that print no messages, as their errors
    """
    if _quiet and not always:
        return
    for listener in listeners:
        listener(event, level, fields)
    if not _json:
        return
    run = {"run": _log.parent.name} if _log is not None and _log.name == "train.log" else {}
    line = json_log.line(level, event, **run, rank=int(os.environ.get("RANK", 0)), **fields)
    if always or not console.quiet:
        print(line, file=sys.stderr, flush=True)  # which may be closed
    _keep(line)


def say(message: str) -> None:
    """Print one line to standard error and write it to the run's log, with secrets masked."""
    global _open_line
    message = visible(mask_text(message))
    emit("message", message=message)
    if _json:
        return
    if _open_line and not console.quiet:  # remove the line that a bar updates in place; the bar writes it again
        console.file.write(f"\r{'':<{_open_line}}\r")
    _open_line = 0
    console.print(message, markup=False)
    log(message)


def complain(text: str) -> None:
    """Print an error to standard error, also on ranks that print no messages, and write it to the log."""
    emit("error", "error", always=True, message=mask_text(text).strip())
    if not _json:
        print(text, end="", file=sys.stderr)
        log(text.removesuffix("\n"))


def _count_bars(more: int) -> None:
    global _bars_in_place
    _bars_in_place += more


def _show_in_place(line: str, end: str) -> None:
    """Write a line over the one that is open."""
    global _open_line
    if console.quiet:
        return
    console.file.write(f"\r{visible(mask_text(line)):<{_open_line}}{end}")
    console.file.flush()
    _open_line = 0 if end else max(_open_line, len(line))


@lru_cache
def say_once(message: str) -> None:
    """Call `say` unless this process has printed the same message before."""
    say(message)


def log_to(path: Path | None) -> None:
    """Also append all messages to this file, starting with those that came before the call. None stops the logging."""
    global _log
    _log = path and path.absolute()
    while _unlogged and path is not None:
        _append(_unlogged.pop(0))


def log_file() -> Path | None:
    """Return the file that messages are appended to, or None."""
    return _log


def log(message: str) -> None:
    """Write one line to the run's log, but not to standard error."""
    message = visible(mask_text(message))
    _keep(json_log.line("info", "message", message=message) if _json else f"{time.strftime(STAMP)} {message}")


def _keep(line: str) -> None:
    if _log is None:
        _unlogged.append(line)
        del _unlogged[:-200]
    elif not _quiet:
        _append(line)


def _append(line: str) -> None:
    """Append a line to the log. If the disk is full, go on without the log: nothing depends on it."""
    global _log_fails
    assert _log is not None
    try:
        append(_log, (line + "\n").encode(errors="backslashreplace"), sync=False)
        _log_fails = False
    except OSError as e:
        if not _log_fails:
            console.print(f"{_log}: {e.strerror}; messages are shown, but not written to this file", markup=False)
        _log_fails = True


class _Rate(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{rate:,.0f} {task.fields['unit']}/s" if rate else "", style="cyan")


class Bar:
    """Progress bar that counts rows.

    Args:
        title: shown before the bar.
        total: number of rows; None if it is unknown.
        unit: name of the rows, such as rows or users.
        done: number of rows that are done already.

    note: text after the bar, such as the loss
    passes: number of times that the rows are counted, once in each pass over them
    facts: the same for machines
    """

    def __init__(self, title: str, total: float | None, unit: str, done: float = 0) -> None:
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.note, self.passes = "", 1
        self.facts: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._start = self._reported_at = self._shown_at = time.monotonic()
        self._first = done
        self._in_place = _in_notebook() and not _json
        if self._in_place:
            _count_bars(1)
        self._closed = False
        self._live: Progress | None = None
        if console.is_terminal and not _quiet and not _json:
            self._live = Progress(
                TextColumn("{task.description:<11}"),
                BarColumn(),
                TaskProgressColumn(),
                _Rate(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                speed_estimate_period=10,
            )
            self._live.start()
            self._task = self._live.add_task(title, total=total, unit=unit, note="", completed=int(done))

    def advance(self, rows: float) -> None:
        with self._lock:  # several threads call it
            self.done += rows
            if self._live is not None:
                self._live.update(self._task, advance=rows, note=self.note, total=self.total)
            if self._in_place and time.monotonic() - self._shown_at > UPDATE_EVERY_SECONDS:
                self._shown_at = time.monotonic()
                _show_in_place(self._line(), end="")
            if time.monotonic() - self._reported_at > LOG_EVERY_SECONDS:
                self._report()

    def _rate(self) -> float:
        seconds = time.monotonic() - self._start
        return (self.done - self._first) / seconds if seconds > 0 else 0.0

    def _line(self) -> str:
        """Return the state of the bar in words."""
        rate = self._rate()
        eta = (
            f", {max(self.total - self.done, 0) / rate:,.0f} s left" if self.total and rate and not self._closed else ""
        )
        share = f" ({self.done / self.total:.0%})" if self.total else ""
        note = f"  {self.note}" if self.note else ""
        unit = self.unit if self.passes <= 1 else f"{self.unit} in {self.passes} passes"
        return f"{self.title}: {self.done / self.passes:,.0f} {unit}{share}, {rate:,.0f} {self.unit}/s{eta}{note}"

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        state: dict[str, Any] = {
            "done": self.done / self.passes,
            "total": self.total and self.total / self.passes,
            "unit": self.unit,
            "rate": round(self._rate(), 3),
        }
        emit("progress", of=self.title, **state, **self.facts)
        if _json:
            return
        if self._live is None and not self._in_place:
            say(self._line())
        else:
            log(self._line())

    def close(self, result: str | None = None) -> None:
        """End the bar. result: text that replaces the note, and has a line of its own on a terminal."""
        self._closed, self.note = True, result or self.note
        if self._live is not None:
            self._live.stop()
            if result is not None:
                console.print(result, markup=False)
        if self._in_place:
            _count_bars(-1)
            if self.done > self._first:  # the line of a bar within another one, such as a validation, is not kept
                _show_in_place(self._line(), end="" if _bars_in_place else "\n")
        if self.done > self._first:
            self._report()
        sys.stderr.flush()


@contextmanager
def bar(title: str, total: float | None = None, unit: str = "rows") -> Iterator[Bar]:
    """Show a progress bar while the block runs; the block calls `advance`."""
    shown = Bar(title, total, unit)
    try:
        yield shown
    finally:
        shown.close()


if JSON in os.environ:
    write_json()
