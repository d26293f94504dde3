"""What hostile clients send, and who they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dqnfed_flwr.config import AttackSettings, Settings
from dqnfed_flwr.engine.adversary import hostile_clients, noise_of, tampered
from dqnfed_flwr.errors import ConfigError

ROW = np.array([3.0, 0.0, -4.0], np.float32)  # of length 5
THETA = np.array([1.0, 2.0, 3.0], np.float32)


def sent(*, displacement: bool = False, seed: int = 0, **attack: Any) -> NDArray[np.floating[Any]]:
    return tampered(ROW, THETA, AttackSettings(**attack), noise_of(seed, 2, 5), displacement=displacement)


def settings(**attack: Any) -> Settings:
    return Settings.from_mapping({"clients": 20, "attack": {"kind": "zero", **attack}})


@pytest.mark.parametrize(
    ("attack", "row"),
    [
        ({"kind": "enlarged"}, [300, 0, -400]),
        ({"kind": "enlarged", "factor": -0.5}, [-1.5, 0, 2]),
        ({"kind": "zero"}, [0, 0, 0]),
        ({"kind": "none"}, [3, 0, -4]),
    ],
)
def test_what_is_sent_for_a_row(attack: dict[str, Any], row: list[float]) -> None:
    assert sent(**attack).tolist() == row


def test_random_is_the_way_to_a_model_of_noise() -> None:
    noise = noise_of(0, 2, 5).standard_normal(3)
    displaced = sent(kind="random", displacement=True)
    assert displaced == pytest.approx(THETA - noise, rel=1e-6)
    gradient = sent(kind="random")
    assert np.linalg.norm(gradient) == pytest.approx(5, rel=1e-6)
    assert gradient / np.linalg.norm(gradient) == pytest.approx(displaced / np.linalg.norm(displaced), rel=1e-5)


def test_random_depends_on_seed_round_and_node() -> None:
    drawn = {tuple(noise_of(*key).standard_normal(2)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}
    assert len(drawn) == 4
    assert sent(kind="random").tolist() == sent(kind="random").tolist()
    assert sent(kind="random").tolist() != sent(kind="random", seed=1).tolist()


@pytest.mark.parametrize("kind", ["random", "enlarged", "zero"])
def test_the_honest_row_stays_and_so_does_its_dtype(kind: str) -> None:
    changed = sent(kind=kind)
    assert changed.dtype == np.float32
    assert ROW.tolist() == [3, 0, -4]


def test_hostile_clients_are_a_share_drawn_from_the_seed() -> None:
    first = hostile_clients(settings())
    assert len(first) == 4
    assert first <= set(range(20))
    assert first == hostile_clients(settings(kind="random", factor=3.0))
    assert first != hostile_clients(settings().model_copy(update={"seed": 1}))
    assert len(hostile_clients(settings(share=0.001))) == 1
    assert hostile_clients(settings(kind="none")) == frozenset()


@pytest.mark.parametrize(("given", "expected"), [("2, 5,8", {2, 5, 8}), ("3", {3}), (3, {3}), (0, {0})])
def test_hostile_clients_by_name(given: str | int, expected: set[int]) -> None:
    assert hostile_clients(settings(clients=given)) == expected


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ({"clients": "2,x"}, r"attack\.clients: found '2,x'; give different whole numbers from 0, such as 2,5,8"),
        ({"clients": "2,2"}, r"attack\.clients: found '2,2'; give different"),
        ({"clients": "2,20"}, r"attack\.clients: found 20; clients = 20 allows 0\.\.19"),
        ({"clients": True}, r"attack\.clients: .*string"),
        ({"kind": "rude"}, r"attack\.kind: .*'none', 'random', 'enlarged' or 'zero'.*found 'rude'"),
        ({"share": 1.0}, r"attack\.share: .*less than 1, found 1"),
    ],
)
def test_faults_name_key_and_what_is_allowed(attack: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(**attack)
