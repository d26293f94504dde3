"""Whose rows make a step: who is heard, muted, set aside or cut, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.adversary import Hostile
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.guarantee.overrule import (
    APART_ROUNDS,
    CONTRADICTION,
    DRAWS,
    MUTED,
    OVERRULED,
    SET_ASIDE,
    TWO_LOSSES,
    Standing,
)
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import ZERO_GRADIENT, RoundRows
from dqnfed_flwr.schema.groups import LONGEST_NORM
from dqnfed_flwr.strategy.collect import OF_THE_MODEL, REPEATED, TIMES, Collected
from dqnfed_flwr.strategy.hearing import Hearing, decide_hearing
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.solve import make_batch
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ClientReply, Float64Array, Probe
from tests.helpers.attacks import ATTACKS
from tests.helpers.hearings import everybody
from tests.helpers.quadratics import Federation, Quadratic, opposed, spread_out, start_at, strategy
from tests.helpers.rounds import round_rows

CLIENTS, BAD = 6, 3
ALIKE = np.array([[1.0, 0.1], [1.0, -0.1], [1.0, 0.2], [1.0, -0.2]])


def hearing(
    rows: Sequence[Sequence[float]] | np.ndarray[Any, Any] = ALIKE,
    *,
    losses: Mapping[int, float] | None = None,
    caught: Mapping[int, str] | None = None,
    standing: Standing | None = None,
    round_number: int = 1,
    model: int = 0,
    guaranteed: bool = True,
    held: RowSet | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Hearing:
    """Of clients 0, 1, ... with these rows and losses of 1; further participants have no row."""
    values = np.asarray(rows, np.float64)
    if held is None:
        held = round_rows(values).held
    slots = {client: client for client in range(len(values))}
    losses = losses or dict.fromkeys(slots, 1.0)
    replies = dict.fromkeys(slots, ClientReply(1))
    theta = torch.zeros(1)
    return decide_hearing(
        Collected(replies, replies, RoundRows(held, tuple(slots)), losses=dict(losses), caught=dict(caught or {})),
        Schedule({}, tuple(losses), (), (), round_number),
        RunState(theta, theta, {}, standing=standing if standing is not None else Standing(), moves=model),
        resolve(Settings.from_mapping({"clients": len(values), "guarantee.entitlement": 0, **(settings or {})})),
        guaranteed=guaranteed,
    )


def test_everybody_with_a_row_is_heard_and_everybody_with_a_loss_takes_part() -> None:
    found = hearing(losses={5: 2.0, 0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0})
    assert list(found.losses) == [0, 1, 2, 3, 5]
    assert (found.heard, found.unheard, found.voteless) == ((0, 1, 2, 3), (), (5,))
    assert (found.dropped, found.cuts, found.aside, found.muted) == ([], {}, {}, {})


def test_other_rules_than_probed_hear_everybody_and_promise_nothing() -> None:
    opposed = [*ALIKE, [-1.0, 0.0]]
    standing = Standing()
    found = hearing(
        opposed, caught={0: "both"}, standing=standing, settings={"step-rule": "newton", "guarantee.tolerate": 1}
    )
    assert (found.heard, found.muted, found.aside, found.entitlement) == ((0, 1, 2, 3, 4), {}, {}, 0.0)
    assert standing == Standing()


def test_one_that_contradicts_itself_is_a_participant_without_row_and_vote() -> None:
    standing = Standing()
    found = hearing(caught={1: "7 samples; the node registered 5"}, standing=standing, round_number=4)
    assert (found.heard, found.unheard, found.voteless) == ((0, 2, 3), (1,), (1,))
    assert [(drop.client, drop.reason, drop.detail) for drop in found.dropped] == [
        (1, "contradiction", "7 samples; the node registered 5")
    ]
    assert 1 in found.losses
    later = hearing(standing=standing, round_number=4 + MUTED - 1)
    assert (later.heard, later.voteless) == ((0, 2, 3), (1,))
    assert later.muted[1].startswith(f"not heard until round {4 + MUTED - 1}")
    assert hearing(standing=standing, round_number=4 + MUTED).heard == (0, 1, 2, 3)


def test_two_losses_of_one_model_are_a_contradiction_with_both_numbers() -> None:
    standing = Standing()
    hearing(standing=standing, model=3)
    assert standing.said == dict.fromkeys(range(4), (3, 1.0))
    same = hearing(losses={0: 1.0 + 1e-6, 1: 1.0, 2: 1.0, 3: 1.0}, standing=standing, model=3)
    assert same.muted == {}
    other = hearing(losses={0: 1.0, 1: 1.5, 2: 1.0, 3: 1.0}, standing=standing, model=3)
    assert other.muted == {1: f"{TWO_LOSSES}: it reported loss 1, and later 1.5; {DRAWS}"}
    moved = hearing(losses={0: 2.0, 1: 2.5, 2: 2.0, 3: 2.0}, standing=standing, model=4)
    assert list(moved.muted) == [1]  # of another model any loss may be true; client 1 is not heard yet


def test_the_entitlement_is_of_those_that_are_believed_and_never_rises() -> None:
    standing = Standing()
    losses = {0: 1.0, 1: 2.0, 2: 3.0, 3: 1000.0}
    share = {"guarantee.entitlement": "50%"}
    assert hearing(losses=losses, caught={3: "lies"}, standing=standing, settings=share).entitlement == pytest.approx(
        1.0
    )
    assert hearing(
        standing=standing, losses=dict.fromkeys(range(4), 9.0), round_number=20, model=9, settings=share
    ).entitlement == pytest.approx(1.0)
    tolerant = {**share, "guarantee.tolerate": 1}
    assert hearing(losses=losses, settings=tolerant).entitlement == pytest.approx(1.0)  # the largest does not count
    assert hearing(losses=losses, settings={"guarantee.entitlement": 0.25}).entitlement == 0.25


def test_slack_is_what_is_left_to_the_entitlement() -> None:
    replies = {k: ClientReply(1, loss=loss, rate=1.0) for k, loss in enumerate((0.0, 0.5, 1.0, 3.0))}
    batch = make_batch(replies, everybody(replies, entitlement=1.0), round_rows(ALIKE), 1, 1.0)
    assert batch.slack.tolist() == [1.0, 0.5, 0.0, 0.0]


OPPOSED = [*ALIKE, [-1.0, 0.05]]


def test_without_liars_to_tolerate_nobody_is_set_aside() -> None:
    assert hearing(OPPOSED).aside == {}
    assert hearing(OPPOSED, guaranteed=False, settings={"guarantee.tolerate": 1}).aside == {}


def test_a_row_that_opposes_the_others_is_set_aside_and_its_client_keeps_the_vote() -> None:
    found = hearing(OPPOSED, settings={"guarantee.tolerate": 1})
    assert (found.heard, found.unheard, found.voteless) == ((0, 1, 2, 3), (4,), ())
    assert [(drop.client, drop.reason) for drop in found.dropped] == [(4, "set-aside")]


def test_all_that_are_not_heard_are_no_more_than_may_lie() -> None:
    tolerant = {"guarantee.tolerate": 1}
    assert hearing(OPPOSED, caught={0: "lies"}, settings=tolerant).aside == {}
    losses = dict.fromkeys(range(6), 1.0)  # client 5 has no row
    assert hearing(OPPOSED, losses=losses, settings=tolerant).aside == {}
    assert list(hearing(OPPOSED, losses=losses, settings={"guarantee.tolerate": 2}).aside) == [4]


def test_a_claimant_keeps_its_row_where_a_common_step_is_left() -> None:
    rows = [*ALIKE, [-1.0, 0.7]]  # most of the way against the others, but not quite
    tolerant = {"guarantee.tolerate": 1}
    aside = hearing(rows, settings=tolerant).aside
    claiming = hearing(rows, standing=Standing(claims={4}), settings=tolerant)
    assert list(aside) == [4]
    assert claiming.claimants == frozenset({4})
    assert claiming.aside == {}
    hopeless = hearing([*ALIKE, [-1.0, 0.0]], standing=Standing(claims={4}), settings=tolerant)
    assert list(hopeless.aside) == [4]  # it keeps its vote, which nobody can take away
    assert hopeless.claimants == frozenset({4})


def test_one_set_aside_twice_in_a_row_has_no_part_in_the_mean_for_some_rounds() -> None:
    standing, tolerant = Standing(), {"guarantee.tolerate": 1}
    first = hearing(OPPOSED, standing=standing, settings=tolerant)
    assert (first.apart, first.disowned) == (frozenset[int](), frozenset[int]())
    second = hearing(OPPOSED, standing=standing, round_number=2, settings=tolerant)
    assert (second.apart, second.disowned) == (frozenset({4}), frozenset({4}))
    after = hearing([*ALIKE, [1.0, 0.0]], standing=standing, round_number=2 + APART_ROUNDS, settings=tolerant)
    assert (after.heard, after.apart, after.disowned) == ((0, 1, 2, 3, 4), frozenset({4}), frozenset[int]())
    assert (
        hearing([*ALIKE, [1.0, 0.0]], standing=standing, round_number=3 + APART_ROUNDS, settings=tolerant).apart
        == frozenset()
    )


def test_who_is_apart_is_heard_but_has_no_share() -> None:
    replies = {client: ClientReply(10 * (client + 1), loss=1.0, rate=1.0) for client in range(2)}
    rows = round_rows(ALIKE[:2])
    shares = make_batch(replies, everybody(replies, apart=frozenset({1})), rows, 1, 1.0).shares
    assert shares.tolist() == [1.0, 0.0]
    alone = make_batch(replies, everybody(replies, apart=frozenset({0, 1})), rows, 1, 1.0).shares
    assert_allclose(alone, [1 / 3, 2 / 3])  # a mean of nobody is none


@pytest.mark.parametrize(("tolerate", "longest"), [(0, LONGEST_NORM), (1, 1.0)])
def test_a_row_too_long_is_cut_with_its_rate(tolerate: int, longest: float) -> None:
    rows = np.array([[1.0, 0.0]] * 4 + [[100.0, 0.0]])
    held = RowSet(5, 2, torch.float64)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    found = hearing(rows, held=held, settings={"guarantee.tolerate": tolerate})
    assert found.cuts == pytest.approx({4: longest / 100})
    assert_allclose(held.copies([4])[0], [longest, 0.0])
    replies = {client: ClientReply(10, loss=1.0, rate=float(rows[client, 0] ** 2)) for client in range(5)}
    batch = make_batch(replies, found, round_rows(np.array([held.copies([k])[0] for k in range(5)])), 1, 1.0)
    assert_allclose(batch.rates, np.diag(batch.gram))  # the curvature that it stands for is the same


def test_rows_of_a_method_without_a_promise_stay_as_long_as_they_came() -> None:
    rows = np.array([[1.0, 0.0]] * 4 + [[100.0, 0.0]])
    assert hearing(rows, guaranteed=False, settings={"guarantee.tolerate": 1}).cuts == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_row_scales_its_products(dtype: torch.dtype) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 7))
    held = RowSet(3, 7, dtype)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    held.scale(1, 0.25)
    expected = rows * np.array([[1.0], [0.25], [1.0]])
    assert_allclose(held.gram(range(3)), expected @ expected.T, rtol=1e-5)
    assert_allclose(held.copies([1])[0], expected[1], rtol=1e-6)


def attacked(kind: str, **settings: Any) -> Outcome:
    attack, _ = ATTACKS[kind]
    server = strategy(CLIENTS, {"rounds": 4, **settings})
    server.start(
        InProcessGrid(Hostile(Federation(spread_out(CLIENTS)).app(), (BAD,), attack), CLIENTS, {}),
        start_at(np.zeros(6)),
    )
    assert server.outcome is not None
    return server.outcome


@pytest.mark.parametrize(("kind", "tolerate"), [*((kind, 0) for kind in ATTACKS), *((kind, 1) for kind in ATTACKS)])
def test_an_unfit_reply_costs_its_client_row_and_vote_alone(kind: str, tolerate: int) -> None:
    outcome = attacked(kind, **{"guarantee.tolerate": tolerate})
    assert outcome.status == "finished"
    given_up = ATTACKS[kind][1] not in (*OF_THE_MODEL, CONTRADICTION, ZERO_GRADIENT)
    for event in outcome.events:
        gone = given_up and event.round > TIMES
        assert event.factor > 0
        aside = {drop.client for drop in event.dropped if drop.reason == SET_ASIDE}
        assert len(aside) <= gone * tolerate  # it is known by name then, and one of the others may lie
        assert [*event.votes.heard] == [client for client in (0, 1, 2, 4, 5) if client not in aside]
        assert (BAD in event.participants) == (kind != "NaN loss" and not gone)
        assert event.asked == CLIENTS - gone
        left_out = [(client, reason) for client, reason in named(event) if client not in aside]
        assert left_out == [(BAD, REPEATED if gone else ATTACKS[kind][1])]


@pytest.mark.parametrize("kind", ["zero", "1e6 samples"])
def test_who_is_not_heard_is_evaluated_like_the_others(kind: str) -> None:
    for event in attacked(kind, **{"evaluate-every": 1}).events:
        assert sorted(event.evaluated.test or {}) == list(range(CLIENTS))


def test_a_claim_of_more_samples_than_its_node_registered_names_both() -> None:
    first = attacked("1e6 samples").events[0].dropped[0]
    assert (first.client, first.detail) == (BAD, "1000000 samples; the node said 13 first")


Change = Callable[[ClientReply, wire.Assignment], ClientReply]


class Dishonest(Federation):
    """Some clients make something else of their honest replies."""

    changes: dict[int, Change]

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """The honest reply, or what the client makes of it."""
        reply = super().reply(client, given)
        return self.changes[client](reply, given) if client in self.changes else reply


def trained(objectives: list[Quadratic], changes: dict[int, Change], start: Any = None, **settings: Any) -> Outcome:
    federation = Dishonest(objectives)
    federation.changes = changes
    server = strategy(len(objectives), settings)
    dim = len(objectives[0].center)
    first = start_at(np.zeros(dim) if start is None else start)
    server.start(InProcessGrid(federation.app(), len(objectives), {}), first)
    assert server.outcome is not None
    return server.outcome


def named(event: RoundEvent) -> list[tuple[int, str]]:
    return [(drop.client, drop.reason) for drop in event.dropped]


SHORT: dict[str, Any] = {"step.start": 0.1, "step.grow-every": 0}
"""Steps so short that they suit all honest clients for some rounds."""
ONE: dict[str, Any] = {"guarantee.tolerate": 1}


def no_row(reply: ClientReply, given: wire.Assignment) -> ClientReply:
    """A gradient that is no number."""
    del given
    return reply if reply.row is None else replace(reply, row=reply.row * np.nan)


class Scripted:
    """Words of one that accepts ("y"), refuses ("n") or asks for half ("h"), the last letter again and again.

    No two of its claims exclude each other: its loss is the same wherever it is asked twice, and where it rises ahead
    it rises behind as well.
    """

    def __init__(self, script: str) -> None:
        self._script, self._losses = list(script), dict[bytes, float]()

    def __call__(self, reply: ClientReply, given: wire.Assignment) -> ClientReply:
        """Its words at this model."""
        task, model, probe = given.task, np.asarray(given.theta).tobytes(), None
        if reply.probe is not None:
            word = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            low, high = 0.9 * task.reference_loss, 2 * task.reference_loss + 1
            said = {
                "y": Probe(low, True),
                "n": Probe(high, False, behind_loss=high if task.halvings else None),
                "h": Probe(high, False, back_factor=task.factor / 2, back_loss=low),
            }
            probe = said[word]
            self._losses[model] = probe.loss
        return replace(reply, loss=self._losses.get(model, reply.loss), probe=probe)


def test_one_without_a_usable_row_has_no_veto_and_is_counted_where_it_is_harmed() -> None:
    away = [*spread_out(4), Quadratic(-np.ones(6))]
    honest = trained(spread_out(4), {}, **SHORT)
    outcome = trained(away, {4: no_row}, **SHORT)
    np.testing.assert_allclose(np.asarray(outcome.theta), np.asarray(honest.theta), rtol=1e-10)
    for event in outcome.events:
        assert (event.participants, event.votes.heard) == ([0, 1, 2, 3, 4], (0, 1, 2, 3))
        assert named(event) == [(4, "not-finite")]
        assert event.losses_after[4] > event.losses_before[4]
        assert event.harmed == [4]
        assert event.improved_ratio == event.unharmed_ratio == 4 / 5


def test_one_without_a_usable_row_keeps_the_run_going_where_the_others_are_at_an_end() -> None:
    aside = Quadratic(np.array([0.0, 1.0]))
    outcome = trained([*opposed(), aside], {2: no_row})
    assert outcome.status == "pareto-stationary"  # said at the last round: it never moved, and that is why
    assert [event.status for event in outcome.events] == ["stationary"] * 3
    assert [event.votes.heard for event in outcome.events] == [(0, 1)] * 3


def other_loss(reply: ClientReply, given: wire.Assignment) -> ClientReply:
    """Refuse with a loss that its gradient's pass contradicts."""
    del given
    return reply if reply.probe is None else replace(reply, probe=Probe(123.0, False))


