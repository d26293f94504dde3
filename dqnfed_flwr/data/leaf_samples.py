"""What a sample of LEAF's json is, by its look: one kind for a whole set.

| kind | x | y | samples |
|---|---|---|---|
| pixels | 784 numbers from 0 to 1 (FEMNIST) | class | uint8 images [N, 28, 28] |
| features | any other equal number of numbers (Synthetic, FedProx's MNIST) | class | float32 [N, D] |
| windows | 80 characters (Shakespeare) | the character that follows | tokens [N, 80] |
| names | names of image files (CelebA) | class | the names [N] |
| texts | rows of 5 or 6 texts, the fifth a tweet (Sent140), or plain texts | class | counts of words, float32 [N, W] |

FedProx standardises MNIST, so that its 784 numbers are no pixels any more: to press them into bytes would change
them, and they stay features, as its own logistic regression takes them. Whether 784 numbers are pixels is decided by
all users.

A text becomes a bag of words, as LEAF's own logistic regression on Sent140 has it. A word, in small letters, or a mark
of punctuation counts in column CRC-32 modulo W: so no vocabulary is needed, and all devices have the same columns.
Labels 0, 2 and 4, Sent140's negative, neutral and positive, become classes in this order.
"""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.columns import check_dense
from dqnfed_flwr.data.images import SUFFIXES
from dqnfed_flwr.data.reading import Samples

LENGTH = 80
ALPHABET = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's 80 characters; the place of a character is its token and its class."""

