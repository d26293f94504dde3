"""Runs whose rows, steps and model lie on a device, of every method: on the processor, and on a card that is not there.

Such a card has tensors whose memory NumPy cannot read, and which compute with none of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.engine.run import run
from dqnfed_flwr.linalg.row_store import DeviceRows
from dqnfed_flwr.strategy import strategy
from tests.contract.test_checkpoints import RUNS
from tests.helpers.card import DEVICE, Card, OnCard
from tests.helpers.runs import TINY, WHOLE

SHORT: Mapping[str, Any] = {**TINY, **WHOLE, "clients": 4, "participation": 0.5, "rounds": 4, "local.batch-size": 16}
RESUMED = ("dqn-fed", "momentum", "server-lbfgs", "fedadam", "fedavgm", "fednl", "relaxing", "buffers")


def on_card(settings: Mapping[str, Any], **how: Any) -> tuple[Any, Card]:
    """A run whose server is on a card; clients compute on the processor."""
    with Card() as card, pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy, "rows_device", lambda *_: DEVICE)
        return run({**settings, "rows.device": "device"}, jobs=1, **how), card


@pytest.mark.parametrize("case", RUNS)
def test_a_card_has_the_bits_of_a_device_and_the_figures_of_the_host(tmp_path: Path, case: str) -> None:
    settings = {**SHORT, **RUNS[case]}
    plain = run({**settings, "rows.device": "device"}, jobs=1)
    found, _ = on_card({**settings, "output": str(tmp_path)})
    assert not isinstance(found.theta, torch.Tensor)
    assert np.array_equal(found.theta, plain.theta)
    host = run(settings, jobs=1)
    assert np.linalg.norm(found.theta - host.theta) <= 1e-5 * np.linalg.norm(host.theta)


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_on_a_card_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path, case: str) -> None:
    settings = {**SHORT, "participation": 1.0, **RUNS.get(case, {"method": case})}
    whole, _ = on_card(settings)
    on_card({**settings, "rounds": 2, "output": str(tmp_path)})
    rest, _ = on_card({**settings, "output": str(tmp_path)}, resume=True)
    assert np.array_equal(rest.theta, whole.theta)


@pytest.mark.parametrize(("method", "sent"), [("dqn-fed", 2), ("fedavg", 1), ("server-lbfgs", 1)])
def test_an_exchange_brings_what_clients_of_the_processor_read_to_the_host_and_no_other_vector(
    method: str, sent: int
) -> None:
    """The candidate, and the step where one of them tries another length, once for all; and the model at the end."""
    found, card = on_card({**SHORT, "participation": 1.0, "method": method, "evaluate-every": 0})
    exchanges = sum(event.cost.exchanges for event in found.events)
    dim = found.theta.size
    assert exchanges < card.copied.count(dim) <= sent * exchanges + 1
    assert all(size == dim or size <= 64 for size in card.copied)


def test_what_a_card_that_is_not_there_refuses() -> None:
    with Card():
        there = DeviceRows(2, 3, np.dtype(np.float32), DEVICE).vector(0)
        assert isinstance(there, OnCard)
        with pytest.raises(AssertionError, match="beside one of the card"):
            there + torch.ones(3)
        with pytest.raises(AssertionError, match="is read as if"):
            there.numpy()
