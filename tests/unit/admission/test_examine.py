"""Which replies are believed: hand-worked rounds, and the laws of the limits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from dqnfed_flwr.admission.examine import (
    COSINE,
    COUNT,
    LOSS,
    NORM,
    RATE,
    ZERO,
    Figures,
    Past,
    Refusal,
    cosines_with_others,
    examine,
    figures_of,
    limits_of,
)
from dqnfed_flwr.admission.robust import middle_and_limit
from dqnfed_flwr.config import AdmissionSettings

LIMITS = AdmissionSettings()


def replies(last: Mapping[str, float], count: int = 6) -> dict[int, Figures]:
    """`count` - 1 clients with norm, loss and curvature 1, and one that differs."""
    plain = {"norm": 1.0, "loss": 1.0, "rate": 1.0}
    figures = {client: Figures(figures_of(**plain, vectors={})) for client in range(count - 1)}
    return figures | {count - 1: Figures(figures_of(**{**plain, **last}, vectors={}))}


def judged(
    figures: Mapping[int, Figures],
    cosines: Mapping[int, float],
    past: Mapping[int, Past],
    settings: AdmissionSettings,
) -> dict[int, Refusal]:
    return examine(figures, limits_of(figures, settings), cosines, past, settings)


def test_middle_and_limit_by_hand() -> None:
    # Logarithms 0, 1, 2, 3, 10: median 2, absolute deviations 2, 1, 0, 1, 8, their median 1.
    assert middle_and_limit([0.0, 1.0, 2.0, 3.0, 10.0], factor=math.e, spread=5.0) == pytest.approx((2.0, 5 * 1.4826))
    assert middle_and_limit([2.0] * 5, factor=math.e, spread=5.0) == pytest.approx((2.0, 1.0))


@pytest.mark.parametrize(
    ("figure", "limit", "reason"),
    [("norm", LIMITS.norm_factor, NORM), ("loss", LIMITS.loss_factor, LOSS), ("rate", LIMITS.rate_factor, RATE)],
)
def test_a_figure_counts_up_to_its_limit_and_not_beyond(figure: str, limit: float, reason: str) -> None:
    # The rate is judged as d / |g|^2, and all norms but the one under test are 1.
    assert judged(replies({figure: 0.99 * limit}), {}, {}, LIMITS) == {}
    refused = judged(replies({figure: 1.01 * limit}), {}, {}, LIMITS)
    assert {client: refusal.reason for client, refusal in refused.items()} == {5: reason}


def test_small_figures_and_those_that_are_not_positive_are_nobodys_harm() -> None:
    for figure in ("norm", "loss", "rate"):
        for value in (1e-12, 0.0) if figure != "norm" else (1e-12,):
            rate = {"rate": value**2} if figure == "norm" else {}
            assert judged(replies({figure: value, **rate}), {}, {}, LIMITS) == {}


def test_a_row_of_zeros_is_left_out_while_others_move() -> None:
    assert {c: r.reason for c, r in judged(replies({"norm": 0.0}), {}, {}, LIMITS).items()} == {5: ZERO}
    assert judged(replies({"norm": 0.0}, count=5), {}, {}, LIMITS) == {}
    resting = {client: Figures(figures_of(0.0, 1.0, 0.0, {})) for client in range(6)}
    assert judged(resting, {}, {}, LIMITS) == {}


def test_the_own_past_widens_the_limit_but_not_without_end() -> None:
    factor = LIMITS.norm_factor
    for norm, past, refused in [(2 * factor, 1.9 * factor, False), (2 * factor, 0.1, True), (1e6, 1e6, True)]:
        found = judged(replies({"norm": norm, "rate": norm**2}), {}, {5: Past({"norm": math.log(past)})}, LIMITS)
        assert bool(found) is refused


def test_who_was_far_off_among_its_peers_may_be_so_again_while_they_near_their_optima() -> None:
    shown = {5: Past(last={"norm": 0.0}, vouched={"norm": math.log(1000.0)})}
    for norm, refused in [(0.99 * LIMITS.past_factor * 1000, False), (1.01 * LIMITS.past_factor * 1000, True)]:
        found = judged(replies({"norm": norm, "rate": norm**2}), {}, shown, LIMITS)
        assert {client: refusal.reason for client, refusal in found.items()} == ({5: NORM} if refused else {})


def test_among_few_the_own_past_alone_counts() -> None:
    far = LIMITS.norm_factor**2
    few = replies({"norm": 1.1 * far, "rate": 1.0}, count=3)

    def past(last: float, largest: float) -> dict[int, Past]:
        return {2: Past({"norm": math.log(last)}, {"norm": math.log(largest)})}

    assert judged(few, {}, {}, LIMITS) == {}
    assert set(judged(few, {}, past(1.0, 1.0), LIMITS)) == {2}
    assert judged(few, {}, past(2.0, 2.0), LIMITS) == {}
    assert judged(few, {}, past(1e-6, 2.0), LIMITS) == {}  # it had its samples by heart, and others moved the model


def test_a_colluding_minority_does_not_move_the_middle() -> None:
    figures = {client: Figures(figures_of(1.0 + 0.1 * client, 1.0, 1.0, {})) for client in range(7)}
    figures |= {client: Figures(figures_of(100.0, 1.0, 1e4, {})) for client in (7, 8, 9)}
    assert set(judged(figures, {}, {}, LIMITS)) == {7, 8, 9}


def test_the_rate_of_the_smallest_gradient_is_no_division_by_zero() -> None:
    assert figures_of(1e-200, 1.0, 1e-200, {})["rate"] == pytest.approx(200 * math.log(10))
    assert figures_of(0.0, 1.0, 0.0, {})["rate"] == -math.inf


def test_the_cut_brings_a_row_to_the_limit() -> None:
    refusal = judged(replies({"norm": 80.0, "rate": 6400.0}), {}, {}, LIMITS)[5]
    assert refusal.cut["norm"] * 80.0 == pytest.approx(LIMITS.norm_factor)
    assert not judged(replies({"loss": 1e6}), {}, {}, LIMITS)[5].cut


def test_no_more_samples_than_registered() -> None:
    logs = figures_of(1.0, 1.0, 1.0, {})
    figures = {0: Figures(logs, 10, 10), 1: Figures(logs, 11, 10), 2: Figures(logs, 9, 10), 3: Figures(logs, 11, 0)}
    assert {c: r.reason for c, r in judged(figures, {}, {}, LIMITS).items()} == {1: COUNT}


def test_cosines_by_hand_and_their_limit() -> None:
    # Unit rows (1, 0), (0, 1), (-1, 0): the sums of the others are (-1, 1), (0, 0), (1, 1); lengths do not matter.
    rows = np.array([[2.0, 0.0], [0.0, 30.0], [-5.0, 0.0]])
    assert cosines_with_others(rows @ rows.T) == pytest.approx([-math.sqrt(0.5), 1.0, -math.sqrt(0.5)])
    strict = AdmissionSettings(min_cosine=-0.5)
    cosines = dict.fromkeys(range(6), 1.0) | {2: -0.6}
    assert {c: r.reason for c, r in judged(replies({}), cosines, {}, strict).items()} == {2: COSINE}
    assert judged(replies({}), cosines, {}, LIMITS) == {}
