"""Steps that clients judge by their held-out parts: who refused by which test, and how a run ends by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from logging import WARNING
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr import wire
from dqnfed_flwr.config import GuaranteeSettings, Settings, resolve
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarantee.overrule import LADDERS, OVERRULED, Standing
from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.hearing import catch_liars, overrule_refusals
from dqnfed_flwr.strategy.strategy import Outcome
from dqnfed_flwr.types import ClientReply, ClientTask, Probe
from tests.helpers.pendings import pending_step_of
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy

Judge = Callable[[Probe, ClientTask], Probe]
HELD_OUT: dict[str, Any] = {"split.validation-fraction": 0.2, "step.start": 0.1, "step.grow-every": 0}


class Judging(Federation):
    """Clients say of every candidate that suits their training losses what their held-out part says of it."""

    judges: Mapping[int, Judge]

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """The reply, with what the held-out part says."""
        reply = super().reply(client, given)
        if reply.probe is None:
            return reply
        return replace(reply, probe=self.judges.get(client, passes)(reply.probe, given.task))


def passes(probe: Probe, task: ClientTask) -> Probe:
    """Nothing rises."""
    del task
    return replace(probe, held_out=True)


def refuses(probe: Probe, task: ClientTask) -> Probe:
    """The held-out loss rises at every length."""
    del task
    return Probe(probe.loss, False, behind_loss=probe.behind_loss, held_out=False)


def half(probe: Probe, task: ClientTask) -> Probe:
    """It rises at factors above 0.05."""
    if task.factor <= 0.05 or not task.halvings:
        return replace(probe, held_out=True)
    return Probe(probe.loss, False, back_factor=task.factor / 2, back_loss=probe.loss, held_out=False)


def unable(probe: Probe, task: ClientTask) -> Probe:
    """There are too few samples."""
    del task
    return probe


def trained(judges: Mapping[int, Judge], **settings: Any) -> Outcome:
    federation = Judging(spread_out(5))
    federation.judges = judges
    server = strategy(5, {**HELD_OUT, "step.judge": "both", **settings})
    server.start(InProcessGrid(federation.app(), 5, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    return server.outcome


@pytest.mark.parametrize("judge", ["both", "held-out"])
def test_what_one_held_out_part_refuses_is_cut_and_counted(judge: str) -> None:
    outcome = trained({2: half}, **{"step.judge": judge})
    assert outcome.status == "finished"
    first = outcome.events[0]
    assert (first.factor, first.cost.misses) == (0.05, 1)
    assert (first.votes.refused, first.votes.refused_training, first.votes.refused_held_out) == ((2,), (), (2,))
    assert [event.votes.refused for event in outcome.events[1:]] == [(), ()]
    assert all(drop.reason != "contradiction" for event in outcome.events for drop in event.dropped)


def test_refusals_by_training_losses_are_counted_as_such() -> None:
    first = trained({}, **{"step.start": 64.0}).events[0]
    assert first.cost.misses > 0
    assert first.votes.refused == first.votes.refused_training == (0, 1, 2, 3, 4)
    assert first.votes.refused_held_out == ()


def test_where_held_out_parts_refuse_every_length_the_run_is_at_a_normal_end() -> None:
    outcome = trained({1: refuses, 3: refuses}, rounds=9)
    assert (outcome.status, len(outcome.events)) == ("held-out-stationary", 1)
    (event,) = outcome.events
    assert (event.status, event.factor) == ("held-out", 0.0)
    assert (event.votes.refused_held_out, event.votes.refused_training, event.votes.overruled) == ((1, 3), (), ())
    assert event.dropped == []
    assert outcome.theta.tolist() == [0.0] * 6


def test_with_stay_it_tries_again_and_with_relax_the_mean_loss_decides() -> None:
    stays = trained({1: refuses}, **{"step.on-stationary": "stay"})
    assert (stays.status, [event.status for event in stays.events]) == ("held-out-stationary", ["held-out"] * 3)
    relaxes = trained({1: refuses}, **{"step.on-stationary": "relax"})
    assert [event.status for event in relaxes.events] == ["relaxed"] * 3


def test_the_end_is_that_of_the_training_losses_where_they_refuse_as_well() -> None:
    def rises(probe: Probe, task: ClientTask) -> Probe:
        high = 2 * task.reference_loss + 1
        return Probe(high, False, behind_loss=high if task.halvings else None, held_out=True)

    objectives = [*[Quadratic(np.ones(2))] * 3, Quadratic(np.zeros(2))]
    federation = Judging(objectives)
    federation.judges = {1: refuses, 3: rises}
    server = strategy(4, {**HELD_OUT, "step.judge": "both"})
    server.start(InProcessGrid(_lost(federation).app(), 4, {}), start_at(np.zeros(2)))
    assert server.outcome is not None
    assert server.outcome.status == "line-search-failed"


def _lost(federation: Judging) -> Judging:
    """The federation in which the gradient's pass of client 3 has the loss of its probe."""
    answer = federation.reply

    def reply(client: int, given: wire.Assignment) -> ClientReply:
        found = answer(client, given)
        agree = client == 3 and found.probe is not None and given.task.train
        return replace(found, loss=found.probe.loss) if agree and found.probe else found

    federation.reply = reply  # type: ignore[method-assign]
    return federation


