"""Follow the data: check new partitions, train on them, judge the model, and put it into service or not.

Each step ends by replacing ROOT/state.json, and can be repeated: a process that is killed goes on with the step that it
was in. All folders of a cycle are named by its number.

    ROOT/state.json                    partitions, cycles, and the step of the current one
    ROOT/runs/NUMBER/                  the run folder of a cycle's training
    ROOT/stream.json                   positions in the stream (partitions.py)
    ROOT/cycles/NUMBER/                predictions on the window, gate.json, the exported artefact
    ROOT/checked/PARTITION/            checks.json, and the champion's predictions
    ROOT/references/NUMBER/            what new partitions are compared with (partition_checks.py)
    ROOT/page.html follow.prom         the history as a page, and the last checks as text for Prometheus
    ROOT/registry/NAME/                versions, aliases and their history (model_registry.py)

The first partition after those of a training is its window: the challenger is judged on data that it has not seen, and
trains on it in the next cycle. So each partition is predicted before it is trained on (progressive validation).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from recsys.base.console import log_to, say
from recsys.base.errors import UserError, did_you_mean
from recsys.distributed.failures import is_disk_full
from recsys.export.artefact.apply_delta import apply_delta, is_delta
from recsys.files.atomic import write_json, write_text
from recsys.files.json_text import now
from recsys.files.manifest import DamagedFile
from recsys.follow.artefact_check import check_artefact
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.follow_state import STEPS, Cycle, FollowState, PartitionState, span
from recsys.follow.gate import GateResult, decide
from recsys.follow.increment_checks import alert
from recsys.follow.model_registry import ModelRegistry
from recsys.follow.partition_checks import PartitionRows, check_any_complete, check_partition, save_references
from recsys.follow.partitions import Partition, collect, find_partitions, ripe, rows_of
from recsys.follow.recover import check_agreement
from recsys.follow.row_columns import write_columns
from recsys.follow.training_config import training_config
from recsys.follow.trainings import PREDICTIONS, export, measure, train_on, window_of
from recsys.job.run_config import RunConfig

ENDS = ("rolled_back", "promoted", "canary_passed")
DRIFT = ("psi", "ks", "unknown", "label", "calibration", "auc")  # checks that say that the data has changed


class ContinuousTraining:
    """Continuous training in one root, by the settings of the YAML file."""

    def __init__(self, settings: FollowConfig) -> None:
        self.settings, self.root = settings, settings.root
        self.registry = ModelRegistry(self.root / "registry", settings.name)
        self.state = FollowState.load(self.root)
        self.partitions = {p.name: p for p in find_partitions(settings.partitions)}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the root's lock. Raises UserError if another follower holds it."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / ".follow.lock")
        try:
            with lock.acquire(timeout=0):
                self.state = FollowState.load(self.root)  # another follower may have ended just now
                yield
        except Timeout:
            raise UserError(f"root={self.root}: another follower is at work there; wait for it, or stop it") from None
        finally:
            log_to(self.root / "follow.log")  # for an error in a training, which has a log of its own

    def run(self, cycles: int | None = None) -> list[Cycle]:
        """Do all that can be done now, and return the cycles that have ended. cycles: the most to end; None: no limit

        A cycle whose canary is being watched stays open; call `run` again later.
        """
        check_agreement(self.root, self.state, self.registry)
        if self.settings.partitions.stream is not None:
            collect(self.settings.partitions, self.root)
            self.partitions = {p.name: p for p in find_partitions(self.settings.partitions)}
        if self.settings.columns and (names := [*self.partitions]):
            # the newest, the newest trained and the oldest: one of them must have all columns
            some = [names[-1], *[n for n in names if self._is_accepted(n)][-1:], names[0]]
            cfg = training_config(self.settings, self._prepared(0), [], self._files(some[:1]), [])
            check_any_complete([PartitionRows(cfg, self.partitions[n].files) for n in some], self.settings.columns)
        to_decide = (self._train, self._measure, self._decide)
        to_ship = (self._export, self._check, self._register, self._canary, self._promote)
        steps = dict(zip(STEPS, (*to_decide, *to_ship), strict=True))
        ended: list[Cycle] = []
        while cycles is None or len(ended) < cycles:
            log_to(self.root / "follow.log")
            cycle = self.state.current or self._begin()
            if cycle is None:
                break
            while cycle.step:
                before = cycle.step
                steps[cycle.step](cycle)
                if cycle.step != before:
                    cycle.times[before] = now()
                log_to(self.root / "follow.log")  # a training has a log of its own
                self.state.save(self.root)
                if cycle.step == before:
                    return ended  # it waits for the canary
            ended.append(cycle)
            # remove prepared data, and the runs that are not among the newest and whose versions have no role
            shutil.rmtree(self.root / "prepared", ignore_errors=True)
            for artefact in (self.root / "cycles").glob("*/artefact"):  # the registry has them
                shutil.rmtree(artefact, ignore_errors=True)
            roles = set(self.registry.aliases().values())
            kept = {str(e.get("run")) for e in self.registry.summaries() if e["version"] in roles}
            for run in sorted((self.root / "runs").glob("[0-9]*"))[: -self.settings.keep_runs]:
                if str(run.absolute()) not in kept:
                    shutil.rmtree(run, ignore_errors=True)
        return ended

    def waiting(self) -> list[Partition]:
        """Return the ripe partitions that no training has read and no check has refused, oldest first."""
        old, complete = self.state.partitions, ripe(list(self.partitions.values()), self.settings.partitions)
        return [p for p in complete if p.name not in old or old[p.name].status == "ready"]

    def readmit(self, names: Sequence[str]) -> None:
        """Look at refused or rejected partitions again. Raises UserError for another name."""
        for name in names:
            state = self.state.partitions.get(name)
            if state is None or name not in self.state.refused:
                raise UserError(f"readmit={name}: was not refused{did_you_mean(name, self.state.refused)}")
            state.status, state.why = "ready", ""
        self.state.save(self.root)

    def what_waits(self) -> str:
        """Return a line about what the next call may do."""
        if not self.partitions:
            return f"no partition in {self.settings.partitions.folder} matches {self.settings.partitions.pattern} yet"
        current, waiting = self.state.current, self.waiting()
        ripe_ones = {p.name for p in ripe(list(self.partitions.values()), self.settings.partitions)}
        unripe = [p for p in self.partitions.values() if p.name not in ripe_ones]
        parts = []
        if current is not None:
            waiting = [p for p in waiting if p.name not in (*current.train, *current.window)]
            at_canary = current.step == "canary" and self.settings.canary is not None
            what = "waits for its canary" if at_canary else f"goes on at {current.step}"
            parts.append(f"cycle {current.number} {what}")
        parts += [f"{len(waiting)} partitions{self._rows(waiting)} wait for a cycle"]
        parts += [f"{len(unripe)}{self._rows(unripe)} for their labels"] if unripe else []
        return "; ".join(parts)

    def freshness(self) -> str | None:
        """Return a line about how old the champion's newest event was when it began to answer; None without one."""
        version = self.registry.aliases().get("champion")
        return next((c.freshness() for c in reversed(self.state.cycles) if version and c.version == version), None)

    def _rows(self, partitions: Sequence[Partition]) -> str:
        """Return the number of rows, if a check has counted them or the files' metadata say it."""
        checked, folder = self.state.partitions, self.settings.partitions.folder
        counts = [checked[p.name].rows if p.name in checked else rows_of(p, folder) for p in partitions]
        return f" ({sum(counts):,} rows)" if counts and None not in counts else ""  # type: ignore[arg-type]

    def _begin(self) -> Cycle | None:
        """Begin the next cycle, if there are partitions for it; check them first."""
        for name, changed in self.partitions.items():
            old = self.state.partitions.get(name)
            if old is None or old.digest == changed.digest:
                continue
            if old.status in ("ready", "bad"):
                say(f"{name}: has changed, and is checked again")
                del self.state.partitions[name]
            else:
                say(f"{name}: has changed since a model trained on it, and is not read again")
                old.digest = changed.digest
        parent = self.registry.champion_run()
        wanted = self.settings.first if parent is None else self.settings.increment.partitions or 1
        waits = parent is not None and self.settings.train_on == "drift"
        ready: list[str] = []
        drifted = False
        for partition in self.waiting():
            if partition.name not in self.state.partitions:
                self.state.partitions[partition.name] = self._checked(partition, parent)
                self.state.save(self.root)
            state = self.state.partitions[partition.name]
            if state.status == "ready":
                ready.append(partition.name)
                drifted = drifted or state.drifted
            if len(ready) >= wanted + self.settings.window and (drifted or not waits):
                break
        if len(ready) < wanted + self.settings.window or (waits and not drifted):
            return None
        number = len(self.state.cycles) + 1
        ended = max((c.ended for c in self.state.cycles), default="")
        below = any(e["event"] == "kpi_below" and e["time"] > ended for e in self.registry.history())  # says the server
        every, on_drift = self.settings.full.every, self.settings.full.on_drift
        full = parent is None or below or (on_drift and drifted) or (every is not None and number % every == 0)
        train, window = ready[: -self.settings.window], ready[-self.settings.window :]
        if full and parent is not None:
            accepted = [n for n in self.partitions if self._is_accepted(n)]
            most = self.settings.full.partitions
            train = [*accepted, *train][-most if most else 0 :]
        version = self.registry.aliases().get("champion")
        start = None if parent is None else str(parent)
        cycle = Cycle(number, "train", train, window, full, start, version, began=now())
        self.state.cycles.append(cycle)
        self.state.save(self.root)
        what, number_of = "full training" if full else "training", f"{len(train)} partition{'s' * (len(train) > 1)}"
        say(f"cycle {number}: {what} on {span(train)} ({number_of}), judged on {span(window)}")
        return cycle

    def _is_accepted(self, name: str) -> bool:
        return name in self.state.partitions and self.state.partitions[name].status == "trained"

    def _checked(self, partition: Partition, champion: Path | None) -> PartitionState:
        """Check a new partition, and measure the champion on it."""
        accepted = [n for n in self.partitions if self._is_accepted(n)]
        trained, context = accepted[-1:], self._context(accepted[-1]) if accepted else []
        cfg = training_config(self.settings, self._prepared(0), self._files(trained), partition.files, [], context)
        output, metrics = self.root / "checked" / partition.name, {}
        rows = PartitionRows(cfg, partition.files, self.settings.columns if champion is not None else {})
        predictions = None
        if champion is not None and accepted:
            try:
                metrics = measure(champion, cfg, output)
                write_columns(cfg, self.settings.check.slices, output)
                predictions = output / PREDICTIONS
            except (UserError, DamagedFile) as e:  # the checks say why, unless it is the disk
                if is_disk_full(e):
                    raise
        earlier = [self.state.partitions[n].rows for n in accepted]
        references = self.root / "references" / (champion.name if champion is not None else "none")
        report = check_partition(references, rows, predictions, self.settings.check, earlier)
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "checks.json", [asdict(line) for line in report.lines])
        write_text(self.root / "follow.prom", report.prometheus(self.settings.name))
        command = self.settings.check.alert
        if command is not None and (problem := alert(command, report)) is not None:
            say(problem)
        drifted = any(x.outcome != "pass" and x.check in DRIFT for x in report.lines)
        status, why = "ready", "; ".join(x.text for x in report.lines if x.outcome == "warn")
        if report.outcome == "fail":
            status, why = "bad", "; ".join(report.failing())
            say(f"{partition.name}: is not used: {why}")
        return PartitionState(status, why, partition.digest, rows.rows, drifted, metrics)

    def _files(self, names: Sequence[str]) -> list[str]:
        if missing := next((n for n in names if n not in self.partitions), None):
            raise UserError(f"{self.settings.partitions.folder}/{missing}: is gone; restore the partition")
        return [file for name in names for file in self.partitions[name].files]

    def _folder(self, cycle: Cycle) -> Path:
        return self.root / "cycles" / f"{cycle.number:06d}"

    def _run_dir(self, cycle: Cycle) -> Path:
        return self.root / "runs" / f"{cycle.number:06d}"

    def _prepared(self, number: int) -> Path:
        return self.root / "prepared" / f"{number:06d}"

    def _config(self, cycle: Cycle, overrides: Sequence[str]) -> RunConfig:
        train, window = self._files(cycle.train), self._files(cycle.window)
        context = self._context(cycle.train[0])
        return training_config(self.settings, self._prepared(cycle.number), train, window, overrides, context)

    def _context(self, first: str) -> list[str]:
        """Return the files of the accepted partitions before `first` that features which look back read."""
        names = [*self.partitions]
        before = [n for n in names[: names.index(first)] if self._is_accepted(n)]
        return self._files(before[-self.settings.partitions.context or len(before) :])

    def _train(self, cycle: Cycle) -> None:
        training = self.settings.full if cycle.full else self.settings.increment
        start = None if cycle.full or cycle.parent is None else Path(cycle.parent)
        run = train_on(self._config(cycle, training.overrides), self._run_dir(cycle), start)
        cycle.rows = int(run.metrics["protocol"]["rows"]["train"])
        first, last = self.partitions[cycle.train[0]], self.partitions[cycle.train[-1]]
        cycle.interval = first.name, last.name
        if first.start is not None and last.stop is not None:
            cycle.interval = first.start.isoformat(), last.stop.isoformat()
        cycle.step = "measure"

    def _measure(self, cycle: Cycle) -> None:
        """Measure challenger and champion on the window, in the same way."""
        runs = {"challenger": self._run_dir(cycle)}
        runs |= {"champion": Path(cycle.parent)} if cycle.parent is not None else {}
        for name, run in runs.items():
            cycle.metrics[name] = measure(run, self._config(cycle, []), self._folder(cycle) / name)
        cycle.step = "decide"

    def _decide(self, cycle: Cycle) -> None:
        folder, gate = self._folder(cycle), self.settings.gate
        champion = folder / "champion" if cycle.parent is not None else None
        names = [*self.settings.check.slices, *(gate.columns if champion is not None else ())]
        write_columns(self._config(cycle, []), names, folder / "challenger")
        result = decide(window_of(folder / "challenger", champion, gate.slices, gate.cluster), gate)
        self._judge(cycle, result, "gate.json", "export")

    def _judge(self, cycle: Cycle, result: GateResult, file: str, after: str) -> None:
        write_json(self._folder(cycle) / file, {"passed": result.passed, "checks": [asdict(c) for c in result.checks]})
        cycle.why = result.why
        if result.passed:
            cycle.step = after
        else:
            self._end(cycle, "rejected")

    def _export(self, cycle: Cycle) -> None:
        until = None if cycle.interval is None else cycle.interval[1]
        base = None
        if not cycle.full and cycle.parent_version is not None:
            try:
                if len(self.registry.chain(cycle.parent_version)) < self.settings.deltas.full_every:
                    base = self.registry.artefact(cycle.parent_version)  # of which to export a delta
            except UserError as e:
                say(f"cycle {cycle.number}: exports a full artefact, not a delta: {e}")
        why = export(self.settings, self._run_dir(cycle), self._folder(cycle) / "artefact", until, base)
        if why:
            say(f"cycle {cycle.number}: exports a full artefact, not a delta: {why}")
        cycle.step = "check"

    def _check(self, cycle: Cycle) -> None:
        """Check latency and size. The export has loaded the artefact in a new process, and compared its answers."""
        gate, why = self.settings.gate, cycle.why
        cycle.step = "register"
        if gate.latency_ms is not None or gate.size_mb is not None:
            artefact, full = self._folder(cycle) / "artefact", self._folder(cycle) / "full"
            if is_delta(artefact):
                assert cycle.parent_version is not None
                apply_delta(self.registry.artefact(cycle.parent_version), artefact, full)
                artefact = full
            result = check_artefact(artefact, latency_ms=gate.latency_ms, size_mb=gate.size_mb)
            shutil.rmtree(full, ignore_errors=True)
            self._judge(cycle, result, "artefact.json", "register")
            cycle.why = why if result.passed else cycle.why

    def _register(self, cycle: Cycle) -> None:
        cycle.version = self.registry.register(
            self._folder(cycle) / "artefact",
            run=self._run_dir(cycle).absolute(),
            parent=None if cycle.full else cycle.parent_version,
            interval=cycle.interval,
            metrics=cycle.metrics["challenger"],
            why=cycle.why,
        )
        cycle.step = "canary"

    def _canary(self, cycle: Cycle) -> None:
        """Let the version answer a share of the requests, and wait until the server's guard has judged it.

        The cycle ends if another version has become the champion since: what began with the old one was not compared
        with the new one, and a champion that was rolled back may be the parent.
        """
        assert cycle.version is not None
        if (champion := self.registry.aliases().get("champion")) not in (cycle.parent_version, cycle.version):
            cycle.why = f"{cycle.parent_version or 'no version'} was the champion when it began, now it is {champion}"
            self._end(cycle, "superseded")
            return
        c = self.settings.canary
        if c is None or cycle.parent is None:
            cycle.step = "promote"
            return
        mine = [e for e in self.registry.history() if e.get("version") == cycle.version]
        last = next((e for e in reversed(mine) if e["event"] in ENDS), None)
        if (other := self.registry.aliases().get("canary", cycle.version)) != cycle.version:
            say(f"cycle {cycle.number}: waits, because {other} is the canary")
        elif not any(e["event"] == "canary" for e in mine):
            guard = c.guard.model_dump(exclude_unset=True)
            self.registry.canary(cycle.version, c.share, cycle.why, {"guard": guard} if guard else None)
            say(f"cycle {cycle.number}: {cycle.version} answers {c.share:.0%} of the requests; waiting for the guard")
        elif last is not None and last["event"] == "rolled_back":
            cycle.why = f"canary: {last.get('why', '')}"
            self._end(cycle, "rolled_back")
        elif last is not None:
            cycle.step = "promote"

    def _promote(self, cycle: Cycle) -> None:
        assert cycle.version is not None
        cfg = training_config(self.settings, self._prepared(0), [], self._files(cycle.train), [])
        rows = PartitionRows(cfg, tuple(self._files(cycle.train)))
        for name in cycle.train:
            if self.partitions[name].digest != self.state.partitions[name].digest:
                why = f"has changed since cycle {cycle.number} read it; new rows are compared with what it holds now"
                say(f"{name}: {why}")
        references = self.root / "references" / self._run_dir(cycle).name
        predictions = self._folder(cycle) / "challenger" / PREDICTIONS
        save_references(references, rows, predictions, self.settings.check.slices)
        self.registry.promote(cycle.version, cycle.why)
        self._end(cycle, "promoted")

    def _end(self, cycle: Cycle, outcome: str) -> None:
        """End a cycle; only data whose model was promoted counts as trained."""
        if outcome in ("rejected", "superseded") and cycle.version is not None:
            self.registry.reject(cycle.version, cycle.why)
        for name in cycle.train if outcome != "superseded" else ():  # its partitions wait for the next cycle
            if not self._is_accepted(name):
                partition = self.state.partitions[name]
                partition.status = "trained" if outcome == "promoted" else "rejected"
                partition.why = "" if outcome == "promoted" else f"cycle {cycle.number}: {cycle.why}"
        cycle.step, cycle.outcome, cycle.ended = "", outcome, now()
        say(f"cycle {cycle.number}: {outcome.replace('_', ' ')}: {cycle.why}")
