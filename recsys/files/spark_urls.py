"""Names of files for Spark. Apart from the rest of Spark's code, because preparing data and serving share it."""

from pathlib import Path


def file_url(file: Path, *, globs: bool = True) -> str:
    """Return a URL on the machines' own file system, whatever Spark's default is.

    globs: whether Spark takes the URL for a glob, as it does when it reads, so that special characters are escaped
    """
    return "file://" + "".join(f"\\{c}" if globs and c in "\\{}[]*?^" else c for c in str(file.absolute()))
