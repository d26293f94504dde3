"""`guarantee.confirm`: the result is a model that every client has confirmed, also who is late or was not asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._clock import Clock
from benchmarks._queueing import Node, QueueingGrid
from dqnfed_flwr.config import GuaranteeSettings, Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarantee.harm import ceiling
from dqnfed_flwr.record_codec import pack, unpack
from dqnfed_flwr.strategy.beside import CONFIRM, BesideRounds
from dqnfed_flwr.strategy.confirmation import Confirmation
from dqnfed_flwr.types import ClientReply, ClientTask, Float64Array
from dqnfed_flwr.wire import Assignment
from tests.helpers.quadratics import Federation, Quadratic, opposed, spread_out, start_at, strategy
from tests.helpers.runs import TINY

STRICT = GuaranteeSettings(entitlement="0", confirm=2)
CLIENTS = range(3)


def model(number: int) -> torch.Tensor:
    return torch.full((2,), float(number))


def shown(known: Confirmation, number: int, losses: Mapping[int, float], settings: GuaranteeSettings = STRICT) -> None:
    """A model is accepted, and judged by those who name their `losses`."""
    known.accepted(number, model(number), {}, losses)
    known.decide(CLIENTS, (), settings, 0.0)


def begun(losses: Sequence[float] = (1.0, 2.0, 3.0)) -> Confirmation:
    """All have named their losses at the first model."""
    known = Confirmation()
    shown(known, 0, dict(enumerate(losses)))
    return known


def test_a_model_is_confirmed_when_the_last_client_has_named_its_loss() -> None:
    known = begun()
    shown(known, 1, {0: 0.5, 1: 1.0})
    assert known.confirmed is not None
    assert (known.confirmed.round, known.lacking(CLIENTS)) == (0, [2])
    shown(known, 2, {0: 0.4, 1: 0.9, 2: 2.5})  # a newer model; the proposal is still that of round 1
    known.name(1, 2, 2.9)
    known.decide(CLIENTS, (), STRICT, 0.0)
    assert known.confirmed.round == 1
    assert known.losses == {0: 0.5, 1: 1.0, 2: 2.9}
    known.decide(CLIENTS, (), STRICT, 0.0)  # all have named their losses at the newest, too
    assert known.confirmed.round == 2
    assert known.proposal is None


def test_one_refusal_is_enough_and_the_others_are_not_waited_for() -> None:
    known = begun()
    shown(known, 1, {0: 0.5, 1: 2.1})
    assert known.confirmed is not None
    assert (known.confirmed.round, known.refusals, known.proposal) == (0, 1, None)
    assert known.losses == {0: 1.0, 1: 2.0, 2: 3.0}
    assert known.newest is not None
    known.accepted(2, known.newest.theta, {}, {2: 1.0})
    assert known.proposal is None, "what was refused is not tried again"
    assert known.take_back(STRICT) is None
    shown(known, 3, {0: 1.5})
    found = known.take_back(STRICT)
    assert found is not None
    assert torch.equal(found.theta, model(0))
    assert known.together
    assert known.take_back(STRICT) is None
    shown(known, 5, {0: 0.5, 1: 1.9, 2: 2.9})
    assert (known.confirmed.round, known.together) == (5, False)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_is_a_refusal_also_the_first_time(loss: float) -> None:
    known = Confirmation()
    shown(known, 0, {0: 1.0, 1: 1.0, 2: loss})
    assert known.confirmed is None
    assert known.refusals == 1
    assert known.take_back(GuaranteeSettings(confirm=1)) is None, "there is nothing to go back to"


def test_who_says_nothing_is_left_out_by_name_and_held_to_the_last_loss_that_it_named() -> None:
    known = begun()
    known.accepted(1, model(1), {}, {0: 0.5, 1: 1.0})
    known.decide(CLIENTS, [2], STRICT, 0.0)
    assert known.confirmed is not None
    assert (known.confirmed.round, known.unheard) == (1, [2])
    shown(known, 2, {0: 0.5, 1: 1.0, 2: 3.1})
    assert known.confirmed.round == 1
    shown(known, 3, {0: 0.5, 1: 1.0, 2: 2.9})
    assert (known.confirmed.round, known.unheard) == (3, [])


def test_a_loss_may_rise_up_to_a_share_of_the_typical_loss_which_never_rises() -> None:
    half = GuaranteeSettings(entitlement="50%", confirm=2)
    known = begun((0.1, 2.0, 3.9))
    shown(known, 1, {0: 1.0, 1: 1.0, 2: 1.0}, half)  # half of the mean of 2
    assert known.confirmed is not None
    assert known.confirmed.round == 1
    assert known.entitlement == pytest.approx(1.0)
    shown(known, 2, {0: 0.5, 1: 0.5, 2: 0.4}, half)
    shown(known, 3, {0: 0.2, 1: 0.51, 2: 0.2}, half)
    assert known.confirmed.round == 2
    assert known.entitlement == pytest.approx(0.7 / 3)


def test_a_model_that_has_not_moved_is_not_tried_again() -> None:
    known = begun()
    assert known.confirmed is not None
    known.accepted(1, known.confirmed.theta, {}, {})
    assert known.proposal is None


def test_it_survives_a_checkpoint() -> None:
    known = begun()
    known.accepted(1, model(1), {"mean": np.ones(3, np.float32)}, {0: 0.5})
    arrays: dict[str, Any] = {}
    record = json.loads(json.dumps(pack(known, arrays)))
    found = unpack(Confirmation, record, arrays)
    assert json.loads(json.dumps(pack(found, {}))) == record
    assert found.proposal is not None
    assert torch.equal(found.proposal.theta, model(1))


named = st.one_of(st.none(), st.floats(0.0, 10.0), st.just(math.inf))
rounds = st.lists(st.tuples(named, named, named), min_size=1, max_size=12)


@given(rounds, st.sampled_from(["0", "50%", "0.5"]), st.integers(0, 7))
def test_from_one_confirmed_model_to_the_next_nobody_who_spoke_is_harmed(
    said: list[tuple[float | None, ...]], share: str, silent: int
) -> None:
    settings, known, last = GuaranteeSettings(entitlement=share, confirm=2), Confirmation(), -1
    spoken: dict[int, float] = {}
    level = math.inf
    quiet = [client for client in CLIENTS if silent >> client & 1]
    for number, losses in enumerate(said):
        found = {client: loss for client, loss in enumerate(losses) if loss is not None}
        known.accepted(number, model(number), {}, found)
        known.decide(CLIENTS, quiet, settings, 0.0)
        known.take_back(settings)
        if known.confirmed is None or known.confirmed.round == last:
            continue
        last = known.confirmed.round
        assert known.entitlement <= level
        level = known.entitlement
        for client, loss in known.confirmed.losses.items():
            assert math.isfinite(loss)
            assert loss <= ceiling(spoken.get(client, math.inf), level)
        assert {*CLIENTS} - known.confirmed.losses.keys() <= {*quiet}
        spoken |= known.confirmed.losses


class Failing(QueueingGrid):
    """Node 1 fails at the first thing that it is asked beside the rounds."""

    failed = 0

    def finish(self, node: Node, message: Message) -> Message:
        beside = message.metadata.group_id.startswith(CONFIRM)
        if beside and node is self.nodes[1] and not self.failed:
            self.failed += 1
            return Message(Error(1, "its disk is full"), reply_to=message)
        try:
            return super().finish(node, message)
        except RuntimeError as error:
            return Message(Error(1, str(error)), reply_to=message)


class Run:
    """Six clients on nodes that work for a second, and one for 25, or as `slow` says."""

    def __init__(
        self,
        clock: Clock,
        settings: Mapping[str, Any] | None = None,
        *,
        slow: float = 25.0,
        objectives: Sequence[Quadratic] | None = None,
        federation: Federation | None = None,
        then: Callable[[Failing, int], None] = lambda grid, number: None,
    ) -> None:
        self.federation = federation or Federation(objectives or spread_out(6))
        self.grid = Failing(self.federation.app(), len(self.federation.objectives), clock)
        for client, node in self.grid.nodes.items():
            node.seconds = slow if client == 1 else 1.0
        given = {"deadline": 100.0, "rounds": 12, "dqn-fed.form": "anchored", "dqn-fed.absent-rounds": 20}
        confirm = {"quorum": 0.7, "guarantee.confirm": 20}
        self.server = strategy(len(self.federation.objectives), {**given, **confirm, **(settings or {})})
        self.start = np.zeros(len(self.federation.objectives[0].center))
        self.server.start(self.grid, start_at(self.start), evaluate_fn=lambda number, arrays: then(self.grid, number))
        assert self.server.outcome is not None
        self.outcome = self.server.outcome
        assert self.outcome.confirmed is not None
        self.confirmed = self.outcome.confirmed

    def falls(self, client: int) -> bool:
        """Whether a client is better off with the result than with the model at the start."""
        of = self.federation.objectives[client]
        return of.loss(self.outcome.theta.double().numpy()) < of.loss(self.start)


def test_rounds_go_on_while_a_slow_client_is_asked_and_its_word_counts(clock: Clock) -> None:
    run = Run(clock)
    assert run.confirmed.round > 0
    assert (run.confirmed.clients, run.confirmed.unheard) == ([*range(6)], [])
    assert all(map(run.falls, range(6)))
    assert run.grid.failed == 1, "who fails is asked again"
    assert clock.now - 1000 < 12 * 25, "nobody waited for the slow one in every round"
    numbers = [event.notes["confirmed"] for event in run.outcome.events if "confirmed" in event.notes]
    assert numbers == sorted(numbers)


def test_without_it_the_result_is_the_last_model(clock: Clock) -> None:
    run = strategy(6, {"rounds": 3})
    run.start(QueueingGrid(Federation(spread_out(6)).app(), 6, clock), start_at(np.zeros(6)))
    assert run.outcome is not None
    assert run.outcome.confirmed is None
    assert "confirmed" not in run.outcome.events[-1].notes


def test_who_never_answers_is_named_and_the_run_ends(clock: Clock) -> None:
    run = Run(clock, {"rounds": 4}, slow=1e6)
    assert (run.confirmed.clients, run.confirmed.unheard) == ([0, 2, 3, 4, 5], [1])
    assert run.confirmed.words == "the model of round 4, by 5 clients; no word of clients 1"


def test_a_step_that_a_late_client_refuses_is_withdrawn(clock: Clock) -> None:
    given = {**BLIND, "rounds": 12, "guarantee.confirm": 1}
    run = Run(clock, given, objectives=APART, slow=2.0)
    assert "withdrawn" in [event.status for event in run.outcome.events]
    assert (run.outcome.status, run.confirmed.round) == ("stalled", 0)
    assert run.outcome.theta.item() == 0.0
    served = Run(clock, {**given, "guarantee.entitlement": 5}, objectives=APART, slow=2.0)
    assert served.confirmed.round > 0, "a loss of 5 is everybody's to have"
    assert "withdrawn" not in [event.status for event in served.outcome.events]


APART = [Quadratic(np.array([center])) for center in (1.0, -1.0, 1.0)]
BLIND: dict[str, Any] = {"method": "fedavg", "quorum": 0.6, "step.lr": 0.1}
"""Two clients pull to one side, a slow one to the other, which FedAvg does not wait for."""


def test_who_is_away_for_a_moment_is_waited_for(clock: Clock) -> None:
    def away(grid: Failing, number: int) -> None:
        if number in (4, 5):
            (grid.leave if number == 4 else grid.join)(1)

    run = Run(clock, {**BLIND, "rounds": 30}, objectives=APART, slow=2.0, then=away)
    assert (run.confirmed.clients, run.confirmed.unheard) == ([0, 1, 2], [])
    assert not run.falls(0), "one model does no harm to all three, that of the start"


def test_the_newest_model_has_a_deadline_of_its_own_at_the_end(clock: Clock) -> None:
    run = Run(clock, {**BLIND, "rounds": 2, "deadline": 10.0}, objectives=APART, slow=4.5)
    assert (run.confirmed.clients, run.confirmed.unheard) == ([0, 1, 2], [])


class Cracked(Quadratic):
    """Neither loss nor gradient are finite far from the start."""

    def loss(self, theta: Float64Array) -> float:
        """As the other's, near the start."""
        return super().loss(theta) if np.linalg.norm(theta) < 0.5 else math.inf

    def gradient(self, theta: Float64Array) -> Float64Array:
        """As the other's, near the start."""
        return super().gradient(theta) if np.linalg.norm(theta) < 0.5 else np.full_like(theta, np.nan)


