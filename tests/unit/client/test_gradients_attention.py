"""The switch of torch's attention kernels belongs to the whole process, so passes of other threads depend on it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dqnfed_flwr.client.worker import may_fuse
from dqnfed_flwr.config import Settings

SCRIPT = """
import numpy as np, torch
from torch.nn.attention import SDPBackend
from dqnfed_flwr.client.worker import Worker
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
settings = Settings.from_mapping({overrides} | {{"data": "digits", "clients": 4, "local.threads": 1}})
worker = Worker(settings, 0, load_client(settings, 0), 10, {{}})
fused = torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
with worker.models.lend() as worker._loss.model, worker._loss.twice_differentiable():
    pass
after = torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
print(fused, after)
"""


@pytest.mark.parametrize(
    ("overrides", "fused"),
    [
        ({}, True),
        ({"curvature.kind": "hvp", "dqn-fed.form": "one-sided"}, False),
        ({"method": "fednew"}, False),
        ({"method": "local-newton"}, False),
    ],
)
def test_runs_that_differentiate_twice_use_one_kernel_in_all_threads(overrides: dict[str, str], fused: bool) -> None:
    script = SCRIPT.format(overrides=overrides)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(fused)] * 2


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
    assert may_fuse(Settings.from_mapping(overrides), torch.device(device)) is fused
