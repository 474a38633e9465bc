"""Names that become names of files, of columns and parts of URLs: of data sets, features, models and versions."""

from recsys.base.errors import UserError

FORBIDDEN = "/\\*?[]"
MOST_BYTES = 150  # with the suffixes that files get, less than the 255 bytes of a file's name


def name_problem(name: str) -> str | None:
    """Return why files and folders cannot have this name, as the predicate of a sentence; None if they can.

    >>> name_problem("clicks"), name_problem("a/b")
    (None, 'contains /')
    """
    if not name or name != name.strip():
        return "is empty, or begins or ends with a space"
    if forbidden := [c for c in name if c in FORBIDDEN]:
        return f"contains {forbidden[0]}"
    if not name.isprintable():
        return "contains a character that cannot be printed"
    size = len(name.encode(errors="replace"))
    return f"has {size} bytes, more than {MOST_BYTES}" if size > MOST_BYTES else None


def check_name(name: str, key: str, example: str) -> None:
    """Raise UserError for a name that cannot be the name of a folder. key: the config key that holds it"""
    if problem := name_problem(name) or ("begins with a dot" if name.startswith(".") else None):
        raise UserError(f"{key}={shown_name(name)}: {problem}; choose a plain name, such as {example}")


def shown_name(name: str) -> str:
    """Return a name for a message, on one line and cut if it is long."""
    return repr(name if len(name) <= 40 else f"{name[:40]}...")
