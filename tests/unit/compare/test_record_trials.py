from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.compare.record import Record, Trial, choose, last_of, trial_of, validations_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Settings
from tests.helpers.comparisons import make_record, with_validation
from tests.helpers.runs import changed

SPEC = RowSpec("q-ffl", axes={"q-ffl.q": (0.1, 1)})


def record(*validations: tuple[float, ...], settings: Settings | None = None) -> Record:
    made = make_record(SPEC, 0, (0.9, 0.9), rounds=len(validations), settings=settings)
    events = [
        with_validation(event, *values) if values else event
        for event, values in zip(made.events, validations, strict=True)
    ]
    return replace(made, events=tuple(events))


def trial(mean: float | None, worst10: float = 0.0) -> Trial:
    figures = {} if mean is None else {"mean": mean, "worst10": worst10}
    return Trial({}, 0, 3, figures, "" if figures else "lost")


def test_the_last_validation_counts_and_the_test_part_does_not() -> None:
    found = trial_of(record((0.9, 0.9), (0.2, 0.4), ()))
    assert found.figures == {"mean": pytest.approx(0.3), "worst10": 0.2}
    assert found.reason == ""


def test_several_of_the_last_validations_may_count() -> None:
    found = trial_of(record((0.9, 0.9), (0.2, 0.4), (0.8, 0.6), ()), last=2)
    assert found.figures == {"mean": pytest.approx(0.5), "worst10": pytest.approx(0.4)}


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(2, 6))
def test_a_grid_chooses_by_the_evaluations_that_the_figures_average(evaluated: list[bool], last: int) -> None:
    """Validation and test accuracy of a round are made the same, so that both figures must be."""
    made = make_record(SPEC, 0, (0.9, 0.7), rounds=len(evaluated))
    events = [
        with_validation(event, *event.evaluated.test.values())
        if told and event.evaluated.test
        else changed(event, test=None)
        for event, told in zip(made.events, evaluated, strict=True)
    ]
    window = last_of((event.evaluated.test for event in events), last)
    assert window == tuple(event.evaluated.test for event in events if event.evaluated.test)[-last:]
    final = replace(made, evaluations=window)
    tried = trial_of(replace(made, events=tuple(events)), last)
    assert tried.evaluations == len(window)
    assert tried.figures == {key: pytest.approx(final.figures[key]) for key in tried.figures}
    assert bool(tried.figures) == any(evaluated)


def test_after_early_stopping_the_best_model_is_the_one_that_is_judged() -> None:
    stopping = Settings.from_mapping({"early-stopping": 2, "split.validation-fraction": 0.1})
    stopped = record((0.1, 0.1), (0.4, 0.6), (0.5, 0.4), settings=stopping)
    assert validations_of(stopped, last=2) == [{0: 0.4, 1: 0.6}]


def test_a_run_that_failed_or_saw_no_validation_has_no_figures() -> None:
    failed = trial_of(make_record(SPEC, 0, reason="lost"))
    assert (failed.figures, failed.reason) == ({}, "lost")
    blind = trial_of(record((), ()))
    assert (blind.figures, blind.reason) == ({}, "no client was evaluated on its validation part")


def test_the_best_is_chosen_and_of_equals_the_first() -> None:
    trials = [trial(0.5, 0.4), trial(0.7, 0.1), trial(None), trial(0.7, 0.4)]
    assert choose(trials) == 1
    assert choose(trials, "worst10") == 0
    assert choose([trial(None), trial(0.0)]) == 1
    assert choose([trial(None)]) is None
