"""Basic authentication against bcrypt hashes: few attempts at a time, and none keeps others out for long."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Any

from dqnfed_flwr.errors import ConfigError

ATTEMPTS = 2
"""Passwords that are checked at the same time; each costs a processor for 0.1 s or so."""
WAITING = 8
"""Requests whose password is being checked or waits for it; more are asked to come back."""
MOST_BYTES = 72
"""Of a password that bcrypt looks at."""


class Admission(Enum):
    """What a header is good for; LATER where there was no time to look at it."""

    YES = "yes"
    NO = "no"
    LATER = "later"


class BasicAuth:
    """Checks `Authorization` headers against the users of a web configuration.

    bcrypt is slow on purpose. A header that was right once is remembered as a keyed hash, so that only the first scrape
    pays for it, and others' attempts do not delay the next.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._salt = os.urandom(32)
        self._known: set[bytes] = set()
        self._waiting, self._attempts = threading.BoundedSemaphore(WAITING), threading.BoundedSemaphore(ATTEMPTS)

    def admits(self, header: str | None) -> Admission:
        """Whether the header names a user with the right password; always when there are no users."""
        if not self._users:
            return Admission.YES
        credentials = _credentials(header)
        if credentials is None:
            return Admission.NO
        name, password = credentials
        mark = hmac.digest(self._salt, f"{name}:".encode() + password, hashlib.sha256)
        if mark in self._known:
            return Admission.YES
        if not self._waiting.acquire(blocking=False):
            return Admission.LATER
        try:
            with self._attempts:
                right = self._is_right(name, password)
        finally:
            self._waiting.release()
        if right:
            self._known.add(mark)
        return Admission.YES if right else Admission.NO

    def _is_right(self, name: str, password: bytes) -> bool:
        """Ask bcrypt; an unknown name costs as much time as a wrong password."""
        hashed = self._users.get(name, next(iter(self._users.values())))
        return bool(load_bcrypt().checkpw(password, hashed.encode())) and name in self._users


def load_bcrypt() -> Any:
    """The module bcrypt; ConfigError where it is not installed."""
    try:
        return import_module("bcrypt")
    except ImportError:
        raise ConfigError(
            "--web-config: basic_auth_users needs the package bcrypt, which is not installed: pip install bcrypt"
        ) from None


def _credentials(header: str | None) -> tuple[str, bytes] | None:
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, mark, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password[:MOST_BYTES]) if mark else None
    except (binascii.Error, UnicodeDecodeError):
        return None
