from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.record import ANEW, Record, Trial, choose, last_of, read_record, trial_of, validations_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.comparisons import make_record, with_validation
from tests.helpers.runs import changed, leave_run, make_event, make_result

EVENTS = [make_event(1, (0.2, 0.4)), make_event(2, None, rho=0.5), make_event(3, (0.4, 0.8))]


def written(
    folder: Path, events: list[RoundEvent], settings: Settings | None = None, result: RunResult | None = None
) -> Job:
    """A run whose final model has accuracies of 0.5 and 0.7, unless it is given."""
    leave_run(folder, events, (0.5, 0.7))
    if result:
        result.write(folder)
    return Job(RowSpec("fedavg"), {}, 0, settings or Settings(), folder)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return written(tmp_path, EVENTS)


def test_a_run_is_read_back_with_its_figures(job: Job) -> None:
    record = read_record(job)
    assert (record.good, record.status, record.accuracies) == (True, "finished", {0: 0.5, 1: 0.7})
    assert record.figures["mean"] == pytest.approx(0.6)
    assert (record.figures["rho_mean"], record.figures["rho_min"]) == pytest.approx((2.5 / 3, 0.5))
    assert record.figures["unharmed_mean"] == pytest.approx(2.5 / 3)
    assert (record.figures["rounds"], record.figures["exchanges"], record.figures["bytes_up"]) == (3, 3, 3_000_000)


def test_figures_tell_what_rounds_did_to_the_clients(tmp_path: Path) -> None:
    # Round 2 left the model as it was; in round 3 a loss rose from 0.5 to 0.6, which an entitlement of 0.7 allows.
    moved = make_event(1, None)
    stayed = replace(make_event(2, None), factor=0.0, losses_after=[1.0] * 4)
    served = changed(
        make_event(3, (0.4, 0.8), rho=0.75),
        losses_before=[1.0, 1.0, 1.0, 0.5],
        losses_after=[0.9, 0.9, 0.9, 0.6],
        entitlement=0.7,
        heard=[0, 1],
        overruled=[2],
    )
    figures = read_record(written(tmp_path, [moved, stayed, served])).figures
    assert figures["rho_mean"] == pytest.approx(2.75 / 3)
    assert (figures["unharmed_mean"], figures["rounds_moved"], figures["rounds_improved"]) == (1.0, 2, 1)
    assert (figures["asked_mean"], figures["heard_mean"], figures["overruled"]) == pytest.approx((4.0, 10 / 3, 1))


def test_figures_are_those_of_each_of_the_last_evaluations_averaged(tmp_path: Path) -> None:
    # (0.2, 0.8), then (0.8, 0.2): each has sigma 0.3 and its worst client at 0.2. Clients averaged first would have a
    # sigma of 0 and nobody below 0.5.
    events = [make_event(1, (0.9, 0.9)), make_event(2, (0.2, 0.8)), make_event(3, None), make_event(4, (0.8, 0.2))]
    record = read_record(written(tmp_path, events), last=2)
    assert record.evaluations == ({0: 0.2, 1: 0.8}, {0: 0.8, 1: 0.2})
    assert record.accuracies == pytest.approx({0: 0.5, 1: 0.5})
    found = [record.figures[key] for key in ("mean", "std", "worst", "worst10", "best10")]
    assert found == pytest.approx([0.5, 0.3, 0.2, 0.2, 0.8])


def test_evaluations_that_there_are_count_where_more_are_asked_for(job: Job) -> None:
    assert read_record(job, last=9).evaluations == ({0: 0.2, 1: 0.4}, {0: 0.4, 1: 0.8})
    assert read_record(job, last=9).accuracies == pytest.approx({0: 0.3, 1: 0.6})


def test_the_final_model_counts_where_no_round_was_evaluated(tmp_path: Path) -> None:
    assert read_record(written(tmp_path, [make_event(1, None)]), last=5).evaluations == ({0: 0.5, 1: 0.7},)


def test_after_early_stopping_the_model_that_was_kept_counts(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"early-stopping": 2, "split.validation-fraction": 0.1})
    record = read_record(written(tmp_path, EVENTS, settings), last=2)
    assert record.evaluations == ({0: 0.5, 1: 0.7},)
    assert record.keeps_best


def test_a_log_that_lost_rounds_is_a_failed_run(job: Job) -> None:
    log = job.folder / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    record = read_record(job, last=5)
    assert (record.good, record.figures) == (False, {})
    assert record.reason == f"{job.folder}: run.json tells of 3 rounds, events.jsonl of 2; {ANEW}"


def test_an_accuracy_that_is_none_is_a_failed_run(job: Job) -> None:
    record = job.folder / "run.json"
    record.write_text(record.read_text().replace('"1": 0.7', '"1": NaN'))
    said = "run.json: client 1 has nan; an accuracy is a number in [0, 1]"
    assert (read_record(job).good, read_record(job).reason) == (False, f"{job.folder}: {said}; {ANEW}")


def test_so_is_one_of_an_evaluation_on_the_way(tmp_path: Path) -> None:
    found = read_record(written(tmp_path, [make_event(1, (0.2, 1.4)), make_event(2, (0.2, 0.4))]))
    said = "events.jsonl, round 1: client 1 has 1.4; an accuracy is a number in [0, 1]"
    assert (found.good, found.reason) == (False, f"{tmp_path}: {said}; {ANEW}")


def test_a_failed_run_has_a_reason_and_no_figures(job: Job) -> None:
    record = read_record(job, "out of memory")
    assert (record.good, record.status, record.reason, record.figures) == (False, "failed", "out of memory", {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"accuracies": {"a": 1}, "status": "finished"}'])
def test_a_result_that_cannot_be_read_is_a_failed_run(job: Job, text: str) -> None:
    (job.folder / "run.json").write_text(text)
    record = read_record(job)
    assert record.status == "failed"
    assert "cannot be read" in record.reason
    assert record.reason.endswith(ANEW)


def test_a_run_that_may_not_be_read_is_not_to_be_removed(job: Job) -> None:
    (job.folder / "events.jsonl").unlink()
    (job.folder / "events.jsonl").mkdir()  # an error of the file system, whoever runs this
    record = read_record(job)
    assert (record.status, ANEW in record.reason) == ("failed", False)


def test_a_run_that_ended_between_evaluations_is_judged_by_its_final_model(tmp_path: Path) -> None:
    events = [make_event(1, (0.2, 0.4)), make_event(2, None)]
    result = replace(make_result(events, (0.5, 0.7)), status="pareto-stationary", validation={0: 0.3, 1: 0.6})
    record = read_record(written(tmp_path, events, result=result), last=2)
    assert record.evaluations == ({0: 0.2, 1: 0.4}, {0: 0.5, 1: 0.7})
    assert record.events[-1].evaluated.validation == {0: 0.3, 1: 0.6}
    assert trial_of(record).figures == {"mean": pytest.approx(0.45), "worst10": 0.3}


def test_a_model_that_early_stopping_chose_is_not_taken_for_that_of_the_last_round(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"early-stopping": 2, "split.validation-fraction": 0.1})
    events = [with_validation(make_event(1, (0.2, 0.4)), 0.3, 0.4), make_event(2, None)]
    result = replace(make_result(events, (0.2, 0.4)), validation={0: 0.3, 1: 0.4})
    assert read_record(written(tmp_path, events, settings, result)).events[-1].evaluated.test is None


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
