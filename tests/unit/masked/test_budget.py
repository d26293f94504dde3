"""The noise that a budget asks for, against the library's own composition and closed forms."""

from __future__ import annotations

import math
import sys
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import norm

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked.budget import DOUBT, LOSSES, SLACK, Budget, Protection, exchanges_of

dp = pytest.importorskip("dp_accounting")
BUDGETS = [Budget(3.0, 1e-5, 27), Budget(1.0, 1e-6, 120), Budget(8.0, 1e-5, 4)]


def composed(accountant: object, budget: Budget, count: int) -> float:
    """The epsilon of so many exchanges, given to an accountant one by one."""
    made = accountant()  # type: ignore[operator]
    for _ in range(count):
        made.compose(dp.GaussianDpEvent(budget.multiplier))
    return float(made.get_epsilon(budget.delta))


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_budget_is_spent_by_its_exchanges_and_not_before(budget: Budget) -> None:
    from dp_accounting.rdp import RdpAccountant

    assert budget.spent(0) == 0
    spent = [budget.spent(count) for count in range(budget.exchanges + 1)]
    assert (np.diff(spent) > 0).all()
    assert 0.999 * budget.epsilon < spent[-1] <= budget.epsilon
    for count in (1, budget.exchanges // 2, budget.exchanges):
        assert spent[count] == pytest.approx(composed(RdpAccountant, budget, count), rel=1e-9)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_no_accountant_of_the_library_has_a_larger_figure(budget: Budget) -> None:
    from dp_accounting.pld import PLDAccountant

    assert composed(PLDAccountant, budget, budget.exchanges) < budget.spent(budget.exchanges)
    replaced = PLDAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    replaced.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(2 * budget.multiplier), budget.exchanges))
    assert replaced.get_epsilon(budget.delta) < budget.spent(budget.exchanges)  # z in units of half of a replacement


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_exact_delta_of_a_gaussian_is_within_the_budget(budget: Budget) -> None:
    """Composed Gaussians are one of mu = sqrt(exchanges) / z, whose delta is known (Balle and Wang 2018, theorem 8)."""
    mu, epsilon = math.sqrt(budget.exchanges) / budget.multiplier, budget.spent(budget.exchanges)
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert budget.delta / 10 < exact <= budget.delta
    rho = mu**2 / 2  # zero-concentrated, Bun and Steinke 2016, proposition 1.3
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / budget.delta))


def test_all_that_an_exchange_gives_is_one_mechanism_of_the_multiplier() -> None:
    """In units of its noise, what a replaced record changes of gradient, losses, count and test loss is 1 / z long."""
    protection, n = Protection(BUDGETS[0], clip=0.7, largest=4.0), 12_345
    trained = (2 * 0.7 / n / protection.of_gradient(n)) ** 2 + LOSSES * (4.0 / n / protection.of_loss(n)) ** 2
    tested = (1 / protection.of_count()) ** 2 + (4.0 / n / protection.of_test_loss(n)) ** 2
    assert [trained, tested] == pytest.approx([protection.budget.multiplier**-2] * 2)


def test_no_loss_rises_by_more_than_is_promised_more_often_than_is_said() -> None:
    """Against a server that goes up at every exchange by as much as may pass unseen."""
    protection, n, runs = Protection(BUDGETS[0], 1.0, 5.0), 10_000, 4_000
    exchanges, draws = BUDGETS[0].exchanges, np.random.default_rng(0)
    noise = draws.standard_normal((runs, exchanges + 1)) * protection.of_loss(n)
    for rise, least in ((protection.rise(n, 1), 0.0), (0.5 * protection.rise(n, 1), 2 * DOUBT)):
        taken = rise + noise[:, 1:] <= noise[:, :-1] + protection.slack(n)
        assert least <= taken.any(axis=1).mean() <= (DOUBT if not least else 1.0)


def test_promise_to_several_clients_allows_for_the_noise_of_each() -> None:
    protection = Protection(BUDGETS[0], 1.0, 5.0)
    far = [protection.rise(10_000, clients) / protection.of_loss(10_000) for clients in (1, 8)]
    sides = [NormalDist().cdf(-(each - SLACK * 2**0.5) / 2) * 2 * BUDGETS[0].exchanges for each in far]
    assert sides == pytest.approx([DOUBT, DOUBT / 8])


def test_budget_is_for_an_exchange_a_round_and_some_more() -> None:
    assert [exchanges_of(rounds) for rounds in (1, 4, 20)] == [4, 7, 27]


def test_lacking_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'dqnfed-flwr\[privacy\]'"):
        _ = Budget(2.9, 1e-5, 11).multiplier
