"""Divide the files that the user named into files of rows, possible side tables, and files of no use."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recsys.base.errors import UserError
from recsys.new.column_kinds import Column, mean
from recsys.new.find_files import Found, split_of
from recsys.new.find_kinds import columns_of
from recsys.new.find_layout import is_known, layout_of
from recsys.new.known_names import NAMES, RECBOLE, ascii_letters, has_word, names_an_id_of, plain, rank_of
from recsys.new.layouts import Key, Layout, OtherRows
from recsys.new.questions import Answers, Question
from recsys.new.sample import read_sample
from recsys.new.yaml_text import flow

MAX_LOOKED_AT = 60  # files; later ones are like those of the same name but for digits
MAX_ANSWERED = 8  # files that an answer names
MAX_UNTESTED = 5  # columns that files of test rows lack
MIN_KNOWN = 0.9  # share of the rows' values that a side table knows


@dataclass
class Gathered:
    """Files by their use."""

    layout: Layout
    files: list[Path]  # of the rows
    sides: list[Path]  # files of other columns, which may be side tables
    unused: list[tuple[Path, str]]  # files that are of no use, and why
    untested: tuple[str, ...]  # the columns that test files lack, if they are few: the label, and what follows
    optional: tuple[str, ...]  # the columns that some files of the rows lack
    questions: list[Question]


@dataclass(eq=False)
class _Files:
    """Files of the same columns."""

    layout: Layout
    root: Path
    files: list[Path] = field(default_factory=list)
    columns: list[set[str]] = field(default_factory=list)  # of each file that was looked at

    @property
    def is_one_column(self) -> bool:
        """Whether the files are text that no separator divides into columns."""
        return self.layout.is_csv and self.layout.width < 2

    @property
    def evidence(self) -> tuple[bool, bool, bool]:
        """Whether names say that these are training files, of users and items, with a label."""
        names = [plain(name) for name in self.layout.columns]
        has_ids = all(any(names_an_id_of(c, ids) for c in names) for ids in (NAMES.users, NAMES.items))
        return self.has("train"), has_ids, any(rank_of(c, (*NAMES.labels, *NAMES.ratings)) is not None for c in names)

    @property
    def is_table(self) -> bool:
        """Whether the first column has another value in each row, as the key of a side table has."""
        first = read_sample(self.files[:1], self.layout).frame.to_series(0).drop_nulls()
        return not first.dtype.is_nested() and first.len() == first.n_unique()

    def has(self, split: str) -> bool:
        """Return whether the name of a file says that it is of this split."""
        return any(split_of(f, self.root) == split for f in self.files)


def gather(found: Found, answers: Answers) -> Gathered:
    """Find the files of the rows, and ask if several may be.

    Args:
        answers: the columns that the user names, and whether text has a header.

    Raises:
        UserError: no file holds rows.
    """
    root, unused = Path(found.root), [(f, "is empty") for f in found.empty]
    groups, converted = _grouped(found, answers, unused)
    rows = [g for g in groups if not g.is_one_column]
    sizes = {f: f.stat().st_size for f in (*converted, *(f for g in rows for f in g.files))}
    if (largest := max(sizes, key=lambda f: sizes[f], default=None)) in converted:  # likely the log
        raise converted[largest]  # type: ignore[index]
    unused += [(f, "no separator divides its lines into columns") for g in groups if g not in rows for f in g.files]
    if not rows:
        raise UserError("; ".join(f"{f}: {why}" for f, why in unused[:3]) or f"{found.root}: no file holds rows")
    likely = _likely(rows, answers)
    best, others = likely[0], [g for g in rows if g is not likely[0]]
    files, rest = [f for f in found.files if f in best.files], [f for g in others for f in g.files]
    questions = list[Question]()
    if "encoding" in best.layout.reasons and not is_known(best.layout.columns):
        names = ", ".join(name for name in best.layout.columns if not name.isascii())[:80]
        text = f"are these names of columns right: {names}? {files[0].name} is no UTF-8"
        guess = f"yes: it is {best.layout.encoding}; if not, write it as UTF-8: iconv -f ENCODING -t utf-8"
        questions.append(Question(text, guess, key="encoding"))
    if not found.named:
        asked = (_which_log(likely, rest), _several_sets(files, root, rest))
        questions += [question for question in asked if question is not None]
    tests = [f for f in rest if split_of(f, root) == "test"]
    unused += [(f, "it has other columns; predict its rows with recsys.predict") for f in tests]
    return Gathered(
        best.layout,
        files,
        sides=[f for f in rest if f not in tests],
        unused=unused,
        untested=next(filter(None, (_untested(best, g) for g in others)), ()),
        optional=tuple(sorted({name for c in best.columns for name in c if not all(name in d for d in best.columns)})),
        questions=questions,
    )


def files_answers(sets: Iterable[Sequence[Path]]) -> tuple[str, ...]:
    """Return the override that names each set of files, without sets of many files."""
    return tuple(
        f"files={files[0]}" if len(files) == 1 else f"'files=[{','.join(map(str, files))}]'"
        for files in sets
        if len(files) <= MAX_ANSWERED
    )


def _grouped(
    found: Found, answers: Answers, unused: list[tuple[Path, str]]
) -> tuple[list[_Files], dict[Path, OtherRows]]:
    """Return the files by their columns, and the errors of files to convert first.

    Of many files, those named like others are taken to be like them. Files of no use are added to `unused`.
    """
    groups: dict[Key, _Files] = {}
    by_name: dict[tuple[str, str], _Files] = {}
    converted = dict[Path, OtherRows]()
    for i, f in enumerate(found.files):
        name = (f.suffix, re.sub(r"\d+", "#", f.name))
        if has_word(f.stem, NAMES.submissions):
            unused.append((f, "a sample of a submission, whose labels are placeholders; predict its rows"))
            continue
        if i >= MAX_LOOKED_AT and name in by_name:
            by_name[name].files.append(f)
            continue
        try:
            layout = layout_of(f, answers.header)
            headers = [x for x in (g.layout for g in groups.values()) if x.is_csv and x.header and not x.renamed]
            first_lines = {h.separator.join(h.columns) for h in headers}  # rows rarely repeat
            if layout.is_csv and not layout.header and answers.header is None and layout.first in first_lines:
                layout = layout_of(f, True)
        except UserError as e:
            unused.append((f, str(e).partition(": ")[2]))
            if isinstance(e, OtherRows):
                converted[f] = e
            continue
        if not layout.columns and not layout.is_csv:  # [], which readers of rows refuse
            unused.append((f, "it has no rows"))
            continue
        key = layout.key({k: g.layout for k, g in groups.items()})
        group = by_name[name] = groups.setdefault(key, _Files(layout, Path(found.root)))
        group.files.append(f)
        group.columns.append({*layout.columns})
        if not group.layout.comment:  # only some files have comments
            group.layout.comment, group.layout.reasons = layout.comment, layout.reasons | group.layout.reasons
    return list(groups.values()), converted


def _likely(rows: Sequence[_Files], answers: Answers) -> list[_Files]:
    """Return the files that may be the rows, the likeliest first.

    They have the columns that the user names. Training files come first, then those with a user and an item, then those
    with a label, then those that are no tables of one row for each key. The largest of several is the likeliest.
    """
    named = {plain(name) for name in answers.names().values()}
    free = [g for g in rows if named and named <= {*map(plain, g.layout.columns)}]
    free = free or [g for g in rows if g.has("train") or not g.has("test")] or list(rows)
    best = max(g.evidence for g in free)
    likely = [g for g in free if g.evidence == best]
    if len(likely) > 1 and not any(best[:2]):
        likely = [g for g in likely if not g.is_table] or likely
    return sorted(likely, key=lambda g: -sum(f.stat().st_size for f in g.files))


def _which_log(likely: Sequence[_Files], rest: Sequence[Path]) -> Question | None:
    """Return the question which of several files holds the rows, None for one. rest: the files of other columns"""
    if len(likely) < 2:
        return None
    names = [", ".join(sorted({f.name for f in g.files})[:2]) for g in likely]
    text = f"{' and '.join(names)} may hold the rows, and have other columns: which one does?"
    sides = [f for f in rest if not any(f in g.files for g in likely)]
    return Question(text, names[0], files_answers([*g.files, *sides] for g in likely[:3]), key="files")


def _several_sets(files: Sequence[Path], root: Path, sides: Sequence[Path]) -> Question | None:
    """Return the question whether files of the same columns are one data set: their names say different things."""
    by_split: dict[str | None, dict[str, Path]] = {}
    for f in files:
        by_split.setdefault(split_of(f, root), {}).setdefault(_subject(f, root), f)
    names = max(by_split.values(), key=len)
    if not 2 <= len(names) <= 10:  # more are likely parts of one log
        return None
    some = [os.path.relpath(f, root) for f in names.values()]
    text = f"{', '.join(some[:4])} have the same columns and different names: are they one data set?"
    sets = ([*(f for f in files if _subject(f, root) == subject), *sides] for subject in list(names)[:2])
    guess = "all are rows of one data set, with the same users and items"
    return Question(text, guess, files_answers(sets), key="files")


def _subject(file: Path, root: Path) -> str:
    """Return the words of a file's name and folders without numbers, splits, months and names of parts."""
    relative = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    folders = [part for part in relative.parts[:-1] if "=" not in part]
    text = re.sub(r"[0-9a-f]{8,}|\d+", " ", ascii_letters(" ".join([*folders, relative.name.partition(".")[0]])))
    named = [w for w in re.split(r"[\W_]+", text) if w and w not in NAMES.parts_of_logs]
    return " ".join(w for w in named if split_of(Path(w)) is None)


