"""What the readers of all forms of published files share: packed files, json, lines, options, samples by client."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dqnfed_flwr.errors import DataError

FormOptions = Mapping[str, str]
Samples = tuple[NDArray[Any], NDArray[Any]]
MOST_UNPACKED = 4 * 2**30
"""Bytes to which a packed file may unpack."""
_OPEN: Mapping[str, Callable[[Path], Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_BEGIN = {".xz": b"\xfd7zXZ", ".gz": b"\x1f\x8b", ".bz2": b"BZh"}
_HALF_NUMBER = re.compile(r"\.|[eE][+-]?")


def by_client(parts: Mapping[str, Mapping[str, Samples]], numbers: DTypeLike) -> dict[str, NDArray[Any]]:
    """Join samples and labels, given by part and client; group g, of dtype `numbers`, is client `group_names[g]`."""
    names = sorted({name for clients in parts.values() for name in clients})
    places = {name: place for place, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {"group_names": np.array(names)}
    for part, clients in parts.items():
        owners = np.array([places[name] for name in clients], dtype=numbers)
        arrays[f"x_{part}"] = np.concatenate([x for x, _ in clients.values()])
        arrays[f"y_{part}"] = np.concatenate([y for _, y in clients.values()])
        arrays[f"groups_{part}"] = np.repeat(owners, [len(y) for _, y in clients.values()])
    return arrays


def number(options: FormOptions, key: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
    """Read an option that is a whole number; DataError if it is none, or not from `least` to `most`."""
    text = options.get(key, str(default))
    if not (text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise DataError(f"data: {key}={text!r}; give a whole number from {least} to {most}, such as {key}={default}")
    return int(text)


def need(paths: Sequence[Path], what: str) -> list[Path]:
    """These paths, all of which must exist; DataError names those that do not, and `what` they are."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"data: missing {', '.join(missing)}; needed is {what}")
    return list(paths)


def unpacked(path: Path) -> bytes:
    """All bytes of a file; of .xz, .gz and .bz2 those that were packed, at most `MOST_UNPACKED`.

    DataError if it is unreadable, cut short, or larger.
    """
    packed = path.suffix in _OPEN
    try:
        with _OPEN[path.suffix](path) if packed else path.open("rb") as file:
            content: bytes = file.read(MOST_UNPACKED + 1 if packed else -1)
    except EOFError as error:
        raise DataError(f"data: {path} is cut short ({error}); fetch it again") from error
    except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"data: {path} cannot be read: {_why_not(path, error)}") from error
    if packed and len(content) > MOST_UNPACKED:
        raise DataError(
            f"data: {path} unpacks to more than {MOST_UNPACKED:,} bytes; if it is right, unpack it yourself"
        )
    return content


def _why_not(path: Path, error: Exception) -> str:
    """Why a file cannot be opened or unpacked, and what to do."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"{error.strerror}; let this user read it"
    with path.open("rb") as file:
        begin = _BEGIN[path.suffix]
        if file.read(len(begin)) != begin:
            return f"it is not packed as {path.suffix} says ({error}); give it the ending of what it is"
    return f"its bytes are damaged ({error}); fetch it again"


def json_of(path: Path, content: bytes) -> Any:
    """What the bytes of a json file hold; DataError tells a file that ends too soon from one that is no json."""
    try:
        return json.loads(content)
    except RecursionError:
        raise DataError(f"data: {path} is json of too many levels; it is no set of a known form") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        if _ends_too_soon(error):
            raise DataError(
                f"data: {path} is cut short, its json has no end ({error}); fetch or make it again"
            ) from error
        raise DataError(f"data: {path} is no json ({error}); save it as json in UTF-8") from error


def _ends_too_soon(error: json.JSONDecodeError | UnicodeDecodeError) -> bool:
    """Whether the fault is that nothing follows."""
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data"
    left = error.doc[error.pos :].strip()
    words = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
    in_word = any(word.startswith(left) and word != left for word in words) or _HALF_NUMBER.fullmatch(left)
    in_text = error.msg.startswith("Unterminated string") or (error.msg.startswith("Invalid \\u") and len(left) < 6)
    return bool(in_word or in_text)


def text_lines(path: Path) -> list[str]:
    """Lines of a file of UTF-8 text, but those that hold nothing but spaces; DataError if it is unreadable."""
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"data: {path} cannot be read: {error.strerror}; let this user read it") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data: {path} is no UTF-8 text ({error}); save it as UTF-8") from error
