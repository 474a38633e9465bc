"""Search methods: the next trial, and whether to prune a running one."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.base.errors import UserError
from recsys.schema.run_schema import SweepConfig
from recsys.sweep.record import Sweep, Trial
from recsys.sweep.space import Space, SweepAxis

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

JOURNAL = "study.journal"
NEVER_PRUNED = 5  # number of first trials that are never pruned, with which the others are compared
MAX_GRID = 100_000


class Search:
    """A search method; by default, one that knows all trials from the start."""

    prunes = False

    def next(self) -> Trial | None:
        """Add a trial to the sweep and return it; None if there are no more."""
        return None

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Report the metric of the first seed at a validation, counted from 0. Return whether to prune the trial."""
        return False

    def again(self, trial: Trial) -> None:
        """Prepare a failed trial to run once more."""

    def ended(self, trial: Trial) -> None:
        """Record that a trial has ended."""


class FixedTrials(Search):
    """A grid or random samples."""

    def __init__(self, sweep: Sweep, space: Space) -> None:
        if sweep.settings["method"] == "grid":
            points = list(space.grid())
        else:
            points = space.draws(sweep.settings["seed"], sweep.settings["trials"])
        for values in points[len(sweep.trials) :]:
            sweep.new_trial(values, space.overrides(values))
        sweep.wanted = len(sweep.trials)


class Study(Search):
    """Optuna's study. Its whole state is in the sweep's folder."""

    def __init__(self, sweep: Sweep, space: Space, folder: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        class NoLock(JournalFileOpenLock):  # the sweep holds its own, and a lock file would outlive a killed process
            def acquire(self) -> bool:
                return True

            def release(self) -> None: ...

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self._optuna, self._sweep, self._space = optuna, sweep, space
        self.prunes = sweep.settings["prune"]
        self._distributions = {a.key: _distribution(a) for a in space.axes}
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL), lock_obj=NoLock("")))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=NEVER_PRUNED, n_warmup_steps=1)
        self.study = optuna.create_study(
            study_name="sweep",  # independent of the folder's name, which may change
            storage=storage,
            direction=sweep.direction,  # type: ignore[arg-type]
            pruner=pruner if self.prunes else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        known = {t.asked for t in sweep.trials}
        for t in self.study.trials:  # trials that a killed process asked for but did not start
            waiting = t.state == optuna.trial.TrialState.WAITING  # the next `ask` returns it
            if t.number not in known and not t.state.is_finished() and not waiting:
                self.study.tell(t.number, state=optuna.trial.TrialState.FAIL)

    def next(self) -> Trial | None:
        n = len(self._sweep.trials)
        if n >= self._sweep.wanted:
            return None
        asked = self._ask(n)
        values = {a.key: _text(a, asked.params[a.key]) for a in self._space.axes}
        return self._sweep.new_trial(values, self._space.overrides(values), asked.number)

    def _ask(self, n: int) -> optuna.Trial:
        # One sampler per trial: a resumed sweep would otherwise repeat the samples of its first trials.
        seed = int(np.random.SeedSequence([self._sweep.settings["seed"], n]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar, which makes concurrent trials differ, is experimental
            self.study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self.study.ask(self._distributions)

    def _frozen(self, trial: Trial) -> FrozenTrial:
        assert trial.asked is not None
        return self.study.get_trials(deepcopy=False)[trial.asked]

    def report(self, trial: Trial, step: int, value: float) -> bool:
        frozen = self._frozen(trial)
        # private: Optuna has no public way to report to a trial that another process began
        live = self._optuna.trial.Trial(self.study, frozen._trial_id)
        if step not in frozen.intermediate_values and not frozen.state.is_finished():
            live.report(value, step)
        return self.prunes and bool(live.should_prune())

    def again(self, trial: Trial) -> None:
        """Ask for a new Optuna trial with the same values, since Optuna closes trials that have failed."""
        self.study.enqueue_trial(self._frozen(trial).params)
        trial.asked = self._ask(trial.number).number

    def ended(self, trial: Trial) -> None:
        states = self._optuna.trial.TrialState
        value = trial.mean.get(self._sweep.metric)
        ok = trial.status == "ok" and value is not None
        state = states.COMPLETE if ok else states.PRUNED if trial.status == "pruned" else states.FAIL
        assert trial.asked is not None
        self.study.tell(trial.asked, value if ok else None, state=state, skip_if_finished=True)


def _numbers(axis: SweepAxis) -> list[float] | None:
    """Return the choices as evenly spaced ascending numbers, as in range(...); None if they are not."""
    try:
        numbers = [float(c) for c in axis.choices]
    except ValueError:
        return None
    steps = {round(b - a, 9) for a, b in itertools.pairwise(numbers)}
    return numbers if len(numbers) > 2 and len(steps) == 1 and steps.pop() > 0 else None


def _distribution(axis: SweepAxis) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not axis.choices and axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    if not axis.choices:
        return FloatDistribution(axis.low, axis.high, log=axis.log)
    if (numbers := _numbers(axis)) is None:
        return CategoricalDistribution(axis.choices)
    return FloatDistribution(numbers[0], numbers[-1], step=round(numbers[1] - numbers[0], 9))


def _text(axis: SweepAxis, value: Any) -> str:
    if not axis.choices:
        return axis.text(value)
    if (numbers := _numbers(axis)) is None:
        return str(value)
    return min(zip(axis.choices, numbers, strict=True), key=lambda c: abs(c[1] - value))[0]


def check_method(space: Space, settings: SweepConfig) -> None:
    """Raise UserError if the method does not fit the space."""
    method, trials = settings.method, settings.trials
    if method == "grid":
        for axis in space.axes:
            if not axis.choices:
                hint = "intervals need sweep=random or sweep=optuna"
                raise UserError(f"{axis.key}: a grid needs a list of values, a,b,c or range(...); {hint}")
        size = math.prod(len(a.choices) for a in space.axes)
        if size > MAX_GRID:
            raise UserError(f"sweep.method=grid: {size:,} combinations are too many; use sweep=random or sweep=optuna")
        if trials is not None:
            raise UserError(f"sweep.trials={trials}: a grid runs all its {size} trials; use sweep=random for fewer")
    elif not space.axes:
        raise UserError(f"sweep.method={method}: no key has several values; set one to a,b,c or interval(low,high)")
    elif trials is None:
        raise UserError(f"sweep.method={method}: set sweep.trials, the number of trials")
    if settings.prune and method != "optuna":
        raise UserError(f"sweep.prune=true: only sweep=optuna can prune, not sweep={method}")
