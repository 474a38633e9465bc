"""Words of the command line as texts of Hydra's grammar."""


def quoted(word: str) -> str:
    """Return a word as Hydra's text, whatever characters a path has."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
