"""Tell glibc to keep freed memory: vectors of the model's size are allocated and freed many times a round."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, LARGEST = 1 << 29, 1 << 26
"""Free bytes at the top of the heap before they go back to the system, and the largest block taken from the heap."""


@cache
def keep_freed_memory() -> bool:
    """Have the allocator keep what is freed, so that its pages need not be faulted in anew.

    Returns
    -------
    bool
        Whether it did; it does nothing but with glibc on Linux.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_TRIM_THRESHOLD, KEPT) and libc.mallopt(M_MMAP_THRESHOLD, LARGEST))
