"""A figure of a client: how it is shown, and how records hold it."""

from __future__ import annotations

import math

import pytest

from dqnfed_flwr.types import ACCURACY, Figure, decimals

MAE = Figure("mae", higher=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(44.5123, "44.51"), (0.0012345, "0.001234"), (123456.7, "123457"), (0.0, "0.000"), (-2.5, "-2.500")],
)
def test_a_figure_that_is_no_share_has_four_digits(value: float, shown: str) -> None:
    assert MAE.text(value) == shown


def test_a_share_is_shown_in_per_cent() -> None:
    assert (ACCURACY.text(0.5), ACCURACY.text(0.12345, 2), ACCURACY.label(12.5)) == ("50.0 %", "12.35 %", "12.5 %")


def test_decimals_of_what_has_no_size() -> None:
    assert (decimals(0), decimals(math.nan), decimals(math.inf), decimals(1e-30)) == (3, 3, 3, 12)


def test_a_record_without_a_figure_is_of_accuracies() -> None:
    assert Figure.from_json(None) == ACCURACY
    assert Figure.from_json(MAE.to_json()) == MAE


@pytest.mark.parametrize("record", [{}, {"name": 3, "higher_is_better": True, "percent": False}, {"name": "mae"}])
def test_a_record_that_is_none_is_refused(record: dict[str, object]) -> None:
    with pytest.raises((TypeError, KeyError)):
        Figure.from_json(record)


def test_a_figure_called_accuracy_need_not_be_counted() -> None:
    own = Figure("accuracy", percent=True)
    assert own == ACCURACY
    assert ACCURACY.counted
    assert not own.counted
