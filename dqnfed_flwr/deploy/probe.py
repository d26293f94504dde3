"""Looks at the world outside: who listens on a port, under which certificate, with which clock."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import json
import shutil
import socket
import ssl
import subprocess
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

SECONDS = 5.0
HALF_A_SECOND = 0.5


class Port(StrEnum):
    """What is behind a port."""

    FREE = "free"
    OURS = "ours"
    PLAIN = "plain"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    NAME = "name"
    UNREACHABLE = "unreachable"


class Seen(NamedTuple):
    """What was found behind a port, the reason where it is not `OURS`, and the certificate where it is, as DER."""

    port: Port
    why: str = ""
    certificate: bytes = b""


def look(host: str, port: int, ca: Path) -> Seen:
    """Connect with TLS, trusting `ca` alone."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        return Seen(Port.UNREACHABLE, f"{ca}: {error}")
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((host, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return Seen(Port.OURS, certificate=secure.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError as error:
        return _unverified(error)
    except (ssl.SSLError, ConnectionResetError, TimeoutError) as error:
        return Seen(Port.UNREACHABLE if isinstance(error, TimeoutError) else Port.PLAIN, str(error))
    except ConnectionRefusedError as error:
        return Seen(Port.FREE, str(error))
    except OSError as error:
        return Seen(Port.UNREACHABLE, str(error))


def _unverified(error: ssl.SSLCertVerificationError) -> Seen:
    text = error.verify_message or str(error)
    if "expired" in text or "not yet valid" in text:
        return Seen(Port.EXPIRED, text)
    return Seen(Port.NAME if "match" in text else Port.FOREIGN, text)


def now() -> dt.datetime:
    """What this clock says."""
    return dt.datetime.now(dt.UTC)


def clock_ahead(host: str, port: int, ca: Path) -> float | None:
    """Seconds by which this clock is ahead of the server's; None where the server does not say.

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
            told = connection.getresponse().getheader("Date", "")
            answered = now()
        server = email.utils.parsedate_to_datetime(told).replace(tzinfo=dt.UTC)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return ((asked - server) + (answered - server)).total_seconds() / 2 - HALF_A_SECOND


def title_of(port: int) -> str | None:
    """What a program on this machine calls its HTTP interface; empty where it has none, None where nobody listens."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request("GET", "/openapi.json")
        return str(json.loads(connection.getresponse().read())["info"]["title"])
    except ConnectionRefusedError:
        return None
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def clock_synchronised() -> bool | None:
    """Whether the system keeps its clock by the network; None where it does not say."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


def free_bytes(path: Path) -> int:
    """Space left where `path` lies."""
    return shutil.disk_usage(path).free
