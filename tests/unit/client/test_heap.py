from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from dqnfed_flwr.client.heap import VARIABLES

KEPT = """
import sys
import numpy as np
from dqnfed_flwr.client.heap import give_freed_memory_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if sys.argv[1] == "back":
    give_freed_memory_back()
np.ones(1 << 18)  # 2 MiB: glibc keeps what is smaller from now on
before = resident()
arrays = [np.ones(1 << 17) for _ in range(100)]
arrays = arrays[9::10]  # those that stay lie between the others, so that the heap cannot shrink
print(resident() - before)
"""


def kept(how: str, **environment: str) -> int:
    """Bytes that a process holds more when it has made arrays of 100 MiB and freed 90 of them."""
    own = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    words = [sys.executable, "-c", KEPT, how]
    done = subprocess.run(words, env={**own, **environment}, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_freed_arrays_go_back_at_once() -> None:
    assert kept("usual") > 90e6
    assert kept("back") < 20e6


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_who_has_set_it_by_himself_is_left_alone() -> None:
    assert kept("back", MALLOC_MMAP_THRESHOLD_="33554432") > 90e6
