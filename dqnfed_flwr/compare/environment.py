"""What a comparison ran on: versions, machine, and the commit of a checkout."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dqnfed_flwr.engine.run import usable_cores
from dqnfed_flwr.version import DISTRIBUTION, package_commit, package_version

LIBRARIES = ("flwr", "torch", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Versions, platform, processor, cores, accelerator and commit, in what JSON can hold."""
    return {
        "versions": {
            DISTRIBUTION: package_version(),
            **{name: version(name) for name in LIBRARIES},
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "accelerator": _accelerator(),
        "commit": package_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
