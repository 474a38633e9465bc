"""Search space of a sweep: Hydra's overrides with several values are axes; those of `seed` are every trial's seeds."""

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from recsys.base.errors import UserError, did_you_mean
from recsys.cli.command_line import explained
from recsys.config.compose import compose, compose_sweep, parse_overrides
from recsys.sweep.record import FOLD, SEED

Values = dict[str, str]  # key of an axis -> text of its value
ONE_RUNS = ("run_dir", "resume")
POINTS = "sweep.points"
ENOUGH = 10_000  # number of samples without a new trial, after which there are no more


@dataclass(frozen=True)
class SweepAxis:
    """Values of a key: `choices`, or the numbers from `low` to `high`."""

    key: str  # including Hydra's + or ++
    choices: tuple[str, ...] = ()  # empty for an interval
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False

    @property
    def ends(self) -> tuple[str, str]:
        """First and last value."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.text(self.low), self.text(self.high))

    def text(self, value: float) -> str:
        """Format a number of the interval as in an override, to six digits."""
        return str(int(value)) if self.whole else repr(float(f"{value:.6g}"))

    def draw(self, rng: np.random.Generator) -> str:
        """Sample a value."""
        if self.choices:
            return self.choices[rng.integers(len(self.choices))]
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        value = np.exp(rng.uniform(np.log(low), np.log(high))) if self.log else rng.uniform(low, high)
        return self.text(min(value, self.high))


@dataclass(frozen=True)
class Space:
    """All overrides of a sweep's runs, in order: fixed ones as text, and axes."""

    parts: tuple[str | SweepAxis, ...]
    seeds: tuple[int, ...]  # empty for the config's seed
    repeated: str = SEED  # the key whose values they are

    @property
    def axes(self) -> list[SweepAxis]:
        return [p for p in self.parts if isinstance(p, SweepAxis)]

    def overrides(self, values: Values) -> list[str]:
        """Return the overrides of one trial, leaving out axes without a value."""
        own: list[str] = []
        for p in self.parts:
            if isinstance(p, str):
                own.append(p)
            elif p.key in values:
                own += shlex.split(values[p.key]) if p.key == POINTS else [f"{p.key}={values[p.key]}"]
        return own

    def ends(self) -> tuple[Values, Values]:
        """Return the trial with the first value of all axes, and that with the last."""
        return {a.key: a.ends[0] for a in self.axes}, {a.key: a.ends[1] for a in self.axes}

    def grid(self) -> Iterator[Values]:
        """Yield every combination."""
        for choices in itertools.product(*(a.choices for a in self.axes)):
            yield dict(zip((a.key for a in self.axes), choices, strict=True))

    def draws(self, seed: int, count: int) -> list[Values]:
        """Return `count` different trials, or fewer if there are no more; a larger count begins with the same ones."""
        trials: dict[tuple[str, ...], Values] = {}
        rng = np.random.default_rng(seed)
        old = 0  # samples since the last new trial
        while len(trials) < count and old < ENOUGH:
            values = {a.key: a.draw(rng) for a in self.axes}
            old = old + 1 if tuple(values.values()) in trials else 0
            trials.setdefault(tuple(values.values()), values)
        return list(trials.values())


