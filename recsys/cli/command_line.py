"""Code that all commands share: Hydra's overrides, one-line error messages and exit statuses.

Exit statuses: 0 success; 2 a mistake in the config or the data; 3 a question that recsys.new leaves open; 1 any other
failure, with its traceback.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys.base import interrupts
from recsys.base.console import JSON, log_to, say, write_json
from recsys.base.cores import limit_threads
from recsys.base.errors import UserError
from recsys.base.metrics_page import heard
from recsys.base.parsing import WrongKey
from recsys.base.secrets import mask_overrides, remember
from recsys.config.overrides import override
from recsys.distributed import failures
from recsys.distributed.failures import exit_process, say_error, say_interrupted, say_mistake
from recsys.distributed.ranks import silence

MULTIRUN = ("-m", "--multirun")
HELP = ("-h", "--help")
FLAG = re.compile(r"--([A-Za-z_][\w.]*)(?:=(.*))?")  # --port, which people write instead of port=
VALUED = ("cfg", "package", "info")  # Hydra's own options, if their names have no -
HYDRAS = (*VALUED, "help", "version", "resolve", "run", "multirun")


def run(
    command: str,
    function: Callable[[Any], object],
    arguments: Sequence[str] | None = None,
    *,
    file: Path | None = None,
    parse: Callable[[DictConfig], Any] | None = None,
) -> None:
    """Compose the config of `command`, call `function` on it, and exit with its status.

    Args:
        function: takes the config as an object of the command's schema.
        arguments: overrides and Hydra's options; None for this process's.
        file: a YAML file of the user's that is composed instead of the command's.
        parse: makes another object of the composed config.
    """
    interrupts.install()
    given = sys.argv[1:] if arguments is None else list(arguments)
    before = write_json("logging=json" in given or JSON in os.environ)  # of mistakes, too; `heard` reads YAML files
    try:
        code = status(command, function, given, file=file, parse=parse)
    except interrupts.Interrupted as e:
        code = say_interrupted(e)
    finally:
        write_json(before)
    exit_process(code)


def named_words(keys: Sequence[str], usage: str) -> list[str]:
    """Return this process's arguments; bare words, which come in the order of `keys`, get the form KEY=WORD.

    Exits with an error if there are more words than keys.
    """
    arguments = sys.argv[1:]
    check_flags(arguments)
    words = [] if any(a in HELP for a in arguments) else _bare_words(arguments)
    if len(words) > len(keys):
        sys.exit(say_error(f"{words[len(keys)]}: unexpected argument; {usage}"))
    named = [override(key, word) for key, word in zip(keys, words, strict=False)]
    return named + [a for a in arguments if a not in words]


def folders_among(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into names of folders, which may contain a =, and all others."""
    if any(a in HELP for a in arguments):  # words are looked up in the help
        return [], list(arguments)
    folders = [a for a in arguments if not a.startswith("-") and ("=" not in a or Path(a).is_dir())]
    return folders, [a for a in arguments if a not in folders]


def _bare_words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are neither KEY=VALUE nor options, nor values of options: not the job of --cfg job."""
    before = ["", *arguments]
    values = (*(f"--{name}" for name in VALUED), "-c", "-p", "-i")
    pairs = zip(before, arguments, strict=False)
    return [a for last, a in pairs if "=" not in a and not a.startswith(("-", "~")) and last not in values]


def check_flags(arguments: Sequence[str]) -> None:
    """Exit with an error if an argument sets a key as programs do that are not Hydra's: --port 8100."""
    for argument in arguments:
        found = FLAG.fullmatch(argument)
        if found is not None and found[1] not in (VALUED if found[2] is not None else HYDRAS):
            sys.exit(say_error(f"{argument}: no such option; write {found[1]}={found[2] or 'VALUE'}"))


def status(
    command: str,
    function: Callable[[Any], object],
    arguments: Sequence[str] | None = None,
    *,
    file: Path | None = None,
    parse: Callable[[DictConfig], Any] | None = None,
) -> int:
    """Run `function` as `run` does, and return the exit status. `run` explains the parameters."""
    from recsys.config.compose import register

    silence()
    if sys.getfilesystemencoding() != "utf-8":  # libraries that are written in Rust and C++ name files in UTF-8
        say("names of files are not written in UTF-8 here; set PYTHONUTF8=1 if they have other letters than ASCII's")
    limit_threads(os.environ)
    register(command)
    given = sys.argv[1:] if arguments is None else list(arguments)
    check_flags(given)
    if any(a in HELP for a in given):
        words, overrides = _bare_words(given), [a for a in given if "=" in a and not a.startswith("-")]
        return call(lambda: _help(command, overrides, words), command, overrides)
    if refused := _only_of_sweeps(command, given):
        return say_error(refused)
    log_to(None)  # an earlier command in this process may have set its own log file
    code = 0

    def guarded(cfg: DictConfig) -> None:
        nonlocal code
        _hide_secrets(cfg)
        with heard(cfg), reported(command, sys.argv[1:]) as outcome:
            function(_parsed(command, cfg, parse, file))
        code = outcome.status

    composed_by_hydra = _hydra_main(command, guarded, given, file)
    try:
        with explained(sys.argv[1:], command):
            composed_by_hydra()
    except UserError as e:
        return say_mistake(str(e), e.status)
    except BrokenPipeError:  # of Hydra's print, into a pipe such as `| head`; the command's own errors come from `call`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.OURS
    return code