def other_word(reply: ClientReply, given: wire.Assignment) -> ClientReply:
    """Refuse a candidate at which its loss fell."""
    del given
    return reply if reply.probe is None else replace(reply, probe=Probe(reply.probe.loss, False))


@pytest.mark.parametrize("tolerate", [0, 1])
@pytest.mark.parametrize(("change", "words"), [(other_loss, "123"), (other_word, "its test fails")])
def test_a_reply_that_contradicts_itself_has_no_vote_in_its_own_exchange(
    change: Change, words: str, tolerate: int
) -> None:
    settings: dict[str, Any] = {"rounds": 2, "guarantee.tolerate": tolerate, "step.start": 0.25}
    honest = trained(spread_out(5), {}, **settings).events[0]
    event = trained(spread_out(5), {3: change}, **settings).events[0]
    assert (event.cost.misses, event.cost.exchanges, event.factor) == (
        honest.cost.misses,
        honest.cost.exchanges,
        honest.factor,
    )
    assert (event.votes.heard, event.votes.overruled) == ((0, 1, 2, 3, 4), ())
    assert named(event) == [(3, CONTRADICTION)]
    assert words in event.dropped[0].detail


def test_both_losses_are_named() -> None:
    outcome = trained(spread_out(5), {3: other_loss}, rounds=2)
    detail = outcome.events[0].dropped[0].detail
    assert detail.startswith(f"{TWO_LOSSES}: its probe has loss 123, its gradient's pass ")
    said = float(detail.partition("gradient's pass ")[2].partition(";")[0])
    assert said == pytest.approx(outcome.events[1].losses_before[3], rel=1e-5)


