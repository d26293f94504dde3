"""The abstract methods under Flower's own loop, compared with the loop of the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError, QuorumError
from dqnfed_flwr.strategy import client_registry
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import Float64Array
from tests.helpers.bad_replies import BAD_TRAINING
from tests.helpers.clock import Clock
from tests.helpers.grids import ChangingGrid, Meddling, ShuffledGrid
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy
from tests.helpers.transport import TransportGrid

CLIPPED: dict[str, Any] = {"step-rule": "clipped", "step.radius": 0.4}
ROUNDS = 3


def inherited(grid: InProcessGrid, settings: Mapping[str, Any], for_rounds: int = ROUNDS) -> Result:
    return Strategy.start(strategy(4, settings), grid, start_at(np.zeros(6)), num_rounds=for_rounds)


def grid(federation: Federation | None = None) -> InProcessGrid:
    return InProcessGrid((federation or Federation(spread_out(4))).app(), 4, {})


def theta(result: Result) -> Float64Array:
    return np.asarray(wire.decode_model(result.arrays)[0])


@pytest.mark.parametrize("rule", ["newton", "fixed", "clipped"])
@pytest.mark.parametrize("form", ["two-sided", "one-sided", "anchored"])
def test_both_loops_reach_the_same_model(rule: str, form: str) -> None:
    settings = {"step-rule": rule, "dqn-fed.form": form, "step.radius": 0.4, "step.lr": 0.1, "step.decay": 0.5}
    own = strategy(4, {**settings, "rounds": ROUNDS}).start(grid(), start_at(np.zeros(6)))
    assert np.array_equal(theta(inherited(grid(), settings)), theta(own))


def test_it_takes_two_exchanges_a_round() -> None:
    federation = Federation(spread_out(4))
    inherited(grid(federation), CLIPPED | {"evaluate-every": 2})
    tasks = [given.task for client, given in federation.asked if client == 0]
    assert [(task.round, task.train, task.evaluate) for task in tasks] == [
        (1, True, False),
        (2, True, False),
        (3, False, True),  # after round 2, before round 3
        (3, True, False),
    ]


def test_the_numbers_of_exchanges_rise_so_that_clients_can_pair_models() -> None:
    federation = Federation(spread_out(4))
    inherited(grid(federation), CLIPPED)
    assert [given.task.exchange for client, given in federation.asked if client == 0 and given.task.train] == [1, 2, 3]
    assert {given.task.num_classes for client, given in federation.asked} == {2}


def test_figures_come_with_every_round() -> None:
    result = inherited(grid(), CLIPPED)
    assert set(result.train_metrics_clientapp) == set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    losses = [result.train_metrics_clientapp[number]["loss"] for number in (1, 2, 3)]
    assert losses == sorted(losses, reverse=True)
    assert isinstance(result.evaluate_metrics_clientapp[1], MetricRecord)
    assert float(str(result.evaluate_metrics_clientapp[1]["angle_deg"])) > 0


def test_order_and_transport_make_no_difference() -> None:
    straight = theta(inherited(grid(), CLIPPED))
    app = Federation(spread_out(4)).app()
    assert np.array_equal(theta(inherited(ShuffledGrid(app, 4, 1), CLIPPED)), straight)
    assert np.array_equal(theta(inherited(TransportGrid(app, 4, {}), CLIPPED)), straight)


def test_more_rounds_than_the_settings_name_are_trained_for() -> None:
    assert len(inherited(grid(), CLIPPED | {"rounds": 2}, for_rounds=5).train_metrics_clientapp) == 5


@pytest.mark.parametrize("kind", ["an exception", "a gradient with NaN", "no figures", "a negative rate"])
def test_an_unfit_reply_costs_its_client_alone(kind: str) -> None:
    app = Meddling(Federation(spread_out(4)).app(), 2, BAD_TRAINING[kind][0])
    three = [objective for client, objective in enumerate(spread_out(4)) if client != 2]
    alone = Strategy.start(
        strategy(3, CLIPPED), InProcessGrid(Federation(three).app(), 3, {}), start_at(np.zeros(6)), num_rounds=ROUNDS
    )
    found = theta(inherited(InProcessGrid(app, 4, {}), CLIPPED))
    np.testing.assert_allclose(found, theta(alone), rtol=1e-10)


def test_a_round_with_too_few_replies_changes_nothing() -> None:
    app = Meddling(Federation(spread_out(4)).app(), 2, BAD_TRAINING["an exception"][0])
    result = inherited(InProcessGrid(app, 4, {}), CLIPPED | {"min-clients": 4})
    assert not result.train_metrics_clientapp
    assert not result.arrays


def test_a_lost_node_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(client_registry, "time", clock)
    lossy = ChangingGrid(
        Federation(spread_out(4)).app(), 4, lambda grid: grid.leave(3) if grid.exchanges == 1 else None
    )
    inherited(lossy, CLIPPED | {"deadline": 20})
    assert clock.slept < 21
    with pytest.raises(QuorumError):
        inherited(InProcessGrid(Federation(spread_out(4)).app(), 3, {}), CLIPPED | {"min-clients": 4})


class Straying(InProcessGrid):
    """Goes through its messages twice, as Flower's own grid does, and adds a reply that nobody asked for."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies, and another's."""
        for message in messages:
            assert message.has_content()
        replies = super().send_and_receive(messages, timeout=timeout)
        if replies:
            other = Message(RecordDict(), 99, "train")
            other.metadata.__dict__["_message_id"] = "999"
            replies.append(Message(RecordDict(), reply_to=other))
        return replies


def test_a_reply_to_no_message_is_counted_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("dqnfed_flwr.strategy.flower_loop.log", lambda level, text, *given: told.append(text % given))
    result = inherited(Straying(Federation(spread_out(4)).app(), 4, {}), CLIPPED)
    assert set(told) == {"A reply of node 99 answers no open message of this round; discarded"}
    assert [result.train_metrics_clientapp[number]["discarded"] for number in (1, 2, 3)] == [1, 1, 1]
    assert np.array_equal(theta(result), theta(inherited(grid(), CLIPPED)))


def test_a_client_that_answers_twice_is_heard_once() -> None:
    class Stammering(InProcessGrid):
        """Hands the last client's reply over again, with a gradient that is none."""

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            """The replies, and one more."""
            replies = [*super().send_and_receive(messages, timeout=timeout)]
            if replies and replies[-1].metadata.message_type == "train":
                again = deepcopy(replies[-1])
                again.content.clear()
                replies.append(again)
            return replies

    result = inherited(Stammering(Federation(spread_out(4)).app(), 4, {}), CLIPPED)
    assert result.train_metrics_clientapp[1]["discarded"] == 1
    assert np.array_equal(theta(result), theta(inherited(grid(), CLIPPED)))


