"""What a client may claim of itself, and how little it must come to: no run ends, no model is lost, no file grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecordValues, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import LONGEST_DETAIL
from dqnfed_flwr.strategy.collect import REPEATED, TIMES
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import ClientReply, Evaluation
from tests.helpers.bad_replies import figure
from tests.helpers.grids import Meddling
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

CLIENTS, BAD = 6, 3


def run(app: Any, settings: Mapping[str, Any] | None = None) -> Outcome:
    server = strategy(CLIENTS, {"rounds": 4, **(settings or {})})
    server.start(InProcessGrid(app, CLIENTS, {}), start_at(np.zeros(6), server.settings.dtype))
    assert server.outcome is not None
    return server.outcome


def drops(outcome: Outcome) -> list[list[tuple[int, str]]]:
    return [[(drop.client, drop.reason) for drop in event.dropped] for event in outcome.events]


class Claiming(Federation):
    """One client answers the query with other properties."""

    changes: Mapping[str, ConfigRecordValues] = MappingProxyType({})

    def describe(self, message: Message, context: Context) -> Message:
        """Lie."""
        reply = super().describe(message, context)
        if context.node_config["partition-id"] == BAD:
            reply.content.config_records[wire.PROPERTIES].update(self.changes)
        return reply


def claiming(changes: Mapping[str, ConfigRecordValues]) -> ClientApp:
    federation = Claiming(spread_out(CLIENTS))
    federation.changes = changes
    return federation.app()


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": str(2**63 + 1)},
        {"partition": -7},
        {"num-examples": 0},
        {"num-examples": 10**12},
        {"num-classes": 0},
        {"num-classes": 2**31 - 1},
        {"dim": -1},
    ],
)
def test_a_node_that_is_not_what_it_can_be_takes_no_part(changes: dict[str, ConfigRecordValues]) -> None:
    outcome = run(claiming(changes), {"deadline": 0.5, "participation": 0.5})
    assert outcome.status == "finished"
    assert all(set(event.participants) < set(range(CLIENTS)) - {BAD} for event in outcome.events)


class Sliding(Federation):
    """One client names a factor at which its loss falls, and refuses it when it is tried."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Refuse."""
        reply = super().reply(client, given)
        task = given.task
        if client != BAD or reply.probe is None:
            return reply
        named = task.factor / 2 if task.halvings else None
        loss = 2 * task.reference_loss
        told = replace(reply.probe, loss=loss, holds=False, grown_holds=None, back_factor=named, back_loss=0.0)
        return replace(reply, probe=told)


def test_one_that_breaks_its_promises_holds_up_nobody() -> None:
    outcome = run(Sliding(spread_out(CLIENTS)).app())
    assert outcome.status == "finished"
    assert drops(outcome) == [[(BAD, "contradiction")]] * 4
    assert outcome.events[0].factor > 0
    assert sum(event.cost.exchanges for event in outcome.events) < 25
    assert [event.improved_ratio for event in outcome.events[:3]] == pytest.approx([1 - 1 / CLIENTS] * 3)


class Resting(Federation):
    """In round 2 one client has a gradient of zero, and the replies of the others are unfit."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Be at a minimum, or useless."""
        reply = super().reply(client, given)
        if given.task.round != 2 or reply.row is None:
            return reply
        return replace(reply, row=np.zeros(6)) if client == BAD else replace(reply, rate=-1.0)


def test_a_few_do_not_end_a_run() -> None:
    outcome = run(Resting(spread_out(CLIENTS)).app(), {"rounds": 3})
    assert [event.status for event in outcome.events] == ["converged", "stationary", "converged"]
    assert outcome.status == "finished"
    assert len(drops(outcome)[1]) == CLIENTS


@pytest.mark.parametrize("method", ["vred", "semi-vred"])
def test_a_step_that_is_no_number_is_not_taken(method: str) -> None:
    app = Meddling(Federation(spread_out(CLIENTS)).app(), BAD, figure("loss", 1e59))
    outcome = run(app, {"method": method, "dtype": "float32"})
    assert [event.status for event in outcome.events] == ["not-finite"] * 4
    assert outcome.theta.tolist() == [0.0] * 6
    assert outcome.status == "stalled"


@pytest.mark.parametrize("loss", [0.0, 1e-12])
def test_a_loss_without_room_to_fall_bounds_nobody(loss: float) -> None:
    app = Meddling(Federation(spread_out(CLIENTS)).app(), BAD, figure("loss", loss))
    outcome = run(app, {"step.max-fall": 0.1, "rounds": 5})
    assert all(event.status != "unjudged" for event in outcome.events)
    assert all(event.factor > 1e-3 for event in outcome.events)


def _long_key(reply: Message) -> Message:
    reply.content["x" * 100_000] = MetricRecord({})
    return reply


def test_long_words_are_not_written_down() -> None:
    app = Meddling(Federation(spread_out(CLIENTS)).app(), BAD, _long_key)
    outcome = run(app)
    for event in outcome.events:
        assert {drop.reason for drop in event.dropped} == {"extra-key" if event.round <= TIMES else REPEATED}
        assert max(len(drop.detail) for drop in event.dropped) <= LONGEST_DETAIL + 10
    outcome = run(claiming({"version": "v" * 100_000}), {"deadline": 0.5})
    assert [[drop.reason for drop in event.dropped] for event in outcome.events] == [["other-version"]] * 4
    assert len(outcome.events[0].dropped[0].detail) < 500


class Untested(Federation):
    """One client has no test samples."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Count nothing."""
        reply = super().reply(client, given)
        return replace(reply, test=Evaluation(0, 0, 1e9)) if client == BAD and reply.test else reply


def test_a_client_without_test_samples_has_no_part_in_the_test_loss() -> None:
    event, *_ = run(Untested(spread_out(CLIENTS)).app(), {"evaluate-every": 1, "rounds": 2}).events
    assert event.evaluated.test is not None
    assert BAD not in event.evaluated.test
    assert event.evaluated.test_loss < 100


def test_a_run_with_too_few_clients_for_its_liars_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("dqnfed_flwr.strategy.hearing.log", lambda level, text, *words: told.append(text % words))
    for tolerate in (2, 3):
        run(Federation(spread_out(CLIENTS)).app(), {"guarantee.tolerate": tolerate})
    cut = [line for line in told if line.startswith("guarantee.tolerate")]
    assert cut == ["guarantee.tolerate: found 3; at most 2 of the 6 clients asked in a round can be overruled"]