def _untested(best: _Files, tests: _Files) -> tuple[str, ...]:
    """Return the few columns that files of test rows lack, an empty tuple if the files differ in other columns."""
    columns, tested = best.layout.columns, {*tests.layout.columns}
    if not best.layout.header or not tests.has("test"):
        return ()
    lacking = tuple(name for name in columns if name not in tested)
    added = len(tested - {*columns})
    if not added and tests.evidence[1]:  # only what is known before: a user, an item and perhaps more
        return lacking
    few = 1 <= len(lacking) <= MAX_UNTESTED and len(columns) > max(len(lacking) + 1, 2 * len(lacking) - 1)
    return lacking if few and added <= 1 else ()


def describe_sides(files: Sequence[Path], root: Path, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return the files beside the rows, each with what it is and how to join it."""
    described = []
    for f in files:
        name = str(f.relative_to(root)) if f.is_relative_to(root) else str(f)
        try:
            described.append((name, _describe(f, name, columns)))
        except UserError as e:
            described.append((name, str(e)))
    return described


def _describe(f: Path, name: str, columns: Sequence[Column]) -> str:
    """Return what a file is, and how to join it."""
    layout = layout_of(f)
    if not layout.header:
        return "its columns have no names, so it is not joined; write them into its first line"
    side_columns, _ = columns_of(read_sample([f], layout).frame)
    for c in side_columns:
        key = _key(RECBOLE.sub("", c.name), columns)
        if key is None or key.role == "label" or key.values.dtype.is_nested() or c.values.dtype.is_nested():
            continue
        known, is_unique = mean(key.texts.is_in(c.texts.implode())), c.values.n_unique() == c.values.len()
        if is_unique and known >= MIN_KNOWN and layout.joins:
            join: dict[str, object] = {"file": name, "key": key.name}
            join |= {"columns": {key.name: c.name}} if key.name != c.name else {}
            join |= {"separator": layout.separator} if layout.is_csv and layout.separator != "," else {}
            return f"a table of {key.name}; to join it, write under source: {flow({'joins': [join]})}, and its features"
    return "it has other columns than the rows"


def _key(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column of the rows that a side table's column may join: of its name, or another name of an id."""
    if (key := next((c for c in columns if c.name == name), None)) is not None:
        return key
    among = {"user": NAMES.users, "item": NAMES.items}
    return next((c for c in columns if c.role in among and names_an_id_of(name, among[c.role])), None)
