"""Find the files that `files=` names, and the folder and globs by which a config names them."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recsys.data.raw.storage import is_remote, natural_sort
from recsys.errors import UserError

HINT = "files='logs/*.csv', files=FOLDER or files=[a.csv,b.csv]"
ROLES = {  # words in a file's name that name its split
    "train": ("train", "training", "tr", "trn"),
    "validation": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing", "te", "tst"),
}


@dataclass(frozen=True)
class Found:
    """Files, and how a config names them.

    root: the folder, relative if the user's paths are
    globs: relative to the folder; empty if the user named a folder, whose files the globs have to be made for
    """

    root: str
    files: tuple[Path, ...]
    globs: tuple[str, ...]


def find(given: Sequence[str]) -> Found:
    """Return the files that the paths, folders and globs name. Raises UserError if there are none."""
    for name in given:
        if is_remote(name):
            raise UserError(
                f"files={name}: must be files of this machine; copy some of them here, and set data.root later"
            )
    paths = [os.path.expanduser(str(name)) for name in given]
    if len(paths) == 1 and Path(paths[0]).is_dir():
        root = Path(paths[0])
        files = [p for p in root.rglob("*") if p.is_file() and not _hidden(p.relative_to(root))]
        return _found(root, files, (), given)
    parents = [_fixed_parent(p) for p in paths]
    root = Path(os.path.commonpath(parents)) if len({p.is_absolute() for p in parents}) == 1 else Path.cwd()
    files, globs = list[Path](), list[str]()
    for path in paths:
        matches = [Path(path)] if Path(path).is_file() else [Path(p) for p in glob.glob(path, recursive=True)]
        inside = [p / "**" / "*" if p.is_dir() else p for p in matches]
        matches = [f for p in inside for f in ([p] if p.is_file() else map(Path, glob.glob(str(p), recursive=True)))]
        matches = [p for p in matches if p.is_file() and not _hidden(Path(os.path.relpath(p, root)))]
        if not matches:
            folder = _fixed_parent(path)
            names = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
            near = f" ({folder} holds {', '.join(names)})" if names else ""
            raise UserError(f"files={path}: no such file{near}; type {HINT}")
        files += matches
        relative = os.path.relpath(path, root)
        globs.append(glob.escape(relative) if Path(path).is_file() else relative)
    return _found(root, files, tuple(globs), given)


def _found(root: Path, files: Sequence[Path], globs: tuple[str, ...], given: Sequence[str]) -> Found:
    kept = natural_sort({f for f in files if f.stat().st_size})
    if not kept:
        raise UserError(f"files={','.join(given)}: no file there holds data; type {HINT}")
    return Found(str(root), tuple(kept), globs)


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) and part not in (".", "..") for part in path.parts)


def _fixed_parent(path: str) -> Path:
    """Return the deepest folder that a path or glob names without a wildcard."""
    parts = Path(path).parts
    first = next(
        (i for i, part in enumerate(parts) if glob.has_magic(part) and not Path(*parts[: i + 1]).exists()), None
    )
    return Path(path).parent if first is None else Path(*parts[:first]) if first else Path()


def split_of(file: Path) -> str | None:
    """Return the split that a file's name says it belongs to, None if it says nothing."""
    words = "".join(c if c.isalpha() else " " for c in file.name.lower()).split()
    found = {split for split, names in ROLES.items() if set(words) & set(names)}
    if not found:
        found = {split for split, names in ROLES.items() if any(names[0] in word for word in words)}
    if not found and file.parent.name:
        found = {split for split, names in ROLES.items() if file.parent.name.lower() in names}
    return found.pop() if len(found) == 1 else None


def globs_for(root: Path, files: Sequence[Path], others: Sequence[Path]) -> list[str]:
    """Return globs under `root` that match `files` and none of `others`: one by the suffix if that is possible."""
    relative = [Path(os.path.relpath(f, root)) for f in files]
    suffixes = {
        "".join(p.suffixes[-2:]) if p.suffixes[-1:] in ([".gz"], [".zst"], [".bz2"], [".zip"]) else p.suffix
        for p in relative
    }
    if len(relative) > 1 and len(suffixes) == 1:
        suffix = suffixes.pop()
        pattern = ("**/*" if any(len(p.parts) > 1 for p in relative) else "*") + glob.escape(suffix)
        if not {p.resolve() for p in root.glob(pattern)} & {p.resolve() for p in others}:
            return [pattern]
    return [glob.escape(str(p)) for p in relative]
