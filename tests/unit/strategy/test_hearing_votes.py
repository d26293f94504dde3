"""The vote on a candidate: contradictions, and who may be overruled; then runs in which a client always refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr import wire
from dqnfed_flwr.config import GuaranteeSettings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, DRAWS, LADDERS, TWO_LOSSES, Standing
from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.hearing import catch_liars, overrule_refusals
from dqnfed_flwr.strategy.state import PendingStep
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import ClientReply, Probe
from tests.helpers.pendings import pending_step_of
from tests.helpers.quadratics import Federation, Quadratic, opposed, spread_out, start_at, strategy

HOLDS = Probe(0.5, True)
HALF = Probe(2.0, False, back_factor=0.5, back_loss=0.9)
NOTHING = Probe(2.0, False, behind_loss=0.5)
ONE = GuaranteeSettings(tolerate=1)


def pending(*, clients: int = 4, factor: float = 1.0, halvings: int = 2, **changes: Any) -> PendingStep:
    return pending_step_of(*range(clients), **{"ladder": Ladder(factor, halvings=halvings), **changes})


def caught(step: PendingStep, votes: Mapping[int, Probe], **more: Any) -> bool:
    return catch_liars(step, votes, {}, Standing(), **more)


def test_one_that_refuses_whole_ladders_against_its_gradient_is_caught_the_second_time() -> None:
    step, votes, standing = pending(), {0: HOLDS, 1: NOTHING, 2: HOLDS, 3: HOLDS}, Standing()
    for times in range(1, LADDERS):
        assert not catch_liars(step, votes, {}, standing)
        assert step.tried.blocked == {1: times}
    assert catch_liars(step, votes, {}, standing)
    assert step.votes.caught == (1,)
    (drop,) = step.dropped
    assert (drop.client, drop.reason) == (1, "contradiction")
    assert drop.detail == (
        "its gradient has its loss of 1 fall by 0.25 at factor 0.25, yet no factor down to it suits it, and 0.5 as far "
        "behind"
    )
    assert standing.is_muted(1, step.round)


@pytest.mark.parametrize(("slope", "times"), [(0.0, 0), (0.5, 0), (0.51, LADDERS)])
def test_a_slope_that_rounding_may_have_made_contradicts_nobody(slope: float, times: int) -> None:
    """Rows in few bits have slopes of either sign where that of the gradient is near 0."""
    step = pending(slopes={0: 1.0, 1: slope, 2: 1.0, 3: 1.0}, doubts={1: 0.5})
    for _ in range(LADDERS):
        caught(step, {0: HOLDS, 1: NOTHING})
    assert step.tried.blocked.get(1, 0) == times
    assert step.votes.caught == ((1,) if times else ())


def test_one_with_a_row_of_zeros_is_caught_where_its_loss_is_not_flat() -> None:
    step = pending(slopes={0: 1.0, 1: 0.0, 2: 1.0, 3: 1.0})
    assert [caught(step, {0: HOLDS, 1: NOTHING}) for _ in range(LADDERS)] == [False] * (LADDERS - 1) + [True]
    assert (
        step.dropped[0].detail
        == "its gradient has its loss of 1 stay, yet it is 2 along the step, and 0.5 as far behind"
    )


@pytest.mark.parametrize("behind", [1.5, 1.0, None])
def test_one_whose_loss_is_flat_may_refuse_to_the_end(behind: float | None) -> None:
    step = pending(slopes=dict.fromkeys(range(4), 0.0))
    votes = {0: HOLDS, 1: replace(NOTHING, behind_loss=behind)}
    assert not any(caught(step, votes, last_chance=last) for last in (False, False, True))


def test_once_caught_it_is_not_caught_again_though_nobody_else_has_a_vote() -> None:
    step = pending(clients=1)
    votes = {0: NOTHING}
    assert [caught(step, votes) for _ in range(4)] == [False, True, False, False]
    assert (step.votes.caught, len(step.dropped)) == ((0,), 1)
    assert step.votes.counted(votes) == votes


@pytest.mark.parametrize(
    ("probe", "changes"),
    [
        (replace(NOTHING, behind_loss=1.5), {}),  # sharp: it rises on both sides
        (NOTHING, {"slopes": dict.fromkeys(range(4), -1.0)}),  # its own gradient says that the step harms it
        (NOTHING, {"entitlement": 1.0}),  # it may rise up to there, and the gradient says nothing of that
        (HALF, {}),  # a rung suits
        (replace(NOTHING, loss=1.0), {}),  # what it says is no rise
        (NOTHING, {"ladder": Ladder(1.0)}),  # no ladder was asked for
    ],
)
def test_no_contradiction_is_found_where_there_is_none(probe: Probe, changes: Mapping[str, Any]) -> None:
    step = pending(**changes)
    assert not any(caught(step, {0: HOLDS, 1: probe}) for _ in range(4))
    assert (step.votes.caught, step.dropped) == ((), [])


def test_where_no_factor_is_left_a_sharp_loss_is_no_excuse() -> None:
    step = pending()
    assert caught(step, {0: HOLDS, 1: replace(NOTHING, behind_loss=1.5)}, last_chance=True)
    assert step.votes.caught == (1,)


def test_one_that_refuses_the_factor_it_named_is_caught_with_both_losses() -> None:
    step = pending()
    assert not caught(step, {0: HOLDS, 1: HALF})
    assert step.tried.promised == {1: (0.5, 0.9)}
    step.ladder = Ladder(0.5, halvings=2)
    assert caught(step, {0: HOLDS, 1: Probe(1.5, False, back_factor=0.25, back_loss=0.9)})
    words = "at factor 0.5 it named loss 0.9, and refuses it with loss 1.5"
    assert step.dropped[0].detail == f"{TWO_LOSSES}: {words}; {DRAWS}"


def test_a_reply_that_contradicts_itself_costs_the_vote_too() -> None:
    step, standing = pending(), Standing()
    assert catch_liars(step, {0: HOLDS, 1: HOLDS}, {1: "this and that", 3: "absent from the vote"}, standing)
    assert (step.votes.caught, step.dropped[0].detail) == ((1,), "this and that")


def refusals(
    step: PendingStep, votes: Mapping[int, Probe], settings: GuaranteeSettings = ONE, **more: Any
) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """Whether somebody was overruled now, who is, and who refused."""
    done = overrule_refusals(step, votes, more.pop("standing", Standing()), settings, **more)
    return done, step.votes.overruled, step.votes.refused


VOTES = {0: HOLDS, 1: NOTHING, 2: HOLDS, 3: HOLDS}


def test_with_nobody_to_tolerate_everybody_has_a_veto() -> None:
    assert refusals(pending(), VOTES, GuaranteeSettings()) == (False, (), (1,))


def test_as_many_as_may_lie_are_overruled_and_named() -> None:
    step = pending()
    assert refusals(step, VOTES) == (True, (1,), (1,))
    assert [(drop.client, drop.reason, drop.detail) for drop in step.dropped] == [
        (1, "overruled", "its loss would go from 1 to 2; the others accept the step")
    ]
    assert step.votes.counted(VOTES) == {0: HOLDS, 2: HOLDS, 3: HOLDS}
    assert refusals(pending(), {**VOTES, 3: NOTHING}) == (False, (), (1, 3))
    assert refusals(pending(clients=5), {**VOTES, 3: NOTHING}, GuaranteeSettings(tolerate=2))[1] == (1, 3)


@pytest.mark.parametrize("out", ["caught", "aside", "overruled"])
def test_all_who_do_not_count_are_no_more_than_may_lie(out: str) -> None:
    assert not refusals(pending_step_of(*range(4), **{out: (0,)}), VOTES)[0]
    assert refusals(pending_step_of(*range(4), **{out: (1,)}), VOTES)[0]


def test_fewer_than_half_are_overruled_whatever_the_settings_say() -> None:
    many = GuaranteeSettings(tolerate=9)
    assert refusals(pending(clients=2), {0: HOLDS, 1: NOTHING}, many)[1] == ()
    assert refusals(pending(clients=3), {0: HOLDS, 1: NOTHING, 2: HOLDS}, many)[1] == (1,)


def test_nobody_is_overruled_in_a_contested_round() -> None:
    step = pending()
    step.scale = replace(step.scale, contested=True)
    assert refusals(step, VOTES) == (False, (), (1,))


def test_half_the_factor_is_granted_once() -> None:
    votes = {**VOTES, 1: HALF}
    assert refusals(pending(), votes) == (False, (), (1,))
    assert refusals(pending(misses=1), votes)[1] == (1,)
    assert refusals(pending(), votes, last_chance=True)[1] == (1,)
    assert refusals(pending(), votes, standing=Standing(refused={1}))[1] == (1,)


class Refusing(Federation):
    """One client refuses every factor, and its words about losses fit together."""

    liar = 3

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Say that the loss doubles."""
        reply = super().reply(client, given)
        if client != self.liar or reply.probe is None:
            return reply
        twice = 2 * given.task.reference_loss
        probe = Probe(twice, False, behind_loss=twice if given.task.halvings else None)
        return replace(reply, loss=twice if given.task.train else reply.loss, probe=probe)


