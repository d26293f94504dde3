"""What all groups of settings share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

Scalar = str | int | float | bool


def _joined(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    whole = items and all(isinstance(item, int) and not isinstance(item, bool) for item in items)
    return ",".join(map(str, items)) if whole else value


Numbers = Annotated[str, BeforeValidator(_joined)]
"""Whole numbers between commas; a single one may come as a number, several as a list of YAML."""


def kebab(name: str) -> str:
    """The name of a key outside Python."""
    return name.rstrip("_").replace("_", "-")


class Group(BaseModel):
    """Base of all groups: frozen, unknown keys refused, types not coerced, numbers finite, kebab-case names outside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
    )
