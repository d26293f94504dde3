"""By how much this clock is ahead of that of a SuperLink that speaks gRPC, whose answers carry no date.

Flower signs the time of each call of a node, and refuses a stamp that is 5 seconds ahead of the server's clock or 305
behind it. It looks at that before it asks whose the key is. So stamps signed with a key made for the purpose tell where
its bounds are, and change nothing there.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from dqnfed_flwr.deploy import probe

AHEAD, BEHIND = 5.0, 305.0
"""Seconds: Flower's bounds."""
CALL = "/flwr.proto.Fleet/PullMessages"
REFUSED = "timestamp"
SECONDS = 5.0
STRIDE, FARTHEST = 300.0, 86_400.0
PRECISION = 0.25


def clock_ahead(host: str, port: int, ca: Path) -> float | None:
    """Seconds by which this clock is ahead of that behind a Fleet port.

    Infinite where it is more than a day off; None where that cannot be learnt.
    """
    import grpc  # slow to load, and no other command of `dqnfed deploy` needs it

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        call, key = channel.unary_unary(CALL), ec.generate_private_key(ec.SECP384R1())

        def accepts(ahead: float) -> bool | None:
            try:
                call(b"", timeout=SECONDS, metadata=_signed(key, ahead))
            except grpc.RpcError as error:
                known = error.code() is grpc.StatusCode.UNAUTHENTICATED
                return REFUSED not in str(error.details()) if known else None
            return None

        return measured(accepts)


def measured(accepts: Callable[[float], bool | None]) -> float | None:
    """Seconds by which a clock is ahead of another's.

    Parameters
    ----------
    accepts : Callable[[float], bool | None]
        Whether the other takes a stamp so many seconds ahead of this clock; None where it does not say.
    """
    for low in _outwards():
        found = accepts(low)
        if found is None:
            return None
        if found:
            break
    else:
        return math.inf
    high = low + AHEAD + BEHIND
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return AHEAD - low


def _outwards() -> Iterator[float]:
    yield 0.0
    for turn in itertools.takewhile(lambda turn: turn * STRIDE <= FARTHEST, itertools.count(1)):
        yield from (turn * STRIDE, -turn * STRIDE)


def _signed(key: ec.EllipticCurvePrivateKey, ahead: float) -> tuple[tuple[str, Any], ...]:
    from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    stamp = (probe.now() + dt.timedelta(seconds=ahead)).isoformat()
    return (
        (PUBLIC_KEY_HEADER, public_key_to_bytes(key.public_key())),
        (TIMESTAMP_HEADER, stamp),
        (SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))),
    )
