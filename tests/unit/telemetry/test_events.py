"""Events as lines of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.strategy.events import most_frequent_reason
from dqnfed_flwr.telemetry.events import EVENT_SCHEMA, DroppedClient, RoundEvent
from tests.helpers.runs import make_event


def full(number: int = 3) -> RoundEvent:
    return replace(
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
    assert repr(asdict(read)) == repr({**asdict(full()), "status": "converged"})


def test_a_line_is_plain_json() -> None:
    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    record = json.loads(full().to_json(), parse_constant=no_constant)
    assert record["schema"] == EVENT_SCHEMA
    assert record["losses_after"][1] is record["losses_after"][3] is None
    assert record["infinite_after"] == [3]
    assert record["accuracy"] == {"0": 0.5, "1": 0.25, "2": 1.0, "3": 0.0}


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"schema": 99}', '{"round": 1}', '{"schema": 1}'])
def test_a_line_of_another_kind_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own error is one
        RoundEvent.from_json(line)


def test_the_most_frequent_reason_is_told_with_its_first_and_last_line() -> None:
    dropped = {
        1: DroppedClient(1, "absent", "no reply"),
        4: DroppedClient(4, "client-error", "code 2: Traceback\n  File x\n\nValueError: no data\n"),
        7: DroppedClient(7, "client-error", "another"),
    }
    assert most_frequent_reason(dropped) == (
        ". 2 of 3 left out: client-error, client 4: code 2: Traceback ... ValueError: no data"
    )
    assert most_frequent_reason({1: dropped[1]}) == ". 1 of 1 left out: absent, client 1: no reply"
    assert most_frequent_reason({}) == ""


def test_replies_that_are_all_too_large_tell_of_a_training_that_diverged() -> None:
    wild = {
        k: DroppedClient(k, "not-finite", "the gradient holds NaN or Inf, or is longer than 1.8e19") for k in range(3)
    }
    wild |= {3: DroppedClient(3, "not-finite", "loss is nan")}
    assert "All at once: the training has diverged; lower local.lr" in most_frequent_reason(wild)
    assert "diverged" not in most_frequent_reason({**wild, 4: DroppedClient(4, "absent", "no reply")})
    assert "diverged" not in most_frequent_reason({0: wild[0]})


def test_a_reason_without_details_is_told() -> None:
    assert most_frequent_reason({1: DroppedClient(1, "odd", "")}).endswith("odd, client 1: ")
