"""The primitives of a masked run, all of them from `cryptography`: signatures, key agreement, boxes, and streams.

| what for | primitive |
|---|---|
| who a client is to its peers | Ed25519, RFC 8032 |
| a secret of each pair of clients | X25519, RFC 7748 |
| one secret made of another, for one purpose | HKDF with SHA-256, RFC 5869 |
| a secret sent through the server | AES-256-GCM, a key for each box |
| masks and rotations; draws for rounding | AES-256-CTR over zeros, a key for each stream |

No key serves two purposes, and none is used twice: what a secret is derived for stands in the derivation.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY = 32
"""Bytes of every key and secret here."""
SIGNATURE = 64
PART = KEY + 8
"""Bytes of what clients send each other: a part of the group's secret, and a number."""
BOX = PART + 16
"""Bytes of a box around it."""
_ONCE = bytes(12)
"""The nonce of boxes: each has a key of its own."""
Draw = Callable[[str], bytes]
"""Gives `KEY` secret bytes for a purpose: `from_system`, or those of a simulation."""
Part = str | int | bytes


def from_system(purpose: str) -> bytes:
    """Random bytes of the operating system."""
    del purpose
    return os.urandom(KEY)


def digest(*parts: Part) -> bytes:
    """SHA-256 of some parts, each with its kind and length, so that no two lists of parts read alike."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        found.update(f"{type(part).__name__} {len(data)}:".encode() + data)
    return found.digest()


def derive(secret: bytes, *purpose: Part) -> bytes:
    """A secret of `KEY` bytes that serves one purpose, and says nothing of `secret` or of those for other purposes."""
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=digest(*purpose)).derive(secret)


def stream(key: bytes, length: int) -> bytes:
    """So many bytes that look random to all who do not know the key; the key serves for this one stream."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return encryptor.update(bytes(length)) + encryptor.finalize()


class Stream:
    """The bytes of `stream` piece by piece, `most` of them at a time, into memory that is kept."""

    def __init__(self, key: bytes, most: int) -> None:
        self._encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
        self._zeros, self._room = memoryview(bytes(most)), np.empty(most + 16, np.uint8)

    def words(self, count: int) -> NDArray[np.uint32]:
        """The next so many words, until more are drawn."""
        self._encryptor.update_into(self._zeros[: 4 * count], self._room.data)
        return self._room[: 4 * count].view("<u4")


def sign(identity: bytes, *parts: Part) -> bytes:
    """The signature under some parts by a private Ed25519 key, as its `KEY` raw bytes."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(digest(*parts))


def is_signed(public: bytes, signature: bytes, *parts: Part) -> bool:
    """Whether that is the signature under these parts of whose public Ed25519 key that is."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, digest(*parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def signing_public(identity: bytes) -> bytes:
    """The public half of a private Ed25519 key."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def agreement_public(private: bytes) -> bytes:
    """The public half of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes) -> bytes | None:
    """What the owners of two X25519 keys have in common; None where the other's is no key that can be used."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return None


def boxed(key: bytes, secret: bytes) -> bytes:
    """A secret that only who has the key can read and could have made; the key serves for this one box."""
    return AESGCM(key).encrypt(_ONCE, secret, None)


def unboxed(key: bytes, box: bytes) -> bytes | None:
    """Inverse of `boxed`; None where the box was made or changed by somebody without the key."""
    try:
        return AESGCM(key).decrypt(_ONCE, box, None)
    except (InvalidTag, ValueError):
        return None
