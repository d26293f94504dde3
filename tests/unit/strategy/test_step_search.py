"""Models from which no step lowers every loss: recognised, and followed by what the settings say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarantee.overrule import Certificate
from dqnfed_flwr.methods.dqn_fed.anchored import OneSided
from dqnfed_flwr.strategy.strategy import DQNFed, Outcome
from dqnfed_flwr.types import ClientReply, Probe
from tests.helpers.quadratics import Federation, Quadratic, opposed, start_at, strategy
from tests.helpers.runs import Stop, StopAfter

UNEQUAL = [Quadratic(np.array([1.0, 0.0])), Quadratic(np.array([-3.0, 0.0]))]
FORMS = ["one-sided", "anchored"]


def run(federation: Federation | list[Quadratic], start: list[float], **settings: Any) -> Outcome:
    federation = federation if isinstance(federation, Federation) else Federation(federation)
    clients = len(federation.objectives)
    server = strategy(clients, settings)
    server.start(InProcessGrid(federation.app(), clients, {}), start_at(start))
    assert server.outcome is not None
    return server.outcome


@pytest.mark.parametrize("form", FORMS)
def test_opposite_gradients_end_the_run_where_it_began(form: str) -> None:
    outcome = run(opposed(), [0.0, 0.0], **{"dqn-fed.form": form, "rounds": 5})
    assert outcome.status == "pareto-stationary"
    (event,) = outcome.events
    assert (event.status, event.factor, event.step_norm_squared) == ("stationary", 0.0, 0.0)
    assert event.losses_after == event.losses_before == [0.5, 0.5]
    assert event.improved_ratio == 1.0  # (29): an unchanged loss counts
    assert outcome.theta.tolist() == [0.0, 0.0]
    assert event.certificate.weights == pytest.approx({0: 0.5, 1: 0.5})
    assert event.certificate.distance == pytest.approx(0, abs=1e-12)
    assert len(outcome.accuracy) == 2


def test_both_fall_until_they_oppose_each_other() -> None:
    # A start 1e-7 away ends after 14 rounds in place of 142, one 1e-3 away after 236: the last bits decide.
    outcome = run(opposed(), [0.0, 4.0], **{"rounds": 2000})
    assert outcome.status == "pareto-stationary"
    assert all(event.improved_ratio == 1.0 for event in outcome.events)
    assert outcome.events[-1].status == "stationary"
    assert outcome.events[-2].status == "converged"
    np.testing.assert_allclose(outcome.theta, [0, 0], atol=1e-3)


def test_stay_goes_on_without_moving() -> None:
    outcome = run(opposed(), [0.0, 0.0], **{"step.on-stationary": "stay"})
    assert outcome.status == "pareto-stationary"  # it has a certificate, and never moved
    assert [(event.round, event.status, event.factor) for event in outcome.events] == [
        (number, "stationary", 0.0) for number in (1, 2, 3)
    ]
    assert outcome.theta.tolist() == [0.0, 0.0]


def test_a_run_that_is_given_no_more_rounds_than_it_has_done_is_over(tmp_path: Path) -> None:
    settings = {"step.on-stationary": "stay", "rounds": 6, "output": str(tmp_path)}
    server = DQNFed(strategy(2, settings).settings, listeners=[StopAfter(4)])
    with pytest.raises(Stop):
        server.start(InProcessGrid(Federation(opposed()).app(), 2, {}), start_at([0.0, 0.0]))
    outcome = run(opposed(), [0.0, 0.0], **{**settings, "rounds": 3, "resume": True})
    assert outcome.status == "pareto-stationary"
    assert set(outcome.accuracy) == {0, 1}


@pytest.mark.parametrize("choice", ["stay", "relax"])
def test_the_method_hears_how_each_step_was_used(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[list[float], float]] = []
    monkeypatch.setattr(
        OneSided, "step_taken", lambda self, step, factor: heard.append((step.tolist(), factor)), raising=False
    )
    run(UNEQUAL, [0.0, 0.0], **{"step.on-stationary": choice, "local.lr": 0.5, "rounds": 2})
    # The mean gradient is (1, 0) at (0, 0) and (1/2, 0) at (-1/2, 0); a memory of steps takes what was taken.
    assert heard == ([([0, 0], 0)] * 2 if choice == "stay" else [([0.5, 0], 1), ([0.25, 0], 1)])


def test_relax_lowers_the_mean_loss_in_place_of_every_loss() -> None:
    outcome = run(UNEQUAL, [0.0, 0.0], **{"step.on-stationary": "relax", "local.lr": 0.5, "rounds": 2})
    assert outcome.status == "finished"
    event = outcome.events[0]
    # The mean gradient is (1, 0): half of it leads to (-1/2, 0), where the losses are 9/8 and 25/8 for 1/2 and 9/2.
    assert event.status == "relaxed"
    assert event.factor == 1.0
    assert event.losses_before == [0.5, 4.5]
    assert event.losses_after == [1.125, 3.125]
    assert event.improved_ratio == 0.5


@pytest.mark.parametrize(
    "method", [{"method": "mgda"}, {"method": "fedmgda+", "local.work": "gradient", "fedmgda.epsilon": 1.0}]
)
@pytest.mark.parametrize("rule", ["newton", "probed"])
def test_a_hull_that_holds_the_origin_up_to_rounding_is_stationary(method: dict[str, Any], rule: str) -> None:
    around = [Quadratic(np.array(centre)) for centre in ((1.0, 0.3), (-0.7, 1.1), (-0.4, -1.3))]
    outcome = run(around, [0.0, 0.0], **method, **{"rounds": 4, "step-rule": rule, "dtype": "float64"})
    assert outcome.status == "pareto-stationary"
    assert [(event.status, event.factor, event.step_norm_squared) for event in outcome.events] == [
        ("stationary", 0.0, 0.0)
    ]


@pytest.mark.parametrize(("work", "length"), [("sgd", 1.0), ("gradient", 0.1)])
def test_a_relaxed_step_is_as_long_as_fedavgs(work: str, length: float) -> None:
    settings = {"method": "mgda", "step.on-stationary": "relax", "local.work": work, "local.lr": 0.1, "rounds": 1}
    # The mean row is (1, 0); a displacement of local passes has their rate in it already.
    assert run(UNEQUAL, [0.0, 0.0], **settings).theta.tolist() == pytest.approx([-length, 0.0])


def test_a_relaxed_step_that_is_too_long_is_cut() -> None:
    outcome = run(UNEQUAL, [0.0, 0.0], **{"step.on-stationary": "relax", "local.lr": 8.0, "rounds": 1})
    # Lengths of 8 and 2 lead to losses of 40.5 and 12.5, and of 4.5 and 0.5: not below the 5 of the start.
    (event,) = outcome.events
    assert (event.cost.misses, event.factor) == (2, 1 / 16)
    assert event.losses_after == [1.125, 3.125]


def test_relax_stays_where_the_mean_loss_is_least() -> None:
    outcome = run(opposed(), [0.0, 0.0], **{"step.on-stationary": "relax", "rounds": 2})
    assert outcome.status == "pareto-stationary"
    assert [(event.status, event.factor) for event in outcome.events] == [("stationary", 0.0)] * 2
    assert sum(event.cost.exchanges for event in outcome.events) <= 5


@pytest.mark.parametrize("choice", ["stop", "stay", "relax"])
@pytest.mark.parametrize("form", FORMS)
def test_everybody_at_their_minimum_is_stationary_too(choice: str, form: str) -> None:
    both = [Quadratic(np.ones(2)), Quadratic(np.ones(2))]
    outcome = run(both, [1.0, 1.0], **{"step.on-stationary": choice, "dqn-fed.form": form})
    assert (outcome.status, len(outcome.events) > 1) == ("pareto-stationary", choice != "stop")
    assert [drop.reason for drop in outcome.events[0].dropped] == ["zero-gradient"] * 2
    assert (outcome.events[0].participants, outcome.events[0].votes.heard) == ([0, 1], ())
    assert outcome.events[0].certificate == Certificate({}, 0.0)
    assert outcome.theta.tolist() == [1.0, 1.0]


def test_with_sampling_a_stationary_round_is_skipped() -> None:
    # Clients 0 and 1 pull one coordinate apart, 2 and 3 draw the other one up: only the sample (0, 1) is stuck.
    across, up = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    objectives = [*(Quadratic(c * across, across) for c in (-1, 1)), *(Quadratic(c * up, up) for c in (5, 9))]
    outcome = run(
        objectives, [0.0, 0.0], **{"participation": 0.5, "rounds": 12, "step.max-factor": 0.25, "step.start": 0.25}
    )
    assert outcome.status == "finished"
    assert len(outcome.events) == 12
    stuck = [event.round for event in outcome.events if event.status == "stationary"]
    assert stuck == [event.round for event in outcome.events if event.participants == [0, 1]] != []


class Stubborn(Federation):
    """Client 1 finds no factor small enough."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Refuse every rung."""
        reply = super().reply(client, given)
        if client != 1 or reply.probe is None:
            return reply
        return replace(reply, loss=100.0 if given.task.train else reply.loss, probe=Probe(100.0, False))