class Creeping(Refusing):
    """It names the smallest rung of each ladder."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Ask for the least; at what it asked for, be content."""
        task = given.task
        if client != self.liar or not task.probe:
            return Federation.reply(self, client, given)
        honest, named = Federation.reply(self, client, given), task.factor * 0.5**task.halvings
        if self.named == (task.round, task.factor):
            fell = task.reference_loss * (1 - 1e-6)
            return replace(honest, loss=fell if task.train else honest.loss, probe=Probe(fell, True))
        self.named = (task.round, named)
        reply = super().reply(client, given)
        fell = task.reference_loss * (1 - 1e-6)
        assert reply.probe is not None
        return replace(reply, probe=replace(reply.probe, back_factor=named, back_loss=fell))

    named: tuple[int, float] = (0, 0.0)


def run(federation: Federation, **settings: Any) -> Outcome:
    clients = len(federation.objectives)
    server = strategy(clients, {"rounds": 12, **settings})
    server.start(InProcessGrid(federation.app(), clients, {}), start_at(np.zeros(len(federation.objectives[0].center))))
    assert server.outcome is not None
    return server.outcome


def test_with_nobody_to_tolerate_opposite_gradients_end_the_run_with_the_proof() -> None:
    outcome = run(Federation(opposed()))
    assert outcome.status == "pareto-stationary"
    (event,) = outcome.events
    assert event.certificate.weights == pytest.approx({0: 0.5, 1: 0.5})
    assert event.certificate.distance == pytest.approx(0.0, abs=1e-9)


