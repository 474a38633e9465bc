"""Find the files that `files=` names, and the folder and globs by which a config names them."""

import glob
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from recsys.base.errors import UserError
from recsys.data.raw.own_outputs import DEFAULT, Outputs
from recsys.data.raw.storage import is_remote, natural_sort
from recsys.files.input_files import problem_of
from recsys.new.known_names import ascii_letters

HINT = "files='logs/*.csv', files=FOLDER or files=[a.csv,b.csv]"
NO_DATA = frozenset(  # suffixes of files that a folder holds beside its data
    (".yaml", ".yml", ".toml", ".md", ".rst", ".html", ".pdf", ".png", ".jpg", ".py", ".ipynb", ".sh", ".pt", ".ckpt")
)
ROLES = {  # words in a file's name that name its split; the first ones also as the start of a word
    "train": (*("train", "训练", "entrenamiento", "treino", "entrainement"), "tr", "trn", "training"),
    "validation": (*("valid", "验证", "validacion", "validacao", "validierung"), "val", "vali", "dev", "validation"),
    "test": (*("test", "测试", "prueba", "teste", "holdout"), "te", "tst", "testing", "eval"),
}
WITHIN = 5  # of the words of a split, those that a word may begin with


@dataclass(frozen=True)
class Found:
    """Files, and how a config names them.

    root: the folder, relative if the user's paths are
    globs: relative to the folder; empty if the user named a folder, whose files the globs have to be made for
    named: whether the user has named each file
    empty: files without a byte
    """

    root: str
    files: tuple[Path, ...]
    globs: tuple[str, ...]
    named: bool = False
    empty: tuple[Path, ...] = ()


def find(given: Sequence[str]) -> Found:
    """Return the files that the paths, folders and globs name. Raises UserError if they name no file."""
    for name in given:
        if is_remote(name):
            raise UserError(
                f"files={name}: must be files of this machine; copy some of them here, and set data.root later"
            )
    paths = [os.path.expanduser(str(name)) for name in given]
    if len(paths) == 1 and Path(paths[0]).is_dir():
        root = Path(paths[0])
        outputs = Outputs(root, DEFAULT)
        files = [p for p in root.rglob("*") if p.is_file() and not _hidden(p.relative_to(root))]
        files = [p for p in files if p.suffix.lower() not in NO_DATA and not outputs.contains(p)]
        return _found(root, files, (), given)
    parents = [_fixed_parent(p) for p in paths]
    root = Path(os.path.commonpath(parents)) if len({p.is_absolute() for p in parents}) == 1 else Path.cwd()
    files, globs = list[Path](), list[str]()
    for path in paths:
        matches = [Path(path)] if Path(path).is_file() else [Path(p) for p in glob.glob(path, recursive=True)]
        problem = next(
            (why for p in matches or [Path(path)] if not p.is_dir() and (why := problem_of(p))), "no such file"
        )
        inside = [p / "**" / "*" if p.is_dir() else p for p in matches]
        matches = [f for p in inside for f in ([p] if p.is_file() else map(Path, glob.glob(str(p), recursive=True)))]
        matches = [p for p in matches if p.is_file() and not _hidden(Path(os.path.relpath(p, root)))]
        if not matches:
            folder = _fixed_parent(path)
            names = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
            near = f" ({folder} holds {', '.join(names)})" if names else ""
            raise UserError(f"files={path}: {problem}{near}; type {HINT}")
        files += matches
        relative = os.path.relpath(path, root)
        globs.append(glob.escape(relative) if Path(path).is_file() else relative)
    return replace(_found(root, files, tuple(globs), given), named=all(Path(p).is_file() for p in paths))


def _found(root: Path, files: Sequence[Path], globs: tuple[str, ...], given: Sequence[str]) -> Found:
    kept = natural_sort({f for f in files if f.stat().st_size})
    if not kept:
        raise UserError(f"files={','.join(given)}: no file there holds data; type {HINT}")
    return Found(str(root), tuple(kept), globs, empty=tuple(f for f in dict.fromkeys(files) if f not in kept))


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) and part not in (".", "..") for part in path.parts)


def _fixed_parent(path: str) -> Path:
    """Return the deepest folder that a path or glob names without a wildcard."""
    parts = Path(path).parts
    first = next(
        (i for i, part in enumerate(parts) if glob.has_magic(part) and not Path(*parts[: i + 1]).exists()), None
    )
    return Path(path).parent if first is None else Path(*parts[:first]) if first else Path()


def split_of(file: Path, root: Path = Path()) -> str | None:
    """Return the split that the names of a file's folders below `root`, the nearest first, or its own name say.

    Return None if the names say no split, or a name says two.
    """
    folders = file.relative_to(root).parts[:-1] if file.is_relative_to(root) else ()
    for folder in reversed(folders):
        if (split := _named_split(folder)) is not None:
            return split
    return _named_split(file.name)


def _named_split(name: str) -> str | None:
    words = "".join(c if c.isalpha() else " " for c in ascii_letters(name)).split()
    splits = {split for split, names in ROLES.items() if set(words) & set(names)}
    if not splits:
        splits = {s for s, names in ROLES.items() if any(word.startswith(names[:WITHIN]) for word in words)}
    return splits.pop() if len(splits) == 1 else None


def globs_for(root: Path, files: Sequence[Path], empty: Collection[Path] = ()) -> list[str]:
    """Return a glob under `root` that matches these files alone, or the paths of the files if no glob does.

    empty: files that it may match, too
    """
    if len(files) > 1:
        relative = [os.path.relpath(f, root) for f in files]
        suffix = glob.escape(_common_suffix([Path(r).name for r in relative]))
        folder = glob.escape(os.path.commonpath(relative) or ".").removeprefix(".")
        same = takewhile(lambda characters: len(set(characters)) == 1, zip(*relative, strict=False))
        start = glob.escape("".join(characters[0] for characters in same))
        for pattern in (f"*{suffix}", f"**/*{suffix}", f"{start}*{suffix}", f"{folder}/**/*{suffix}"):
            if not pattern.startswith("/") and _matches(root, pattern) - set(empty) == set(files):
                return [pattern]
    return [glob.escape(os.path.relpath(f, root)) for f in files]


def _matches(root: Path, pattern: str) -> set[Path]:
    return {p for p in root.glob(pattern) if p.is_file() and not _hidden(p.relative_to(root))}


def _common_suffix(names: Sequence[str]) -> str:
    """Return the end that names share, from a dot on: .csv or .csv.gz."""
    ends = {"".join(Path(n).suffixes[-2:]) for n in names}
    ends = ends if len(ends) == 1 and not any(c.isdigit() for c in "".join(ends)) else {Path(n).suffix for n in names}
    return ends.pop() if len(ends) == 1 else ""
