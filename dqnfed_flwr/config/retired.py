"""Keys that earlier versions had: what takes their place, and how old records are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

RETIRED = {
    "admission": "replies are no longer compared by size; say with guarantee.tolerate how many clients may lie",
    "step.acceptance": "nobody is overruled without being named; say with guarantee.tolerate how many may be",
}
"""Keys and groups, with what takes their place."""
STRICT = ("guarantee.entitlement", "0")
"""What a setting was before there was one."""


def is_retired(key: str) -> bool:
    """Whether a dotted key is one of them, or lies in one of their groups."""
    return bool(retired_in([key]))


def retired_in(keys: Collection[str]) -> list[str]:
    """Those keys and groups of `RETIRED` that some of the dotted `keys` are of."""
    return [old for old in RETIRED if any(key == old or key.startswith(f"{old}.") for key in keys)]


def said_of(key: str) -> str:
    """The message for a user who gives a retired key."""
    (old, *_) = retired_in([key])
    return f"{old}: no longer a setting; {RETIRED[old]}"


def without_retired(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record by dotted keys, without those that mean nothing any more.

    A record that has some was made when no loss was allowed to rise, which is the entitlement 0.
    """
    kept = {key: value for key, value in flat.items() if not is_retired(key)}
    return kept if len(kept) == len(flat) else {STRICT[0]: STRICT[1], **kept}
