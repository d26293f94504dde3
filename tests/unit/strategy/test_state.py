"""What a step does to the state of its run, from the solve to the end of its round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dqnfed_flwr.strategy.state import Move, RunState
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.pendings import pending_step_of

ABSENT = DroppedClient(9, "absent", "no reply")
PENDING = pending_step_of(2, dropped=[ABSENT], misses=2)


@pytest.fixture
def state() -> RunState:
    """In round 8, with a step on trial."""
    theta = torch.tensor([3.0, 3.0])
    state = RunState(theta=theta, candidate=theta, buffers={}, round=7, last=Move(theta, 1.0))
    state.begin(replace(PENDING), {"norm.count": np.array(12)})
    state.candidate = theta - 0.5 * PENDING.step
    state.cost.exchanges = 3
    return state


def test_a_step_on_trial_is_the_move_that_clients_hear_of(state: RunState) -> None:
    assert state.last is None
    assert state.move is not None
    assert (state.move.step is PENDING.step, state.move.factor) == (True, 0.5)
    assert state.buffers == {"norm.count": np.array(12)}


def test_a_model_that_stays_keeps_its_buffers(state: RunState) -> None:
    state.reject()
    assert state.buffers == {"norm.count": np.array(12)}  # another length of the step may follow
    state.stay()
    assert state.candidate is state.theta
    assert state.buffers == {}
    state.begin(replace(PENDING), {"norm.count": np.array(13)})
    state.accept(keep_move=False)
    state.stay()  # in the round after it, before its step begins
    assert state.buffers == {"norm.count": np.array(13)}


@pytest.mark.parametrize("keep_move", [True, False])
def test_an_accepted_candidate_is_the_model(state: RunState, keep_move: bool) -> None:
    state.accept(keep_move=keep_move)
    state.end_round(PENDING, 100)
    assert state.theta.tolist() == [2.5, 3.5]
    assert state.theta is state.candidate
    assert state.moves == 1
    assert (state.round, state.status, state.pending, state.cost.exchanges) == (8, "running", None, 0)
    assert (state.move is not None) == keep_move


def test_a_withdrawn_candidate_leaves_the_model(state: RunState) -> None:
    state.reject()
    state.end_round(PENDING, 8)
    assert state.candidate.tolist() == [3.0, 3.0]
    assert (state.round, state.status, state.move, state.moves) == (8, "finished", None, 0)


def test_a_round_that_is_solved_anew_keeps_what_the_step_cost(state: RunState) -> None:
    state.reject()
    state.solve_anew(PENDING)
    assert (state.round, state.pending, state.status) == (7, None, "running")
    assert (state.cost.exchanges, state.cost.misses, state.dropped) == (3, 2, [ABSENT])


def test_who_was_of_no_use_is_known_until_the_run_goes_on(state: RunState) -> None:
    state.fall_short([5, 3])
    state.fall_short([])
    assert (state.failures, state.unusable) == (2, ((3, 5),))
    state.go_on()
    assert (state.failures, state.unusable) == (0, ())


def test_the_best_model_is_kept_until_patience_ends(state: RunState) -> None:
    best = state.theta
    for number, accuracy in enumerate([0.5, 0.7], start=1):
        state.watch(number, accuracy, 2)
    state.theta = state.candidate
    statuses = []
    for number, accuracy in enumerate([0.7, 0.6], start=3):
        state.watch(number, accuracy, 2)
        statuses.append(state.status)
    assert statuses == ["running", "early-stopped"]
    assert state.best is not None
    assert (state.best.round, state.best.figure, state.best.theta is best) == (2, 0.7, True)


def test_where_less_is_better_the_best_model_has_the_least(state: RunState) -> None:
    for number, error in enumerate([3.0, 1.0, 2.0, 1.5], start=1):
        state.watch(number, error, 2, sign=-1)
    assert state.best is not None
    assert (state.best.round, state.best.figure, state.status) == (2, 1.0, "early-stopped")
