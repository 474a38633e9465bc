"""How interactions count less, the older they are."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import torch
from torch import Tensor

from recsys.base.console import say
from recsys.base.durations import is_number, seconds_of_age
from recsys.base.errors import UserError
from recsys.base.ranges import Age

EPOCHS = (3e8, 5e9)  # seconds since 1970 that are times of events: 1979 to 2128; milliseconds are beyond


@dataclass(frozen=True)
class Ageing:
    """How the interactions of a training count: each by its age, the time from it to the newest of all.

    Both are durations such as 7d, or numbers in the unit of data.group.order: seconds for times.

    window: an interaction that is older does not count; None: all count
    half_life: age at which an interaction counts half, and at twice that age a quarter; None: 1 at any age
    """

    window: Age | None
    half_life: Age | None

    @classmethod
    def of(cls, window: Age | None, half_life: Age | None) -> Self | None:
        """Return what these parameters say; None if interactions of all ages count alike."""
        return None if window is half_life is None else cls(window, half_life)

    def weights(self, times: Tensor, key: str = "model") -> Tensor:
        """Return what each interaction counts: times (P,) -> (P,) float64, from 0 to 1.

        key: where the durations stand, for messages

        Raises:
            UserError: a duration has a unit, and the times are no seconds.
        """
        if not len(times):
            return torch.ones_like(times)
        newest = times.max()
        in_seconds, when = bool(EPOCHS[0] < newest < EPOCHS[1]), f"{newest:g}"
        seconds: dict[str, float | None] = {}
        for name, value in vars(self).items():
            seconds[name] = None if value is None else seconds_of_age(str(value))
            if value is not None and not in_seconds and not is_number(str(value)):
                why = f"data.group.order has numbers up to {when}, which are no seconds since 1970"
                raise UserError(f"{key}.{name}={value}: {why}; write {name} as a number in their unit")
        ages, weights = newest - times, torch.ones_like(times)
        if (half_life := seconds["half_life"]) is not None:
            weights = torch.exp2(-ages / half_life)
        if (window := seconds["window"]) is not None:
            weights = weights.where(ages <= window, 0.0)
        if in_seconds:
            when = f"{datetime.fromtimestamp(float(newest), UTC):%Y-%m-%d %H:%M} UTC"
        counted = int((weights > 0).sum())
        what = f"{counted:,} of {len(times):,} interactions count, as {float(weights.sum()):,.1f} new ones"
        say(f"{key}: {what}; the newest is of {when}")
        return weights
