"""Text as windows of characters, each with the character that follows: the task that LEAF makes of Shakespeare.

Caldas et al., "LEAF: a benchmark for federated settings" (2018).
"""

from __future__ import annotations

import string

import numpy as np
from numpy.typing import NDArray

LENGTH = 80
ALPHABET = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's 80 characters; the place of a character is its token and its class."""

Tokens = NDArray[np.int8]
_UNKNOWN = -1
_CODES = np.full(128, _UNKNOWN, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def tokens(text: str) -> Tokens:
    """Places in `ALPHABET` [N]; a character that it lacks counts as a space."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    found: Tokens = _CODES[np.minimum(codes, 127)]  # which stands for none of the alphabet
    return np.where(found == _UNKNOWN, _CODES[ord(" ")], found).astype(np.int8)


def windows(text: str) -> tuple[Tokens, Tokens]:
    """All runs of `LENGTH` characters [N, LENGTH], a view, and what follows each [N]; N is 0 for shorter text."""
    codes = tokens(text)
    if len(codes) <= LENGTH:
        return np.empty((0, LENGTH), np.int8), np.empty(0, np.int8)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH)[:-1], codes[LENGTH:]