Characters = NDArray[np.int8]
_UNKNOWN = -1
_CODES = np.full(128, _UNKNOWN, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
SIDE = 28
EMNIST = (10, 26, 47, 62)
"""Classes of its splits: digits, letters, balanced, by class; images have the fewest of them that hold their labels."""
TWEET, TWEET_FIELDS = 4, (5, 6)
"""Place of the text in a row of Sent140, and how many texts a row may have."""
POLARITY = {0: "negative", 2: "neutral", 4: "positive"}
ALLOWED = (
    "allowed are numbers, as many in each sample (784 from 0 to 1 are a 28x28 image), 80 characters with the next one "
    f"as the label, names of images ({', '.join(SUFFIXES)}), rows of 5 or 6 texts whose fifth is to be classified, or "
    "texts with class numbers; store others as .npz"
)
_WORD = re.compile(r"[\w']+|[.,!?;:]")
_TOLD = {
    "features": "read as features",
    "windows": f"read as windows of {LENGTH} characters",
    "names": "read as names of images",
}


def tokens(text: str) -> Characters:
    """Places in `ALPHABET` [N]; a character that it lacks counts as a space."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    found: Characters = _CODES[np.minimum(codes, 127)]  # which stands for none of the alphabet
    return np.where(found == _UNKNOWN, _CODES[ord(" ")], found).astype(np.int8)


def windows(text: str) -> tuple[Characters, Characters]:
    """All runs of `LENGTH` characters [N, LENGTH], a view, and what follows each [N]; N is 0 for shorter text."""
    codes = tokens(text)
    if len(codes) <= LENGTH:
        return np.empty((0, LENGTH), np.int8), np.empty(0, np.int8)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH)[:-1], codes[LENGTH:]


class UnknownSampleError(ValueError):
    """Samples or labels of no known kind: what was found, and what is allowed."""


class NotPixels(Exception):
    """Samples of 784 numbers are no pixels: no error, the set is read again, as features."""


class SampleReader:
    """Reads the samples of one set user by user; the first says of which kind all are.

    `words` are the columns of a bag of words; `pixels` says whether 784 numbers may be an image.
    """

    def __init__(self, *, words: int, pixels: bool = True) -> None:
        self.words, self._pixels = words, pixels
        self.kind = ""
        self._texts, self._is_image = 0, False

    @property
    def words_for_kind(self) -> str:
        """How samples are read, for the log."""
        if self.kind == "numbers":
            return f"read as images of {SIDE}x{SIDE} pixels" if self._is_image else "read as features"
        if self.kind == "texts":
            return f"read as counts of words in {self.words} columns"
        return _TOLD[self.kind]

    def read(self, x: Sequence[Any], y: Sequence[Any], user: str) -> Samples:
        """One user's samples and labels [N].

        Raises
        ------
        UnknownSampleError
            If they are of no known kind, of another than those before, or differ in number.
        NotPixels
            If 784 numbers taken for pixels do not lie from 0 to 1.
        """
        if len(x) != len(y):
            raise UnknownSampleError(f"{len(x)} samples and {len(y)} labels; each sample has one label")
        kind = _kind_of(x, y)
        self.kind = self.kind or kind
        if kind != self.kind:
            raise UnknownSampleError(f"found {kind}, where users before have {self.kind}; keep one set a folder")
        if kind == "windows":
            return tokens("".join(x)).reshape(-1, LENGTH), tokens("".join(y))
        labels = _class_numbers(y)
        if kind == "names":
            return np.array(x), labels
        if kind == "texts":
            return self._bags([text if isinstance(text, str) else text[TWEET] for text in x]), labels
        return self._numbers(x, user), labels

    def classes(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Number and names of the classes of a whole set, where more is known than its labels say; those renumbered."""
        if self.kind == "windows":
            return {"num_classes": np.array(len(ALPHABET))}
        labels = {part: arrays[f"y_{part}"] for part in ("train", "test")}
        found = sorted({int(label) for y in labels.values() for label in np.unique(y)})
        if self.kind == "numbers":
            needed = 1 + found[-1]
            return (
                {"num_classes": np.array(min((c for c in EMNIST if c >= needed), default=needed))}
                if self._is_image
                else {}
            )
        if self.kind == "texts" and set(found) <= POLARITY.keys() and max(found) == max(POLARITY):
            kept = [label for label in POLARITY if label in found or label != 2]
            names = np.array([POLARITY[label] for label in kept])
            return {"class_names": names, **{f"y_{part}": np.searchsorted(kept, y) for part, y in labels.items()}}
        return {"num_classes": np.array(max(2, 1 + found[-1]))}

    def _numbers(self, x: Sequence[Any], user: str) -> NDArray[Any]:
        """Images or features."""
        try:
            values = np.array(x, dtype=np.float32)
        except (TypeError, ValueError):
            raise UnknownSampleError(f"found {_look(x[0])}, or samples of different lengths; {ALLOWED}") from None
        if values.ndim != 2 or not values.shape[1]:
            raise UnknownSampleError(f"found samples of shape {values.shape[1:]}; {ALLOWED}")
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
            raise UnknownSampleError(f"sample {bad} holds NaN, null or infinite numbers; fill or drop it")
        self._is_image = self._pixels and values.shape[1] == SIDE * SIDE
        if not self._is_image:
            return values
        low, high = values.min(), values.max()
        if not 0 <= low <= high <= 1:
            raise NotPixels(
                f"user {user!r} has {SIDE * SIDE} numbers from {low:.6g} to {high:.6g}, and pixels lie from 0 to 1: "
                "all samples are read as features"
            )
        return np.rint(values * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)

    def _bags(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """How often the words of each text fall into each column [N, W]."""
        self._texts += len(texts)
        check_dense(self._texts, self.words)
        bags = np.zeros((len(texts), self.words), dtype=np.float32)
        for bag, text in zip(bags, texts, strict=True):
            for word in _WORD.findall(text.lower()):
                bag[zlib.crc32(word.encode("utf-8", "surrogatepass")) % self.words] += 1
        return bags


def _kind_of(x: Sequence[Any], y: Sequence[Any]) -> str:
    """`windows`, `names`, `texts` or `numbers`."""
    if all(isinstance(sample, str) for sample in x):
        labelled = all(isinstance(label, str) and len(label) == 1 for label in y)
        if labelled and {len(text) for text in x} == {LENGTH}:
            return "windows"
        if all(text.lower().endswith(SUFFIXES) for text in x):
            if all(PurePath(text).name == text for text in x):
                return "names"
            raise UnknownSampleError(f"found names of images with folders, such as {x[0][:80]!r}; give bare names")
        if any(isinstance(label, str) for label in y):
            lengths = sorted({len(text) for text in x})
            raise UnknownSampleError(
                f"found texts of {lengths[0]} to {lengths[-1]} characters with labels such as {str(y[0])[:20]!r}; "
                f"{ALLOWED}"
            )
        return "texts"
    if any(isinstance(sample, str) or not isinstance(sample, list) for sample in x):
        raise UnknownSampleError(f"found {_look(next(s for s in x if not isinstance(s, list)))}; {ALLOWED}")
    words = [row for row in x if any(isinstance(field, str) for field in row)]
    if not words:
        return "numbers"
    if len(words) < len(x) or any(len(row) not in TWEET_FIELDS or not isinstance(row[TWEET], str) for row in x):
        odd = next((row for row in words if len(row) not in TWEET_FIELDS), words[0])
        raise UnknownSampleError(f"found {_look(odd)}; {ALLOWED}")
    return "texts"


def _look(sample: Any) -> str:
    """A sample of unknown kind in a few words."""
    if not isinstance(sample, list):
        return f"samples of type {type(sample).__name__}"
    kinds = sorted({type(field).__name__ for field in sample})
    return f"rows of {len(sample)} values of type {', '.join(kinds)}"


def _class_numbers(y: Sequence[Any]) -> NDArray[np.int64]:
    """Labels as whole numbers [N], which may be written with a decimal point or as texts."""
    try:
        found = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty((0, 0))
    if found.ndim != 1 or not ((found >= 0) & (found < 2**53) & (found == np.floor(found))).all():
        raise UnknownSampleError(
            f"labels are not whole numbers from 0, one a sample, but such as {str(y[0])[:40]!r}; store class numbers"
        )
    return found.astype(np.int64)
