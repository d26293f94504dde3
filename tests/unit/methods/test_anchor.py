"""Any method as the anchor: it decides as by itself, and nothing of it mixes with the method around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import LayerMethod, Method, make_method
from dqnfed_flwr.methods.dqn_fed import unfit_as_anchor
from dqnfed_flwr.schema.work import GENERAL
from dqnfed_flwr.types import Extras
from tests.helpers.rounds import decide

UNFIT = {name for name, profile in METHODS.items() if unfit_as_anchor(profile, Settings())}
GENERAL_WORK = [name for name, profile in METHODS.items() if profile.works[0].name in GENERAL]
"""Those that clients' rows suffice for; the others keep more on clients than these tests make up."""
FIT = [name for name in GENERAL_WORK if name not in UNFIT] + ["torchjd:UPGrad", "torchjd:ConFIG"]


def over(anchor: str, **more: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"dqn-fed.anchor": anchor, "clients": 3, **more})))


def test_every_method_with_a_step_of_its_own_can_be_one() -> None:
    assert {"dqn-fed", "fedcorr", "ditto", "local"} >= UNFIT
    for name in METHODS:
        if name not in UNFIT:
            assert Settings.from_mapping({"dqn-fed.anchor": name}).title.startswith("DQN-Fed over ")


@pytest.mark.parametrize("name", FIT)
def test_where_all_clients_are_alike_the_step_is_the_anchors_own(name: str, rng: np.random.Generator) -> None:
    """The rates then ask for exactly the fall that the anchor gives, in round after round."""
    alone = make_method(resolve(Settings.from_mapping({"method": name, "clients": 3})))
    method = over(name)
    sends = resolve(Settings.from_mapping({"dqn-fed.anchor": name})).sends_anchor_row
    for layered in (alone, method.inner):
        if isinstance(layered, LayerMethod):
            layered.layers = (slice(0, 3), slice(3, 6))
    for number in (1, 2, 3):
        row = np.repeat(1 + 0.1 * rng.standard_normal((1, 6)), 3, axis=0)
        grads = 2 * row if sends else row
        mine = decide(method, grads, number=number, vectors={"anchor": tuple(row)})
        expected = decide(alone, row, number=number)
        np.testing.assert_allclose(mine.step, expected.step, rtol=1e-6, atol=1e-12)
        assert mine.combination.notes["anchor_reset"] == 0
        for each in (alone, method):
            each.step_taken(expected.step, 1.0)


def test_it_is_changed_as_little_as_the_rates_ask() -> None:
    # FedAvg's step is (0.2, 0), along which client 1's loss does not fall; both are to fall by the mean, 0.1, for equal
    # rates: u = (0.2, 0.1) is the nearest step.
    grads = np.array([[1.0, 0.0], [0.0, 1.0]])
    rows = (np.array([0.4, 0.0]), np.array([0.0, 0.0]))
    solved = decide(over("fedavg", **{"dqn-fed.rate-spread": 0}), grads, vectors={"anchor": rows})
    np.testing.assert_allclose(solved.step, [0.2, 0.1], rtol=1e-12)


def test_an_anchor_that_raises_the_mean_loss_gives_way_for_the_round() -> None:
    grads = np.array([[1.0, 0.0], [0.0, 1.0]])
    uphill = tuple(-grads)
    solved = decide(over("fedavgm", **{"local.lr": 0.5}), grads, vectors={"anchor": uphill})
    assert solved.combination.notes["anchor_reset"] == 1
    np.testing.assert_allclose(solved.step, [0.25, 0.25], rtol=1e-12)
    # its memory of that step is gone: the next one is that of FedAvg
    method = over("fedavgm")
    decide(method, grads, vectors={"anchor": uphill})
    following = decide(method, grads, number=2, vectors={"anchor": tuple(0.1 * grads)})
    np.testing.assert_allclose(following.step, [0.05, 0.05], rtol=1e-12)


def test_long_rows_are_cut_and_counted() -> None:
    grads = np.eye(3)
    rows = (np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), np.array([0, 0, 1e6]))
    notes = decide(over("fedavg"), grads, vectors={"anchor": rows}).combination.notes
    assert notes["anchor_cut"] == 1
    assert "anchor_cut" not in decide(over("fedavg"), grads, vectors={"anchor": (*rows[:2], rows[1])}).combination.notes


def test_memories_lie_side_by_side() -> None:
    """FedFV as an anchor keeps rows of absent clients, as the method around it does."""
    method = over("fedfv", participation=0.67, **{"dqn-fed.absent-rounds": 2, "dqn-fed.anchor-work": "sgd"})
    rows = np.array([[1.0, 0.1], [0.2, 1.0]])
    decide(method, rows, clients=[0, 1], vectors={"anchor": tuple(0.5 * rows)})
    state = method.export_state()
    np.testing.assert_array_equal(state["absent_row_0"], rows[0])
    np.testing.assert_array_equal(state["anchor/absent_row_0"], 0.5 * rows[0])