def test_with_one_to_tolerate_one_that_always_refuses_holds_up_nobody_and_is_named() -> None:
    outcome = run(Refusing(spread_out(4)), **{"guarantee.tolerate": 1})
    assert outcome.status == "finished"
    assert len(outcome.events) == 12
    moved = [event for event in outcome.events if event.moved]
    assert len(moved) >= 6  # a server that never moves has not met its promise
    for event in moved:
        honest = [event.participants.index(client) for client in (0, 1, 2)]
        assert all(event.losses_after[k] <= event.losses_before[k] * (1 + 1e-6) for k in honest)
    first, last = outcome.events[0], moved[-1]
    assert sum(last.losses_after[:3]) < 0.7 * sum(first.losses_before[:3])
    named = Counter(drop.client for event in outcome.events for drop in event.dropped)
    assert (named.most_common(1)[0][0], outcome.events[0].dropped[0].client) == (3, 3)
    contradicting = {drop.client for event in outcome.events for drop in event.dropped if drop.reason == CONTRADICTION}
    assert contradicting <= {3}  # an honest client can be overruled for a round, and does not contradict itself


@pytest.mark.parametrize("liar", [Refusing, Creeping])
def test_nobody_is_overruled_in_two_rounds_in_a_row(liar: type[Refusing]) -> None:
    outcome = run(liar(spread_out(4)), **{"guarantee.tolerate": 1, "rounds": 20})
    for event, following in pairwise(outcome.events):
        assert len(event.votes.overruled) <= 1
        assert not set(event.votes.overruled).intersection(following.votes.overruled)
        assert not (event.status == "contested" and following.status == "contested")
    assert any(event.votes.overruled for event in outcome.events)
    assert all(event.moved for event in outcome.events if event.status not in ("contested", "stationary"))
    assert sum(event.moved for event in outcome.events) >= 8
    first, last = outcome.events[0], [event for event in outcome.events if event.moved][-1]
    assert sum(last.losses_after[:3]) < 0.1 * sum(first.losses_before[:3])


def test_one_that_is_honest_and_outvoted_is_served_the_next_time() -> None:
    # Clients 0 to 2 pull one way; client 3 pulls the other one, nearly: it is overruled or set aside, then heard.
    others = [Quadratic(np.array([1.0, 0.1 * k])) for k in (-1, 0, 1)]
    outcome = run(Federation([*others, Quadratic(np.array([-1.0, 0.8]))]), **{"guarantee.tolerate": 1, "rounds": 12})
    unheard = [3 in event.votes.overruled or 3 not in event.votes.heard for event in outcome.events]
    assert any(unheard)
    assert not any(drop.reason == CONTRADICTION for event in outcome.events for drop in event.dropped)
    harmed = [set(event.harmed) for event in outcome.events]
    assert any(3 in clients for clients in harmed)
    assert all(not one & other for one, other in pairwise(harmed))  # nobody is harmed in two rounds in a row
