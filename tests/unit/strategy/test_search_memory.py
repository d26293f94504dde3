"""A search for a length that found none is not done again on the same model with the same participants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dqnfed_flwr import run
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.strategy.state import PendingStep, SearchMemory
from dqnfed_flwr.strategy.step_search import StepSearch, judged_by
from tests.helpers.pendings import pending_step_of
from tests.helpers.runs import TINY

STAYS: dict[str, Any] = {
    **TINY,
    "rounds": 26,
    "evaluate-every": 0,
    "step.on-stationary": "stay",
    "step.min-move": 1.0,  # so that no length suits after a few rounds
    "dqn-fed.form": "one-sided",
}


def in_vain(result: RunResult) -> list[tuple[int, int, float]]:
    """Exchanges, misses, and whether the search was left out, of the rounds without a step."""
    without = [event for event in result.events if not event.factor]
    return [(event.cost.exchanges, event.cost.misses, event.notes.get("searched_before", 0.0)) for event in without]


def test_the_same_search_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(STAYS)
    searched = [round_ for round_ in in_vain(result) if not round_[2]]
    assert 0 < len(searched) <= 2  # the second begins with another factor
    assert set(in_vain(result)[len(searched) :]) == {(1, 0, 1.0)}
    monkeypatch.setattr(SearchMemory, "begin", lambda *_: "")
    again = run(STAYS)
    assert all(misses > 0 for _, misses, _ in in_vain(again))
    assert result.theta.tobytes() == again.theta.tobytes()
    assert [event.status for event in result.events] == [event.status for event in again.events]


def test_a_run_that_is_resumed_remembers_its_search(tmp_path: Path) -> None:
    whole = run(STAYS)
    run({**STAYS, "rounds": 22, "output": str(tmp_path)})
    resumed = run({**STAYS, "output": str(tmp_path)}, resume=True)
    assert resumed.theta.tobytes() == whole.theta.tobytes()
    assert in_vain(resumed)[-4:] == in_vain(whole)[-4:] == [(1, 0, 1.0)] * 4


def begin(memory: SearchMemory, pending: PendingStep) -> str:
    return memory.begin(pending.round, pending.step, pending.clients, judged_by(pending))


def vain(**changes: Any) -> SearchMemory:
    """The memory after round 8 ended without a length."""
    memory = SearchMemory()
    assert begin(memory, pending_step_of(0, 1, **changes)) == ""
    memory.in_vain(8, "stationary")
    return memory


@pytest.mark.parametrize(
    "changes",
    [
        {"step": torch.tensor([1.0, -1.0 + 2**-24])},
        {"losses": {0: 1.0, 1: 1.5}},
        {"slopes": {0: 1.0, 1: 0.5}},
        {"first": 0.25},
        {"voteless": (1,)},
        {"entitlement": 0.1},
    ],
)
def test_another_search_is_done(changes: dict[str, Any]) -> None:
    assert begin(vain(), pending_step_of(0, 1, round=9)) == "stationary"
    assert begin(vain(), pending_step_of(0, 1, round=9, **changes)) == ""
    assert begin(vain(), pending_step_of(0, 2, round=9)) == ""


def test_further_steps_of_a_round_are_tried_and_a_model_that_moved_is_another() -> None:
    memory = vain()
    assert begin(memory, pending_step_of(0, 1, step=torch.tensor([0.0, 1.0]))) == ""
    memory.in_vain(8, "line-search-failed")  # all steps of round 8 were in vain: the first one tells it
    assert begin(memory, pending_step_of(0, 1, round=9)) == "line-search-failed"
    memory.forget()
    assert begin(memory, pending_step_of(0, 1, round=10)) == ""


def test_a_search_that_others_finished_or_nobody_began_is_done_again() -> None:
    memory = SearchMemory()
    assert begin(memory, pending_step_of(0, 1)) == ""
    assert begin(memory, pending_step_of(0, 1, 2)) == ""  # a further step of round 8, judged by more
    memory.in_vain(8, "stationary")
    assert begin(memory, pending_step_of(0, 1, round=9)) == ""  # which is dropped without a judgement
    memory.in_vain(10, "stationary")  # there was no step in round 10
    assert begin(memory, pending_step_of(0, 1, round=11)) == ""


@pytest.mark.parametrize(
    ("changes", "repeat"),
    [
        ({}, True),
        ({"guarantee.tolerate": 1}, False),
        ({"step.judge": "both", "split.validation-fraction": 0.2}, False),
    ],
)
def test_only_judges_who_say_the_same_again_are_not_asked(changes: dict[str, Any], repeat: bool) -> None:
    search = object.__new__(StepSearch)
    search._run = resolve(Settings.from_mapping(changes))
    search._settings = search._run.settings
    assert search._answers_repeat(pending_step_of(*range(10))) is repeat
