"""Divide the files that the user named into files of rows, possible side tables, and files of no use."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.raw_files import natural_sort
from recsys.new import raw_bytes
from recsys.new.encodings import is_known
from recsys.new.find_files import Found, split_of
from recsys.new.find_layout import layout_of
from recsys.new.known_names import NAMES, ascii_letters, has_word, names_an_id_of, plain, rank_of
from recsys.new.layouts import MIN_SHARED, Key, Layout, OtherRows, TextLayout
from recsys.new.questions import Answers, Question
from recsys.new.raw_bytes import readable

MAX_LOOKED_AT = 60  # files; later ones are like those of the same name but for digits
MAX_COMPARED = 1 << 28  # bytes of files whose lines are compared
MAX_ANSWERED = 8  # files that an answer names
SMALL = 1 << 16  # bytes of a file that may have no rows
MIN_HELD = 0.9  # share of a file's lines that another one has


@dataclass
class Gathered:
    """Files by their use."""

    layout: Layout
    files: list[Path]  # of the rows
    sides: list[Path]  # files of other columns, which may be side tables
    unused: list[tuple[Path, str]]  # files that are of no use, and why
    empty: frozenset[Path]  # the unused files without rows; globs may match them
    untested: tuple[str, ...]  # the columns that test files lack, if they are few: the label, and what follows
    optional: tuple[str, ...]  # the columns that some files of the rows lack
    layouts: dict[Path, Layout]  # of the files of the rows whose columns differ from those of `layout`
    questions: list[Question]

    @property
    def others(self) -> list[Path]:
        """All files that hold something else than the rows."""
        return [*self.sides, *(f for f, _ in self.unused if f not in self.empty)]


@dataclass(eq=False)
class _Files:
    """Files of the same columns."""

    layout: Layout
    root: Path
    files: list[Path] = field(default_factory=list)
    of_lines: list[Layout] = field(default_factory=list)  # the layouts of files whose rows may lack columns

    @property
    def names(self) -> list[str]:
        """The names of the columns, in words."""
        return [plain(name) for name in self.layout.columns]

    @property
    def has_ids(self) -> bool:
        """Whether names say that columns are a user and an item."""
        return all(any(names_an_id_of(c, ids) for c in self.names) for ids in (NAMES.users, NAMES.items))

    @property
    def has_label(self) -> bool:
        """Whether a name says that a column is the label."""
        return any(rank_of(c, (*NAMES.labels, *NAMES.ratings)) is not None for c in self.names)

    @property
    def is_one_column(self) -> bool:
        """Whether the files are text that no separator divides into columns."""
        return self.layout.is_csv and self.layout.width < 2

    @property
    def size(self) -> int:
        """The number of bytes of the files."""
        return sum(f.stat().st_size for f in self.files)

    @property
    def is_table(self) -> bool:
        """Whether the first column has another value in each row, as the key of a side table has."""
        with readable(self.files[0]):
            first = self.layout.sample(self.files[0], 500, 0.02).frame.to_series(0).drop_nulls()
        return not first.dtype.is_nested() and first.len() == first.n_unique()

    def has(self, split: str) -> bool:
        """Return whether the name of a file says that it is of this split."""
        return any(split_of(f, self.root) == split for f in self.files)

    def is_version_of(self, other: "_Files") -> bool:
        """Return whether most columns are common, and names differ only in digits: a later version has more columns."""
        one, two = self.layout, other.layout
        named = one.header and two.header and not one.renamed and not two.renamed
        if one.format != two.format or one.separator != two.separator or not named:
            return False
        a, b = set(one.columns), set(two.columns)
        names, other_names = ({re.sub(r"[0-9a-f]{8,}|\d+", "#", f.name) for f in g.files} for g in (self, other))
        return len(a & b) >= MIN_SHARED * len(a | b) and names <= other_names


def gather(found: Found, answers: Answers) -> Gathered:
    """Find the files of the rows, and ask if several may be.

    Args:
        answers: the columns that the user names, and whether text has a header.

    Raises:
        UserError: no file holds rows.
    """
    root, empty = Path(found.root), _without_rows(found.files)
    unused = [(f, "is empty") for f in found.empty] + [(f, "it has no rows") for f in natural_sort(empty)]
    groups, converted = _grouped(found, answers, empty, unused)
    rows = [g for g in groups if not g.is_one_column]
    sizes = {f: f.stat().st_size for f in (*converted, *(f for g in rows for f in g.files))}
    if (largest := max(sizes, key=lambda f: sizes[f], default=None)) in converted:  # likely the log
        raise converted[largest]  # type: ignore[index]
    unused += [(f, "no separator divides its lines into columns") for g in groups if g not in rows for f in g.files]
    if not rows:
        raise UserError("; ".join(f"{f}: {why}" for f, why in unused[:3]) or f"{found.root}: no file holds rows")
    best, logs = _best(rows, answers)
    _check_headers(best, [g for g in rows if g is not best])
    _check_labels(best, [g for g in groups if g is not best], answers)
    versions = [best, *(g for g in rows if g is not best and g.is_version_of(best))]
    layouts = {f: g.layout for g in versions for f in g.files}
    others = [g for g in rows if g not in versions]
    files, rest = [f for f in found.files if f in layouts], [f for g in others for f in g.files]
    questions = _encoding_question(best)
    if not found.named:
        repeated, held = _same_lines(files, best.layout, root, rest)
        files = [f for f in files if f not in held]
        unused += [(f, "another file has its rows, too") for f in held]
        which = _which_log(best, [g for g in logs if g is best or g in others], rest)
        questions += [q for q in (repeated, which, _several_sets(files, root, rest)) if q is not None]
    tests = [f for f in rest if split_of(f, root) == "test"]
    unused += [(f, "it has other columns; predict its rows with recsys.predict") for f in tests]
    columns = [{*layout.columns} for layout in {id(x): x for f in files for x in (layouts[f],)}.values()]
    columns += [{*layout.columns} for g in versions for layout in g.of_lines]
    every = dict.fromkeys(name for g in versions for layout in (g.layout, *g.of_lines) for name in layout.columns)
    return Gathered(
        best.layout,
        files,
        sides=[f for f in rest if f not in tests],
        unused=unused,
        empty=empty,
        untested=next(filter(None, (_untested(best, g) for g in others)), ()),
        optional=tuple(name for name in every if not all(name in names for names in columns)),
        layouts={f: layouts[f] for f in files if layouts[f] is not best.layout},
        questions=questions,
    )


def _without_rows(files: Sequence[Path]) -> frozenset[Path]:
    """Return the files without rows: tables of none, and text whose only line is the first line of another file."""
    first_lines = set[bytes]()
    alone, without_rows = list[tuple[bytes, Path]](), set[Path]()
    small = [f for f in files if f.stat().st_size < SMALL]
    others = sorted({*files} - {*small})[:MAX_LOOKED_AT] if small else []
    for f in [*small, *others]:
        with suppress(UserError, *raw_bytes.DAMAGED):  # `layout_of` says what is wrong
            head = raw_bytes.head(f, SMALL).lstrip()
            first, _, rest = head.partition(b"\n")
            if head.startswith(b"PAR1"):
                without_rows |= {f} if not pq.read_metadata(f).num_rows else set()
            elif head.startswith(b"ARROW1"):
                without_rows |= {f} if not pl.scan_ipc(f, glob=False).select(pl.len()).collect().item() else set()
            elif not rest.strip():
                alone.append((first.rstrip(), f))
            else:
                first_lines.add(first.rstrip())
    return frozenset(without_rows | {f for line, f in alone if line in first_lines})


def _grouped(
    found: Found, answers: Answers, empty: frozenset[Path], unused: list[tuple[Path, str]]
) -> tuple[list[_Files], dict[Path, OtherRows]]:
    """Return the files by their columns, and the errors of files to convert first.

    Of many files, those named like others are taken to be like them. Files of no use are added to `unused`.
    """
    groups: dict[Key, _Files] = {}
    by_name: dict[tuple[str, str], _Files] = {}
    converted = dict[Path, OtherRows]()
    for i, f in enumerate(f for f in found.files if f not in empty):
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
        if layout.reads_whole and not layout.columns:  # [], which readers of rows refuse
            unused.append((f, "it has no rows"))
            continue
        key = layout.key({k: g.layout for k, g in groups.items()})
        group = groups.setdefault(key, _Files(layout, Path(found.root)))
        group.files.append(f)
        group.of_lines += [layout] if layout.names_fields and layout.typed else []
        if not group.layout.comment:  # only some files have comments
            group.layout.comment, group.layout.reasons = layout.comment, layout.reasons | group.layout.reasons
        by_name[name] = group
    return list(groups.values()), converted


def _best(rows: Sequence[_Files], answers: Answers) -> tuple[_Files, list[_Files]]:
    """Return the files of the rows, and all that may be, if it is not certain which.

    They have the columns that the user names. Training files come first, then those with a user and an item, then those
    with a label, then those that are no tables of one row for each key.
    """
    named = {plain(name) for name in answers.names().values()}
    free = [g for g in rows if named and named <= {*g.names}] or [
        g for g in rows if g.has("train") or not g.has("test")
    ]
    free = free or list(rows)
    if len(free) > 1 and not any(g.has_ids or g.has("train") for g in free):
        free = [g for g in free if not g.is_table] or free
    evidence = {id(g): (g.has("train"), g.has_ids, g.has_label) for g in free}
    best = max(evidence.values())
    likely = [g for g in free if evidence[id(g)] == best]
    return max(likely, key=lambda g: g.size), likely if len(likely) > 1 else []


def _check_headers(best: _Files, others: Sequence[_Files]) -> None:
    """Raise UserError if only some of the files that look alike begin with the names of their columns."""
    for other in others:
        both = best.layout, other.layout
        alike = best.files[0].suffix == other.files[0].suffix and len({(x.separator, x.width) for x in both}) == 1
        if all(x.is_csv for x in both) and alike and best.layout.header != other.layout.header:
            named, bare = (best, other) if best.layout.header else (other, best)
            hint = f"write its first line into {bare.files[0].name}, too, or name one by files="
            raise UserError(f"{bare.files[0]}: has no header, and {named.files[0]} has one; {hint}")


def _check_labels(best: _Files, others: Sequence[_Files], answers: Answers) -> None:
    """Raise UserError if the rows have no label, and another file holds a label alone, or beside a key: y.csv."""
    if best.has_label or answers.label != "auto" or not best.layout.columns:
        return
    for g in others:
        columns = [g.layout.first] if g.is_one_column else g.layout.columns
        keys = [c for c in columns if c in best.layout.columns]
        is_property = any(names_an_id_of(c, (*NAMES.users, *NAMES.items)) for c in keys)  # of users or items
        named = [c for c in columns if rank_of(c, NAMES.labels) is not None]
        if named and len(columns) <= 2 and not is_property and not g.has("test"):
            hint = f"write the rows and their label into one file{', joined on ' * bool(keys)}{''.join(keys)}"
            raise UserError(f"{g.files[0]}: holds the label {named[0]} of the rows in {best.files[0]}; {hint}")


def _encoding_question(best: _Files) -> list[Question]:
    """Return the question whether the names of the columns can be read, if the encoding is a guess."""
    layout = best.layout
    if not isinstance(layout, TextLayout) or "encoding" not in layout.reasons or is_known(layout.columns):
        return []
    names = ", ".join(name for name in layout.columns if not name.isascii())[:80]
    text = f"are these names of columns right: {names}? {best.files[0].name} is no UTF-8"
    return [Question(text, f"yes: it is {layout.encoding}; if not, write it as UTF-8: iconv -f ENCODING -t utf-8")]


def _which_log(best: _Files, logs: Sequence[_Files], rest: Sequence[Path]) -> Question | None:
    """Return the question which of several files holds the rows, None for one. rest: the files of other columns"""
    if len(logs) < 2:
        return None
    names = [", ".join(sorted({f.name for f in g.files})[:2]) for g in logs]
    text = f"{' and '.join(names)} may hold the rows, and have other columns: which one does?"
    sides = [f for f in rest if not any(f in g.files for g in logs)]
    first = [best, *(g for g in logs if g is not best)][:3]
    return Question(text, names[logs.index(best)], files_answers([*g.files, *sides] for g in first), key="files")


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


def _same_lines(
    files: Sequence[Path], layout: Layout, root: Path, sides: Sequence[Path]
) -> tuple[Question | None, list[Path]]:
    """Return the question which files to read, and the files whose rows the largest file has, as u.data has u1.base."""
    small = 2 <= len(files) <= 12 and sum(f.stat().st_size for f in files) <= MAX_COMPARED
    if not small or not isinstance(layout, TextLayout) or all(split_of(f, root) is not None for f in files):
        return None, []
    lines = {f: set(f.read_bytes().splitlines()) for f in files}
    largest = max(files, key=lambda f: len(lines[f]))
    smaller = [f for f in files if len(lines[f]) < len(lines[largest])]
    held = [f for f in smaller if len(lines[f] & lines[largest]) > MIN_HELD * len(lines[f])]
    if not held or split_of(largest, root) is not None:
        return None, []
    some = ", ".join(os.path.relpath(f, root) for f in held[:4])
    text = f"{os.path.relpath(largest, root)} has the rows of {some}, too: which files are to be read?"
    kept, parts = [f for f in files if f not in held], [f for f in files if f is not largest]
    sets = [kept, parts] if any(split_of(f, root) == "test" for f in parts) else [kept]
    return Question(text, f"all but {some}", files_answers([*s, *sides] for s in sets), key="files"), held


def files_answers(sets: Iterable[Sequence[Path]]) -> tuple[str, ...]:
    """Return the override that names each set of files, without sets of many files."""
    return tuple(
        f"files={files[0]}" if len(files) == 1 else f"'files=[{','.join(map(str, files))}]'"
        for files in sets
        if len(files) <= MAX_ANSWERED
    )


def _subject(file: Path, root: Path) -> str:
    """Return the words of a file's name and folders without numbers, splits, months and single letters."""
    relative = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    folders = [part for part in relative.parts[:-1] if "=" not in part]
    text = re.sub(r"[0-9a-f]{8,}|\d+", " ", ascii_letters(" ".join([*folders, relative.name.partition(".")[0]])))
    every = [w for w in re.split(r"[\W_]+", text) if w]
    # the letter of domain_a counts, that of part_a does not
    named = [w for i, w in enumerate(every) if len(w) > 1 or (i and every[i - 1] not in NAMES.parts_of_logs)]
    return " ".join(w for w in named if w not in NAMES.parts_of_logs and split_of(Path(w)) is None)


def _untested(best: _Files, tests: _Files) -> tuple[str, ...]:
    """Return the few columns that files of test rows lack, an empty tuple if the files differ in other columns."""
    if not best.layout.header or not tests.layout.header or not tests.has("test"):
        return ()
    columns, tested = best.layout.columns, set(tests.layout.columns)
    lacking = tuple(name for name in columns if name not in tested)
    added = len(tested - set(columns))
    if not added and tests.has_ids:  # only what is known before: a user, an item and perhaps more
        return lacking
    few = 1 <= len(lacking) <= 5 and len(columns) > max(len(lacking) + 1, 2 * len(lacking) - 1)
    return lacking if few and added <= 1 else ()
