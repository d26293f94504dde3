"""The line search of FedMDFG: which rung it picks, and how it goes over exchanges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.steps import Ladder, StepScale, Verdict
from dqnfed_flwr.steps.search import Search, SearchSettings, choose_rung
from dqnfed_flwr.types import Probe, SearchHints, ladder_rungs


def chosen(
    rungs: Sequence[float],
    losses: Sequence[Sequence[float]],
    before: Sequence[float],
    slopes: Sequence[float],
    beta: float = 1e-4,
    fair: bool = False,
) -> int | None:
    arrays = (np.array(values, np.float64) for values in (rungs, losses, before, slopes))
    return choose_rung(*arrays, beta=beta, fair=fair)


def test_the_largest_rung_at_which_everybody_falls_enough() -> None:
    # f(0) = 1, slope 1, beta 1/2: at a it must be at most 1 - a/2. Client 0 is there at 1, client 1 at 1/2 only.
    first, second = [0.5, 0.1, 0.4, 0.6], [3.0, 0.0, 0.6, 0.7]
    assert chosen([4, 2, 1, 0.5], [first, first], [1, 1], [1, 1], beta=0.5) == 2
    assert chosen([4, 2, 1, 0.5], [first, second], [1, 1], [1, 1], beta=0.5) == 3


def test_a_rise_never_passes_as_a_decrease() -> None:
    # With the sign of the Armijo term flipped, a rise by 0.5e-4 would pass at factor 1.
    assert chosen([1, 0.5], [[1 + 0.5e-4, 0.99], [0.5, 0.7]], [1, 1], [1, 1]) == 1


def test_with_fairness_the_angle_must_fall_too() -> None:
    # cos of (1, 3) is 4 / (sqrt(10) sqrt(2)) = 0.894, of (0.5, 2) 0.857, of (0.9, 2.5) 0.905. Against the sum of the
    # losses in the place of their norm, 4 / (4 sqrt(2)) = 0.707, the first rung would pass.
    losses = [[0.5, 0.9], [2.0, 2.5]]
    assert chosen([1, 0.5], losses, [1, 3], [0.1, 0.1]) == 0
    assert chosen([1, 0.5], losses, [1, 3], [0.1, 0.1], fair=True) == 1


def test_else_the_largest_that_lowers_the_sum_else_the_best() -> None:
    rises = [1.5, 1.25, 1.125]
    assert chosen([4, 2, 1], [rises, [0.6, 0.5, 0.9]], [1, 1], [1, 1]) == 1  # sums 2.1, 1.75, 2.025
    assert chosen([4, 2, 1], [rises, [0.7, 0.8, 0.9]], [1, 1], [1, 1]) == 2  # 2.2, 2.05, 2.025
    assert chosen([4, 2, 1], [rises, [math.inf, math.inf, 9.0]], [1, 1], [1, 1]) == 2
    assert chosen([4, 2], [[0.5, 0.5], [math.inf, math.inf]], [1, 1], [1, 1], fair=True) is None


@pytest.mark.parametrize(
    ("hints", "ladder"),
    [
        (SearchHints(), Ladder(1.0, rungs_above=3, rungs_below=3)),
        (SearchHints(lost=True), Ladder(1.0, rungs_above=0, rungs_below=3)),
        (SearchHints(stretch=4.0), Ladder(1.0, rungs_above=3, rungs_below=5)),  # down to 2^-3 / 4
        (SearchHints(stretch=5.0), Ladder(1.0, rungs_above=3, rungs_below=5)),
    ],
)
def test_the_ladder_of_a_first_step(hints: SearchHints, ladder: Ladder) -> None:
    assert Search(SearchSettings(search=3)).propose(scale(hints)) == ladder


def scale(hints: SearchHints | None = None) -> StepScale:
    return StepScale(1.0, 1.0, 1.0, 1, hints or SearchHints(), losses={3: 1.0, 7: 1.0}, slopes={3: 1.0, 7: 1.0})


def reports(ladder: Ladder, good: float) -> dict[int, Probe]:
    """Two clients whose losses fall up to the factor `good`."""
    rungs = ladder_rungs(ladder.factor, ladder.rungs_above, ladder.rungs_below)
    losses = tuple(0.5 if rung <= good else 2.0 for rung in rungs)
    return {client: Probe(0.5, True, losses=losses) for client in (3, 7)}


def test_a_choice_other_than_the_candidate_is_accepted_with_the_next_exchange() -> None:
    rule = Search(SearchSettings())
    ladder = rule.propose(scale())
    verdict = rule.judge(ladder, reports(ladder, 8.0), scale())
    assert verdict == Verdict(accepted=False, factor=8.0)
    retried = rule.retry(verdict.factor)
    assert retried == Ladder(8.0)
    assert rule.judge(retried, {3: Probe(9.0, False)}, scale()) == Verdict(accepted=True, factor=8.0)


def test_the_factor_chosen_last_is_the_next_candidate() -> None:
    rule = Search(SearchSettings())
    rule.judge(rule.propose(scale()), reports(rule.propose(scale()), 8.0), scale())
    following = rule.propose(scale())
    assert following == Ladder(8.0, rungs_above=2, rungs_below=8)
    assert rule.judge(following, reports(following, 8.0), scale()) == Verdict(accepted=True, factor=8.0)
    assert rule.propose(scale(SearchHints(lost=True))) == Ladder(1.0, rungs_above=0, rungs_below=5)


def test_only_those_who_answered_are_asked() -> None:
    rule = Search(SearchSettings(search=0))
    ladder = rule.propose(scale(SearchHints(stretch=2.0)))
    assert ladder == Ladder(1.0, rungs_above=0, rungs_below=1)
    assert rule.judge(ladder, {7: Probe(0.5, True, losses=(0.5, 0.7))}, scale()) == Verdict(True, 1.0)


def test_losses_that_are_finite_nowhere_end_the_search() -> None:
    rule = Search(SearchSettings(search=1))
    ladder = rule.propose(scale())
    probes = {client: Probe(math.inf, False, losses=(math.inf,) * 3) for client in (3, 7)}
    assert rule.judge(ladder, probes, scale()) == Verdict(accepted=False, factor=0.0, stationary=True)


@pytest.mark.parametrize("loss", [math.inf, 0.5])
def test_the_only_rung_there_is_must_be_finite(loss: float) -> None:
    rule = Search(SearchSettings(search=0))
    ladder = rule.propose(scale())
    assert not ladder_rungs(ladder.factor, ladder.rungs_above, ladder.rungs_below)
    verdict = rule.judge(ladder, {3: Probe(0.4, True), 7: Probe(loss, False)}, scale())
    finite = math.isfinite(loss)
    assert verdict == Verdict(accepted=finite, factor=float(finite), stationary=not finite)


def test_a_restored_rule_proposes_the_same() -> None:
    rule, copy = Search(SearchSettings()), Search(SearchSettings())
    ladder = rule.propose(scale())
    rule.judge(ladder, reports(ladder, 0.25), scale())
    copy.restore_state(rule.export_state())
    assert copy.propose(scale()) == rule.propose(scale()) == Ladder(0.25, rungs_above=7, rungs_below=3)


@given(
    curvatures=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    beta=st.floats(0, 0.4),
    reach=st.integers(1, 8),
)
def test_on_parabolas_it_is_the_largest_power_of_two_of_the_known_length(
    curvatures: list[float], beta: float, reach: int
) -> None:
    # f(a) = 1 - a + c a^2 / 2 meets the test up to a = 2 (1 - beta) / c.
    rungs = np.array(ladder_rungs(1.0, reach, reach))
    c = np.array(curvatures)[:, None]
    found = choose_rung(rungs, 1 - rungs + c * rungs**2 / 2, np.ones(len(c)), np.ones(len(c)), beta=beta, fair=False)
    limit = 2 * (1 - beta) / max(curvatures)
    if limit >= rungs[-1] * (1 + 1e-9):
        assert found is not None
        assert rungs[found] <= limit * (1 + 1e-9)
        assert found == 0 or 2 * rungs[found] >= limit * (1 - 1e-9)
