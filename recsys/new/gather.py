"""Divide the files that the user named into files of rows, possible side tables, and files of no use."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.storage import natural_sort
from recsys.new import raw_bytes
from recsys.new.find_files import Found, split_of
from recsys.new.known_names import ITEMS, LABELS, RATINGS, USERS, ascii_letters, names_an_id_of, plain, rank_of, words
from recsys.new.layout import DAMAGED, Layout, OtherRows, layout_of
from recsys.new.questions import Answers, Question
from recsys.new.sample import rows_of

MOST_SNIFFED = 60
SMALL = 1 << 16  # bytes of a file that may have no rows
SUBMISSIONS = {"submission", "submissions", "submit", "soumission", "abgabe", "einreichung", "envio", "提交"}
MOST_UNTESTED = 5
MOST_ANSWERED = 8  # files that an answer names
MOST_COMPARED, MOST_BYTES = 12, 1 << 28  # files, and their bytes, whose lines are compared
MOSTLY_HELD, FEWEST_LINES = 0.9, 50  # share of a file's lines that another one has, and lines of that one
MOST_NARROW = 3  # columns of a file of pairs or triples, as of friends
MOST_HEAD = 500  # lines that are looked at for repeated values
MOST_SUBJECTS = 10  # different names of files; more of them are likely names of parts of one log
PARTS = frozenset(  # words of parts of one log
    (
        *("part", "chunk", "shard", "split", "fold", "day", "week", "month", "year", "hour", "log", "logs", "data"),
        *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "january", "february"),
        *("march", "april", "june", "july", "august", "september", "october", "november", "december", "new", "old"),
        *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "first", "second", "third", "last", "final", "all", "full"),
    )
)
SHARED = 0.6  # of the columns of two files, from which they may hold rows of the same kind


@dataclass
class Gathered:
    """Files by their use.

    layout, files: the files of rows, and how they are read
    sides: files of other columns, which may be side tables
    unused: files that are of no use, and why
    empty: the files without rows, among the unused ones; globs may match them
    untested: the columns that a file of test rows lacks, if they are few: the label, and what follows it
    optional: the columns that some files of the rows lack
    layouts: how files of the rows are read whose columns differ from the columns of `layout`
    questions: what the files do not tell
    """

    layout: Layout
    files: list[Path]
    sides: list[Path]
    unused: list[tuple[Path, str]]
    empty: frozenset[Path] = frozenset()
    untested: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    layouts: dict[Path, Layout] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    @property
    def others(self) -> list[Path]:
        """All files that hold something else than the rows."""
        return [*self.sides, *(f for f, _ in self.unused if f not in self.empty)]


Key = tuple[str, ...]  # what files of the same columns have in common, see `_columns_key`


@dataclass
class _Groups:
    """The files of the same columns, and those that hold no rows.

    files, layouts: the files of each group, and how they are read
    json_layouts: how each file of JSON lines is read, whose rows may lack columns
    unused: files that are of no use, and why
    empty: those of them that have no rows
    labels_alone: files of one column whose name is that of a label, and the name
    converted: the errors of files whose rows have to be converted first
    """

    files: dict[Key, list[Path]] = field(default_factory=dict)
    layouts: dict[Key, Layout] = field(default_factory=dict)
    json_layouts: dict[Path, Layout] = field(default_factory=dict)
    unused: list[tuple[Path, str]] = field(default_factory=list)
    empty: frozenset[Path] = frozenset()
    labels_alone: dict[Path, str] = field(default_factory=dict)
    converted: dict[Path, OtherRows] = field(default_factory=dict)

    def add(self, file: Path, layout: Layout) -> Key:
        """Add a file to the files of its columns, and return their key."""
        key = _columns_key(layout, self.layouts)
        if layout.format == "jsonl":
            self.json_layouts[file] = layout
        self.files.setdefault(key, []).append(file)
        first = self.layouts.setdefault(key, layout).dialect
        if first is not None and layout.dialect is not None and not first.comment:  # only some files have comments
            first.comment = layout.dialect.comment
            first.reasons = layout.dialect.reasons | first.reasons
        return key


def gather(found: Found, answers: Answers) -> Gathered:
    """Find the files of the rows: those of the same columns that look most like a log (see `_like_rows`).

    Args:
        found: the files.
        answers: the columns that the user names, and whether text has a header.

    Raises:
        UserError: no file holds rows.
    """
    groups = _grouped(found, answers)
    files, layouts, unused, root = groups.files, groups.layouts, groups.unused, Path(found.root)
    rows = _groups_of_rows(groups, found)
    best, logs = _best_group(rows, layouts, answers, root)
    _check_headers(files[best], layouts[best], [(files[key], layouts[key]) for key in files if key != best])
    _check_labels(best, rows, layouts, groups.labels_alone, answers)
    row_layouts = dict.fromkeys(files[best], layouts[best])
    for key in [k for k in files if k != best and _same_rows(files[best], layouts[best], files[k], layouts[k])]:
        row_layouts |= dict.fromkeys(files.pop(key), layouts[key])
    files[best] = [f for f in found.files if f in row_layouts]
    logs = [key for key in logs if key in files]
    rest = [f for key, group in files.items() if key != best for f in group]
    questions = []
    if not found.named:
        repeated, held = _same_lines(files[best], layouts[best], root, rest)
        files[best] = [f for f in files[best] if f not in held]
        row_layouts = {f: layout for f, layout in row_layouts.items() if f not in held}
        unused += [(f, "another file has its rows, too") for f in held]
        asked = (repeated, _other_log(best, logs, rows, rest), _several_sets(files[best], root, rest))
        questions = [question for question in asked if question]
    tests = [f for f in rest if split_of(f, root) == "test"]
    unused += [(f, "it has other columns; predict its rows with recsys.predict") for f in tests]
    lacking = (_untested(layouts, key, best, files, root) for key in files if key != best)
    return Gathered(
        layouts[best],
        files[best],
        sides=[f for f in rest if f not in tests],
        unused=unused,
        empty=groups.empty,
        untested=next(filter(None, lacking), ()),
        optional=_optional_columns(row_layouts, groups.json_layouts),
        layouts={f: layout for f, layout in row_layouts.items() if layout is not layouts[best]},
        questions=questions,
    )


def _grouped(found: Found, answers: Answers) -> _Groups:
    """Return the files grouped by their columns. Of many files, those named like others are taken to be like them."""
    groups = _Groups(unused=[(f, "is empty") for f in found.empty], empty=_without_rows(found.files))
    groups.unused += [(f, "it has no rows") for f in natural_sort(groups.empty)]
    key_by_name: dict[tuple[str, str], Key] = {}
    for i, f in enumerate(f for f in found.files if f not in groups.empty):
        if SUBMISSIONS & {*words(f.stem)}:
            groups.unused.append((f, "a sample of a submission, whose labels are placeholders; predict its rows"))
            continue
        name = (f.suffix, re.sub(r"\d+", "#", f.name))
        if i >= MOST_SNIFFED and name in key_by_name:
            groups.files[key_by_name[name]].append(f)
            continue
        try:
            layout = layout_of(f, answers.header)
        except UserError as e:
            groups.unused.append((f, str(e).partition(": ")[2]))
            if isinstance(e, OtherRows):
                groups.converted[f] = e
            continue
        if layout.format == "json" and not layout.columns:  # [], which readers of rows refuse
            groups.unused.append((f, "it has no rows"))
            continue
        if layout.format == "text":
            if layout.dialect is not None and rank_of(layout.dialect.first, LABELS) is not None:
                groups.labels_alone[f] = layout.dialect.first
            groups.unused.append((f, "no separator divides its lines into columns"))
            continue
        key_by_name[name] = groups.add(f, _with_known_header(layout, f, groups.layouts.values(), answers))
    return groups


def _without_rows(files: Sequence[Path]) -> frozenset[Path]:
    """Return the files without rows: tables of none, and text whose only line is the first line of another file."""
    first_lines = set[bytes]()
    alone, without_rows = list[tuple[bytes, Path]](), set[Path]()
    small = [f for f in files if f.stat().st_size < SMALL]
    others = sorted({*files} - {*small})[:MOST_SNIFFED] if small else []
    for f in [*small, *others]:
        with suppress(UserError, *DAMAGED):  # `layout_of` says what is wrong
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


def _groups_of_rows(groups: _Groups, found: Found) -> dict[Key, list[Path]]:
    """Return the groups of files that hold rows.

    Raises UserError if none does, or if the largest file, which is likely the log, has to be converted first.
    """
    rows = {key: files for key, files in groups.files.items() if not groups.layouts[key].maps_keys}
    sizes = {f: f.stat().st_size for f in (*groups.converted, *(f for files in rows.values() for f in files))}
    if (largest := max(sizes, key=lambda f: sizes[f], default=None)) in groups.converted:
        raise groups.converted[largest]
    if not rows:
        problems = "; ".join(f"{f}: {why}" for f, why in groups.unused[:3])
        raise UserError(problems or f"{found.root}: no file holds rows")
    return rows


def _best_group(
    rows: Mapping[Key, Sequence[Path]], layouts: Mapping[Key, Layout], answers: Answers, root: Path
) -> tuple[Key, list[Key]]:
    """Return the group of files that look most like rows, and the logs if it is not certain which one holds the rows.

    Args:
        rows: the groups of files that hold rows.
        layouts: how the files of each group are read.
        answers: the columns that the user names, which the group has to have.
        root: the folder of the files.
    """
    columns = {key: [plain(name) for name in layouts[key].columns] for key in rows}
    named = {plain(name) for name in answers.names().values()}
    with_named = [key for key in rows if named and named <= set(columns[key])]
    best = max(with_named or rows, key=lambda key: _like_rows(key, rows[key], layouts[key], columns, root))
    logs = _logs_alike(best, rows, columns, answers, root)
    return max(logs, key=lambda key: rows_of(rows[key], layouts[key]), default=best), logs


def _optional_columns(row_layouts: Mapping[Path, Layout], json_layouts: Mapping[Path, Layout]) -> tuple[str, ...]:
    """Return the columns that some files of the rows lack."""
    layouts = [*row_layouts.values(), *(layout for f, layout in json_layouts.items() if f in row_layouts)]
    columns = {id(layout): tuple(layout.columns) for layout in layouts}.values()
    every = dict.fromkeys(name for names in columns for name in names)
    return tuple(name for name in every if not all(name in names for names in columns))


def _check_headers(files: Sequence[Path], layout: Layout, others: Sequence[tuple[Sequence[Path], Layout]]) -> None:
    """Raise UserError if only some of the files that look alike begin with the names of their columns."""
    dialect = layout.dialect
    for other_files, other_layout in others:
        other_dialect = other_layout.dialect
        if dialect is None or other_dialect is None or layout.format != "csv" or other_layout.format != "csv":
            continue
        alike = (dialect.separator, dialect.width, files[0].suffix) == (
            other_dialect.separator,
            other_dialect.width,
            other_files[0].suffix,
        )
        if dialect.header == other_dialect.header or not alike:
            continue
        (named, header), bare = (
            ((files[0], dialect), other_files[0]) if dialect.header else ((other_files[0], other_dialect), files[0])
        )
        line = header.separator.join(header.columns)
        hint = f"write the first line of {named.name} into {bare.name}, too, or name one of them by files="
        raise UserError(f"{bare}: has no header, and {named} has one ({line[:100]}); {hint}")


def _check_labels(
    best: Key,
    rows: Mapping[Key, Sequence[Path]],
    layouts: Mapping[Key, Layout],
    alone: Mapping[Path, str],
    answers: Answers,
) -> None:
    """Raise UserError if the rows have no label, and another file is the label: x.csv and y.csv.

    alone: files of one column, which is named as a label
    """
    has_label = any(rank_of(c, (*LABELS, *RATINGS)) is not None for c in layouts[best].columns)
    if has_label or answers.label != "auto" or not layouts[best].columns:
        return
    columns_by_file = {f: [name] for f, name in alone.items()}
    columns_by_file |= {f: layouts[key].columns for key, files in rows.items() if key != best for f in files}
    for label_file, columns in columns_by_file.items():
        named = [c for c in columns if rank_of(c, LABELS) is not None]
        if not named or len(columns) > 2 or split_of(label_file) == "test":
            continue
        named_alike = [f for f in rows[best] if set(words(f.stem)) & set(words(label_file.stem)) - {"x", "y"}]
        rows_file = next(iter(named_alike), rows[best][0])
        shared = [c for c in columns if c in layouts[best].columns]
        if shared and names_an_id_of(shared[0], (*USERS, *ITEMS)):  # a property of users or items
            continue
        how = (
            f"join it on {shared[0]}"
            if shared
            else f"its lines belong to those of {rows_file.name}: paste -d, {rows_file} {label_file}"
        )
        hint = "write the rows and their label into one file, and name it by files="
        raise UserError(f"{label_file}: holds the label {named[0]} of the rows in {rows_file}; {how}; {hint}")


def _logs_alike(
    best: Key, rows: Mapping[Key, Sequence[Path]], columns: Mapping[Key, Sequence[str]], answers: Answers, root: Path
) -> list[Key]:
    """Return the logs of users and items that may hold the rows; an empty list if `best` certainly holds them."""
    logs = [k for k in rows if all(any(names_an_id_of(c, ids) for c in columns[k]) for ids in (USERS, ITEMS))]
    logs = [k for k in logs if not any(split_of(f, root) == "test" for f in rows[k])]
    labels = {k for k in rows if any(rank_of(c, (*LABELS, *RATINGS)) is not None for c in columns[k])}
    if best not in logs or len(logs) < 2 or answers.names() or (best in labels and not labels & set(logs) - {best}):
        return []
    return logs


def _other_log(
    best: Key, logs: Sequence[Key], rows: Mapping[Key, Sequence[Path]], rest: Sequence[Path]
) -> Question | None:
    """Return the question which of several logs holds the rows, None for one log.

    Args:
        best: the key of the log that is taken.
        logs: the keys of the logs.
        rows: the files of each key.
        rest: the files of all keys but the best one.
    """
    if len(logs) < 2:
        return None
    names = [", ".join(sorted({f.name for f in rows[k]})[:2]) for k in logs]
    text = f"{' and '.join(names)} are logs of users and items with other columns: which one holds the rows?"
    logs = list(dict.fromkeys([best, *logs]))
    sides = [f for f in rest if not any(f in rows[k] for k in logs)]
    sets = [[*rows[k], *sides] for k in logs[:3]]
    answers = tuple(files_answer(files) for files in sets if len(files) <= MOST_ANSWERED)
    return Question(text, ", ".join(sorted({f.name for f in rows[best]})[:4]), answers)


def _several_sets(files: Sequence[Path], root: Path, sides: Sequence[Path]) -> Question | None:
    """Return the question whether files of the same columns are one data set: their names say different things.

    sides: files that may be side tables of each
    """
    by_split: dict[str | None, dict[str, Path]] = {}
    for f in files:
        by_split.setdefault(split_of(f, root), {}).setdefault(_subject(f, root), f)
    names = max(by_split.values(), key=len)
    if not 2 <= len(names) <= MOST_SUBJECTS:
        return None
    some = [os.path.relpath(f, root) for f in names.values()]
    text = f"{', '.join(some[:4])} have the same columns and different names: are they one data set?"
    sets = [[f for f in files if _subject(f, root) == subject] for subject in list(names)[:2]]
    answers = tuple(
        files_answer([*set_files, *sides]) for set_files in sets if len(set_files) + len(sides) <= MOST_ANSWERED
    )
    return Question(text, "all are rows of one data set, with the same users and items", answers)


def _same_lines(
    files: Sequence[Path], layout: Layout, root: Path, sides: Sequence[Path]
) -> tuple[Question | None, list[Path]]:
    """Return the question which files to read, and the files whose rows the largest file has.

    For example, u.data has the rows of u1.base and u1.test.
    """
    nothing = None, list[Path]()
    if layout.dialect is None or not 2 <= len(files) <= MOST_COMPARED:
        return nothing
    if all(split_of(f, root) is not None for f in files):
        return nothing
    if sum(f.stat().st_size for f in files) > MOST_BYTES:
        return nothing
    lines = {f: set(f.read_bytes().splitlines()) for f in files}
    largest = max(files, key=lambda f: len(lines[f]))
    smaller = [f for f in files if len(lines[f]) < len(lines[largest])]
    held = [f for f in smaller if len(lines[f] & lines[largest]) > MOSTLY_HELD * len(lines[f])]
    if not held or len(lines[largest]) < FEWEST_LINES or split_of(largest, root) is not None:
        return nothing
    some = [os.path.relpath(f, root) for f in held]
    text = f"{os.path.relpath(largest, root)} has the rows of {', '.join(some[:4])}, too: which files are to be read?"
    kept, parts = [f for f in files if f not in held], [f for f in files if f is not largest]
    sets = [kept, parts] if any(split_of(f, root) == "test" for f in parts) else [kept]
    answers = tuple(files_answer([*s, *sides]) for s in sets if len(s) + len(sides) <= MOST_ANSWERED)
    return Question(text, f"all but {', '.join(some[:4])}{' ...' if some[4:] else ''}", answers), held


def files_answer(files: Sequence[Path]) -> str:
    """Return the override that names these files."""
    return f"files={files[0]}" if len(files) == 1 else f"'files=[{','.join(map(str, files))}]'"


def _subject(file: Path, root: Path) -> str:
    """Return the words of a file's name and folders without numbers, splits, months and single letters."""
    relative = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    folders = [part for part in relative.parts[:-1] if "=" not in part]
    text = re.sub(r"[0-9a-f]{8,}|\d+", " ", ascii_letters(" ".join([*folders, relative.name.partition(".")[0]])))
    every = [w for w in re.split(r"[\W_]+", text) if w]
    named = [w for i, w in enumerate(every) if len(w) > 1 or (i and every[i - 1] not in PARTS)]  # domain_a, not part_a
    return " ".join(w for w in named if w not in PARTS and split_of(Path(w)) is None)