def test_a_gradient_that_is_not_finite_is_a_refusal(clock: Clock) -> None:
    some, other, *more = spread_out(6)
    run = Run(clock, objectives=[some, Cracked(other.center, other.curvature), *more])
    assert np.linalg.norm(run.outcome.theta) < 0.5
    assert run.confirmed.clients == [*range(6)]


class Broken(Federation):
    """Client 1 fails at gradients, soon so often that it is left out, and is slow with losses."""

    def reply(self, client: int, given: Assignment) -> ClientReply:
        if client == 1 and given.task.train:
            raise RuntimeError("its card is gone")
        return super().reply(client, given)


def test_who_fails_each_time_holds_nobody_up(clock: Clock) -> None:
    run = Run(clock, {**BLIND, "rounds": 12}, federation=Broken(spread_out(3)), slow=3.0)
    assert run.confirmed.round > 0
    assert {0, 2} <= {*run.confirmed.clients}


@pytest.mark.parametrize(("anchor", "trains"), [("momentum", True), ("fedmuon", False)])
def test_an_anchor_that_sends_a_vector_of_its_own(anchor: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedMuon's momentum is of the newest model, so nobody trains with it at another one."""
    given = {"clients": 6, "rounds": 10, "deadline": 8.0, "quorum": 0.5, "guarantee.confirm": 3}
    settings = {**TINY, **given, "dqn-fed.anchor": anchor, "dqn-fed.absent-rounds": 20}
    tasks, make = [], BesideRounds._task

    def noted(*given: Any, **named: Any) -> ClientTask:
        tasks.append(make(*given, **named))
        return tasks[-1]

    monkeypatch.setattr(BesideRounds, "_task", noted)
    result = run(Settings.from_mapping(settings))
    assert result.confirmed is not None
    assert (result.confirmed.clients, result.confirmed.unheard) == ([*range(6)], [])
    assert any(task.train for task in tasks) == trains


def test_a_stationary_start_is_said_to_be_one() -> None:
    server = strategy(2, {"rounds": 5, "guarantee.confirm": 5})
    server.start(InProcessGrid(Federation(opposed()).app(), 2, {}), start_at(np.zeros(2)))
    assert server.outcome is not None
    assert server.outcome.status == "pareto-stationary"


def test_those_that_are_not_drawn_confirm_too() -> None:
    """In process, where nobody is late: half of the clients are drawn a round."""
    federation = Federation(spread_out(6))
    given = {"participation": 0.5, "rounds": 8, "guarantee.confirm": 5, "dqn-fed.form": "anchored"}
    server = strategy(6, given)
    server.start(InProcessGrid(federation.app(), 6, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    assert server.outcome.confirmed is not None
    assert server.outcome.confirmed.clients == [*range(6)]
    assert server.outcome.confirmed.round > 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"guarantee.tolerate": 1}, "guarantee.tolerate: found 1"),
        ({"step.judge": "held-out", "split.validation-fraction": 0.2}, "step.judge: found 'held-out'"),
        ({"early-stopping": 3, "split.validation-fraction": 0.2}, "early-stopping: found 3"),
        ({"privacy.mode": "masked"}, "privacy.mode: found 'masked'"),
        ({"method": "fedcorr"}, "guarantee.confirm: found 1, but stages of fedcorr"),
    ],
)
def test_what_does_not_go_with_it_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        strategy(6, {**given, "guarantee.confirm": 1})


def test_a_method_without_a_common_model_is_refused() -> None:
    server = strategy(3, {"method": "local", "guarantee.confirm": 1})
    with pytest.raises(ConfigError, match="local makes no common model"):
        server.start(InProcessGrid(Federation(spread_out(3)).app(), 3, {}), start_at(np.zeros(6)))
