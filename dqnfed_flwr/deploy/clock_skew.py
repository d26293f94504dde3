"""By how much the clock of this machine is ahead of the server's, and what that means.

Flower signs the time of each call of a node, and refuses a stamp that is 5 seconds ahead of the server's clock or 305
behind it. A server that speaks HTTP tells its time in every answer. One that speaks gRPC does not; but it looks at a
stamp before it asks whose the key is. So stamps signed with a key made for the purpose tell where its bounds are, and
change nothing there. (A time service such as chrony knows this machine's error alone, where there is one.)
"""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import math
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from dqnfed_flwr.deploy.findings import Finding, Findings, Level

AHEAD, BEHIND = 5.0, 305.0
"""Seconds: Flower's bounds."""
AHEAD_WARN, BEHIND_WARN = 2.0, 30.0
CALL = "/flwr.proto.Fleet/PullMessages"
REFUSED = "timestamp"
SECONDS = 5.0
HALF_A_SECOND = 0.5
STRIDE, FARTHEST = 300, 86_400
PRECISION = 0.25


def skew(ahead: float | None) -> Findings:
    """What it means that this clock is so many seconds ahead of the server's; nothing where that is not known."""
    if ahead is None:
        return
    warn, limit = (AHEAD_WARN, AHEAD) if ahead > 0 else (BEHIND_WARN, BEHIND)
    level = Level.OK if abs(ahead) < warn else Level.WARNING if abs(ahead) < limit else Level.FAILURE
    seconds = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    fix = "set both clocks right, for instance with chrony: Flower refuses a node 5 s ahead or 5 minutes behind"
    yield Finding(
        level,
        f"this clock is {seconds if math.isfinite(ahead) else 'more than a day off'}",
        "" if level is Level.OK else fix,
    )


def now() -> dt.datetime:
    """What this clock says."""
    return dt.datetime.now(dt.UTC)


def ahead_by_date(host: str, port: int, ca: Path) -> float | None:
    """Seconds by which this clock is ahead of that of a server of HTTP; None where the server does not say.

    The date of an answer has its seconds cut off, and is of some moment between question and answer: half a second
    either way. A SuperLink that answers itself renews its date once a second only, so that this clock may seem to be up
    to a second further ahead.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca))
        with closing(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)) as connection:
            connection.connect()
            asked = now()
            connection.request("GET", "/health")
            date = connection.getresponse().getheader("Date", "")
            answered = now()
        server = email.utils.parsedate_to_datetime(date).replace(tzinfo=dt.UTC)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return ((asked - server) + (answered - server)).total_seconds() / 2 - HALF_A_SECOND


def ahead_by_stamps(channel: Any) -> float | None:
    """Seconds by which this clock is ahead of that behind a Fleet port of gRPC, asked over `channel`.

    Infinite where it is more than a day off; None where that cannot be learnt.
    """
    import grpc  # slow to load, and no other command of `dqnfed deploy` needs it

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
    """Seconds by which a clock is ahead of another's, by bisection of what the other accepts.

    `accepts` says whether the other takes a stamp so many seconds ahead of this clock; None where it does not say.
    """
    for stamp in sorted(range(-FARTHEST, FARTHEST + 1, STRIDE), key=abs):
        if (found := accepts(stamp)) is None:
            return None
        if found:
            low, high = float(stamp), stamp + AHEAD + BEHIND
            while high - low > PRECISION:
                middle = (low + high) / 2
                low, high = (middle, high) if accepts(middle) else (low, middle)
            return AHEAD - low
    return math.inf


def _signed(key: ec.EllipticCurvePrivateKey, ahead: float) -> tuple[tuple[str, Any], ...]:
    from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    stamp = (now() + dt.timedelta(seconds=ahead)).isoformat()
    return (
        (PUBLIC_KEY_HEADER, public_key_to_bytes(key.public_key())),
        (TIMESTAMP_HEADER, stamp),
        (SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))),
    )
