"""A client's ledger, and the noise of its exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from dqnfed_flwr.masked.budget import Budget, Protection
from dqnfed_flwr.masked.records import Ledger, SpentError, normal

pytest.importorskip("dp_accounting")
PROTECTION, ROOT = Protection(Budget(3.0, 1e-5, 4), 1.0, 5.0), b"r" * 32


def test_ledger_refuses_the_exchange_that_the_budget_does_not_hold() -> None:
    ledger = Ledger(PROTECTION)
    for exchange in range(1, 5):
        ledger.open(exchange, b"q", ROOT)
        assert ledger.spent == PROTECTION.budget.spent(exchange)
    assert ledger.spent <= 3.0
    with pytest.raises(SpentError, match="exchange 5 would spend more than epsilon 3 at delta 1e-05: the noise"):
        ledger.open(5, b"q", ROOT)
    assert ledger.exchange == 4


def test_ledger_counts_exchanges_that_it_was_not_asked_in() -> None:
    ledger = Ledger(PROTECTION)
    ledger.open(3, b"q", ROOT)
    assert ledger.spent == PROTECTION.budget.spent(3)


def test_same_question_has_the_same_noise_and_another_one_is_refused_or_has_other_noise() -> None:
    ledger, other = Ledger(PROTECTION), Ledger(PROTECTION)
    one, again = (ledger.open(1, b"q", ROOT).noise("gradients", 1, 50) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    for asked, exchange in ((b"p", 1), (b"q", 0)):
        with pytest.raises(SpentError, match="another question in exchange"):
            ledger.open(exchange, asked, ROOT)
    different = [
        other.open(1, b"p", ROOT).noise("gradients", 1, 50),
        ledger.open(2, b"q", ROOT).noise("gradients", 1, 50),
        Ledger(PROTECTION).open(1, b"q", b"s" * 32).noise("gradients", 1, 50),
    ]
    assert all(not np.isin(one, values).any() for values in different)


def test_ledger_goes_on_in_another_life() -> None:
    ledger, reborn, new = Ledger(PROTECTION), Ledger(PROTECTION), Ledger(PROTECTION)
    before = ledger.open(3, b"q", ROOT).noise("gradients", 1, 9)
    reborn.load(ledger.export())
    np.testing.assert_array_equal(reborn.open(3, b"q", ROOT).noise("gradients", 1, 9), before)
    with pytest.raises(SpentError):
        reborn.open(2, b"q", ROOT)
    new.load(Ledger(PROTECTION).export())
    new.load({})
    assert new.exchange == 0


def test_budget_that_changes_within_a_run_is_refused_and_has_other_noise() -> None:
    """With the same noise at another size, two answers would solve for what it hides."""
    other = replace(PROTECTION, clip=2 * PROTECTION.clip)
    ledger = Ledger(PROTECTION)
    before = ledger.open(1, b"q", ROOT).noise("gradients", 1, 9)
    with pytest.raises(SpentError, match="are others than before in this run"):
        Ledger(other).load(ledger.export())
    assert not np.isin(Ledger(other).open(1, b"q", ROOT).noise("gradients", 1, 9), before).any()


def test_an_exchange_gives_no_more_than_its_noise_is_for() -> None:
    release = Ledger(PROTECTION).open(1, b"q", ROOT)
    first, second = release.noise("losses", 2), release.noise("losses", 2)
    assert first != second
    with pytest.raises(SpentError, match="more than 2 of losses in one exchange"):
        release.noise("losses", 2)
    assert repr(release.key) not in repr(release)


def test_noise_is_standard_normal_and_of_its_key() -> None:
    values = normal(b"k" * 32, 100_001)
    assert len(values) == 100_001
    assert kstest(values, "norm").pvalue > 0.01
    assert abs(np.corrcoef(values[:50_000], values[50_001:])[0, 1]) < 0.02  # pairs have a radius in common
    assert not np.isin(values[:100], normal(b"l" * 32, 100)).any()
