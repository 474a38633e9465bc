"""Write the files of a new data set with their reasons, of a model or an experiment, or the data set of a frame.

No file is overwritten.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from string import Template

import polars as pl
import yaml
from hydra.core.config_store import ConfigStore
from rich.markup import escape
from rich.table import Table

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.config.compose import conf_dir
from recsys.files.atomic import whole_folder
from recsys.new.proposal import Proposal
from recsys.new.questions import MARK, Answers, Question
from recsys.new.yaml_text import comment, entry, flow, mapping

FIRST_BYTES = 1 << 20  # of a file, whose rows are read with the new YAML
MAX_SHOWN = 60  # rows of the table of columns
MAX_FILES = 10  # of those that are left out, and are named
FOLDER = Path("outputs/frames")
ROWS = "rows.parquet"


def new_data(name: str, files: list[str], answers: Answers) -> bool:
    """Look at the files, write conf/data/NAME.yaml, and print the columns and the command that trains.

    Return False if a question is open, which is printed and written into the file.
    """
    from recsys.new.propose import propose

    path = _config_path("data", name)
    if files in ([], [""]):
        raise UserError("files: missing; type files='logs/*.csv', files=FOLDER or files=[a.csv,b.csv]")
    proposal = propose(files, answers)
    results.print(table(proposal, MAX_SHOWN))
    if len(proposal.columns) > MAX_SHOWN:
        say(f"{len(proposal.columns) - MAX_SHOWN} more columns are in the YAML")
    if proposal.copies:
        drawn = proposal.split.settings["by"] == "random"
        say(proposal.copies + "; training and test rows, which are drawn, share them" * drawn)
    for file, why in proposal.unused[:MAX_FILES]:
        say(f"left out: {file}: {why}")
    if len(proposal.unused) > MAX_FILES:
        say(f"left out: {len(proposal.unused) - MAX_FILES} more files")
    is_open = bool(proposal.questions) and not answers.sure
    if _has_open_question(path):
        path.replace(path.with_suffix(".draft"))
    _write({path: document(proposal, name, is_open=is_open)})
    if len(proposal.columns) > MAX_SHOWN:
        say(f"{path}: checking it on the first rows")
    rows, bad = verify(path)
    say(f"{path}: written, and checked on the first {rows:,} rows")
    if bad:
        say(f"rows that cannot be read with it: {'; '.join(bad)}")
    for question in proposal.questions:
        first, *more = question.lines()
        say(f"{'question' if is_open else 'guessed'}: {first}")
        for line in more if is_open else [f"taken: {question.guess}"]:
            say(f"  {line}")
    say(f"{'then ' if is_open else ''}train with: {proposal.command(name)}")
    return not is_open


def new_model(name: str, kind: str) -> None:
    """Write a model that trains at once, its YAML and, in a checkout, its test. kind: ranking or retrieval"""
    path = _config_path("model", name)
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(f"model={name}: must be a Python name in small letters, such as my_model")
    title = "".join(part.capitalize() for part in name.split("_")) or name
    checkout = _is_checkout()
    module = f"recsys.models.{name}" if checkout else name
    installed = None
    with suppress(ImportError, ValueError):
        installed = find_spec(name)
    is_own = Path(f"{name}.py").exists()
    if not checkout and (name in sys.stdlib_module_names or (installed is not None and not is_own)):
        raise UserError(f"model={name}: Python has a module {name} already; choose another name")
    code = Path("recsys") / "models" / f"{name}.py" if checkout else Path(f"{name}.py")
    config = skeleton(f"{kind}.yaml", name, module, title)
    texts = {code: skeleton(f"{kind}.py", name, module, title), path: config}
    if checkout:
        texts[Path("tests") / "models" / f"test_{name}.py"] = skeleton(f"{kind}.test.py", name, module, title)
    _write(texts)
    say(f"written: {', '.join(map(str, texts))}")
    say(f"train with: {config.splitlines()[0].removeprefix('# ')}")


def new_experiment(name: str) -> None:
    """Write conf/experiment/NAME.yaml."""
    path = _config_path("experiment", name)
    _write({path: skeleton("experiment.yaml", name)})
    say(f"written: {path}; name its data and its model there")
    say(f"train with: python -m recsys.train experiment={name}")


def skeleton(file: str, name: str, module: str = "", title: str = "") -> str:
    """Return the text of a file of skeletons/, as docs/how_to/add/model.md describes it, with these names."""
    text = (Path(__file__).with_name("skeletons") / f"{file}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, module=module, title=title)


def _config_path(kind: str, name: str) -> Path:
    """Return conf/KIND/NAME.yaml in the working directory. Raises UserError if the name is taken or cannot be one."""
    is_value = re.fullmatch("true|false|null|inf|nan", name, re.IGNORECASE) is not None  # as an override, no text
    if is_value or not re.fullmatch(r"[A-Za-z_][\w-]{0,99}", name, re.ASCII):
        must = "must be letters, digits, _ and -, and begin with a letter"
        raise UserError(f"{kind}={name}: {'is a value, not a name; type one' if is_value else must}, such as my_{kind}")
    path = Path("conf") / kind / f"{name}.yaml"
    if (conf_dir() / kind / f"{name}.yaml").exists() and not path.exists():
        raise UserError(f"{kind}={name}: recsys has a {kind} of this name; choose another name, such as my_{name}")
    _check_free(path)
    return path


def _has_open_question(path: Path) -> bool:
    """Return whether a file is one of recsys.new with a question, which an answer replaces."""
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(MARK)


def _check_free(path: Path) -> None:
    if (path.exists() or path.is_symlink()) and not _has_open_question(path):
        raise UserError(f"{path}: exists already, and is never overwritten; choose another name, or remove it")


def _is_checkout() -> bool:
    """Return whether the working directory is a checkout of recsys, whose package this is."""
    return conf_dir().parent.resolve() == Path.cwd().resolve() and Path("recsys", "models").is_dir()


def _write(texts: dict[Path, str]) -> None:
    """Write all files, or raise UserError and write no file if one of them exists."""
    for path in texts:
        _check_free(path)
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as f:
                f.write(text)
        except OSError as e:
            raise UserError(f"{path}: cannot be written ({e.strerror})") from e


def verify(path: Path) -> tuple[int, list[str]]:
    """Return the number of parsed rows, and the most frequent reasons why other rows could not be parsed.

    Raises:
        UserError: the files cannot be read with this YAML, which is renamed so that the name stays free.
    """
    import yaml

    from recsys.base.parsing import parse
    from recsys.data.prepare.bad_rows import parse_first_block
    from recsys.data.prepare.check_data import check_data, check_raw_files
    from recsys.data.raw.formats import FORMATS
    from recsys.data.raw.raw_schema import completed
    from recsys.job.run_config import data_of
    from recsys.schema.data_schema import DataConfig

    try:
        data = data_of(parse(DataConfig, yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)))  # nosec B506
        check_data(data)
        file, _ = check_raw_files(data)[0]
        data = completed(data, file)
        few = FORMATS[data.source.format].head(data.source, file, FIRST_BYTES)
        rows, bad = parse_first_block(data, file, few)
        reasons = Counter(f"{b.column} {b.problem}" if b.column else b.reason for b in bad)
    except UserError as e:
        draft = path.replace(path.with_suffix(".draft"))
        raise UserError(f"{draft}: holds a YAML that does not read the files yet: {e}") from e
    return rows, [f"{reason} ({count:,} rows)" for reason, count in reasons.most_common(3)]


def document(p: Proposal, name: str, *, is_open: bool = False) -> str:
    """Return the text of conf/data/NAME.yaml. is_open: the user has to answer the questions"""
    kind = "Interactions of users with items, for retrieval models" if p.retrieves else "Rows with a label"
    written = "Written by recsys.new: comments give the reasons of its guesses; check them."
    lines = [f"# {p.command(name)}", *comment(f"{kind}; about {p.rows:,} rows. {written}")]
    for question in p.questions:
        text, *more = question.lines()
        texts = [f"{MARK.removeprefix('# ')}: {text}", *more] if is_open else [f"{text}; guessed: {question.guess}"]
        lines = [*(line for t in texts for line in comment(t)), *lines]
    root = entry("root", p.root, "" if p.root.startswith("/") else "relative to the folder where you run recsys")
    lines += [f"name: {name}", *root]
    if len(line := f"source: {flow(p.source)}") <= 110 and not set(p.source) & set(p.reasons):
        lines.append(line)
    else:
        lines += ["source:", *(x for k, v in p.source.items() for x in entry(k, v, p.reasons.get(k, ""), "  "))]
    lines += mapping("derive", [(k, v, "") for k, v in p.features.derive.items()])
    if p.where:
        why = f"rows without {' or '.join(dict.fromkeys(p.where.values()))} are left out"
        lines += entry("where", " AND ".join(p.where), why)
    if p.group is not None:
        no_order = [] if "order" in p.group else [f"{p.no_time}: the order of the files counts"]
        lines += entry("group", p.group, "; ".join([*no_order, *filter(None, [p.reasons.get("group")])]))
        lines += entry("sequences", {"max_length": p.max_length}, p.reasons["sequences"])
    if p.label is not None:
        lines += entry("label", {"column": p.label.column.name} | p.label.settings, f"{p.label.reason}; {p.label.what}")
    if p.position:
        lines += entry("position", {"column": p.position}, "its effect is learned, and left out of predictions")
    lines += entry("split", p.split.settings, p.split.why)
    if p.features.dense_defaults and p.features.dense:
        lines += entry("dense_defaults", p.features.dense_defaults)
    for key, features in (("dense", p.features.dense), ("sparse", p.features.sparse)):
        lines += mapping(key, [(f.name, f.settings, f.why) for f in features])
    for what, left_out in (("Columns", p.features.left_out[:200]), ("Files", p.unused[:20])):
        lines += [f"# {what} that are left out:"] if left_out else []
        lines += [line for name, why in left_out for line in comment(f"{name}: {why}")]
    return "\n".join(lines) + "\n"


def table(p: Proposal, most: int) -> Table:
    """Return the columns as a table: name, kind, role, distinct values, missing share, examples, reason."""
    shown = Table(title=f"{len(p.columns)} columns", title_justify="left")
    for name in ("column", "kind", "role", "values", "missing", "examples", "reason"):
        shown.add_column(name, justify="right" if name in ("values", "missing") else "left", overflow="fold")
    left_out = dict(p.features.left_out)
    for c in p.columns[:most]:
        reason = left_out.get(c.name, c.reason).partition(";")[0]
        if p.label is not None and c is p.label.column:
            reason = p.label.reason
        role = c.role or ("left out" if c.name in left_out else "feature")
        missing, examples = f"{c.missing:.1%}" if c.missing else "", ", ".join(c.examples())
        row = (c.name, c.kind.name, role, f"{c.distinct:,}", missing, examples, reason)
        shown.add_row(*map(escape, row))
    return shown


@dataclass(frozen=True)
class FrameData:
    """The data set of a frame.

    name: of the data set
    yaml: its config, as recsys.new writes it for files, with the reason of each guess
    questions: what the frame does not tell, with the guesses that the config takes
    sure: whether these are taken
    """

    name: str
    yaml: str
    questions: tuple[Question, ...] = ()
    sure: bool = False

    def __str__(self) -> str:
        return self.yaml

    def overrides(self) -> list[str]:
        """Return the overrides that choose this data set, which Hydra then knows by its name."""
        config = yaml.safe_load(self.yaml)
        ConfigStore.instance().store(group="data", name=self.name, node=config, provider="recsys.new")
        return [f"data={self.name}"]


def look_at(frame: pl.DataFrame, answers: Answers) -> FrameData:
    """Return the data set that recsys.new proposes for a frame, whose rows are stored. Raises UserError."""
    from recsys.new.propose import propose
    from recsys.new.write_config import document

    folder = stored(frame)
    file, name = str(folder / ROWS), f"frame_{folder.name}"
    try:
        proposal = propose([file], answers)
    except UserError as e:
        e.args = (str(e).replace(f"files={file}", "rows").replace(file, "rows"),)
        raise
    lines = document(proposal, name).splitlines()
    text = "\n".join(line for line in lines if line != f"# {proposal.command(name)}")  # which is one of the shell
    return FrameData(name, f"{text}\n", tuple(proposal.questions), answers.sure)


def stored(frame: pl.DataFrame) -> Path:
    """Write the rows of a frame as Parquet, unless they are there, and return the folder."""
    if frame.is_empty():
        raise UserError("rows: the frame has no rows")
    # a column without a value has no type
    frame = frame.with_columns(pl.col(n).cast(pl.String) for n, t in frame.schema.items() if t == pl.Null)
    buffer = BytesIO()
    try:
        frame.write_parquet(buffer)
    except pl.exceptions.PolarsError as e:
        raise UserError(f"rows: cannot be written as Parquet: {str(e).splitlines()[0]}") from e
    folder = FOLDER / hashlib.sha256(buffer.getbuffer()).hexdigest()[:12]
    if not folder.exists():
        with whole_folder(folder) as building:
            (building / ROWS).write_bytes(buffer.getbuffer())
    return folder
