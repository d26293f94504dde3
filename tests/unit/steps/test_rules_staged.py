from __future__ import annotations

from dqnfed_flwr.config import Settings, StepSettings, resolve
from dqnfed_flwr.steps import Staged, StepScale, make_rule
from dqnfed_flwr.steps.probed import Probed
from dqnfed_flwr.types import Probe


def scale(number: int) -> StepScale:
    return StepScale(norm=1.0, length=1.0, theta_norm=1.0, round=number)


def staged() -> Staged:
    return Staged(Probed(StepSettings(start=4.0)), switch=5)


def test_the_round_says_which_rule_proposes_and_judges() -> None:
    rule = staged()
    assert rule.propose(scale(5)).factor == 1.0
    assert rule.propose(scale(6)).factor == 4.0
    worse = {0: Probe(9.0, holds=False, back_factor=0.5, back_loss=0.1)}
    assert rule.judge(rule.propose(scale(5)), worse, scale(5)).accepted
    verdict = rule.judge(rule.propose(scale(6)), worse, scale(6))
    assert (verdict.accepted, verdict.factor) == (False, 0.5)
    assert rule.retry(0.5) == Probed(StepSettings()).retry(0.5)


def test_nobody_is_asked_before_the_last_stage() -> None:
    assert [staged().asks(number) for number in (1, 5, 6)] == [False, False, True]


def test_a_rule_restored_goes_on_where_it_was() -> None:
    rule, other = staged(), staged()
    rule.judge(rule.propose(scale(6)), {0: Probe(1.0, holds=False, back_factor=0.25, back_loss=0.1)}, scale(6))
    other.restore_state(rule.export_state())
    assert other.propose(scale(7)) == rule.propose(scale(7))
    assert other.propose(scale(7)).factor == 0.25


def test_fedcorr_goes_the_whole_way_before_its_last_stage() -> None:
    rule = make_rule(
        resolve(
            Settings.from_mapping(
                {
                    "method": "fedcorr",
                    "fedcorr.last": "dqn-fed",
                    "clients": 4,
                    "fedcorr.preprocessing": 1,
                    "fedcorr.finetuning": 2,
                    "step.start": 0.125,
                }
            )
        )
    )
    assert [rule.propose(scale(number)).factor for number in (1, 6, 7)] == [1.0, 1.0, 0.125]