def _same_rows(files: Sequence[Path], layout: Layout, other_files: Sequence[Path], other_layout: Layout) -> bool:
    """Return True if files have most columns in common, and names that differ only in digits.

    Such files are versions of one log; a later version has another column.
    """
    dialect, other_dialect = layout.dialect, other_layout.dialect
    if layout.format != other_layout.format or layout.maps_keys or other_layout.maps_keys:
        return False
    if (
        dialect is not None
        and other_dialect is not None
        and (not dialect.header or not other_dialect.header or dialect.renamed or other_dialect.renamed)
    ):
        return False
    alike = (dialect is None and other_dialect is None) or (
        dialect is not None and other_dialect is not None and dialect.separator == other_dialect.separator
    )
    a, b = set(layout.columns), set(other_layout.columns)
    names = {_unnumbered(f) for f in files}
    return alike and len(a & b) >= SHARED * len(a | b) and {_unnumbered(f) for f in other_files} <= names


def _unnumbered(file: Path) -> str:
    """Return a file's name with # instead of digits and hashes."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "#", file.name)


def _untested(
    layouts: dict[Key, Layout], key: Key, best: Key, groups: dict[Key, list[Path]], root: Path
) -> tuple[str, ...]:
    """Return the few columns that files of test rows lack, an empty tuple if the files differ in other columns.

    Args:
        layouts: how the files of each key are read.
        key: the key of the files that may be test rows.
        best: the key of the files of the rows.
        groups: the files of each key.
        root: the folder of the files.
    """
    have_names = [dialect is None or dialect.header for dialect in (layouts[key].dialect, layouts[best].dialect)]
    if not all(have_names) or not any(split_of(f, root) == "test" for f in groups[key]):
        return ()
    columns, test_columns = layouts[best].columns, set(layouts[key].columns)
    lacking = tuple(name for name in columns if name not in test_columns)
    added = len(test_columns - set(columns))
    if not added and all(any(names_an_id_of(c, ids) for c in test_columns) for ids in (USERS, ITEMS)):
        return lacking  # only what is known before: a user, an item and perhaps more
    few = 1 <= len(lacking) <= MOST_UNTESTED and len(columns) > max(len(lacking) + 1, 2 * len(lacking) - 1)
    return lacking if few and added <= 1 else ()


def _is_wide_log(file: Path, layout: Layout) -> bool:
    """Return True if a file has more than three columns, and its first column repeats, unlike the key of a table."""
    dialect = layout.dialect
    if dialect is None or dialect.width <= MOST_NARROW or dialect.encoding.startswith("utf-16"):
        return False
    lines = raw_bytes.head(file, 1 << 16).decode(dialect.encoding, errors="replace").splitlines()[:MOST_HEAD]
    firsts = [line.split(dialect.separator)[0] for line in lines]
    return len(set(firsts)) < MOSTLY_HELD * len(firsts)


def _with_known_header(layout: Layout, file: Path, others: Iterable[Layout], answers: Answers) -> Layout:
    """Return the layout with a header if the first line is that of another file: rows rarely repeat."""
    dialect = layout.dialect
    if dialect is None or dialect.header or answers.header is not None or layout.format not in ("csv", "lists"):
        return layout
    for other in others:
        other_dialect = other.dialect
        if (
            other_dialect is not None
            and other_dialect.header
            and not other_dialect.renamed
            and dialect.first == other_dialect.separator.join(other_dialect.columns)
        ):
            return layout_of(file, True)
    return layout


def _columns_key(layout: Layout, known: Mapping[Key, Layout]) -> Key:
    """Return the key of a file's columns: their names or, without a header, their number.

    Rows of JSON may lack columns, so files with most columns in common have one key.
    """
    if layout.format in ("jsonl", "svmlight", "slots"):
        names = set(layout.columns)
        for key, other_layout in known.items():
            other_names = set(other_layout.columns)
            most = len(names | other_names) if layout.format == "jsonl" else min(len(names), len(other_names))
            if other_layout.format == layout.format and len(names & other_names) >= SHARED * most:
                return key
        return (layout.format, *layout.columns)
    dialect = layout.dialect
    if dialect is None:
        return (layout.format, *sorted(layout.columns))
    return (layout.format, dialect.separator, *(layout.columns if dialect.header else [str(dialect.width)]))


def _like_rows(
    key: Key, files: Sequence[Path], layout: Layout, columns: Mapping[Key, Sequence[str]], root: Path
) -> tuple[bool, bool, bool, int, int]:
    """Return the sort key of files that may hold the rows; the files with the greatest key hold them.

    Training files come first, then those with a user and an item, with a label, with columns of other files (the keys
    of side tables), and with most rows.
    """
    names = columns[key]
    has_ids = all(any(names_an_id_of(c, kind) for c in names) for kind in (USERS, ITEMS))
    has_label = any(rank_of(c, (*LABELS, *RATINGS)) is not None for c in names)
    shared = sum(bool(set(names) & set(other_names)) for k, other_names in columns.items() if k != key)
    have_names = layout.dialect is None or layout.dialect.header
    keys = shared if have_names else int(_is_wide_log(files[0], layout))
    return (
        any(split_of(f, root) == "train" for f in files),
        has_ids,
        has_label and (has_ids or keys != 1),
        keys,
        rows_of(files, layout),
    )
