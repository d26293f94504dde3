"""What holds for every test: one thread a process, quiet libraries, no calls home."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
from collections.abc import Iterator

for variable, value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ[variable] = value  # read by numpy, torch, Flower and Ray when they are imported

from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402  # after the variables it reads
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from dqnfed_flwr.guarded.strategy import Guaranteed  # noqa: E402
from dqnfed_flwr.strategy.strategy import GradientStrategy  # noqa: E402
from dqnfed_flwr.telemetry.events import RoundEvent  # noqa: E402
from tests.helpers.warm import LOADED, warm_commands  # noqa: E402

# The same examples in every run, and as many as a law of a few numbers needs.
settings.register_profile("few", settings.get_profile("ci"), max_examples=30)

# Flower sets its logger's level when it is imported; a filter outlives that.
logging.getLogger("flwr").addFilter(lambda record: record.levelno >= logging.ERROR)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: to look for garbage in it, as Flower does in every round, takes seconds."""
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20250101)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which `dqnfed` and `python` begin at once."""
    with warm_commands(tmp_path_factory.mktemp("warm")) as path:
        yield path


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers of comparisons be forks of a process that has loaded what they need, and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


LEARNT = ("finished", "early-stopped")
"""Ends with exit status 0, but for `held-out-stationary`, which has it only where the model moved."""


def check_that_it_moved(status: str, events: Sequence[RoundEvent]) -> None:
    """Success means that something was learnt: a run that ends well moved its model."""
    assert status not in LEARNT or not events or any(event.moved for event in events), f"{status}, and never moved"


@pytest.fixture(autouse=True)
def runs_that_end_well_moved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every run of a test, in this process, to that; `@pytest.mark.rests` names a test of one that rests."""
    train, start = GradientStrategy._train, Guaranteed.start
    meant = request.node.get_closest_marker("rests") is not None

    def trained(self: GradientStrategy, *given: Any) -> Any:
        outcome = train(self, *given)
        if not (meant or self._method.inner.rests):
            check_that_it_moved(outcome.status, outcome.events)
        return outcome

    def started(self: Guaranteed, *given: Any, **named: Any) -> Any:
        result = start(self, *given, **named)
        if not meant:
            check_that_it_moved("finished", self.events)
        return result

    monkeypatch.setattr(GradientStrategy, "_train", trained)
    monkeypatch.setattr(Guaranteed, "start", started)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Warnings of a test, in their order: the log hands none on to `caplog`."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    kept, logger = Kept(logging.WARNING), logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    logger.addHandler(kept)
    yield lines
    logger.removeHandler(kept)
