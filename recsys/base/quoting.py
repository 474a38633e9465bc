"""Words of the command line as texts of Hydra's grammar."""

import re

PLAIN = re.compile(r"[\w./~-]+", re.ASCII)  # words that Hydra takes as they are


def quoted(word: str) -> str:
    """Return a word as Hydra's text, whatever characters a path has."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


def override(key: str, value: object) -> str:
    """Return KEY=VALUE as Hydra reads it, whatever characters a path has.

    >>> override("run_dir", "runs/a=b")
    "run_dir='runs/a=b'"
    """
    word = str(value)
    return f"{key}={word if PLAIN.fullmatch(word) else quoted(word)}"
