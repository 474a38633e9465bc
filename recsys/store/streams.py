"""Streams of events as JSON: a file that grows, or a topic of Kafka.

logs/clicks.jsonl                      an object on each line
kafka://HOST:PORT[,HOST:PORT]/TOPIC    an object in each message
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.files.user_files import problem_of

LINES = 1 << 20  # bytes of a file that are read at a time
TAIL = 64  # bytes before a position, by which a file is known again
TIMEOUT = 5.0  # seconds for Kafka to answer at the start
LOOK = 60.0  # seconds between two looks for new partitions
ONLY = "0"  # the partition of a file
Positions = dict[str, dict[str, Any]]  # by key
Known = Callable[[str], Mapping[str, Any] | None]  # key -> its position, None at the start


class Message(NamedTuple):
    """One event: where it is, and its JSON. Offsets of a partition ascend.

    key: the name of the partition, which no other partition of any stream has, whatever the URL of the stream
    """

    key: str
    partition: str
    offset: int
    value: bytes


class Stream(Protocol):
    """Reads events in the order of each partition. url: as the definition names it"""

    url: str

    def read(self, most: int, wait: float) -> list[Message]:
        """Return the next events, at most `most`; wait for the first of them for at most `wait` seconds."""

    @property
    def ended(self) -> bool:
        """Return whether all events that are there now were read."""

    def positions(self, read: Sequence[Message]) -> tuple[Positions, Positions]:
        """Return, for each key of events just read, what `open_stream` needs to go on: before them, and after them."""

    def close(self) -> None: ...


class LinesFile:
    """A file to which lines are appended. If it is replaced or cut, reading goes on at the beginning of the new one.

    An offset is the number of bytes before a line, in this file and in those that it replaced.
    """

    def __init__(self, path: Path, known: Known) -> None:
        self.url, self._path, self._key = str(path), path, f"{path.resolve()} {ONLY}"
        self._rest, self._lines = b"", list[bytes]()
        if problem := problem_of(path):  # a named pipe would wait for its writer
            raise UserError(f"stream={path}: {problem}; name a file of JSON lines, or kafka://HOST:PORT/TOPIC")
        self._file: BinaryIO = path.open("rb")
        self._before = self._next = 0  # the offset of the file's first byte, and of the next line
        self._start: dict[str, Any] = {}  # where the last events that were read begin
        self._tail = b""  # the bytes before the next line
        position = known(self._key)
        if position is not None:
            self._before, self._next = position["before"], position["next"]
            if not self._goes_on(position):
                say(f"{path}: is not the file that was read before, whose last lines may be missing")
                self._before = self._next = position["end"]  # above all offsets that may be in the store
            self._file.seek(self._next - self._before)

    def _goes_on(self, position: Mapping[str, Any]) -> bool:
        """Return whether this is the file that was read, and still has what was read last."""
        tail, end = bytes.fromhex(position["tail"]), position["end"] - position["before"]
        if position["file"] != self._identity() or self._size() < end:
            return False
        self._file.seek(end - len(tail))
        return self._file.read(len(tail)) == tail

    def read(self, most: int, wait: float) -> list[Message]:
        self._fill()
        if not self._lines and wait:
            time.sleep(wait)
            self._fill()
        self._start = {"before": self._before, "next": self._next}
        messages = []
        for line in self._lines[:most]:
            if line.strip():
                messages.append(Message(self._key, ONLY, self._next, line))
            self._next += len(line)
            self._tail = (self._tail + line)[-TAIL:]
        del self._lines[:most]
        return messages

    def positions(self, read: Sequence[Message]) -> tuple[Positions, Positions]:
        return {self._key: self._position() | self._start}, {self._key: self._position()}

    def _position(self) -> dict[str, Any]:
        own = {"before": self._before, "next": self._next, "end": self._next}
        return {**own, "file": self._identity(), "tail": self._tail.hex()}

    def _fill(self) -> None:
        """Read whole lines; what a writer has not ended yet waits."""
        if self._lines:
            return
        data = self._file.read(LINES)
        if not data and self._replaced():
            data = self._file.read(LINES)  # written between the two
            if not data:
                if self._rest:
                    say(f"{self._path}: the file before ended within a line, which was left out")
                self._file.close()
                self._file, self._before = self._path.open("rb"), self._next
                self._rest = self._tail = b""
                data = self._file.read(LINES)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._lines = [line + b"\n" for line in whole]

    def _replaced(self) -> bool:
        try:
            status = self._path.stat()
        except FileNotFoundError:  # between two files
            return False
        return status.st_ino != os.fstat(self._file.fileno()).st_ino or status.st_size < self._file.tell()

    @property
    def ended(self) -> bool:
        return not self._lines and self._file.tell() >= self._size() and not self._replaced()

    def _identity(self) -> int:
        return os.fstat(self._file.fileno()).st_ino

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        if self._rest:
            say(f"{self._path}: the last line has no end yet, and waits")
        self._file.close()


class KafkaTopic:
    """All partitions of a topic of Kafka, also those that are added to it.

    Raises UserError if the brokers cannot be reached, or have no such topic.

    known: key of a partition -> where to go on; others are read from their beginning
    properties: a file of further settings of librdkafka: key=value lines
    """

    def __init__(self, url: str, known: Known, properties: str | None) -> None:
        check_extra("kafka", f"stream={url}")
        import confluent_kafka as kafka

        parts = urlsplit(url)
        self.url, self._topic = url, parts.path.strip("/")
        if not parts.netloc or not self._topic or "/" in self._topic:
            raise UserError(f"stream={url}: must be kafka://HOST:PORT/TOPIC")
        self._kafka, self._known, self._name = kafka, known, self._topic
        self._ends: dict[str, bool] = {}
        self._down, self._looked = False, 0.0
        settings = {
            **_properties(properties),
            "bootstrap.servers": parts.netloc,
            "group.id": "recsys",  # unused, though needed: partitions are assigned here, and the store keeps offsets
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "error_cb": self._failed,
            "log_level": 0,  # failures come to error_cb
        }
        try:
            self._consumer = kafka.Consumer(settings)
            self._look()
        except (kafka.KafkaException, ValueError) as e:
            problem = e.args[0].str() if e.args and hasattr(e.args[0], "str") else str(e)
            raise UserError(f"stream={url}: {problem}; see that Kafka runs there, and kafka_properties") from e

    def _look(self) -> None:
        """Assign the partitions that are there."""
        self._looked = time.monotonic()
        cluster = self._consumer.list_topics(self._topic, timeout=TIMEOUT)
        topic, self._name = cluster.topics[self._topic], f"kafka {cluster.cluster_id} {self._topic}"
        if topic.error is not None:
            raise UserError(f"stream={self.url}: {topic.error.str()}; create the topic first")
        new = []
        for number in sorted(topic.partitions):
            if str(number) not in self._ends:
                position = self._known(f"{self._name} {number}")
                offset = self._kafka.OFFSET_BEGINNING if position is None else position["next"]
                new.append(self._kafka.TopicPartition(self._topic, number, offset))
                self._ends[str(number)] = False
        if new:
            self._consumer.incremental_assign(new)

    def _failed(self, error: Any) -> None:
        # private: of confluent_kafka, which documents its codes of errors
        if not self._down and error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._down = True
            say(f"{self.url}: no broker can be reached; trying again")

    def read(self, most: int, wait: float) -> list[Message]:
        if time.monotonic() - self._looked > LOOK and not self._down:
            with suppress(self._kafka.KafkaException):  # error_cb says that no broker can be reached
                self._look()
        messages = []
        for record in self._consumer.consume(most, wait or 0.001):
            if (error := record.error()) is None:
                self._down = False
                partition, offset = str(record.partition()), record.offset() or 0
                messages.append(Message(f"{self._name} {partition}", partition, offset, record.value() or b""))
                self._ends[str(record.partition())] = False
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._ends[str(record.partition())] = True
            elif not error.retriable() and not self._down:
                raise UserError(f"stream={self.url}: {error.str()}")
        return messages

    @property
    def ended(self) -> bool:
        return bool(self._ends) and all(self._ends.values())

    def positions(self, read: Sequence[Message]) -> tuple[Positions, Positions]:
        return {}, {m.key: {"next": m.offset + 1} for m in read}

    def close(self) -> None:
        self._consumer.close()


def _properties(file: str | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise UserError(f"kafka_properties={file}: {e.strerror}") from e
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key, equal, value = line.partition("=")
            if not equal:
                raise UserError(f"kafka_properties={file}, line {number}: is not key=value")
            found[key.strip()] = value.strip()
    return found


@contextmanager
def open_stream(url: str, known: Known, properties: str | None = None) -> Iterator[Stream]:
    """Open a stream. Raises UserError if it cannot be read.

    known: key -> what `Stream.positions` returned, None to begin at the beginning
    properties: a file with more settings of Kafka
    """
    if url.startswith("kafka:"):
        stream: Stream = KafkaTopic(url, known, properties)
    else:
        stream = LinesFile(Path(url), known)
    try:
        yield stream
    finally:
        stream.close()
