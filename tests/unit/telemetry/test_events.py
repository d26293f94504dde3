"""Events as lines of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.telemetry.events import EVENT_SCHEMA, DroppedClient, RoundEvent
from dqnfed_flwr.types import Figure
from tests.helpers.runs import changed, make_event


def full(number: int = 3) -> RoundEvent:
    return changed(
        make_event(number, [0.5, 0.25, 1.0, 0.0]),
        losses_after=[0.1, math.nan, 1 / 3, math.inf],
        condition=math.nan,
        status=Status.CONVERGED,
        dropped=[DroppedClient(4, "client-error", 'Traceback:\n  File "x"\nValueError: é')],
        seconds={"exchange": 0.1, "total": 0.2},
        validation={10: 0.5, 2: 1.0},
        notes={"anchor_reset": 1.0},
    )


def test_a_line_reads_back_as_the_event() -> None:
    line = full().to_json()
    assert "\n" not in line
    read = RoundEvent.from_json(line)
    # What is not finite becomes null; repr tells NaN from numbers.
    assert repr(read) == repr(replace(full(), status="converged"))


def test_a_line_names_a_figure_that_is_no_accuracy() -> None:
    figure = Figure("mae", higher=False)
    event = changed(make_event(1, [3.0, 1.0]), figure=figure, without_figure={"test": [2, 3]}, validation={0: 2.0})
    line = event.to_json()
    assert json.loads(line)["evaluated"]["test"] == {"0": 3.0, "1": 1.0}
    assert "accuracy" not in line
    assert RoundEvent.from_json(line).evaluated == event.evaluated


def test_a_line_is_plain_json() -> None:
    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    record = json.loads(full().to_json(), parse_constant=no_constant)
    assert record["schema"] == EVENT_SCHEMA
    assert record["losses_after"][1] is record["losses_after"][3] is None
    assert record["infinite_after"] == [3]
    assert record["evaluated"]["test"] == {"0": 0.5, "1": 0.25, "2": 1.0, "3": 0.0}


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"schema": 99}', '{"round": 1}', '{"schema": 1}'])
def test_a_line_of_another_kind_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own error is one
        RoundEvent.from_json(line)


@pytest.mark.parametrize("lost", sorted(json.loads(full().to_json())))
def test_a_line_that_lacks_a_key_is_refused(lost: str) -> None:
    record = json.loads(full().to_json())
    del record[lost]
    with pytest.raises(ValueError, match="not an event of schema 1"):
        RoundEvent.from_json(json.dumps(record))


def test_the_strict_form_reads_back() -> None:
    """No number is below every loss in JSON; what a participant may rise to is then nothing."""
    event = replace(full(), losses_before=[-1.0] * 4, losses_after=[-1.0, -0.5, -2.0, -1.0], entitlement=-math.inf)
    record = json.loads(event.to_json())
    assert record["entitlement"] is None
    assert record["harmed"] == [event.participants[1]]
    assert RoundEvent.from_json(event.to_json()).entitlement == -math.inf
