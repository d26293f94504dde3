"""Members of a masked run without a server between them: what one would relay is handed over here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dqnfed_flwr.masked.member import Identity, Member
from dqnfed_flwr.masked.secrets import signing_public
from dqnfed_flwr.masked.sums import HALF
from dqnfed_flwr.types import Float64Array

RUN = "run 1"
SAMPLES = 100


def key_of(client: int, purpose: str = "identity", salt: str = "") -> bytes:
    return hashlib.sha256(f"{client} {purpose} {salt}".encode()).digest()


def member(
    client: int,
    pins: Mapping[int, bytes] | None = None,
    *,
    run: str = RUN,
    salt: str = "",
    floor: int = 1,
    bits: int = 32,
) -> Member:
    """A new client that knows everybody's key, or only those in `pins`; `salt` gives other secrets."""
    known = (lambda other: signing_public(key_of(other))) if pins is None else pins.get
    identity = Identity(client, key_of(client), known, run, lambda purpose: key_of(client, purpose, salt), floor)
    return Member(identity, bits)


def invitation(members: Mapping[int, Member], samples: Mapping[int, int] | None = None) -> dict[str, Any]:
    said = {client: members[client].hello((samples or {}).get(client, SAMPLES)) for client in sorted(members)}
    keys = ("public", "signature")
    publics, signatures = ([each[key] for each in said.values()] for key in keys)
    return {"clients": list(said), "publics": publics, "signatures": signatures}


def delivery(client: int, invited: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    others = [other for other in sorted(invited) if other != client]
    boxes = [invited[other]["boxes"][invited[other]["to"].index(client)] for other in others]
    return {"clients": others, "boxes": boxes}


def agree(members: Mapping[int, Member], samples: Mapping[int, int] | None = None) -> None:
    asked = invitation(members, samples)
    invited = {client: each.invite(asked) for client, each in members.items()}
    tags = {each.deliver(delivery(client, invited))["tag"] for client, each in members.items()}
    assert len(tags) == 1


def group(count: int, salt: str = "", bits: int = 32) -> dict[int, Member]:
    """So many clients that have agreed."""
    members = {client: member(client, salt=salt, bits=bits) for client in range(count)}
    agree(members)
    return members


def request(
    clients: Sequence[int],
    weights: Sequence[float],
    *,
    exchange: int = 1,
    model: bytes = b"m" * 32,
    longest: float = 1e3,
) -> dict[str, Any]:
    unit = longest / (HALF - 1 - len(clients))
    return {
        "exchange": exchange,
        "model": model,
        "clients": [*clients],
        "weights": [float(weight) for weight in weights],
        "unit": unit,
    }


def rows(count: int, dim: int, seed: int = 0) -> Float64Array:
    return np.random.default_rng(seed).standard_normal((count, dim))