def test_one_that_always_refuses_is_overruled_and_named_and_costs_the_others_nothing() -> None:
    outcome = trained({3: refuses}, rounds=4, **{"guarantee.tolerate": 1})
    overruled = [event.votes.overruled for event in outcome.events]
    assert overruled[0] == (3,)
    assert all(() in (one, other) for one, other in pairwise(overruled))
    (drop,) = [drop for drop in outcome.events[0].dropped if drop.reason == OVERRULED]
    assert drop.client == 3
    assert drop.detail.startswith("its held-out part refuses, and its loss would go from ")
    assert outcome.events[0].factor == trained({}, rounds=4).events[0].factor


def test_a_client_without_a_held_out_part_judges_by_training_and_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        "dqnfed_flwr.strategy.step_search.log", lambda kind, text, *_: told.append(text) if kind == WARNING else None
    )
    outcome = trained({2: unable, 4: unable}, **{"step.judge": "held-out"})
    assert [event.votes.unable for event in outcome.events] == [(2, 4)] * 3
    assert [text for text in told if "cannot judge" in text] == told
    assert len(told) == 1
    assert told[0].startswith("Clients 2, 4 cannot judge by a held-out part: ")
    assert trained({2: unable}, **{"step.judge": "training"}).events[0].votes.unable == ()


@pytest.mark.parametrize(
    ("judge", "lie", "words"),
    [
        ("both", Probe(1.0, False, held_out=True), "its test fails"),  # it says that nothing was turned down
        ("both", Probe(1.0, True, held_out=False), "its test holds"),
        ("held-out", Probe(1.0, True, held_out=False), "its test holds"),
        ("both", Probe(1e9, True, held_out=True), "its test holds"),
        ("training", Probe(1.0, False, held_out=False), "its test fails"),  # nobody asked for its held-out part
    ],
)
def test_words_that_exclude_each_other_cost_only_the_vote_of_the_liar(judge: str, lie: Probe, words: str) -> None:
    def lies(probe: Probe, task: ClientTask) -> Probe:
        del task
        return replace(lie, loss=probe.loss if lie.loss == 1 else lie.loss)

    settings: dict[str, Any] = {"step.judge": judge, "rounds": 2}
    honest, event = (trained(judges, **settings).events[0] for judges in ({}, {3: lies}))
    assert (event.factor, event.cost.misses, event.votes.heard) == (
        honest.factor,
        honest.cost.misses,
        honest.votes.heard,
    )
    ((client, reason, detail),) = [(drop.client, drop.reason, drop.detail) for drop in event.dropped]
    assert (client, reason) == (3, "contradiction")
    assert words in detail


def test_what_a_held_out_part_refuses_no_gradient_contradicts() -> None:
    step = pending_step_of(0, 1, ladder=Ladder(1.0, halvings=2))
    by_training = Probe(2.0, False, behind_loss=0.5)
    votes = {0: Probe(0.5, True, held_out=True), 1: replace(by_training, held_out=False)}
    assert not any(catch_liars(step, votes, {}, Standing()) for _ in range(LADDERS + 1))
    assert not catch_liars(step, votes, {}, Standing(), last_chance=True)
    votes[1] = replace(by_training, held_out=True)
    assert catch_liars(step, votes, {}, Standing(), last_chance=True)


def test_a_client_may_refuse_by_either_test_and_counts_for_both() -> None:
    step = pending_step_of(0, 1, 2, ladder=Ladder(1.0, halvings=2))
    for held_out in (True, False, False):
        votes = {0: Probe(0.5, True, held_out=True), 1: Probe(2.0, False, held_out=held_out)}
        overrule_refusals(step, votes, Standing(), GuaranteeSettings())
    assert (step.votes.refused, step.votes.refused_training, step.votes.refused_held_out) == ((1,), (1,), (1,))


@pytest.mark.parametrize("judge", ["held-out", "both"])
def test_without_a_held_out_part_there_is_nothing_to_judge_by(judge: str) -> None:
    with pytest.raises(ConfigError, match=rf"step.judge: found '{judge}', but no client.*validation-fraction above 0"):
        Settings.from_mapping({"step.judge": judge})
    assert not resolve(Settings.from_mapping({"step.judge": judge, "step-rule": "newton"})).judges_held_out


def test_a_word_on_held_out_samples_excuses_nobody_where_none_was_asked_for() -> None:
    """A client that refuses every length against its own gradient is caught, whatever it adds."""
    for judge, contradictions in (("training", True), ("both", False)):
        outcome = trained({2: refuses}, **{"step.judge": judge, "step.on-stationary": "stay"})
        reasons = {drop.reason for event in outcome.events for drop in event.dropped if drop.client == 2}
        assert ("contradiction" in reasons) == contradictions
        assert any(event.votes.refused_held_out for event in outcome.events) != contradictions
