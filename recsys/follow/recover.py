"""Compare the state of continuous training with its registry and its runs, and make a state that agrees with them.

The registry and the runs say which models there are and what they were trained on; state.json says what has become of
each partition, and which step comes next. All three belong to one moment. A state that is older than the registry would
train on days twice and judge models on days that they have seen; an older registry would lose days.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.files.json_text import now, read_json
from recsys.follow.follow_state import FILE, RESTORE, Cycle, FollowState, PartitionState, span
from recsys.follow.model_registry import ModelRegistry
from recsys.follow.partitions import Partition
from recsys.training.run_dir import open_run

RUNS = "runs"
OUTCOMES = ("promoted", "rejected", "rolled_back")  # events that end a cycle; the first one of a version counts


def check_agreement(root: Path, state: FollowState, registry: ModelRegistry) -> None:
    """Raise UserError if the state and the registry are not of the same moment."""
    if (why := _disagreement(root, state, registry)) is not None:
        raise UserError(f"{root}: {why}; {RESTORE}, which makes a state of what the registry and the runs hold")


def _disagreement(root: Path, state: FollowState, registry: ModelRegistry) -> str | None:
    """Return how the state and the registry differ, or None. The current cycle may be ahead of its state by a step."""
    known = {c.version for c in state.cycles}
    current = None if state.current is None else state.current.number
    for version, number in _numbers(root, registry).items():
        if version not in known and number != current:
            return f"the registry has {version} of cycle {number}, and {FILE} ({len(state.cycles)} cycles) does not"
    if newer := [n for n in _runs(root) if n > len(state.cycles)]:
        return f"there is a run of cycle {newer[0]}, and {FILE} has {len(state.cycles)} cycles"
    lost = _first_lost(state, registry)
    return f"{FILE} has cycle {lost.number} ({lost.version}), and the registry does not" if lost is not None else None


def _first_lost(state: FollowState, registry: ModelRegistry) -> Cycle | None:
    """Return the first cycle whose version the registry does not have."""
    there = set(registry.versions())
    return next((c for c in state.cycles if c.version is not None and c.version not in there), None)


def recover(root: Path, state: FollowState, registry: ModelRegistry, partitions: Mapping[str, Partition]) -> None:
    """Make the state agree with the registry and the runs, and save it.

    Cycles that the registry does not know are dropped, their runs set aside as lost-NUMBER, and their partitions wait
    again. Cycles that the state does not know come from their runs. A partition of which nobody knows whether a model
    has trained on it is refused: readmit=[NAME] lets it in.
    """
    if _disagreement(root, state, registry) is None:
        say(f"recover=true: {FILE} agrees with the registry; nothing to do")
        return
    registry.champion_run()  # without it no cycle can begin, and in a root that was moved no version has a cycle
    numbers = _numbers(root, registry)
    if (lost := _first_lost(state, registry)) is not None:
        _drop(root, state, state.cycles[lost.number - 1 :])
    last = max([0, *_runs(root), *numbers.values()])
    if (open_one := state.current) is not None and open_one.number == last and last not in numbers.values():
        _drop(root, state, [open_one])  # it begins again
    elif open_one is not None:
        state.cycles.remove(open_one)
    of_number = {number: version for version, number in numbers.items()}
    for number in range(len(state.cycles) + 1, max([0, *_runs(root), *of_number]) + 1):
        state.cycles.append(cycle := _cycle(root, number, of_number.get(number), registry, partitions))
        for name in cycle.train:
            _mark(state, name, partitions, cycle)
    newest = max((i for i, n in enumerate(partitions) if _status(state, n) == "trained"), default=-1)
    unknown = [n for i, n in enumerate(partitions) if i < newest and n not in state.partitions]
    for name in unknown:
        why = f"it is not known whether a model has trained on it (recover); readmit=[{name}] lets it in"
        state.partitions[name] = PartitionState("bad", why, partitions[name].digest)
    state.save(root)
    say(f"recover=true: {len(state.cycles)} cycles; {len(unknown)} partitions are refused until you readmit them")


def _status(state: FollowState, name: str) -> str | None:
    return state.partitions[name].status if name in state.partitions else None


def _numbers(root: Path, registry: ModelRegistry) -> dict[str, int]:
    """Return the cycle of each version that a run of this root has made."""
    runs = (root / RUNS).resolve()
    made = {
        e["version"]: Path(e["run"])
        for e in registry.summaries()
        if isinstance(e.get("run"), str) and not e.get("items")
    }
    return {v: int(run.name) for v, run in made.items() if run.parent.resolve() == runs and run.name.isdigit()}


def _runs(root: Path) -> list[int]:
    return sorted(int(p.name) for p in (root / RUNS).glob("[0-9]*") if p.name.isdigit())


def _drop(root: Path, state: FollowState, cycles: Iterable[Cycle]) -> None:
    """Remove the last cycles from the state, and set their folders aside."""
    for cycle in [*cycles]:
        state.cycles.remove(cycle)
        for name in (n for n in cycle.train if _status(state, n) in ("trained", "rejected")):
            state.partitions[name].status, state.partitions[name].why = "ready", ""
        for folder in (RUNS, "cycles"):
            if (path := root / folder / f"{cycle.number:06d}").exists():
                aside = path.with_name(f"lost-{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)


def _cycle(
    root: Path, number: int, version: str | None, registry: ModelRegistry, partitions: Mapping[str, Partition]
) -> Cycle:
    """Return a cycle as its run and the registry describe it. It goes on at its canary if its version is not judged."""
    run, about = root / RUNS / f"{number:06d}", dict[str, Any]()
    events = [e for e in registry.history() if version is not None and e.get("version") == version]
    for event in events:
        about |= {k: event[k] for k in ("parent", "interval", "time") if event.get(k) is not None}
    outcome = next((e["event"] for e in events if e["event"] in OUTCOMES), "rejected")
    is_open = version is not None and version in {registry.aliases().get(role) for role in ("canary", "challenger")}
    is_open = is_open and not any(e["event"] in OUTCOMES for e in events)
    champion = registry.champion_run() if is_open else None
    interval, start = about.get("interval"), None
    train = [] if interval is None else _within(root, interval, partitions)  # its run may be gone
    if (run / "config.yaml").exists():
        cfg, _ = open_run(str(run))
        files = {f.replace("[[]", "[") for f in cfg.data.split.train_files}  # as glob.escape wrote them
        depth = max((n.count("/") for n in partitions), default=0) + 1
        gone = {"/".join(f.split("/")[:depth]) for f in files - {f for p in partitions.values() for f in p.files}}
        train = [*sorted(gone - {*partitions}), *(n for n, p in partitions.items() if files & set(p.files))]
        start = cfg.start_from
    return Cycle(
        number,
        "canary" if is_open else "",
        train,
        [],
        start is None,
        start if champion is None else str(champion),
        about.get("parent") or (registry.aliases().get("champion") if is_open else None),
        "" if is_open else outcome,
        f"recovered from {'the registry' if version else RUNS}" + (f": {span(train)}" if train else ""),
        version,
        interval=None if interval is None else (interval[0], interval[1]),
        ended="" if is_open else about.get("time", now()),
    )


def _within(root: Path, interval: Sequence[str], partitions: Mapping[str, Partition]) -> list[str]:
    """Return the partitions of an interval (`Cycle.interval`) that have passed their checks."""
    names, (first, last) = [*partitions], interval
    if first in partitions and last in partitions:
        found = names[names.index(first) : names.index(last) + 1]
    else:
        ends = {n: (p.start, p.stop) for n, p in partitions.items()}
        found = [n for n, (a, b) in ends.items() if a and b and a.isoformat() >= first and b.isoformat() <= last]
    checks = {n: root / "checked" / n / "checks.json" for n in found}
    return [n for n, c in checks.items() if not (c.exists() and any(x["outcome"] == "fail" for x in read_json(c)))]


def _mark(state: FollowState, name: str, partitions: Mapping[str, Partition], cycle: Cycle) -> None:
    """Note what a recovered cycle has made of a partition that is not known to be trained."""
    if _status(state, name) == "trained":
        return
    status = {"promoted": "trained", "": "ready"}.get(cycle.outcome, "rejected")
    why = f"cycle {cycle.number}: {cycle.why}" if status == "rejected" else ""
    state.partitions[name] = PartitionState(status, why, partitions[name].digest if name in partitions else "")
