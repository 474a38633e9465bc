"""The events of an entity, as a store keeps them for aggregates, and how new ones are merged into them.

Events come from files and from streams, and a log usually holds what its stream held. So, for each entity, events of
streams count only after its last event of the files: what a log covers, it alone decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.store.aggregates import PER_SECOND, TICK, lasts, longest, window_ticks
from recsys.store.stores import Values
from recsys.store.views import View

FILE = "__file__"  # the number of the file of each event
STREAM = -1  # the number of events of a stream
DEFINITION = "__definition__"  # the digest of the view that the events were kept for
APPLIED = "__applied__"  # the offset after the last event of each partition of a stream that was merged
Event = tuple[Any, ...]  # time in ticks, number of the file, and the values of View.event_columns


class EventMerger:
    """Merges events into what a store keeps of an entity.

    newest: ticks of the newest event; events that no aggregate reads from then on are left out. A time that is still to
        come counts as now, so that one clock that is ahead does not make all other events old
    """

    def __init__(self, view: View, per_second: int, newest: int | None) -> None:
        window, now = longest(view.aggregates), int(time.time() * per_second)
        newest = None if newest is None else min(newest, now)
        self._digest = view.digest
        self._oldest = None if window is None or newest is None else newest - window_ticks(window, per_second)
        self._columns = [TICK, FILE, *view.event_columns]
        self._last = [(2 + view.event_columns.index(c), n) for c, n in lasts(view.aggregates).items()]
        self._per_second = per_second

    def files(self, stored: Values | None, rows: Sequence[Event], read: set[int]) -> tuple[float, Values]:
        """Replace the events of the files `read` by rows; return the newest time and the events to store."""
        end = max(tick for tick, *_ in rows)
        events, applied = self._kept(stored)
        kept = [e for e in events if e[1] not in read and (e[1] != STREAM or e[0] > end)]
        return self._stored(kept + list(rows), applied)

    def stream(self, stored: Values | None, rows: Sequence[tuple[str, int, Event]]) -> tuple[float, Values] | None:
        """Add rows (partition, offset, event) that are new; return as `files` does, None if no row is."""
        events, applied = self._kept(stored)
        end = max((e[0] for e in events if e[1] != STREAM), default=None)
        count = 0
        for partition, offset, event in rows:
            if offset >= applied.get(partition, 0):
                applied[partition] = offset + 1
                count += 1
                if end is None or event[0] > end:
                    events.append(event)
        return self._stored(events, applied) if count and events else None

    def _kept(self, stored: Values | None) -> tuple[list[Event], dict[str, int]]:
        """Return events and offsets kept for this definition: another may have left out what this one reads."""
        if stored is None or stored.get(DEFINITION) != self._digest:
            return [], {}
        return list(zip(*(stored[c] for c in self._columns), strict=True)), dict(stored.get(APPLIED, {}))

    def _stored(self, events: list[Event], applied: Mapping[str, int]) -> tuple[float, Values]:
        events = sorted(events, key=lambda e: e[:2])
        newest = events[-1][0]
        if self._oldest is not None:  # an aggregate still reads events of the longest window, and the last of a column
            needed = [e[0] >= self._oldest for e in events]
            for place, number in self._last:
                for i in [i for i, e in enumerate(events) if e[place] is not None][-number:]:
                    needed[i] = True
            events = [e for e, keep in zip(events, needed, strict=True) if keep]
        values: Values = {c: [e[i] for e in events] for i, c in enumerate(self._columns)}
        values |= {PER_SECOND: self._per_second, DEFINITION: self._digest}
        values |= {APPLIED: dict(applied)} if applied else {}
        return newest / self._per_second, values
