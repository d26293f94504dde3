"""What a node has given in a run, on its disk.

Flower starts a process for each message, with the memory that the client had when it last replied: processes for
messages of one time know nothing of each other, and a node that begins anew knows nothing at all. What may be given
once stands here before it is given, so that it is given once whatever a process remembers.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dqnfed_flwr.masked.secrets import KEY

LINE = 2 * KEY


class Given:
    """A file of what was said first about each thing, both digests of `KEY` bytes; made if need be, with its folder.

    Raises
    ------
    OSError
        If it cannot be made, or, later, be read or written: then nothing is to be given.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        self._path = path

    def setdefault(self, about: bytes, said: bytes) -> bytes:
        """What stands of a thing: what was said of it first, else `said`, which is on the disk when this returns."""
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            file.seek(0)
            lines = file.read()
            whole = len(lines) - len(lines) % LINE
            for at in range(0, whole, LINE):
                if lines[at : at + KEY] == about:
                    return lines[at + KEY : at + LINE]
            file.truncate(whole)  # the rest is of a process that ended before it gave anything
            file.write(about + said)
            file.flush()
            os.fsync(file.fileno())
        return said
