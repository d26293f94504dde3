"""What `guarantee.*` may say."""

from __future__ import annotations

import pytest

from dqnfed_flwr.config import GuaranteeSettings, Settings
from dqnfed_flwr.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "level", "share"),
    [("0", 0.0, 0.0), (0, 0.0, 0.0), (0.25, 0.25, 0.0), ("30%", 0.0, 0.3), ("50 %", 0.0, 0.5), (-1.5, -1.5, 0.0)],
)
def test_an_entitlement_is_a_loss_or_a_share(given: object, level: float, share: float) -> None:
    settings = Settings.from_mapping({"guarantee.entitlement": given}).guarantee
    assert settings.level_and_share == pytest.approx((level, share))


@pytest.mark.parametrize("given", ["much", "", "-5%", "inf", "-inf", "nan", "%"])
def test_other_entitlements_are_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match=r"guarantee\.entitlement.*50%"):
        Settings.from_mapping({"guarantee.entitlement": given})


@pytest.mark.parametrize(
    ("tolerate", "asked", "liars"),
    [
        (0, 10, 0),
        (1, 10, 1),
        (1, 3, 1),
        (1, 2, 0),
        (1, 1, 0),
        (3, 7, 3),
        (3, 6, 2),
        (5, 10, 4),
        (5, 11, 5),
        (0.3, 10, 3),
        (0.1, 9, 0),
        (0.5, 10, 4),
        (0.5, 11, 5),
        (0.99, 4, 1),
        (7, 0, 0),
    ],
)
def test_those_who_may_lie_are_always_fewer_than_half(tolerate: float, asked: int, liars: int) -> None:
    assert GuaranteeSettings(tolerate=tolerate).liars(asked) == liars


@pytest.mark.parametrize(
    ("tolerate", "asked", "cut"),
    [(0, 1, False), (1, 3, False), (1, 2, True), (5, 10, True), (0.3, 10, False), (0.5, 10, True), (0.2, 4, True)],
)
def test_too_few_clients_for_so_many_liars_are_noticed(tolerate: float, asked: int, cut: bool) -> None:
    assert GuaranteeSettings(tolerate=tolerate).is_cut(asked) is cut


@pytest.mark.parametrize(
    ("voters", "participants", "needed"), [(0.5, 4, 2), (0.5, 5, 3), (0.1, 30, 3), (1, 7, 7), (0.5, 0, 1)]
)
def test_a_share_of_the_participants_must_judge_one_at_least(voters: float, participants: int, needed: int) -> None:
    assert GuaranteeSettings(voters=voters).needed(participants) == needed


@pytest.mark.parametrize("given", [-1, 1.5, -0.1])
def test_other_numbers_of_liars_are_refused_by_name(given: float) -> None:
    with pytest.raises(ConfigError, match=r"guarantee\.tolerate"):
        Settings.from_mapping({"guarantee.tolerate": given})


@pytest.mark.parametrize("given", [0, 1.1])
def test_a_share_of_voters_lies_above_0_and_up_to_1(given: float) -> None:
    with pytest.raises(ConfigError, match=r"guarantee\.voters"):
        Settings.from_mapping({"guarantee.voters": given})
