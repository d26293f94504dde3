"""Step rules: what each proposes, and what the probed one makes of the clients' losses."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings, StepSettings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.steps import RULES, Ladder, StepScale, Verdict, make_rule, mean_loss_falls, rules_for
from dqnfed_flwr.steps.blind import Clipped, ClippedSettings, Fixed, FixedSettings, Newton
from dqnfed_flwr.steps.probed import Probed
from dqnfed_flwr.types import Probe
from tests.helpers.rounds import decide

PACKAGE = Path(__file__).parents[3] / "dqnfed_flwr"
HOLDS, GROWS, FAILS = Probe(0.5, True), Probe(0.5, True, grown_holds=True), Probe(2.0, False)


def scale(norm: float = 2.0, length: float = 1.0, theta_norm: float = 1.0, number: int = 1) -> StepScale:
    return StepScale(norm, length, theta_norm, number)


def back(factor: float) -> Probe:
    return Probe(2.0, False, back_factor=factor, back_loss=0.9)


def probed(*, max_fall: float = math.inf, **settings: Any) -> Probed:
    return Probed(StepSettings(**settings), max_fall=lambda participants: max_fall)


@pytest.mark.parametrize(
    ("method", "rules"),
    [
        ("fedavg", ("newton", "fixed", "clipped")),
        ("q-ffl", ("newton", "fixed", "clipped", "probed")),
        ("adafed", ("fixed", "newton", "clipped", "probed")),
        ("dqn-fed", ("probed", "newton", "fixed", "clipped")),
        ("fedmdfg", ("search", "newton", "fixed", "clipped", "probed")),
    ],
)
def test_the_rules_for_a_method_follow_from_its_own_and_from_its_rows(method: str, rules: tuple[str, ...]) -> None:
    assert rules_for(METHODS[method]) == rules


def test_only_its_own_file_and_the_methods_know_a_rule_by_name() -> None:
    rooms = [PACKAGE / name for name in ("client", "config", "schema", "strategy")]
    found = [
        (file.name, node.lineno)
        for file in (file for room in rooms for file in room.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Constant) and each.value in RULES for each in ast.walk(node))
    ]
    assert found == []


@pytest.mark.parametrize("name", ["newton", "fixed", "clipped", "probed"])
def test_every_name_has_a_rule_that_judges_what_it_proposes(name: str) -> None:
    rule = make_rule(resolve(Settings.from_mapping({"step-rule": name})))
    ladder = rule.propose(scale())
    assert ladder.factor > 0
    assert rule.judge(ladder, {0: HOLDS}, scale()) == Verdict(True, ladder.factor)


def test_newton_takes_the_step_as_it_is() -> None:
    assert Newton().propose(scale(norm=1e9)) == Ladder(1.0)


def test_fixed_gives_the_direction_the_length_of_algorithm_1() -> None:
    rule = Fixed(FixedSettings(lr=0.8, decay=0.5))
    # The step is eta^t times the direction, so lr * decay^(t-1) / eta^t times the step is lr * decay^(t-1) of it.
    assert [rule.propose(scale(length=4.0, number=t)).factor for t in (1, 2, 3)] == [0.2, 0.1, 0.05]
    assert rule.propose(scale(norm=0.0, length=0.0)).factor == 0


@pytest.mark.parametrize("method", ["adafed", "fairgrad", "fedmgda+"])
@pytest.mark.parametrize("work", ["sgd", "gradient"])
def test_a_step_without_a_length_of_its_own_is_left_as_it_is_until_a_rate_is_given(method: str, work: str) -> None:
    given_settings = {"method": method, "local.work": work, "local.lr": 0.5}
    settings = Settings.from_mapping(given_settings)
    length = decide(make_method(resolve(settings)), np.eye(3), losses=[1.0, 2.0, 3.0]).combination.length
    assert make_rule(resolve(settings)).propose(scale(length=length, number=9)) == Ladder(1.0)
    tuned = make_rule(resolve(Settings.from_mapping({**given_settings, "step.lr": 3, "step.decay": 0.5})))
    assert tuned.propose(scale(length=length, number=3)) == Ladder(0.75)


@given(norm=st.floats(1e-6, 1e6), radius=st.floats(1e-3, 1e3))
def test_clipped_never_moves_further_than_its_radius(norm: float, radius: float) -> None:
    factor = Clipped(ClippedSettings(radius=radius)).propose(scale(norm=norm)).factor
    assert factor * norm <= radius * (1 + 1e-12)
    assert factor == 1.0 or factor * norm == pytest.approx(radius)


def test_rules_without_a_safeguard_accept_whatever_happens() -> None:
    for rule in (Newton(), Fixed(FixedSettings()), Clipped(ClippedSettings())):
        assert rule.judge(Ladder(0.7), {0: FAILS, 1: FAILS}, scale()) == Verdict(True, 0.7)
        assert rule.export_state() == {}


def test_probed_begins_at_its_start_with_rungs_below() -> None:
    assert probed(start=0.5, halvings=3, grow_every=0).propose(scale()) == Ladder(0.5, False, 3)


def test_probed_promises_the_mean_loss_no_fall_beyond_its_bound() -> None:
    told = StepScale(2.0, 1.0, 1.0, 3, losses={0: 2.0, 1: 1.0, 2: 4.0}, slopes={0: 4.0, 1: 0.5, 2: -1.0})
    rule = probed(max_fall=0.1)
    assert rule.propose(told) == Ladder(0.2, False, 6)  # 0.1 (2 + 1 + 4) / (4 + 0.5 - 1)
    assert probed(max_fall=0.1, start=0.02).propose(told) == Ladder(0.02, True, 6)
    assert probed(max_fall=0.1, max_factor=0.01).propose(told).factor == 0.01
    assert probed().propose(told).factor == 1
    assert probed(max_fall=0.1).propose(scale()).factor == 1
    rule.judge(Ladder(0.2), {0: HOLDS}, told)
    assert rule.propose(scale()).factor == 1  # the bound was that of one round


@pytest.mark.parametrize("loss", [1e-12, 0.0, -1e-9])
def test_a_loss_that_is_nearly_0_holds_nobody_else(loss: float) -> None:
    told = StepScale(2.0, 1.0, 1.0, 3, losses={0: 1.0, 1: loss}, slopes={0: 0.1, 1: 0.1})
    assert probed(max_fall=0.1).propose(told).factor == pytest.approx(0.5)


def test_the_bound_is_that_of_so_many_participants() -> None:
    rule = Probed(StepSettings(), max_fall=lambda participants: 0.05 * participants)
    for count in (1, 2, 5):
        told = StepScale(
            2.0, 1.0, 1.0, 3, losses=dict.fromkeys(range(count), 2.0), slopes=dict.fromkeys(range(count), 1.0)
        )
        assert rule.propose(told).factor == pytest.approx(0.1 * count)


def test_small_losses_bound_one_round_alone() -> None:
    rule = probed(max_fall=0.1)

    def factor(number: int, loss: float, probe: Probe = HOLDS) -> float:
        told = StepScale(1.0, 1.0, 10.0, number, losses={0: loss, 1: loss}, slopes={0: 0.1, 1: 0.1})
        ladder = rule.propose(told)
        while not (verdict := rule.judge(ladder, {0: probe, 1: HOLDS}, told)).accepted:
            ladder, probe = rule.retry(verdict.factor), HOLDS
        return verdict.factor

    assert [factor(number, loss) for number, loss in enumerate((1.0, 0.01, 1.0), start=1)] == [1.0, 0.01, 1.0]
    assert factor(4, 0.01, back(0.005)) == 0.005  # here it was the test that held the step back
    assert factor(5, 1.0) == 0.005


def test_the_bound_is_no_smaller_than_a_step_worth_trying() -> None:
    told = StepScale(2.0, 1.0, 10.0, 3, losses={0: 1e-12}, slopes={0: 1.0})
    assert probed(max_fall=0.1, min_move=1e-3).propose(told).factor == pytest.approx(5e-3)  # 2 a = 1e-3 * 10
    assert probed(max_fall=0.1, min_move=1e-3, start=1e-4).propose(told).factor == 1e-4


def test_probed_asks_for_twice_the_factor_every_so_many_rounds() -> None:
    rule = probed(grow_every=3)
    assert [rule.propose(scale(number=t)).grow for t in range(1, 8)] == [False, False, True] * 2 + [False]
    assert not any(probed(grow_every=0).propose(scale(number=t)).grow for t in range(1, 8))
    assert not probed(start=1.0, max_factor=1.5, grow_every=1).propose(scale()).grow


def factors(rule: Probed, rounds: range, probe: Probe) -> list[float]:
    """What is accepted in each round whose first candidate everybody likes."""
    found = []
    for number in rounds:
        ladder = rule.propose(scale(number=number))
        found.append(rule.judge(ladder, {0: probe if ladder.grow else HOLDS}, scale(number=number)).factor)
    return found


def after_a_miss(factor: float, **settings: Any) -> Probed:
    """A rule whose round 1 began at 1 and ended at `factor`, by two misses."""
    rule = probed(**settings)
    rule.propose(scale())
    rule.judge(Ladder(1.0), {0: back(0.75)}, scale())
    rule.judge(rule.retry(0.75), {0: back(factor)}, scale())
    rule.judge(rule.retry(factor), {0: HOLDS}, scale())
    return rule


def test_a_deep_cut_is_made_good_at_once_as_far_as_the_test_allows() -> None:
    doubled = [2.0**-5, 2.0**-4, 0.125, 0.25, 0.5]
    assert factors(after_a_miss(2.0**-5, grow_every=100), range(2, 9), GROWS) == [*doubled, 0.5, 0.5]
    assert factors(after_a_miss(2.0**-5, grow_every=7), range(2, 9), GROWS) == [*doubled, 0.5, 1.0]
    assert factors(after_a_miss(2.0**-5, grow_every=7), range(2, 9), HOLDS) == [2.0**-5] * 7
    assert factors(after_a_miss(2.0**-5, grow_every=0), range(2, 9), GROWS) == [2.0**-5] * 7


@pytest.mark.parametrize(("accepted", "following"), [(2.0**-5, 2.0**-5), (2.0**-20, 0.5)])
def test_one_round_of_a_very_short_step_does_not_slow_down_those_after_it(accepted: float, following: float) -> None:
    rule = probed()
    cut(rule, 1, accepted)
    assert rule.propose(scale(number=2)).factor == following


def cut(rule: Probed, number: int, accepted: float) -> bool:
    """A round in which no factor above the one `accepted` suits; whether that took a miss."""
    ladder, step = rule.propose(scale(number=number)), scale(number=number)
    if missed := ladder.factor > accepted:
        assert not rule.judge(ladder, {0: back(accepted)}, step).accepted
        ladder = rule.retry(accepted)
    assert rule.judge(ladder, {0: Probe(0.5, True, grown_holds=False)}, step).accepted
    return missed


def test_short_steps_now_and_then_leave_the_others_as_they_are() -> None:
    rule, found = probed(grow_every=100), []
    for number in range(1, 20, 2):
        cut(rule, number, 2.0**-20)
        ladder = rule.propose(scale(number=number + 1))
        assert rule.judge(ladder, {0: GROWS}, scale(number=number + 1)).accepted
        found.append(ladder.factor)
    assert found == [0.5] * 10


def test_where_all_rounds_ask_for_a_very_short_step_the_misses_end() -> None:
    rule = probed(grow_every=100)
    assert [cut(rule, number, 2.0**-20) for number in range(1, 30)] == [True] * 15 + [False] * 14


def test_a_halving_waits_for_its_turn() -> None:
    assert factors(after_a_miss(0.5, grow_every=3), range(2, 5), GROWS) == [0.5, 0.5, 1.0]


def test_a_miss_on_the_way_back_sets_a_nearer_aim() -> None:
    rule = after_a_miss(2.0**-5, grow_every=100)
    assert factors(rule, range(2, 4), GROWS) == [2.0**-5, 2.0**-4]
    assert rule.propose(scale(number=4)).factor == 0.125
    assert not rule.judge(Ladder(0.125), {0: back(2.0**-5)}, scale(number=4)).accepted
    assert factors(rule, range(5, 9), GROWS) == [2.0**-5, *[2.0**-4] * 3]


def test_what_a_miss_cost_is_remembered_across_a_stop() -> None:
    rule, after = after_a_miss(2.0**-5), probed()
    after.restore_state(rule.export_state())
    assert factors(after, range(4, 9), GROWS) == factors(rule, range(4, 9), GROWS)
    within = probed()
    within.propose(scale())  # and stopped before the replies
    after.restore_state(within.export_state())
    for each in (within, after):
        each.judge(Ladder(1.0), {0: back(2.0**-5)}, scale())
    assert after.export_state() == within.export_state()


def test_probed_doubles_where_everybody_would_have_held_there() -> None:
    for probes, following in (([GROWS, GROWS], 0.5), ([GROWS, HOLDS], 0.25), ([GROWS, Probe(0.5, True, False)], 0.25)):
        rule = probed(grow_every=1, start=0.25)
        ladder = rule.propose(scale())
        assert rule.judge(ladder, dict(enumerate(probes)), scale()) == Verdict(True, 0.25)
        assert rule.propose(scale()).factor == following


def test_growth_that_nobody_asked_for_counts_for_nothing() -> None:
    rule = probed(grow_every=2)
    rule.judge(rule.propose(scale(number=1)), {0: GROWS}, scale())
    assert rule.propose(scale()).factor == 1.0


def test_probed_draws_back_to_the_largest_rung_that_suits_all() -> None:
    rule = probed(halvings=4)
    probes = {0: HOLDS, 1: back(0.5), 2: back(0.125)}
    assert rule.judge(rule.propose(scale()), probes, scale()) == Verdict(False, 0.125)
    assert rule.retry(0.125) == Ladder(0.125, False, 4)
    assert rule.judge(rule.retry(0.125), {0: HOLDS}, scale()) == Verdict(True, 0.125)
    assert rule.propose(scale()).factor == 0.125  # the next round begins where this one ended


def test_a_client_that_found_no_rung_sends_the_factor_below_the_ladder() -> None:
    rule = probed(halvings=2)
    assert rule.judge(rule.propose(scale()), {0: HOLDS, 1: FAILS}, scale()) == Verdict(False, 0.125)


def test_every_vote_counts_however_many_agree() -> None:
    rule = probed()
    probes = dict.fromkeys(range(9), HOLDS) | {9: back(0.5)}
    assert rule.judge(rule.propose(scale()), probes, scale()) == Verdict(False, 0.5)


@pytest.mark.parametrize(
    ("doubtful", "doubters", "following"),
    [(0, 0, 0.5), (1, 0, 0.25), (1, 1, 0.5), (2, 1, 0.25), (2, 2, 0.5), (3, 2, 0.25)],
)
def test_the_doubts_of_as_many_as_may_lie_hold_up_no_growth(doubtful: int, doubters: int, following: float) -> None:
    told = replace(scale(), doubters=doubters)
    for doubt in (HOLDS, Probe(0.5, True, grown_holds=False)):
        rule = probed(grow_every=1, start=0.25)
        probes = {client: doubt if client < doubtful else GROWS for client in range(5)}
        assert rule.judge(rule.propose(told), probes, told) == Verdict(True, 0.25)
        assert rule.propose(told).factor == following


def test_doubters_accept_no_candidate_for_others() -> None:
    told = replace(scale(), doubters=3)
    rule = probed()
    assert rule.judge(rule.propose(told), {0: HOLDS, 1: back(0.5)}, told) == Verdict(False, 0.5)


CONTESTED = replace(scale(), contested=True)


def test_contested_rounds_have_a_pace_of_their_own() -> None:
    rule = probed(grow_every=0)
    assert rule.judge(rule.propose(CONTESTED), {0: back(2.0**-5)}, CONTESTED) == Verdict(False, 2.0**-5)
    assert rule.propose(scale()).factor == 1.0  # what was asked for there slows down no other round
    assert rule.propose(CONTESTED).factor == 2.0**-5
    assert rule.judge(rule.propose(scale()), {0: back(0.5)}, scale()) == Verdict(False, 0.5)
    assert (rule.propose(scale()).factor, rule.propose(CONTESTED).factor) == (0.5, 2.0**-5)


def test_a_miss_of_a_contested_round_asks_for_growth_there_alone() -> None:
    rule = probed(grow_every=100)
    rule.judge(rule.propose(CONTESTED), {0: back(2.0**-5)}, CONTESTED)
    rule.judge(rule.retry(2.0**-5), {0: HOLDS}, CONTESTED)
    assert rule.propose(CONTESTED).grow
    assert not rule.propose(scale()).grow
    rule.judge(rule.propose(CONTESTED), {0: GROWS}, CONTESTED)
    assert (rule.propose(CONTESTED).factor, rule.propose(scale()).factor) == (2.0**-4, 1.0)


def test_a_contested_round_in_which_nothing_suits_ends_its_own_search_alone() -> None:
    rule = probed(min_move=0.1, start=1.0, grow_every=0)
    rule.judge(rule.propose(scale()), {0: back(0.5)}, scale())
    still = replace(scale(norm=2.0, theta_norm=10.0), contested=True)
    assert rule.judge(Ladder(1.0), {0: FAILS}, still) == Verdict(False, 0.0, True)
    assert (rule.propose(CONTESTED).factor, rule.propose(scale()).factor) == (1.0, 0.5)


def test_both_paces_are_remembered_across_a_stop() -> None:
    rule = after_a_miss(2.0**-3, grow_every=100)
    rule.judge(rule.propose(CONTESTED), {0: back(2.0**-5)}, CONTESTED)
    state = rule.export_state()
    assert set(state) == {
        f"{kind}{key}" for kind in ("", "contested_") for key in ("factor", "first", "missed", "late")
    }
    copy = probed(grow_every=100)
    copy.restore_state(state)
    assert copy.export_state() == state
    for told in (scale(number=7), replace(CONTESTED, round=7)):
        assert copy.propose(told) == rule.propose(told)
    assert copy.propose(scale()).factor != copy.propose(CONTESTED).factor


def test_probed_gives_up_where_the_model_would_hardly_move() -> None:
    rule = probed(halvings=1, min_move=0.1, start=1.0)
    # 0.25 * 2 is a move of 0.5, more than a tenth of |theta| = 4 ...
    assert rule.judge(Ladder(1.0, halvings=1), {0: FAILS}, scale(2.0, theta_norm=4)) == Verdict(False, 0.25)
    # ... 0.0625 * 2 is not: stationary, and the next round begins anew.
    assert rule.judge(Ladder(0.25, halvings=1), {0: FAILS}, scale(2.0, theta_norm=4)) == Verdict(False, 0.0, True)
    assert rule.propose(scale()).factor == 1.0


def test_the_search_ends_from_a_model_of_zeros_too() -> None:
    rule, at_zero = probed(), scale(theta_norm=0.0)
    ladder, exchanges = rule.propose(at_zero), 0
    while not (verdict := rule.judge(ladder, {0: FAILS}, at_zero)).stationary:
        ladder, exchanges = rule.retry(verdict.factor), exchanges + 1
    assert exchanges < 10
    assert rule.propose(scale()).factor == 1.0


def test_a_restored_rule_proposes_the_same() -> None:
    rule = probed()
    rule.judge(rule.propose(scale()), {0: back(0.125)}, scale())
    copy = probed()
    copy.restore_state(rule.export_state())
    assert copy.propose(scale()) == rule.propose(scale()) == Ladder(0.125, True, 6)


@given(st.lists(st.sampled_from([HOLDS, GROWS, FAILS, back(0.5), back(0.0625)]), min_size=1, max_size=8))
def test_a_verdict_is_to_accept_to_shrink_or_to_stop(answers: list[Probe]) -> None:
    rule = probed()
    ladder = rule.propose(scale())
    verdict = rule.judge(ladder, dict(enumerate(answers)), scale())
    assert verdict.accepted == all(answer.holds for answer in answers)
    assert verdict.accepted or verdict.stationary or 0 < verdict.factor < ladder.factor


def test_the_mean_loss_is_weighed_by_shares() -> None:
    probes, references = {3: Probe(0.5, True), 7: Probe(2.0, False)}, {3: 1.0, 7: 1.0, 9: 5.0}
    assert mean_loss_falls(probes, references, {3: 0.8, 7: 0.2, 9: 0.0})
    assert not mean_loss_falls(probes, references, {3: 0.5, 7: 0.5, 9: 0.0})
    assert not mean_loss_falls({3: Probe(math.inf, False)}, references, {3: 1.0})
    assert not mean_loss_falls({3: Probe(1.0, False)}, references, {3: 1.0})  # unchanged is not below


@pytest.mark.parametrize(
    ("losses", "floor", "most"),
    [
        ((2.0, 4.0), 0.0, 0.5 * 6 / 4),
        ((-1.0, 1.0), -3.0, 0.5 * 6 / 4),  # the same, three lower
        ((2.0, 4.0), None, 0.5 * 6 / 4),
        ((-1.0, 1.0), None, 64.0),  # nothing to take a share of: the largest factor
    ],
)
def test_a_share_of_the_mean_loss_counts_from_the_floor(
    losses: tuple[float, float], floor: float | None, most: float
) -> None:
    rule = make_rule(resolve(Settings.from_mapping({"step.max-fall": 0.5, "step.max-factor": 64, "step.start": 64})))
    told = StepScale(1.0, 1.0, 1.0, 3, losses=dict(enumerate(losses)), slopes={0: 3.0, 1: 1.0}, floor=floor)
    assert rule.propose(told).factor == pytest.approx(most)
