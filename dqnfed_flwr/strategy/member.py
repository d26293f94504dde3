"""What a node says of itself before it takes part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dqnfed_flwr import wire
from dqnfed_flwr.errors import WireError

LARGEST_NUMBER, LARGEST_DIM, LONGEST_WORD, MOST_CLASSES = 2**31 - 1, 2**53, 100, 10**6
"""The largest partition number and D, the longest word and the most classes that are believed."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that answered the query.

    Attributes
    ----------
    node_id : int
        Flower's id; changes when a node without a key comes back.
    client : int
        Its partition number, by which everything here is ordered.
    num_examples, num_classes : int
        Of its data.
    input_shape : tuple[int, ...]
        Of a sample as the model sees it.
    input_kind : str
        `images`, `features` or `tokens`; empty where the node does not say.
    dim : int
        D of its model; 0 where it does not say.
    version : str
        Of its app; empty or `UNKNOWN` where it cannot tell.
    feature_scale : float
        The power of ten that |x| reaches in its samples; 0 where it does not say, or where x are whole numbers.
    """

    node_id: int
    client: int
    num_examples: int
    num_classes: int
    input_shape: tuple[int, ...]
    input_kind: str = ""
    dim: int = 0
    version: str = ""
    feature_scale: float = 0.0


def read_member(node: int, properties: Mapping[str, object]) -> Member:
    """Read what a node answered to the query.

    Parameters
    ----------
    node : int
        Flower's id.
    properties : Mapping[str, object]
        As it sent them; nothing in them is trusted.

    Returns
    -------
    Member
        What they say.

    Raises
    ------
    WireError
        With reason `bad-properties`, if something is missing or out of bounds.
    """

    def whole(key: str, least: int, most: int) -> int:
        value = int(str(properties[key]))
        if not least <= value <= most:
            raise ValueError(f"{key} is {value}; need a whole number from {least} to {most}")
        return value

    try:
        return Member(
            node_id=node,
            client=whole("partition", 0, LARGEST_NUMBER),
            num_examples=whole("num-examples", 1, wire.MAX_EXAMPLES),
            num_classes=whole("num-classes", 1, MOST_CLASSES),
            input_shape=tuple(int(side) for side in str(properties["input-shape"])[:LONGEST_WORD].split(",")),
            input_kind=str(properties.get("input-kind", ""))[:LONGEST_WORD],
            dim=whole("dim", 0, LARGEST_DIM) if "dim" in properties else 0,
            version=str(properties.get("version", ""))[:LONGEST_WORD],
            feature_scale=_finite(properties.get("feature-scale")),
        )
    except (KeyError, ValueError) as error:
        raise WireError("bad-properties", f"{error} in {sorted(properties)[:12]}") from None


def _finite(value: object) -> float:
    """A number for a word of advice; 0 for whatever is none, which turns nobody away."""
    return value if isinstance(value, float) and math.isfinite(value) else 0.0
