"""Flatten nested mappings."""

from typing import Any


def flatten_config(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": 1} for {a: {b: 1}}. An empty mapping is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        k: v for name, item in value.items() for k, v in flatten_config(item, f"{prefix}.{name}".lstrip(".")).items()
    }