def read_space(arguments: Sequence[str]) -> Space:
    """Parse the overrides of `python -m recsys.train -m`, without the overrides of the sweep itself.

    Raises:
        UserError: an override cannot be parsed or composed.
    """
    with explained(arguments):
        parsed = parse_overrides(arguments)
    parts: list[str | SweepAxis] = []
    seeds: tuple[int, ...] = ()
    repeated = SEED
    for raw, o in zip(arguments, parsed, strict=True):
        key = o.key_or_group
        of_sweep = key == "sweep" or key.startswith("sweep.") or o.is_hydra_override()
        if o.is_sweep_override() and (of_sweep or key in ONE_RUNS):
            raise UserError(f"{raw}: {key} must have a single value for all trials")
        if key == "resume":
            hint = "resume a sweep with python -m recsys.sweep resume SWEEP_DIR"
            raise UserError(f"{raw}: only for a single run; {hint}")
        if key in ("hydra/sweeper", "hydra/launcher"):
            raise UserError(f"{raw}: recsys has its own sweeper; use sweep.method and sweep.launcher")
        if of_sweep or key in ONE_RUNS:
            continue
        if not o.is_sweep_override():
            parts.append(raw)
        elif key in (SEED, FOLD):
            if seeds:
                raise UserError(f"{raw}: {repeated} repeats each trial already; give one of them a single value")
            repeated = key
            if not o.is_discrete_sweep():
                what = f"must list the {key.rpartition('.')[2]}s of each trial"
                raise UserError(f"{raw}: {what}: {key}=0,1,2 or {key}=range(3)")
            try:
                seeds = tuple(dict.fromkeys(int(s) for s in o.sweep_string_iterator()))
            except ValueError:
                raise UserError(f"{raw}: {key.rpartition('.')[2]}s must be integers") from None
        elif o.get_key_element() in {p.key for p in parts if isinstance(p, SweepAxis)}:
            raise UserError(f"{raw}: {key} is swept twice; give all its values in one override")
        else:
            parts.append(_axis(raw, o))
    space = Space(tuple(parts), seeds, repeated)
    of_sweep = [a for a in arguments if a.lstrip("+").startswith(("sweep.", "sweep="))]
    overrides = [*space.overrides(space.ends()[0]), *of_sweep]
    with explained(overrides):
        points = OmegaConf.to_container(compose_sweep(overrides)[0].sweep).get("points")  # type: ignore[union-attr]
    if points:  # of an experiment's config, or an override
        space = Space((SweepAxis(POINTS, tuple(shlex.join(p) for p in points)), *parts), seeds, repeated)
    return _typed(space)


def _axis(raw: str, override: Any) -> SweepAxis:
    key, value = override.get_key_element(), override.value()
    for tag in getattr(value, "tags", ()):
        if tag != "log":
            raise UserError(f"{raw}: no such tag: {tag}{did_you_mean(tag, ['log'])}")
    if override.is_discrete_sweep():
        choices = tuple(dict.fromkeys(override.sweep_string_iterator()))
        if not choices:
            raise UserError(f"{raw}: must have at least one value")
        return SweepAxis(key, choices)
    log = "log" in value.tags
    if not (math.isfinite(value.start) and math.isfinite(value.end)):
        raise UserError(f"{raw}: both ends must be finite numbers")
    if not value.start < value.end:
        raise UserError(f"{raw}: the first end must be smaller than the second")
    if log and value.start <= 0:
        raise UserError(f"{raw}: a logarithmic interval must be above 0")
    return SweepAxis(key, (), value.start, value.end, isinstance(value.start, int), log)


def _typed(space: Space) -> Space:
    """Round intervals of integer keys, such as model.dim, to integers, and check that every value composes."""
    first, _ = space.ends()
    intervals = {a.key for a in space.axes if not a.choices}
    others = {k: v for k, v in first.items() if k not in intervals}
    cfg = composed(space.overrides(others)) if intervals else None
    parts: list[str | SweepAxis] = []
    for p in space.parts:
        if isinstance(p, SweepAxis) and p.key in intervals:
            assert cfg is not None
            now = OmegaConf.select(cfg, p.key.lstrip("+"))
            counts = isinstance(now, int) and not isinstance(now, bool)
            if counts and not (float(p.low).is_integer() and float(p.high).is_integer()):
                why = f"{p.key} is an integer, so both ends must be integers"
                raise UserError(f"{p.key}=interval({p.low},{p.high}): {why}")
            p = replace(p, whole=p.whole or counts)
        parts.append(p)
    typed = replace(space, parts=tuple(parts))
    first, _ = typed.ends()
    composed(typed.overrides(first))
    for axis in typed.axes:
        for value in axis.choices[1:] if len(axis.choices) <= 20 else axis.ends:
            composed(typed.overrides(first | {axis.key: value}))
    return typed


def composed(overrides: Sequence[str]) -> DictConfig:
    """Return a trial's config. Raises UserError if it does not compose."""
    with explained(overrides):
        return compose("train", overrides)
