"""Dataclasses as a record and arrays."""

from __future__ import annotations

from typing import Any

from dqnfed_flwr.record_codec import pack


def packed(value: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a dataclass, and the arrays beside it."""
    arrays: dict[str, Any] = {}
    return pack(value, arrays), arrays
