"""Sentences as samples of next-word prediction: every word, and the end, behind the words before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.packed import text_lines
from dqnfed_flwr.errors import DataError

PAD, FIRST_WORD = 0, 1
"""Tokens: 0 fills up, then the words by frequency, then any other word, beginning and end of a sentence."""
MOST_VALUES = 1 << 30
"""Tokens of all windows of a part, of four bytes each."""


def choose_words(counted: Path, sentences: Iterable[bytes], vocabulary: int) -> dict[str, int]:
    """Token of each of the most frequent words, after the file `counted` where it exists, else after the sentences.

    Raises
    ------
    DataError
        If the file names fewer words.
    """
    if counted.exists():
        frequent = [line.split()[0] for line in text_lines(counted)[:vocabulary]]
        if len(frequent) < vocabulary:
            raise DataError(
                f"data: {counted} has {len(frequent)} words, where vocabulary={vocabulary} are asked for; if it is cut "
                "short, fetch it again, or lower vocabulary"
            )
    else:
        counts = Counter(word for line in sentences for word in _split(line))
        frequent = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:vocabulary]]
    return {word: FIRST_WORD + place for place, word in enumerate(frequent)}


def tokens_in(words: Mapping[str, int]) -> int:
    """How many different tokens there are, and so classes."""
    return FIRST_WORD + len(words) + 3


def windows(sentences: Iterable[bytes], words: Mapping[str, int], length: int) -> NDArray[np.int32]:
    """Every word of the sentences, and their ends, each behind the `length` tokens before it [N, length + 1]."""
    unknown, begin, end = (FIRST_WORD + len(words) + place for place in range(3))
    coded = ([begin, *(words.get(word, unknown) for word in _split(line)), end] for line in sentences)
    found = [_contexts(sentence, length) for sentence in coded]
    return np.concatenate(found) if found else np.empty((0, length + 1), np.int32)


def check_size(sentences: Iterable[bytes], length: int, where: str) -> None:
    """Count the windows before they are made.

    Raises
    ------
    DataError
        If they would fill more than `MOST_VALUES`.
    """
    values = sum(len(_split(line)) + 1 for line in sentences) * (length + 1)
    if values > MOST_VALUES:
        raise DataError(
            f"data: {where}: the windows of these sentences are {4 * values / 2**30:.1f} GiB, more than "
            f"{4 * MOST_VALUES / 2**30:.0f}; take fewer with users=, sentences= or a smaller length="
        )


def _split(line: bytes) -> list[str]:
    return line.decode("utf-8", "replace").split()


def _contexts(sentence: list[int], length: int) -> NDArray[np.int32]:
    """Every token but the first, each behind the `length` before it [N, length + 1]."""
    padded = np.array([PAD] * (length - 1) + sentence, dtype=np.int32)
    return np.lib.stride_tricks.sliding_window_view(padded, length + 1)
