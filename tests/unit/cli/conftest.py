"""A run that only looks like one."""

from __future__ import annotations

import pytest

from dqnfed_flwr.engine import run as engine_run
from tests.helpers.cli import FakeRun


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setattr(engine_run, "run", fake)
    return fake
