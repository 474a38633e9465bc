"""python -m recsys.follow FILE [cycles=N] [watch=true]
python -m recsys.follow status FILE

Follows data as it arrives: checks new partitions, trains on from the champion, judges the challenger on the next
partition, and puts it into service or not. One call does all that can be done now; repeat it by cron, or set
watch=true. `status` prints where everything is, and why.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from recsys.cli import command_line
from recsys.cli.console import say
from recsys.errors import UserError

USAGE = "python -m recsys.follow FILE [cycles=N] [watch=true] [seconds=60], or status FILE; see docs/continuous.md"
KEYS = {"file": None, "cycles": None, "watch": "false", "seconds": "60"}


def follow(file: Path, cycles: int | None = None, watch: bool = False, seconds: float = 60.0) -> None:
    """Follow the data of a settings file.

    Args:
        file: the settings.
        cycles: the most cycles to end; None: no limit.
        watch: look for new partitions again and again, until the process is stopped.
        seconds: time between two looks.
    """
    from recsys.follow.follow_settings import load_settings

    settings = load_settings(file)
    from recsys.follow.cycle import Follower

    while True:
        follower = Follower(settings)
        with follower.alone():
            ended = follower.run(cycles)
        if not watch:
            break
        time.sleep(0 if ended else seconds)
    _say_what_waits(follower)


def _say_what_waits(follower: object) -> None:
    from recsys.follow.cycle import Follower
    from recsys.follow.partitions import ripe

    assert isinstance(follower, Follower)
    current = follower.state.current
    if current is not None:
        say(f"cycle {current.number} waits at step {current.step}; run the command again")
    unripe = len(follower.partitions) - len(ripe(list(follower.partitions.values()), follower.settings.partitions))
    say(f"{len(follower.waiting())} partitions wait for a cycle" + (f", {unripe} for their labels" if unripe else ""))


def main() -> None:
    """Run the command with this process's arguments."""
    arguments = sys.argv[1:]
    if not arguments or any(a in command_line.HELP for a in arguments):
        print(__doc__)
        return
    status = arguments[0] == "status"
    given = dict(a.partition("=")[::2] for a in arguments[status:] if "=" in a)
    words = [a for a in arguments[status:] if "=" not in a]

    def run() -> None:
        from recsys.follow.status import show

        if unknown := next((k for k in given if k not in KEYS), None):
            raise UserError(f"{unknown}: no such key; usage: {USAGE}")
        if len(words) != 1:
            raise UserError(f"name one settings file; usage: {USAGE}")
        if status:
            show(Path(words[0]))
            return
        cycles = None if "cycles" not in given else int(given["cycles"])
        follow(Path(words[0]), cycles, given.get("watch", "false") == "true", float(given.get("seconds", 60)))

    sys.exit(command_line.call(run, "follow", arguments))


if __name__ == "__main__":
    main()