def against(*rows: Float64Array) -> Change:
    """Minus the sum of these rows."""

    def change(reply: ClientReply, given: wire.Assignment) -> ClientReply:
        del given
        return reply if reply.row is None else replace(reply, row=-np.sum(rows, axis=0))

    return change


def test_with_none_to_tolerate_one_client_stops_all_and_the_certificate_names_it() -> None:
    objectives = [Quadratic(np.ones(2))] * 4
    outcome = trained(objectives, {3: against(-np.ones(2))}, **{"guarantee.tolerate": 0})
    assert (outcome.status, len(outcome.events)) == ("pareto-stationary", 1)
    (event,) = outcome.events
    assert (event.status, event.factor) == ("stationary", 0.0)
    assert event.certificate.weights[3] == pytest.approx(0.5)
    assert sum(event.certificate.weights.values()) == pytest.approx(1.0)
    assert event.certificate.distance == pytest.approx(0.0, abs=1e-9)
    assert (event.votes.overruled, event.dropped, event.votes.heard) == ((), [], (0, 1, 2, 3))


def test_with_none_to_tolerate_one_that_refuses_ends_the_run_as_a_failed_search() -> None:
    # Its own row is 0, so that nothing that it refuses contradicts a gradient.
    resting = [*[Quadratic(np.ones(2))] * 3, Quadratic(np.zeros(2))]
    outcome = trained(resting, {3: Scripted("n")}, **{"guarantee.tolerate": 0})
    assert (outcome.status, len(outcome.events)) == ("line-search-failed", 1)
    (event,) = outcome.events
    assert (event.status, event.factor) == ("line-search-failed", 0.0)
    assert (event.votes.refused, event.votes.overruled) == ((3,), ())
    assert event.certificate.distance == pytest.approx(1.0)
    assert outcome.theta.tolist() == [0.0, 0.0]


