"""What tests of the strategy share."""

from __future__ import annotations

import pytest

from benchmarks._clock import Clock
from dqnfed_flwr.strategy import beside, client_registry, exchange


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of exchanges, of what is asked beside them and of the registry, which passes when somebody sleeps."""
    clock = Clock()
    for module in (exchange, client_registry, beside):
        monkeypatch.setattr(module, "time", clock)
    return clock
