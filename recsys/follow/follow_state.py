"""The state of continuous training: ROOT/state.json, replaced as a whole after each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from recsys.base.errors import UserError
from recsys.files.atomic import write_json
from recsys.files.json_text import read_json

FILE = "state.json"
RESTORE = f"restore {FILE}, registry and runs from one backup, or add recover=true"
# steps of a cycle, in order; after the last one, the cycle has ended
STEPS = ("train", "measure", "decide", "export", "check", "register", "canary", "promote")


@dataclass
class PartitionState:
    """What has become of a partition.

    status: ready | bad (a check has failed) | trained | rejected (the gate has rejected the model that it trained)
    why: one sentence
    digest: of its files when it was checked
    rows: number of rows
    drifted: whether a check of drift has warned or failed
    metrics: of the champion, on this partition, before a model trained on it
    """

    status: str
    why: str = ""
    digest: str = ""
    rows: int = 0
    drifted: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Cycle:
    """One training and what follows from it.

    number: counts from 1
    step: the next step of STEPS; "" if the cycle has ended
    train, window: partitions that it trains on, and those on which it is judged
    full: whether it starts from random weights
    parent: run folder of the champion that it starts from, or that it is compared with; None without a champion
    parent_version: the champion's version
    outcome: promoted | rejected | rolled back; "" while it goes on
    why: one sentence
    version: in the registry
    metrics: of the challenger and of the champion on the window
    rows: number of training rows
    interval: first and last day of the training rows
    began, ended: times
    times: when each step was done
    """

    number: int
    step: str
    train: list[str]
    window: list[str]
    full: bool
    parent: str | None = None
    parent_version: str | None = None
    outcome: str = ""
    why: str = ""
    version: str | None = None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: int = 0
    interval: tuple[str, str] | None = None
    began: str = ""
    ended: str = ""
    times: dict[str, str] = field(default_factory=dict)

    def freshness(self) -> str | None:
        """Return how long after its newest event the version of a cycle that was promoted answered, and the steps."""
        if "promote" not in self.times or self.interval is None:
            return None
        steps, start = list[str](), self.began
        for step, end in self.times.items():
            if (took := _seconds(start, end)) is not None and took >= 1:
                steps.append(f"{step} {_duration(took)}")
            start = end
        age, until = _seconds(self.interval[1], self.times["promote"]), self.interval[1]
        later = f", {_duration(age)} after its newest event ({until})" if age is not None else f" (events to {until})"
        return f"{self.version} is the champion since {self.times['promote']}{later}; steps: {', '.join(steps)}"


@dataclass
class FollowState:
    """The partitions by name, and all cycles, oldest first."""

    partitions: dict[str, PartitionState] = field(default_factory=dict)
    cycles: list[Cycle] = field(default_factory=list)

    @property
    def current(self) -> Cycle | None:
        """The cycle that has not ended."""
        return self.cycles[-1] if self.cycles and self.cycles[-1].step else None

    @property
    def refused(self) -> dict[str, PartitionState]:
        """The partitions that no champion has trained on, by name."""
        return {n: p for n, p in self.partitions.items() if p.status in ("bad", "rejected")}

    @classmethod
    def load(cls, root: Path) -> FollowState:
        """Read ROOT/state.json; a root without one has no state yet. Raises UserError if it cannot be read."""
        try:
            found = read_json(root / FILE)
            return cls(
                {name: PartitionState(**p) for name, p in found["partitions"].items()},
                [Cycle(**c | {"interval": c["interval"] and tuple(c["interval"])}) for c in found["cycles"]],
            )
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise UserError(f"{root / FILE}: is damaged ({e}); remove it and {RESTORE}") from e

    def save(self, root: Path) -> None:
        write_json(root / FILE, asdict(self))


def span(names: Sequence[str]) -> str:
    """Return the first and the last of some partitions; those of a cycle that was recovered may be gone."""
    if not names:
        return "partitions that are gone"
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _seconds(start: str, end: str) -> float | None:
    """Return the seconds between two times; None if one is not a time, such as the name of a partition."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 3 * 86_400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:,.0f} days"  # a replay of old logs