def test_one_that_always_refuses_is_overruled_in_every_other_round_and_holds_up_nobody() -> None:
    outcome = trained(spread_out(4), {3: Scripted("n")}, rounds=6, **SHORT, **ONE)
    assert outcome.status == "finished"
    assert [event.votes.overruled for event in outcome.events] == [(3,), ()] * 3
    assert [event.status for event in outcome.events] == ["converged", "contested"] * 3
    assert [event.factor for event in outcome.events] == [0.1, 0.0] * 3
    for event in outcome.events:
        assert event.participants == [*event.votes.heard] == [0, 1, 2, 3]
        assert event.votes.refused == (3,)
        assert named(event) == ([(3, OVERRULED)] if event.moved else [])
        assert event.harmed == ([3] if event.moved else [])
    theta = np.asarray(outcome.theta)
    for objective in spread_out(4)[:3]:
        assert objective.loss(theta) < 0.8 * objective.loss(np.zeros(6))


def test_in_a_contested_round_another_is_not_overruled_either() -> None:
    changes: dict[int, Change] = {2: Scripted("ynnny"), 3: Scripted("ny")}
    events = trained(spread_out(5), changes, rounds=5, **SHORT, **ONE).events
    assert [event.votes.overruled for event in events] == [(3,), (), (2,), (), ()]
    assert [event.votes.refused for event in events] == [(3,), (2,), (2,), (), ()]
    assert [event.status for event in events] == ["converged", "contested", "converged", "converged", "converged"]
    assert [event.moved for event in events] == [True, False, True, True, True]


