"""What all groups of settings share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Scalar = str | int | float | bool


def kebab(name: str) -> str:
    """The name of a key outside Python."""
    return name.rstrip("_").replace("_", "-")


class Group(BaseModel):
    """Base of all groups: frozen, unknown keys refused, types not coerced, kebab-case names outside."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=kebab, validate_by_name=True, validate_by_alias=True
    )
