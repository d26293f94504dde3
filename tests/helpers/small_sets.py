"""Public image sets, published with fewer and smaller images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS, Size


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, size: Size) -> None:
    """Let the torchvision set `name` be of this size."""
    monkeypatch.setitem(TORCHVISION_SETS, name, replace(TORCHVISION_SETS[name], size=size))
