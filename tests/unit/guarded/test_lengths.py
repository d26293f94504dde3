"""How far a guarded strategy's step goes: against a window of losses, and settled before anybody trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import FedAvg

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import Float64Array
from tests.helpers.guarded_app import CountingGrid, app_on, layered, linear, loss_at, skewed_digits, trained

ROUNDS = 8
SLACK = 1e-6
"""Between the client's float32 loss and the same in float64."""


def losses_of(strategy: Guaranteed, rounds: int) -> Float64Array:
    """Every client's loss at the start and after each round [rounds + 1, K], computed apart from the package."""
    parts, losses = skewed_digits(4), list[list[float]]()

    def look(number: int, arrays: ArrayRecord) -> None:
        losses.append([loss_at(arrays, part, layered) for part in parts])

    trained(strategy, app_on(parts, layered, epochs=4, lr=1.0), len(parts), rounds, model=layered, evaluate=look)
    return np.array(losses)


@pytest.mark.parametrize("probe_first", [False, True])
def test_nobody_comes_above_his_last_three_losses(*, probe_first: bool) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    guarded = Guaranteed(strategy, entitlement="0", window=3, probe_first=probe_first)
    losses = losses_of(guarded, ROUNDS)
    moved = [0, *(event.round for event in guarded.events if event.moved)]
    at = losses[moved]
    for t in range(1, len(at)):
        assert (at[t] <= at[max(0, t - 3) : t].max(axis=0) * (1 + 1e-6) + SLACK).all()
    assert (np.diff(at, axis=0) > 1e-3).any()  # or the window would show nothing
    assert [event.harmed for event in guarded.events] == [[]] * ROUNDS
    assert np.allclose(guarded.events[-1].limits, at[-4:-1].max(axis=0), rtol=1e-5)


class Trainings:
    """A mod that counts how often the user's own function trains."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Count, and go on."""
        self.count += 1
        return call_next(message, context)


def test_nobody_trains_at_a_step_that_is_turned_down() -> None:
    rounds, clients = 5, 5

    def counted(**settings: Any) -> tuple[int, Guaranteed, CountingGrid]:
        """Trainings of a run whose steps are far too long."""
        mod = Trainings()
        app = app_on(skewed_digits(clients, 0), linear, epochs=4, lr=20.0, mods=[mod])
        guarded, grid = (
            Guaranteed(FedAvg(fraction_evaluate=0.0), entitlement="0", **settings),
            CountingGrid(app, clients),
        )
        trained(guarded, app, clients, rounds, grid=grid)
        assert len(grid.exchanges) == sum(event.cost.exchanges for event in guarded.events)
        return mod.count, guarded, grid

    wasteful, plain, _ = counted()
    lost = sum(event.cost.misses for event in plain.events[:-1])  # nobody trains after the last round
    assert lost > 0
    assert wasteful == (rounds + lost) * clients
    count, guarded, grid = counted(probe_first=True)
    assert count == rounds * clients
    assert all(event.moved for event in guarded.events)
    assert any(event.cost.misses for event in guarded.events)
    # to train and to test, each once a round; another length than the first, if any, is tested where the next trains
    assert len(grid.exchanges) in (2 * rounds, 2 * rounds + 1)


@pytest.mark.parametrize(("given", "key"), [({"window": 0}, "guarantee.window"), ({"probe_first": 3}, "probe-first")])
def test_what_is_out_of_range_is_refused(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Guaranteed(FedAvg(), **given)
