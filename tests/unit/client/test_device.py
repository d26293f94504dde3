from __future__ import annotations

import os

import pytest
import torch

from dqnfed_flwr.client.device import choose_device, prepare_torch
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
