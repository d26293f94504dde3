"""Where a client computes: device, threads, what becomes of freed memory, and the switches that fix the bits."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import Literal

import torch

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.run import RunSettings

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Torch's dtypes by the setting `dtype`."""
DEVICE_KINDS = ("cpu", "cuda", "mps")
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""With which the owner of the process sets this by himself."""
FROM_BYTES = 1 << 16
_M_MMAP_THRESHOLD = -3


def choose_device(name: str, dtype: Literal["float32", "float64"]) -> torch.device:
    """Turn the setting `device` into a device that is there and can hold `dtype`; `ConfigError` if there is none.

    `auto` is CUDA, else Apple's MPS, which has no float64, else the CPU; other names are torch's, such as `cuda:1`.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        if torch.backends.mps.is_available() and dtype == "float32":
            return torch.device("mps")
        return torch.device("cpu")
    allowed = "use auto, cpu, cuda, cuda:N or mps"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: found {name!r}, which is no device; {allowed}") from None
    if device.type not in DEVICE_KINDS:
        raise ConfigError(f"device: found {name!r}, which is not supported; {allowed}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: found {name!r}, but {torch.cuda.device_count()} CUDA devices are there; {allowed}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device: found {name!r}, but MPS is not available here; {allowed}")
    if device.type == "mps" and dtype == "float64":
        raise ConfigError("dtype: found 'float64' with device 'mps', which has none; use float32 or device cpu")
    return device


def prepare_torch(threads: int, device: torch.device, *, fused: bool = True) -> None:
    """Fix what the bits of a result depend on: the number of threads, and on CUDA the choice of kernels.

    0 `threads` take every core, explicitly, so that all engines agree. Float32 products on CUDA are made in float32 (no
    TF32): curvature pairs are differences of gradients. Without `fused`, attention goes without fused kernels: they
    cannot be differentiated twice, and on CUDA their gradients are not deterministic, as torch warns. The switch is
    for the whole process: were it turned for single passes, those of other threads would change their bits.
    """
    if not fused:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    wanted = threads or os.cpu_count() or 1
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False


def may_fuse(run: RunPlan, device: torch.device) -> bool:
    """Whether attention may take torch's fused kernels: not where a run differentiates twice, on CUDA only if asked."""
    return not run.differentiates_twice and (device.type != "cuda" or run.settings.local.fused_attention)


def rows_stay(settings: RunSettings, device: torch.device) -> bool:
    """Whether a client leaves its row on its device until the bytes are needed, by the setting `rows.device`."""
    return settings.rows.device == "device" or (settings.rows.device == "auto" and device.type == "cuda")


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