SERVED = {"guarantee.entitlement": 6.0}
"""Of the losses 9 and 5 at (-2, 3) the second is below: what its client refuses does not contradict its gradient."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["stop", "stay"])
def test_a_step_of_which_no_length_is_accepted_leaves_the_model_as_it_was(choice: str, form: str) -> None:
    start = [-2.0, 3.0]
    settings = {"step.on-stationary": choice, "rounds": 2, "dqn-fed.form": form, "dqn-fed.anchor": "momentum"}
    outcome = run(Stubborn(opposed()), start, **settings, **SERVED)
    assert outcome.status == ("line-search-failed" if choice == "stop" else "stalled")
    assert len(outcome.events) == (1 if choice == "stop" else 2)
    event = outcome.events[0]
    assert (event.status, event.factor) == ("line-search-failed", 0.0)
    assert (event.votes.refused, event.votes.overruled, event.dropped) == ((1,), (), [])
    assert event.certificate == Certificate({0: 1.0}, 1.0)  # a common direction is there
    assert event.cost.misses >= 3
    assert outcome.theta.tolist() == start
    assert event.cost.exchanges <= 2 * (event.cost.misses + 1)


def test_one_that_refuses_against_its_own_gradient_ends_nothing() -> None:
    outcome = run(Stubborn(opposed()), [4.0, 3.0], rounds=2)
    assert outcome.status == "finished"
    for event in outcome.events:
        assert event.factor > 0
        assert event.participants == [0, 1]  # it is counted, though it is not heard any more
        assert [(drop.client, drop.reason) for drop in event.dropped] == [(1, "contradiction")]
    assert [event.votes.heard for event in outcome.events] == [(0, 1), (0,)]


def test_a_zero_row_that_a_rule_picks_by_itself_ends_no_run() -> None:
    resting = [Quadratic(np.zeros(2))] * 2
    moving = [Quadratic(np.array([4.0, 0.0])), Quadratic(np.array([0.0, 9.0])), Quadratic(np.array([-7.0, 5.0]))]
    settings = {"method": "krum", "rounds": 3, "local.work": "gradient"}
    outcome = run([*resting, *moving], [0.0, 0.0], **settings)
    assert outcome.status == "stalled"  # at its last round, without a step in any
    assert [(event.status, event.factor) for event in outcome.events] == [("no-step", 0.0)] * 3


def test_rows_that_are_all_zero_do() -> None:
    settings = {"method": "krum", "rounds": 3, "local.work": "gradient"}
    outcome = run([Quadratic(np.zeros(2))] * 5, [0.0, 0.0], **settings)
    assert (outcome.status, len(outcome.events)) == ("pareto-stationary", 1)
