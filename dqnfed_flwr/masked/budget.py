"""What the exchanges of a run may say of a record: the noise that a budget asks for, and what is spent of it.

Neighbours are sets of the same size of which one record is replaced. Of n records, an exchange gives the mean of their
gradients, each cut to the norm C, and the mean of their losses, each cut to [0, B], at two models at most. A
replacement changes these by no more than 2 C / n and B / n. With noise of the deviations

    z / sqrt(1 - q) * 2 C / n    on each value of the gradient,    z sqrt(2 / q) * B / n    on each loss

all of it together is one Gaussian mechanism of multiplier z: in units of its noise, it changes by 1 / z at most
(1 - q and twice q / 2 add up to 1). So is what it gives of the records that it tests on, which are others: a count of
right answers, which changes by 1, and a mean loss.

dp-accounting composes the exchanges. What it calls the multiplier of a plain Gaussian event is z, the noise over what a
replacement changes. It must not be told of the relation again: under `REPLACE_ONE` its Renyi accountant makes half the
loss of a doubled multiplier, its accountant of loss distributions does not. Of the two, the Renyi figure is the larger,
and the one used; the other is the exact one (Balle and Wang, ICML 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

from dqnfed_flwr.errors import ConfigError

SPARE = 0.25
"""Exchanges that a budget is for besides one a round: as a share of the rounds, for steps that are turned down."""

LOSSES = 2
"""Losses of the training records that one exchange gives at most: at the candidate, and at twice its factor."""
SHARE = 0.2
"""q, of the budget: what the losses have."""
DOUBT = 0.05
"""beta, the probability with which a client's loss may rise by more than is promised, once in a run."""
SLACK = 2.0
"""A loss counts as risen where it is told to have, by so many deviations of a difference of two told losses."""


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for a run of so many `exchanges`."""

    epsilon: float
    delta: float
    exchanges: int

    @cached_property
    def multiplier(self) -> float:
        """z, the least noise that the budget allows, in units of the sensitivity; `ConfigError` without the library."""
        return _multiplier(self.epsilon, self.delta, self.exchanges)

    def spent(self, exchanges: int) -> float:
        """The epsilon of so many exchanges at `delta`; 0 of none."""
        return _spent(self.multiplier, self.delta, exchanges)


@dataclass(frozen=True)
class Protection:
    """The noise of a run: its budget, C as `clip`, and B as `largest`."""

    budget: Budget
    clip: float
    largest: float

    def of_gradient(self, records: int) -> float:
        """Deviation of the noise on each value of the mean gradient of so many records."""
        return self.budget.multiplier / math.sqrt(1 - SHARE) * 2 * self.clip / records

    def of_loss(self, records: int) -> float:
        """The same of a mean loss."""
        return self.budget.multiplier * math.sqrt(LOSSES / SHARE) * self.largest / records

    def of_count(self) -> float:
        """The same of a count of right answers among the records that are tested on; half of their budget."""
        return self.budget.multiplier * math.sqrt(2)

    def of_test_loss(self, records: int) -> float:
        """The same of the mean loss of these; the other half."""
        return self.budget.multiplier * math.sqrt(2) * self.largest / records

    def slack(self, records: int) -> float:
        """By how much a loss may be told to rise and yet count as not risen: else noise alone turns steps down."""
        return SLACK * math.sqrt(2) * self.of_loss(records)

    def rise(self, records: int, clients: int) -> float:
        """tau: no step is taken that raises the loss of a judge by more, with probability 1 - beta over a run.

        Losses as they are cut, above what their clients are entitled to; a judge is who tells its loss after the step.
        A step is taken where told losses rise by no more than `slack`. Of the noises on the losses before and after, 2
        an exchange of each client, none is further out to its side than so many deviations, with probability 1 - beta,
        whatever the one before was chosen by. `records` are those of the client with the fewest.
        """
        far = -NormalDist().inv_cdf(DOUBT / (2 * self.budget.exchanges * clients))
        return self.slack(records) + 2 * far * self.of_loss(records)


def exchanges_of(rounds: int) -> int:
    """What a budget is for: a round takes an exchange, the first one and the last evaluation one more, misses some."""
    return rounds + math.ceil(SPARE * rounds) + 2


@lru_cache(maxsize=64)
def _multiplier(epsilon: float, delta: float, exchanges: int) -> float:
    library, accountant = _library()
    found = library.calibrate_dp_mechanism(accountant, lambda z: _composed(library, z, exchanges), epsilon, delta)
    return float(found)


@lru_cache(maxsize=4096)
def _spent(multiplier: float, delta: float, exchanges: int) -> float:
    if not exchanges:
        return 0.0
    library, accountant = _library()
    return float(accountant().compose(_composed(library, multiplier, exchanges)).get_epsilon(delta))


def _composed(library: Any, multiplier: float, exchanges: int) -> Any:
    return library.SelfComposedDpEvent(library.GaussianDpEvent(multiplier), exchanges)


def _library() -> tuple[Any, Any]:
    """dp-accounting and its Renyi accountant; it takes seconds to import."""
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigError(
            f"privacy.epsilon: noise is accounted for by dp-accounting ({error}): pip install 'dqnfed-flwr[privacy]' "
            "at the server and at every client, or set 0"
        ) from None
    return dp_accounting, RdpAccountant
