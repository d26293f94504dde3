"""The switch of torch's attention kernels belongs to the whole process, so passes of other threads depend on it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from dqnfed_flwr.client.device import may_fuse
from dqnfed_flwr.config import Settings, resolve

SCRIPT = """
import sys, json
import torch
from dqnfed_flwr.client.worker import Worker
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
def fused():
    return torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
for overrides in json.loads(sys.argv[1]):
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    settings = Settings.from_mapping({**overrides, "data": "digits", "clients": 4, "local.threads": 1})
    worker = Worker(settings, 0, load_client(settings, 0), 10, {})
    before = fused()
    with worker.models.lend() as worker._loss.model, worker._loss.twice_differentiable():
        pass
    print(before, fused())
"""
FUSED: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"curvature.kind": "hvp", "dqn-fed.form": "one-sided"}, False),
    ({"method": "fednew"}, False),
    ({"method": "local-newton"}, False),
]


def test_runs_that_differentiate_twice_use_one_kernel_in_all_threads() -> None:
    settings = json.dumps([overrides for overrides, _ in FUSED])
    done = subprocess.run([sys.executable, "-c", SCRIPT, settings], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{fused} {fused}" for _, fused in FUSED]


@pytest.mark.parametrize(
    ("device", "overrides", "fused"),
    [
        ("cpu", {}, True),
        ("cuda", {}, False),
        ("cuda", {"local.fused-attention": True}, True),
        ("cuda", {"local.fused-attention": True, "method": "fednew"}, False),
    ],
)
def test_on_cuda_attention_is_fused_where_the_settings_say_so(
    device: str, overrides: dict[str, str | bool], fused: bool
) -> None:
    """There torch adds up the gradients of its fused kernels in any order."""
    assert may_fuse(resolve(Settings.from_mapping(overrides)), torch.device(device)) is fused
