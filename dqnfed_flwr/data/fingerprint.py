"""What tells a data set from another one of the same name: a digest of its contents."""

from __future__ import annotations

import hashlib
import zlib
from functools import cache

from dqnfed_flwr.data.npz import checksums
from dqnfed_flwr.data.sets import is_function, npz_file, read_arrays

DIGITS = 16


def fingerprint(name: str) -> str | None:
    """Tell the contents of the set `name` in 16 hexadecimal digits.

    It is made of the names, sizes and CRC-32 of all arrays, which the directory of an .npz file lists: no sample is
    read, and it does not matter where the file lies, when it was written, or whether it is compressed. Sets of other
    forms have such a file, see `npz_file`. How samples are dealt out is not in it: settings say that.

    Parameters
    ----------
    name : str
        As `dqnfed_flwr.data.sets.read_arrays` takes it, or `module:function`.

    Returns
    -------
    str | None
        None for data that a function of the user's gives, which may be other data at every call.

    Raises
    ------
    DataError
        If the set is unknown, or its file missing or unfit.
    """
    if is_function(name):
        return None
    path = npz_file(name)
    return _of_package(name) if path is None else _digest(checksums(path))


@cache
def _of_package(name: str) -> str:
    """Of a set that an installed package brings."""
    arrays = {key: values.tobytes() for key, values in read_arrays(name).items()}
    return _digest({key: (len(content), zlib.crc32(content)) for key, content in arrays.items()})


def _digest(found: dict[str, tuple[int, int]]) -> str:
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:DIGITS]
