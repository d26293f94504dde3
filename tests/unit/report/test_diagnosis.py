"""What a diagnosis makes of events: lengths, rises, rounding and the sentences, on losses that are parabolas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dqnfed_flwr.guarantee.harm import STRICT, resolution
from dqnfed_flwr.report.diagnosis import NO_CAUSE, _rounding, diagnose
from dqnfed_flwr.report.diagnosis_plots import factor_label, plot_diagnosis
from dqnfed_flwr.telemetry.events import AlongStep, RoundEvent
from tests.helpers.runs import make_event

FACTORS = [2.0**-k for k in range(-1, 9)]


def measured(
    limits: Sequence[float], taken: float, *, number: int = 1, start: float = 1.0, entitlement: float = STRICT
) -> RoundEvent:
    """A round of four clients with f_k(a) = start - a + a^2 / limit_k: that of client k rises beyond its limit."""

    def at(factor: float) -> list[float]:
        return [start - factor + factor**2 / limit for limit in limits]

    losses = {client: [at(factor)[client] for factor in FACTORS] for client in range(len(limits))}
    return replace(
        make_event(number, None),
        participants=[*range(len(limits))],
        losses_before=[start] * len(limits),
        losses_after=at(taken),
        factor=taken,
        entitlement=entitlement,
        along=AlongStep(FACTORS, losses),
    )


def told(events: Sequence[RoundEvent], *, tested: bool = True) -> str:
    return " ".join(diagnose(events, tested=tested).findings)


@given(limits=st.lists(st.sampled_from([0.3, 0.6, 1.2, 2.9]), min_size=1, max_size=6))
def test_a_client_allows_what_does_not_raise_its_loss(limits: list[float]) -> None:
    found = diagnose([measured(limits, 0.25)], tested=True).rounds[0]
    expected = [max(factor for factor in FACTORS if factor <= limit) for limit in limits]
    assert [*found.allowed.values()] == expected
    assert found.common == min(expected)
    sums = [sum(-factor + factor**2 / limit for limit in limits) for factor in FACTORS]
    assert found.best == FACTORS[int(np.argmin(sums))]
    assert found.best_fall == pytest.approx(-min(sums) / len(limits))
    assert found.fall == pytest.approx(np.mean([0.25 - 0.0625 / limit for limit in limits]))


def test_an_entitlement_and_a_loss_that_is_not_finite_count() -> None:
    event = measured([0.3, 1.2], 0.25)
    assert diagnose([replace(event, entitlement=99.0)], tested=True).rounds[0].common == 2.0
    assert event.along is not None
    losses = {0: [float("nan"), float("inf"), *event.along.losses[0][2:]], 1: event.along.losses[1]}
    found = diagnose([replace(event, entitlement=99.0, along=AlongStep(FACTORS, losses))], tested=True)
    assert found.rounds[0].allowed == {0: 0.5, 1: 2.0}
    assert RoundEvent.from_json(replace(event, along=AlongStep(FACTORS, losses)).to_json()).along is not None


def test_rises_are_counted_above_the_largest_of_the_last_losses() -> None:
    losses = [4.0, 3.0, 3.5, 3.2, 4.5]
    events = [
        replace(make_event(t, None), participants=[0], losses_before=[before], losses_after=[after])
        for t, (before, after) in enumerate(pairwise(losses), 1)
    ]
    found = diagnose(events, tested=False)
    assert (found.rounds, found.findings) == ([], [])
    assert found.rises[1] == 2 / 4  # 3.5 and 4.5
    assert found.rises[2] == 1 / 3  # 4.5 alone
    assert found.rises[4] == 1.0  # 4.5, above 4, 3, 3.5, 3.2
    assert np.isnan(found.rises[8])


def test_a_client_that_did_not_answer_again_counts_no_rise() -> None:
    silent = replace(make_event(1, None), participants=[0], losses_before=[1.2], losses_after=[math.nan])
    risen = replace(make_event(2, None), participants=[0], losses_before=[1.0], losses_after=[1.5])
    found = diagnose([silent, risen], tested=False).rises
    assert (found[1], found[2]) == (1.0, 1.0)  # 1.5 is above 1, and above 1.2


def test_a_window_allows_what_stays_below_earlier_losses() -> None:
    first = replace(make_event(1, None), participants=[0, 1], losses_before=[2.0, 1.0], losses_after=[1.0, 1.0])
    found = diagnose([first, measured([0.6, 2.4], 0.5, number=2)], tested=True).rounds[0]
    assert found.within == {1: 0.5, 2: 1.0, 4: 1.0, 8: 1.0}  # client 0 was at 2; it comes to 1.67 at factor 1


def test_rounding_is_what_is_no_parabola() -> None:
    parabola = [1 - factor + factor**2 for factor in FACTORS]
    assert _rounding(np.array(parabola), 1.0) == resolution(1.0)
    rng = np.random.default_rng(0)
    noisy = [
        _rounding(np.array(parabola) + 1e-3 * rng.standard_normal(len(FACTORS)), 1 + 1e-3 * rng.standard_normal())
        for _ in range(500)
    ]
    assert np.sqrt(np.mean(np.square(noisy))) == pytest.approx(1e-3, rel=0.1)
    assert _rounding(np.array([np.inf] * len(FACTORS)), 1.0) == resolution(1.0)


@pytest.mark.parametrize(
    ("limits", "taken", "words"),
    [
        ([1.2] * 4, 0.5, "what limits it is the direction"),
        ([1.2] * 4, 0.125, "2 times the length taken, or more, would have suited all and served the mean"),
        ([0.06, 1.2, 1.2, 1.2], 0.03125, "some clients hold the others up: half of the clients would allow 32 times"),
        ([0.001, 0.001, 0.001, 9.0], 0.00390625, "no measured length suits all"),
    ],
)
def test_sentences_say_what_limits_a_run(limits: list[float], taken: float, words: str) -> None:
    assert words in told([measured(limits, taken, number=t) for t in (1, 2, 3)])


def test_holders_are_named_and_no_cause_is_said() -> None:
    held = [measured([0.06, 1.2, 1.2, 1.2], 0.03125, number=t) for t in (1, 2)]
    assert "Most often it is clients 0 (2)" in told(held)
    mixed = [measured([0.2, 0.6, 0.6, 0.6], 0.125, number=1), measured([1.2] * 4, 0.125, number=2)]
    assert NO_CAUSE in told([*mixed, measured([1.2] * 4, 0.5, number=3)])
    assert "hold the others up" not in told(held, tested=False)


def test_rises_within_rounding_are_told() -> None:
    event = measured([1.2] * 4, 0.5)
    assert event.along is not None
    noise = np.where(np.arange(len(FACTORS)) % 2, 1e-3, -1e-3)
    flat = {client: [*(1 + noise)] for client in range(4)}
    words = told([replace(event, along=AlongStep(FACTORS, flat))])
    assert "are no larger than the rounding of a loss" in words


def test_the_picture_shows_lengths_and_losses(tmp_path: Path) -> None:
    events = [measured([0.06, 1.2, 1.2, 1.2], 0.03125, number=t) for t in (1, 2)]
    path = plot_diagnosis(diagnose(events, tested=True), events, tmp_path / "picture.png")
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 50


def test_factors_are_written_as_fractions() -> None:
    assert [factor_label(factor) for factor in (4.0, 1.0, 0.5, 0.0078125, 0.3, 0.0)] == [
        "4",
        "1",
        "1/2",
        "1/128",
        "0.3",
        "0",
    ]
