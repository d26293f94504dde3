"""Between nested mappings and dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dqnfed_flwr.config._group import Scalar
from dqnfed_flwr.errors import ConfigError


def nest(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings; whole numbers are welcome where a real one is asked for."""
    nested: dict[str, Any] = {}
    for key, value in mapping.items():
        group = nested
        *parents, last = str(key).split(".")
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ConfigError(f"{key}: {parent!r} is set both as a value and as a group")
        if isinstance(value, Mapping):
            value = nest(value)
            if isinstance(group.get(last), dict):
                value = {**group[last], **value}
        group[last] = value
    return nested


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Inverse of `nest`: nested mappings to dotted keys."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
