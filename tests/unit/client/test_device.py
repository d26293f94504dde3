from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from dqnfed_flwr.client.device import VARIABLES, choose_device, prepare_torch
from dqnfed_flwr.errors import ConfigError


def test_auto_takes_the_best_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto", "float32").type == "mps"
    assert choose_device("auto", "float64").type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto", "float32") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert choose_device("auto", "float64") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("name", "found"),
    [("gpu", "no device"), ("xpu", "not supported"), ("cuda:3", "2 CUDA devices"), ("mps", "not available")],
)
def test_unknown_and_absent_devices_are_refused(name: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device: found '{name}'.*{found}.*use auto, cpu, cuda, cuda:N or mps"):
        choose_device(name, "float32")
    assert choose_device("cuda:1", "float32") == torch.device("cuda:1")


def test_mps_has_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="use float32 or device cpu"):
        choose_device("mps", "float64")


def test_threads_are_set_explicitly() -> None:
    before = torch.get_num_threads()
    try:
        prepare_torch(1, torch.device("cpu"))
        assert torch.get_num_threads() == 1
        prepare_torch(0, torch.device("cpu"))
        assert torch.get_num_threads() == os.cpu_count()
    finally:
        torch.set_num_threads(before)


KEPT = """
import sys
import numpy as np
from dqnfed_flwr.client.device import give_freed_memory_back

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
