"""Mask secrets in configs and texts. This module alone decides what a secret is.

A secret is the value of a key such as api_key, password or auth_token, and user:password@ in a URL. Run folders,
reports, loggers and messages show MASK instead. A masked value that is read again is taken from the environment
variable that `variable` names. Names under `data` belong to the user, and are not secrets: data.items.key, a feature
`token`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MASK = "***"
PREFIX = "RECSYS_SECRET_"  # of environment variables with the values of masked keys
MIN_SECRET_LENGTH = 4  # characters of a secret that is also masked in texts where its key is not next to it

_NAME = re.compile(
    r"secret|passw(or)?d|passphrase|credential|(api|access|private|account|secret)_?key"
    r"|(^|_|auth|access|session|bearer|api)token$"
)
_PATH = re.compile(r"\.(api|access|private|account|secret)\.key(\.|$)")  # as in Hadoop's fs.s3a.secret.key
_URL = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^/\s@]*:[^/\s]*@")
_MASKED_URL = f"://{MASK}@"
_ITEM = re.compile(r"([\w.-]+):\s*('[^']*'|\"[^\"]*\"|[^\s,{}\[\]]+)")  # of a mapping within an override
_SETTING = re.compile(r"([\w.+~-]+)=('[^']*'|\"[^\"]*\"|[^\s,]+)")

_known: dict[str, str] = {}  # environment variable of a key -> secret, of the configs that this process has seen


def is_secret(key: str) -> bool:
    """Return whether the key, with its parents (`logger.wandb.api_key`), names a secret."""
    key = key.lstrip("+~").lower().replace("-", "_")
    if key.startswith("data."):
        return False
    return bool(_NAME.search(key.rpartition(".")[2]) or _PATH.search(f".{key}"))


def variable(key: str) -> str:
    """Return the name of the environment variable that holds the value of a masked key."""
    return PREFIX + re.sub(r"\W", "_", key.lstrip("+~")).upper()


def masked(value: object, key: str = "") -> Any:
    """Return a config (nested mappings and lists) with its secrets replaced by MASK.

    key: key of `value` in the whole config
    """
    return _mapped(value, key, _mask)


def restored(value: object) -> Any:
    """Return a config whose masked values are taken from the environment, or from this process's own config.

    Values that are in neither stay masked.
    """
    return _mapped(value, "", _restore)


def remember(config: object) -> None:
    """Remember the secrets of a config: texts of this process mask them, and processes that it starts get them."""
    for key, value in _leaves(config):
        if isinstance(value, str | int) and _mask(key, value) != value:
            _known[variable(key)] = str(value)


def environment() -> dict[str, str]:
    """Return the environment variables with the secrets that were remembered."""
    return dict(_known)


def still_masked(config: object, but: Sequence[str] = ()) -> str | None:
    """Return the first key whose value is masked, if there is one, except below the keys `but`."""
    keys = (k for k, v in _leaves(config) if _is_masked(v) and k.partition(".")[0] not in but)
    return next(keys, None)


def mask_text(text: str) -> str:
    """Return a text without the secrets that this process knows, without passwords in URLs, and with the values of
    settings such as api_key=... masked.
    """
    text = _SETTING.sub(lambda m: f"{m[1]}={MASK}" if is_secret(m[1]) else m[0], _without_known(text))
    return _URL.sub(rf"\1{MASK}@", text)


def mask_overrides(overrides: Sequence[str]) -> list[str]:
    """Return command-line overrides with the values of secrets replaced by MASK."""
    parts = (o.partition("=") for o in overrides)
    return [f"{key}={_mask(key, _without_items(key, value))}" if eq else key for key, eq, value in parts]


def restore_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides that `mask_overrides` has masked, with their values taken from the environment."""
    parts = (o.partition("=") for o in overrides)
    return [f"{key}={_restore(key.lstrip('+~'), value)}" if eq else key for key, eq, value in parts]


def _without_known(text: str) -> str:
    for secret in sorted(_known.values(), key=len, reverse=True):
        if len(secret) >= MIN_SECRET_LENGTH:
            text = text.replace(secret, MASK)
    return text


def _without_items(key: str, value: str) -> str:
    """Return the value of an override with the secrets of a mapping masked, as in logger.mine={api_key: x}."""
    items = _ITEM.sub(lambda m: f"{m[1]}: {MASK}" if is_secret(f"{key}.{m[1]}") else m[0], value)
    return _without_known(items if value.lstrip().startswith(("{", "[")) else value)


def _mask(key: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return value
    if is_secret(key):
        return MASK
    return _URL.sub(rf"\1{MASK}@", value) if isinstance(value, str) else value


def _restore(key: str, value: object) -> object:
    name = variable(key)
    return os.environ.get(name, _known.get(name, value)) if _is_masked(value) else value


def _is_masked(value: object) -> bool:
    return isinstance(value, str) and (value == MASK or _MASKED_URL in value)


def _mapped(value: object, key: str, change: Callable[[str, object], object]) -> Any:
    if isinstance(value, Mapping):
        return {k: _mapped(v, _join(key, k), change) for k, v in value.items()}
    if isinstance(value, list):
        return [_mapped(v, key, change) for v in value]
    return change(key, value)


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _leaves(v, _join(key, k))
    elif isinstance(value, list):
        for v in value:
            yield from _leaves(v, key)
    else:
        yield key, value


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)