class TestShare:
    """A share of a round's clients sends a row for the anchor."""

    CLIENTS = tuple(range(10))

    def make(self, **more: Any) -> Method:
        return over("fedavg", **{"clients": 10, "dqn-fed.anchor-share": 0.3, **more})

    def spared(self, method: Method, number: int) -> set[int]:
        assert method.select(number, self.CLIENTS) == self.CLIENTS
        spared = {client for client in self.CLIENTS if method.directives(number, client).get("anchor") == 0}
        assert all(method.extras_of(number, client, 7) == Extras() for client in spared)
        wanted = Extras({"anchor": (7,)}, bits={"anchor": 4})
        assert all(method.extras_of(number, client, 7) == wanted for client in {*self.CLIENTS} - spared)
        return spared

    def test_others_are_drawn_in_every_round_and_the_same_ones_again_for_a_seed(self) -> None:
        drawn = [self.spared(self.make(), number) for number in range(1, 40)]
        assert {len(found) for found in drawn} == {7}
        assert drawn == [self.spared(self.make(), number) for number in range(1, 40)]
        assert set.intersection(*drawn) == set()
        assert drawn != [self.spared(self.make(seed=1), number) for number in range(1, 40)]

    def test_all_are_asked_by_default(self) -> None:
        assert self.spared(self.make(**{"dqn-fed.anchor-share": 1.0}), 1) == set()

    def test_the_anchor_is_made_of_those_that_sent_one(self) -> None:
        grads, nothing = np.array([[1.0, 0], [1, 0], [1, 0]]), np.empty(0)
        given = (nothing, np.array([0.2, 0]), np.array([0.4, 0]))
        solved = decide(self.make(clients=3), grads, examples=[100, 1, 3], vectors={"anchor": given})
        np.testing.assert_allclose(solved.step, [0.25 * 0.2 + 0.75 * 0.4, 0], rtol=1e-12)

    def test_without_any_the_mean_gradient_takes_its_place(self) -> None:
        grads, nothing = np.array([[1.0, 0], [1, 0]]), np.empty(0)
        solved = decide(self.make(clients=3), grads, vectors={"anchor": (nothing, nothing)})
        np.testing.assert_allclose(solved.step, [0.1, 0], rtol=1e-12)
        notes = solved.combination.notes
        assert (notes["anchor_reset"], notes["anchor_missing"]) == (0, 1)
        left = decide(self.make(clients=3), grads, vectors={})  # who was asked for it did not answer
        np.testing.assert_array_equal(left.step, solved.step)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"anchor": "fedprox"},
            r"dqn-fed\.anchor: found 'fedprox'; did you mean fedavg with local\.proximal\? allowed: aaggff",
        ),
        ({"anchor": "dqn-fed"}, r"dqn-fed\.anchor: found 'dqn-fed', which cannot be one: a step of DQN-Fed is changed"),
        ({"anchor": "ditto"}, r"dqn-fed\.anchor: found 'ditto', which cannot be one: its models are"),
        ({"anchor": "fedcorr"}, r"dqn-fed\.anchor: found 'fedcorr', which cannot be one: it is made of stages"),
        ({"anchor": "fedsgd", "anchor-work": "sgd"}, r"dqn-fed\.anchor-work: fedsgd works with gradient or lbfgs"),
        ({"anchor": "fednew", "anchor-share": 0.5}, r"dqn-fed\.anchor-share: found 0\.5; fednew needs what all"),
        ({"anchor": "fedavg", "anchor-bits": 3}, r"dqn-fed\.anchor-bits: .*2, 4, 8 or 32"),
    ],
)
def test_what_cannot_be_an_anchor_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Settings.from_mapping({"dqn-fed": settings})


def test_an_anchor_of_gradients_sends_nothing_more() -> None:
    by_gradients = Settings.from_mapping({"dqn-fed.anchor": "fedadam", "dqn-fed.anchor-work": "gradient"})
    assert not resolve(by_gradients).sends_anchor_row
    assert over("fedadam", **{"dqn-fed.anchor-work": "gradient"}).extras(5) == Extras()
    assert not resolve(Settings()).sends_anchor_row


def test_sums_without_products_are_as_exact(rng: np.random.Generator) -> None:
    """Rows that cancel are added in float64, whether or not their products are at hand."""
    rows = rng.standard_normal((8, 400_000)).astype(np.float32)
    rows[1] = -rows[0] + 1e-4 * rows[2]
    weights = np.array([1.0, 1, 0, 0, 0, 0, 0, 0])
    sums = []
    for products in (True, False):
        held = RowSet(8, rows.shape[1], torch.float32, products=products)
        for slot, row in enumerate(rows):
            held.put(slot, row)
        sums.append(held.combine(weights))
    assert torch.equal(*sums)
    np.testing.assert_array_equal(sums[0], (rows[0].astype(np.float64) + rows[1]).astype(np.float32))
