"""Write the files of a new data set with their reasons, of a model or an experiment. No file is overwritten."""

import keyword
import re
import sys
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from string import Template

from recsys.base.console import results, say
from recsys.base.errors import UserError
from recsys.config.compose import conf_dir
from recsys.new.document import document, table
from recsys.new.questions import MARK, Answers

FIRST_BYTES = 1 << 20  # of a file, whose rows are read with the new YAML
MAX_SHOWN = 60  # rows of the table of columns
MAX_FILES = 10  # of those that are left out, and are named


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
    from recsys.data.prepare.check_data import check_data, check_files
    from recsys.data.raw.complete_config import completed
    from recsys.data.raw.formats import FORMATS
    from recsys.job.run_config import data_of
    from recsys.schema.data_schema import DataConfig

    try:
        data = data_of(parse(DataConfig, yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)))  # nosec B506
        check_data(data)
        file, _ = check_files(data)[0]
        data = completed(data, file)
        few = FORMATS[data.source.format].head(data.source, file, FIRST_BYTES)
        rows, bad = parse_first_block(data, file, few)
        reasons = Counter(f"{b.column} {b.problem}" if b.column else b.reason for b in bad)
    except UserError as e:
        draft = path.replace(path.with_suffix(".draft"))
        raise UserError(f"{draft}: holds a YAML that does not read the files yet: {e}") from e
    return rows, [f"{reason} ({count:,} rows)" for reason, count in reasons.most_common(3)]
