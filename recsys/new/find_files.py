"""Find the files that `files=` names, and the folder and globs by which a config names them."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from recsys.base.errors import UserError
from recsys.data.raw.raw_files import DEFAULT, Outputs, is_remote, natural_sort
from recsys.files.data_files import files_in, is_data, named_by
from recsys.files.user_files import problem_of
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
STARTS = 5  # of the words of a split, those that a word may begin with


@dataclass(frozen=True)
class Found:
    """Files, and how a config names them."""

    root: str  # the folder, relative if the user's paths are
    files: tuple[Path, ...]
    globs: tuple[str, ...]  # relative to the folder; empty if the user named a folder
    named: bool  # whether the user has named each file
    empty: tuple[Path, ...]  # files without a byte


def find(given: Sequence[str]) -> Found:
    """Return the files that the paths, folders and globs name. Raises UserError if they name no file."""
    if remote := next(filter(is_remote, given), None):
        hint = "copy some of them here, and set data.root later"
        raise UserError(f"files={remote}: must be files of this machine; {hint}")
    paths = [os.path.expanduser(str(name)) for name in given]
    files, globs = list[Path](), list[str]()
    if len(paths) == 1 and Path(paths[0]).is_dir():
        root = Path(paths[0])
        outputs = Outputs(root, DEFAULT)
        files = files_in(root)
        files = [p for p in files if p.suffix.lower() not in NO_DATA and not outputs.contains(p)]
        paths, named = [], False
    else:
        parents = [_fixed_parent(p) for p in paths]
        root = Path(os.path.commonpath(parents)) if len({p.is_absolute() for p in parents}) == 1 else Path.cwd()
        named = all(Path(p).is_file() for p in paths)
    for path in paths:
        matches = named_by(path)
        problem = next(filter(None, map(problem_of, matches)), "no such file")
        matches = [p for p in matches if p.is_file()]
        if not matches:
            folder = _fixed_parent(path)
            names = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
            near = f" ({folder} holds {', '.join(names)})" if names else ""
            raise UserError(f"files={path}: {problem}{near}; type {HINT}")
        files += matches
        relative = os.path.relpath(path, root)
        globs.append(glob.escape(relative) if Path(path).is_file() else relative)
    filled = natural_sort({f for f in files if f.stat().st_size})
    if not filled:
        raise UserError(f"files={','.join(given)}: no file there holds data; type {HINT}")
    empty = tuple(f for f in dict.fromkeys(files) if f not in filled)
    return Found(str(root), tuple(filled), tuple(globs), named, empty)


def _fixed_parent(path: str) -> Path:
    """Return the deepest folder that a path or glob names without a wildcard."""
    parts = Path(path).parts
    for i, part in enumerate(parts):
        if glob.has_magic(part) and not Path(*parts[: i + 1]).exists():
            return Path(*parts[:i])
    return Path(path).parent


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
        splits = {s for s, names in ROLES.items() if any(word.startswith(names[:STARTS]) for word in words)}
    return splits.pop() if len(splits) == 1 else None


def globs_for(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a glob under `root` that matches these files alone, or the paths of the files if no glob does."""
    if len(files) > 1:
        relative = [os.path.relpath(f, root) for f in files]
        suffixes = [Path(r).suffixes for r in relative]  # they may share .csv or .csv.gz
        ends = {"".join(s[-2:]) for s in suffixes}
        if len(ends) > 1 or any(c.isdigit() for c in "".join(ends)):
            ends = {"".join(s[-1:]) for s in suffixes}
        suffix = glob.escape(ends.pop()) if len(ends) == 1 else ""
        folder = glob.escape(os.path.commonpath(relative) or ".").removeprefix(".")
        same = takewhile(lambda characters: len(set(characters)) == 1, zip(*relative, strict=False))
        start = glob.escape("".join(characters[0] for characters in same))
        name = re.sub(r"[\d_.-]+$", "", start)  # the days to come may have other first digits
        for pattern in (*(f"{p}*{suffix}" for p in ("", "**/", name, start)), f"{folder}/**/*{suffix}"):
            if pattern.startswith("/"):
                continue
            matched = {p for p in root.glob(pattern) if p.is_file() and is_data(p.relative_to(root).parts)}
            if matched == set(files):
                return [pattern]
    return [glob.escape(os.path.relpath(f, root)) for f in files]