def test_one_that_is_set_aside_keeps_its_vote() -> None:
    # Three equal clients, and one that sends the opposite of their row and asks for half of the first step.
    opposite, asks = against(-np.ones(2)), Scripted("hy")
    changes: dict[int, Change] = {3: lambda reply, given: asks(opposite(reply, given), given)}
    event = trained([Quadratic(np.ones(2))] * 4, changes, rounds=1, **SHORT, **ONE).events[0]
    assert named(event) == [(3, SET_ASIDE)]
    assert (event.participants, event.votes.heard) == ([0, 1, 2, 3], (0, 1, 2))
    assert (event.votes.refused, event.votes.overruled, event.cost.misses) == ((3,), (), 1)
    assert (event.factor, event.improved_ratio) == (0.05, 1.0)


class Buffered(Federation):
    """Clients send buffers that local work has trained."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Add them."""
        reply = super().reply(client, given)
        return replace(reply, buffers={"norm.running_mean": np.ones(2)}) if given.task.train else reply


def test_buffers_that_local_work_does_not_change_are_not_taken() -> None:
    server = strategy(CLIENTS, {"method": "fedsgd", "retries": 0})
    start = wire.encode_model(np.zeros(6), {"norm.running_mean": np.zeros(2)})
    with pytest.raises(QuorumError, match="extra-key"):
        server.start(InProcessGrid(Buffered(spread_out(CLIENTS)).app(), CLIENTS, {}), start)
