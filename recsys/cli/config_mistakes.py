"""Explain a wrong override or YAML file in one line, from the errors of Hydra and OmegaConf."""

import re
from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)
from yaml import YAMLError

from recsys.base.errors import did_you_mean
from recsys.base.parsing import names_of, part_of
from recsys.config.compose import COMMANDS, compose, renamed, yaml_mistake

GLOB = re.compile(r"[*?]")  # in a key, where Hydra takes none
QUOTED = re.compile("'([^']*)'")  # the first name in a message is what the message is about


def explain(error: Exception, command: str, arguments: Sequence[str]) -> str:
    """Return the message of an error about the config of `command` on one line, with the nearest valid name."""
    errors: list[BaseException] = [error]
    while (cause := errors[-1].__cause__ or errors[-1].__context__) is not None:  # for a file, Hydra sets the context
        errors.append(cause)
    for e in errors:
        if (message := _explain_by_type(e, command, arguments)) is not None:
            file = _file_of(error)
            return f"{file}: {message}" if file is not None and not isinstance(e, YAMLError) else message
    if (message := _explain_by_text(str(error), command, arguments)) is not None:
        return message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    last = next((line.strip() for line in str(errors[-1]).splitlines() if line.strip()), "")
    where = next((e.full_key for e in errors if isinstance(e, OmegaConfBaseException) and e.full_key), None)
    if (file := _file_of(error)) is not None:
        return f"{file}: {f'{where}: ' if where else ''}{last}"
    reason = f" {last}" if last not in lines[0] else ""
    return (f"{where}: " if where else "") + lines[0] + reason


def _file_of(error: Exception) -> str | None:
    """Return the YAML file that could not be composed, None if an override is wrong."""
    text = str(error)
    if not isinstance(error, HydraException) or "raised while composing config" not in text.partition("\n")[0]:
        return None
    return f"{QUOTED.findall(text)[0]}.yaml"


def _explain_by_type(e: BaseException, command: str, arguments: Sequence[str]) -> str | None:
    """Explain an error from its class and attributes; return None for other classes."""
    if isinstance(e, YAMLError):
        return yaml_mistake(e)
    if isinstance(e, MissingConfigException) and e.options:
        group, _, value = str(e.missing_cfg_file).rpartition("/")
        return f"{group}={value}: no such choice{did_you_mean(value, e.options)}"
    if isinstance(e, OverrideParseException):
        override = e.override.removeprefix("++")  # which free_keys adds
        key, equals, value = override.partition("=")
        if not equals:
            names = {"train": "resume", "new": "data", "preprocess": "data"}.get(command, "run")
            return f"{key}: must be KEY=VALUE, such as {names}={key}"
        if not key.isascii():
            return f"{key}: a key that is typed has no other letters than ASCII's; write it in a YAML file of conf/"
        if (found := GLOB.search(key)) is not None:
            return f"{key}: a key holds no {found[0]}; write {_without_glob(key, value)}"
        quoted = value.strip("'\"")
        return f"{override}: cannot be parsed; write the value in quotes: \"{key}='{quoted}'\""
    if isinstance(e, OmegaConfBaseException) and e.full_key and "Cannot merge DictConfig with ListConfig" in str(e):
        return f"{e.full_key}: must be a mapping, such as {{a: 1}}, not a list"
    if isinstance(e, ConfigKeyError | ConfigAttributeError) and e.full_key:
        return _unknown_key(e.full_key, command, arguments)
    if isinstance(e, InterpolationResolutionError) and "Environment variable" in str(e):
        where, name = e.full_key, QUOTED.findall(str(e))[0]
        fix = f"set it, or write {where}=VALUE" if where else "set it"
        return (f"{where}: " if where else "") + f"the environment variable {name} is not set; {fix}"
    return None


def _without_glob(key: str, value: str) -> str:
    """Return overrides that mean what an override with a glob in its key would mean."""
    parts = key.split(".")
    at = next(i for i, part in enumerate(parts) if GLOB.search(part))
    before, glob, after = ".".join(parts[:at]), parts[at], parts[at + 1 :]
    if before == "sharding.per_table" and after:
        return f"'{before}.rule.match=\"{glob}\"' '{before}.rule.{'.'.join(after)}={value}'"
    for name in reversed(after):
        value = f"{{{name}: {value}}}"
    return f"'{before}={{{glob}: {value}}}'"


def _explain_by_text(text: str, command: str, arguments: Sequence[str]) -> str | None:
    """Explain an error of Hydra that has its facts only in its text; return None for other texts."""
    names = QUOTED.findall(text)
    if text.startswith("Ambiguous value for argument") and names:
        if command == "train":
            return f"{names[0]}: several values make a sweep; add -m: python -m recsys.train -m {' '.join(arguments)}"
        return f"{names[0]}: takes one value; a list is written KEY=[a,b]"
    if text.startswith(("Could not override", "Could not append to config")) and names:
        return _unknown_key(names[0], command, arguments)
    return None


def _unknown_key(key: str, command: str, arguments: Sequence[str]) -> str:
    """Return the message for an unknown key, with the nearest key in the config that the other arguments compose."""
    if message := renamed(key):
        return message
    others = [a for a in arguments if "=" in a and not a.lstrip("+~").startswith((f"{key}=", f"{key}@", f"{key}."))]
    parent, _, name = key.rpartition(".")
    try:
        cfg = compose(command, others)
        node = OmegaConf.select(cfg, parent) if parent else cfg
        valid = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if command == "new":  # users type the keys of `create` without it
            valid = [*cfg.create, *(k for k in valid if k != "create")]
    except Exception:  # another override is wrong too, or the key is in a YAML file: the keys of the schema
        hint: object = COMMANDS[command]
        for part in filter(None, parent.split(".")):
            hint = part_of(hint, part)
        valid = names_of(hint)
    if name in valid and not any(a.startswith(f"+{key}") for a in arguments):
        return f"{key}: is a group of choices; write {key}=NAME and {key}.PART.KEY=VALUE, or a YAML file of your own"
    if name in valid:
        return f"{key}: exists already; leave out the + in front of it"
    if name == "experiment" and any(a.startswith("experiment=") for a in arguments):
        return "experiment: the first line of its YAML must be: # @package _global_"
    return f"{key}: no such key{did_you_mean(name, valid)}"