def test_a_reply_is_known_by_the_message_that_it_answers() -> None:
    class Renamed(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if reply.metadata.message_type == "train":
                    reply.metadata.__dict__["_src_node_id"] = 99
            return replies

    renamed = Renamed(Federation(spread_out(4)).app(), 4, {})
    assert np.array_equal(theta(inherited(renamed, CLIPPED)), theta(inherited(grid(), CLIPPED)))


def test_clients_hear_of_the_step_before_where_they_need_it() -> None:
    federation = Federation(spread_out(4))
    inherited(grid(federation), CLIPPED | {"curvature.kind": "secant", "curvature.previous": "recomputed"})
    given = [given for client, given in federation.asked if client == 0 and given.task.train]
    assert given[0].step is None
    for before, now in pairwise(given):
        assert now.step is not None
        np.testing.assert_allclose(now.theta + now.task.factor * now.step, before.theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [{"step-rule": "probed"}, {"method": "fedmdfg", "step-rule": "search"}])
def test_a_rule_that_probes_is_refused(rule: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"inherited loop cannot probe; use newton, fixed or clipped, or call DQNFed\.start"
    ):
        inherited(grid(), rule)


def test_replies_without_a_question_are_refused() -> None:
    with pytest.raises(ConfigError, match="before its messages were configured"):
        DQNFed(strategy(2).settings).aggregate_train(1, [])
