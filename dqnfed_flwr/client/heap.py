"""Where freed memory goes: the C library keeps it for the next array of the process, or gives it back at once."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""With which the owner of the process sets this by himself."""
FROM_BYTES = 1 << 16
_M_MMAP_THRESHOLD = -3


@cache
def give_freed_memory_back() -> None:
    """Have glibc give freed arrays of `FROM_BYTES` or more back to the system at once, for the rest of the process.

    Without it, glibc raises its own bound with each large array that is freed, up to 32 MiB, and keeps what it has
    freed: a client whose chunks come and go holds one or two more than it uses. Other C libraries, and a process whose
    environment has one of `VARIABLES`, are left alone.
    """
    if any(name in os.environ for name in VARIABLES):
        return
    with suppress(OSError, AttributeError):  # no libc to ask, or none with this call
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, FROM_BYTES)
