"""What an exchange asks of whom, who is drawn, and what it sends for that."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.strategy.schedule import needs_step, sample, schedule_evaluation, schedule_exchange
from dqnfed_flwr.strategy.state import Move, RunState
from dqnfed_flwr.types import ClientTask
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy


def run(federation: Federation, settings: dict[str, Any]) -> None:
    clients = len(federation.objectives)
    strategy(clients, settings).start(InProcessGrid(federation.app(), clients, {}), start_at(np.zeros(6)))


def test_clients_are_asked_for_what_is_due_and_no_more() -> None:
    federation = Federation(spread_out(3))
    run(federation, {"rounds": 3, "evaluate-every": 2})
    tasks = [given.task for client, given in federation.asked if client == 1]
    first, last = tasks[0], tasks[-1]
    assert (first.train, first.probe, first.evaluate, first.factor) == (True, False, False, 0.0)
    assert (last.train, last.probe, last.evaluate) == (False, True, True)  # nothing to train for after the last round
    assert {task.round for task in tasks if task.evaluate} == {3, 4}  # settling rounds 2 and 3


@pytest.mark.parametrize(
    ("task", "curvature", "needed"),
    [
        (ClientTask(3, 3, factor=0.5), {}, False),
        (ClientTask(3, 3, factor=0.5, probe=True), {}, False),  # the candidate's own loss is enough
        (ClientTask(3, 3, factor=0.5, probe=True, grow=True), {}, True),
        (ClientTask(3, 3, factor=0.5, probe=True, halvings=2), {}, True),
        (ClientTask(3, 3, factor=0.5, probe=True, rungs_above=1), {}, True),
        (ClientTask(3, 3, factor=0.0, probe=True, halvings=2), {}, False),  # there is no line
        (ClientTask(3, 3, factor=0.5), {"kind": "secant"}, False),
        (ClientTask(3, 3, factor=0.5), {"kind": "secant", "previous": "recomputed"}, True),
        (ClientTask(3, 3, factor=0.5), {"kind": "hvp", "previous": "recomputed"}, False),
        (ClientTask(3, 3, factor=0.5, train=False), {"kind": "secant", "previous": "recomputed"}, False),
    ],
)
def test_what_a_task_needs_the_line_for(task: ClientTask, curvature: dict[str, str], needed: bool) -> None:
    assert needs_step(task, resolve(Settings.from_mapping({"curvature": curvature}))) is needed


def test_the_step_that_led_to_the_model_goes_to_those_who_train_on_it() -> None:
    plan = resolve(Settings.from_mapping({"method": "fednew", "clients": 2, "rounds": 9}))
    model = torch.ones(3)
    state = RunState(model, model, {}, round=4, last=Move(torch.arange(3.0), 0.5))
    tasks = schedule_exchange(state, plan, [0, 1], 2, make_method(plan)).tasks
    assert [(task.round, task.train, task.factor, needs_step(task, plan)) for task in tasks.values()] == [
        (5, True, 0.5, True)
    ] * 2
    asked = schedule_evaluation(state, [0, 1], 2).tasks
    assert [(task.evaluate, task.factor) for task in asked.values()] == [(True, 0.0)] * 2


@pytest.mark.parametrize(("rule", "lines"), [("probed", [False, True, True]), ("clipped", [False, False, False])])
def test_the_line_is_sent_to_those_who_need_it(rule: str, lines: list[bool]) -> None:
    federation = Federation([Quadratic(np.ones(6)), Quadratic(np.ones(6))])
    run(federation, {"rounds": 2, "step-rule": rule})
    assert [given.step is not None for client, given in federation.asked if client == 1] == lines


clients = st.sets(st.integers(0, 500), min_size=1, max_size=60).map(sorted)


@given(clients, st.integers(1, 60), st.integers(0, 2**40), st.integers(1, 9999), st.randoms())
def test_a_sample_is_a_function_of_seed_and_round(
    present: list[int], count: int, seed: int, number: int, mix: Random
) -> None:
    drawn = sample(present, count, seed=seed, round_number=number)
    shuffled = mix.sample(present, len(present))
    assert sample(shuffled, count, seed=seed, round_number=number) == drawn
    assert list(drawn) == sorted(set(drawn))
    assert set(drawn) <= set(present)
    assert len(drawn) == min(count, len(present))


def test_samples_differ_from_round_to_round_and_are_fair() -> None:
    drawn = [sample(list(range(20)), 5, seed=3, round_number=number) for number in range(1, 2001)]
    assert len(set(drawn)) > 1500
    shares = Counter(client for draw in drawn for client in draw)
    # 2000 draws of 5 in 20: 500 times each, with a standard deviation below 20.
    assert max(abs(times - 500) for times in shares.values()) < 100


def drawn(clients: int, unusable: tuple[tuple[int, ...], ...], **settings: Any) -> tuple[int, ...]:
    """Who trains in round 1, after attempts of which some gave nothing usable."""
    checked = resolve(Settings.from_mapping({"method": "fedavg", "clients": clients, **settings}))
    model = torch.zeros(1)
    state = RunState(model, model, {}, failures=len(unusable), unusable=unusable)
    return schedule_exchange(state, checked, [*range(clients)], 2, make_method(checked)).train


def test_bad_clients_that_stand_side_by_side_are_no_worse_than_others() -> None:
    def ends(seed: int) -> bool:
        """Whether four attempts at one of a hundred fall upon ten bad neighbours each time."""
        unusable: tuple[tuple[int, ...], ...] = ()
        for _ in range(4):
            (client,) = drawn(100, unusable, seed=seed, participation=0.01)
            if client >= 10:
                return False
            unusable += ((client,),)
        return True

    assert not any(ends(seed) for seed in range(100))


def test_another_attempt_is_another_draw_and_the_same_every_time() -> None:
    first = drawn(100, (), participation=0.05)
    again = drawn(100, (first[:1],), participation=0.05)
    assert again == drawn(100, (first[:1],), participation=0.05)
    assert len(again) == 5
    assert len({*first} & {*again}) < 4
    assert first[0] not in again


def test_where_too_few_others_are_left_the_last_attempt_alone_counts() -> None:
    settings = {"participation": 5 / 6, "min-clients": 5}
    assert drawn(6, ((1,),), **settings) == (0, 2, 3, 4, 5)
    assert drawn(6, ((1,), (0,)), **settings) == (1, 2, 3, 4, 5)
    assert len(drawn(6, ((1,), (0, 2)), **settings)) == 5


def test_where_everybody_is_asked_all_are_asked_again() -> None:
    assert drawn(4, ((1,), (1, 2))) == (0, 1, 2, 3)


def test_where_the_method_asks_for_one_client_after_the_other_a_failing_one_is_passed_over() -> None:
    settings = {"method": "fedcorr", "fedcorr.preprocessing": 1, "fedcorr.finetuning": 1, "rounds": 9}
    (first,) = drawn(4, (), **settings)
    (second,) = drawn(4, ((first,),), **settings)
    (third,) = drawn(4, ((first,), (second,)), **settings)
    assert len({first, second, third}) == 3
    assert drawn(4, tuple((client,) for client in range(4)), **settings) == (first,)