def _only_of_sweeps(command: str, given: Sequence[str]) -> str:
    """Return why arguments are refused that only a sweep takes; empty if there are none."""
    if flag := next((a for a in given if a in MULTIRUN), None):
        return f"{flag}: only recsys.train can run a sweep; leave it out"
    if command == "train" and (sweep_key := next((a for a in given if re.match(r"sweep[=.]", a)), None)):
        return f"{sweep_key}: applies only to sweeps; add -m: python -m recsys.train -m ..."
    return ""


def _hide_secrets(cfg: DictConfig) -> None:
    """Mask the secrets of a config in messages, and in this process's arguments, which W&B records."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf.errors import OmegaConfBaseException

    from recsys.config.compose import check_hydra

    try:
        remember(OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException:  # an interpolation is wrong; the command will report it
        remember(OmegaConf.to_container(cfg))
    sys.argv[1:] = mask_overrides(sys.argv[1:])
    check_hydra(HydraConfig.get())


def _parsed(
    command: str,
    cfg: DictConfig,
    parse: Callable[[DictConfig], Any] | None,
    file: Path | None,
) -> object:
    """Return a composed config as an object, before slow imports. Raises UserError with the file of a wrong key."""
    from hydra.core.hydra_config import HydraConfig

    from recsys.config.compose import COMMANDS, files_of_choices, named, object_of

    try:
        return object_of(COMMANDS[command], cfg) if parse is None else parse(cfg)
    except WrongKey as e:
        files = files_of_choices(HydraConfig.get().runtime.choices) if file is None else {"": file}
        raise named(e, files, sys.argv[1:]) from e


def _hydra_main(
    command: str, function: Callable[[DictConfig], None], given: Sequence[str], file: Path | None
) -> Callable[[], None]:
    """Return Hydra's call of the function with the config that it composes, and set sys.argv, which it reads."""
    import hydra

    from recsys.config.compose import QUIET, conf_dir, file_overrides
    from recsys.config.overrides import free_keys

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us instead of Hydra's printer
    folder, name = (conf_dir(), command) if file is None else (file.resolve().parent, file.stem)
    quiet = [] if file is None else file_overrides(file)  # argparse takes them in one row with the others
    first = 0
    if any(a.startswith(("--config-name", "-cn")) for a in given):  # the config.yaml of a run
        quiet, first = QUIET, next((i for i, a in enumerate(given) if re.match(r"[\w.+~]+=", a)), len(given))
    arguments = free_keys(given, command)
    arguments[first:first] = quiet
    sys.argv = [f"recsys.{command}", *arguments]  # hydra.main reads nothing else
    main: Callable[[], None] = hydra.main(version_base="1.3", config_path=str(folder), config_name=name)(function)
    return main


def _help(command: str, overrides: list[str], words: list[str]) -> None:
    from recsys.cli import command_help

    with explained(overrides, command):
        command_help.show(command, overrides, words)


@contextmanager
def explained(arguments: Sequence[str], command: str = "train") -> Iterator[None]:
    """Convert the errors that Hydra and OmegaConf raise about `arguments` into a one-line UserError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as e:
        from recsys.cli.config_mistakes import explain

        raise UserError(explain(e, command, arguments)) from e
    except UserError:
        raise
    except ValueError as e:  # raised by Hydra for model=3 and the like
        if nulls := [a for a in arguments if re.fullmatch(r"\w+=null", a)]:
            group = nulls[0].partition("=")[0]
            raise UserError(f"{nulls[0]}: must be one of the choices of {group}; leave it out for the default") from e
        raise UserError(str(e)) from e
    except AssertionError as e:  # raised by OmegaConf if an override sets a key below a null
        raise UserError("an override sets a key inside another key that is null; write that key in the YAML") from e


def reported(command: str, arguments: Sequence[str]) -> failures.Reported:
    """Print the errors of the block that it guards; an error of OmegaConf about `arguments` becomes one line."""

    def said(error: Exception) -> str:
        from recsys.cli.config_mistakes import explain

        return explain(error, command, arguments)

    return failures.Reported(said)


def call(function: Callable[[], None], command: str, arguments: Sequence[str]) -> int:
    """Run `function` and return the exit status; see `reported`."""
    with reported(command, arguments) as outcome:
        function()
    return outcome.status
