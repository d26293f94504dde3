"""Between nested mappings and dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Scalar


def nest(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings.

    Raises
    ------
    ConfigError
        If a key is given twice, under both forms, with different values.
    """
    nested: dict[str, Any] = {}
    for key, value in mapping.items():
        group = nested
        *parents, last = str(key).split(".")
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ConfigError(f"{key}: {parent!r} is set both as a value and as a group")
        _put(group, last, nest(value) if isinstance(value, Mapping) else value, str(key))
    return nested


def _put(group: dict[str, Any], name: str, value: Any, key: str) -> None:
    if name not in group:
        group[name] = value
        return
    known = group[name]
    if isinstance(known, dict) and isinstance(value, dict):
        for inner, item in value.items():
            _put(known, inner, item, f"{key}.{inner}")
    elif known != value:
        raise ConfigError(f"{key}: found both {known!r} and {value!r}; give it once")


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Inverse of `nest`: nested mappings to dotted keys."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
