"""Check the file or folder that a command writes to, before anything is read."""

import tempfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from recsys.base.errors import UserError
from recsys.files.run_files import CONFIG, OWN


def check_output(
    output: Path,
    suffixes: tuple[str, ...] = (),
    *,
    key: str = "output",
    inputs: Iterable[Path] = (),
    root: str | None = None,
    files: Sequence[str] = ("**",),
) -> None:
    """Check that writing to `output` overwrites nothing that the user needs.

    Args:
        suffixes: the suffixes of the files that the command can write; empty if it writes a folder.
        key: the config key of the path.
        inputs: files that the command reads.
        root: data.root, whose files are the raw data. If the command runs in it or below it, what no glob of `files`
            matches may be written there.
        files: data.source.files, globs below data.root.

    Raises:
        UserError: the path names another kind of file, an input, a place under data.root, a file of a run, or a
            place where nothing can be written.
    """
    kinds = " or ".join(suffixes)
    if suffixes and output.is_dir():
        raise UserError(f"{key}={output}: is a folder; name a {kinds} file")
    if suffixes and output.suffix not in suffixes:
        raise UserError(f"{key}={output}: must end in {kinds}")
    if output.exists() and not output.is_file() and not output.is_dir():
        raise UserError(f"{key}={output}: is a named pipe, a device or a socket; name a file")
    if not suffixes and output.is_file():
        raise UserError(f"{key}={output}: is a file; name a folder")
    if above := next((p for p in output.parents if p.is_file()), None):
        raise UserError(f"{key}={output}: {above} is a file, not a folder")
    # one of the inputs, also through links
    if any(output.resolve() == f.resolve() or (output.exists() and f.exists() and output.samefile(f)) for f in inputs):
        raise UserError(f"{key}={output}: is one of the inputs; name another file")
    if root is not None and "://" not in root and _is_raw(output, Path(root), files, bool(suffixes)):
        raise UserError(f"{key}={output}: lies in data.root={root}, the folder of the raw data; name another place")
    nearest = next(p for p in output.absolute().parents if p.is_dir())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as e:
        raise UserError(f"{key}={output}: {nearest} cannot be written ({e.strerror}); name another place") from e
    folder = output if not suffixes else output.parent
    if (folder / CONFIG).exists() and (not suffixes or any(fnmatchcase(output.name, pattern) for pattern in OWN)):
        raise UserError(f"{key}={output}: belongs to the run in {folder}; name another place")


def _is_raw(output: Path, root: Path, globs: Sequence[str], is_file: bool) -> bool:
    """Return whether an output lies below data.root, where it, or a file in it, could be read as data."""
    if not _within(output, root):
        return False
    if not _within(Path(), root):
        return True
    parts = output.resolve().relative_to(root.resolve()).parts
    return not parts or any(_reaches(parts, PurePath(glob).parts, is_file) for glob in globs)


def _reaches(parts: Sequence[str], pattern: Sequence[str], is_file: bool) -> bool:
    """Return whether a glob matches a path or what may lie below it. A folder with a = stands for its files."""
    if "**" in pattern:
        return True
    if not all(fnmatchcase(part, p) for part, p in zip(parts, pattern, strict=False)):
        return False
    if len(parts) < len(pattern):
        return not is_file
    return (is_file and len(parts) == len(pattern)) or "=" in parts[len(pattern) - 1]


def _within(path: Path, folder: Path) -> bool:
    return path.resolve() == folder.resolve() or folder.resolve() in path.resolve().parents
