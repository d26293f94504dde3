"""Which model every client has confirmed, where steps are made without waiting for all of them.

With a quorum, or where a part of the clients is asked a round, those who probe a step judge it, and the others learn
later what it did to them. With `guarantee.confirm` above 0 each step is provisional at first. One accepted model at a
time, the *proposal*, is shown to all clients that have not named their loss at it, each when it is free, while the
rounds go on. It is *confirmed* when all have answered and nobody is harmed: for every client k

    f_k(proposal) <= max(f_k(confirmed), e),

where f_k(confirmed) is what k named at the confirmed model before (`guarantee.harm`), and e a share of the typical loss
there, which never rises. One client above that is enough to refuse it. Then, in either case, the newest model is
proposed. The result of a run is the last confirmed model: from one confirmed model to the next no client is harmed
that answered, whenever it answers. Of the provisional models between them nothing is said.

After `guarantee.confirm` refusals in a row the run goes back to the confirmed model. Until another is confirmed it
waits for everybody who is asked, and one refusal is enough to go back again.

Who is waited for, and how long, `beside` says. A client that gives no word is left out of a confirmation, by name. When
it answers again, it is held harmless from the loss at the last confirmed model that it named. A loss that is not finite
is a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

import torch
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.guarantee.harm import ceiling, entitlement
from dqnfed_flwr.schema.groups import GuaranteeSettings
from dqnfed_flwr.wire import Buffers


@dataclass(slots=True)
class KnownModel:
    """The model of the rounds from `round` to `last`, theta [D] with its buffers, and the losses named there."""

    round: int
    last: int
    theta: Tensor
    buffers: Buffers
    losses: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a run says of its result: the model after `round`, who confirmed it, and who gave no word; rising."""

    round: int
    clients: list[int]
    unheard: list[int]

    @property
    def words(self) -> str:
        """In a line."""
        silent = f"; no word of clients {', '.join(map(str, self.unheard))}" if self.unheard else ""
        return f"the model of round {self.round}, by {len(self.clients)} clients{silent}"


@dataclass(slots=True)
class Confirmation:
    """Where the confirmations of a run stand; all of it survives a checkpoint.

    Attributes
    ----------
    newest : KnownModel | None
        The last model that was accepted.
    proposal : KnownModel | None
        The model that is to be confirmed; None where the newest has been tried.
    confirmed : KnownModel | None
        The last that was; its `losses` are of those who confirmed it. None before the first.
    losses : dict[int, float]
        What each client named at the last confirmed model for which it did.
    entitlement : float
        e, by which the last confirmation was judged.
    tried : int
        Round of the last proposal that was decided.
    refusals : int
        Proposals in a row that were refused.
    unheard : list[int]
        Clients, there or gone, that were to confirm the last confirmed model and gave no word; rising.
    together : bool
        Whether all are waited for, since the run went back and nothing was confirmed.
    """

    newest: KnownModel | None = None
    proposal: KnownModel | None = None
    confirmed: KnownModel | None = None
    losses: dict[int, float] = field(default_factory=dict)
    entitlement: float = math.inf
    tried: int = -1
    refusals: int = 0
    unheard: list[int] = field(default_factory=list)
    together: bool = False

    @property
    def result(self) -> Confirmed | None:
        """The last confirmed model, and by whom; None before the first."""
        found = self.confirmed
        return None if found is None else Confirmed(found.round, sorted(found.losses), self.unheard)

    def accepted(self, round_number: int, theta: Tensor, buffers: Buffers, losses: Mapping[int, float]) -> None:
        """The model of a round is accepted, or stays; `losses` were named there."""
        if self.newest is None or not _same(self.newest.theta, theta):
            self.newest = KnownModel(round_number, round_number, theta, buffers)
        for model in (self.newest, self.proposal):
            if model is not None and _same(model.theta, theta):
                model.last = round_number
        for client, loss in losses.items():
            self.name(round_number, client, loss)
        self._begin()

    def name(self, round_number: int, client: int, loss: float) -> None:
        """A client names its loss at the model of a round; of use where it is the proposal or the newest."""
        for model in (self.newest, self.proposal):
            if model is not None and model.round <= round_number <= model.last:
                model.losses.setdefault(client, loss)

    def lacking(self, clients: Collection[int]) -> list[int]:
        """Which of the `clients` have not named their loss at the proposal, rising."""
        return [] if self.proposal is None else sorted({*clients} - self.proposal.losses.keys())

    def decide(
        self, clients: Collection[int], silent: Collection[int], settings: GuaranteeSettings, floor: float | None
    ) -> None:
        """Refuse the proposal if somebody is harmed; confirm it once all `clients` but the `silent` named their loss.

        `floor` is the least value of a loss, as far as it is known.
        """
        proposal, lacking = self.proposal, self.lacking(clients)
        if proposal is None:
            return
        if self.losses:
            level, share = settings.level_and_share
            self.entitlement = entitlement([*self.losses.values()], level, share, 0, self.entitlement, floor)
        harmed = [client for client, loss in sorted(proposal.losses.items()) if not self._suits(client, loss)]
        if harmed:
            self._close(proposal, self.refusals + 1)
            log(INFO, "The model of round %d is refused by clients %s", proposal.round, harmed[:12])
        elif proposal.losses and {*silent}.issuperset(lacking):
            self._close(proposal, 0)
            self.confirmed, self.unheard, self.together = proposal, lacking, False
            self.losses |= proposal.losses
            words = f"; no word of clients {lacking[:12]}" if lacking else ""
            of = WARNING if lacking else INFO
            log(of, "The model of round %d is confirmed by %d clients%s", proposal.round, len(proposal.losses), words)
        self._begin()

    def take_back(self, settings: GuaranteeSettings) -> KnownModel | None:
        """The confirmed model, from which the run goes on with all clients, if newer ones were refused too often."""
        if self.confirmed is None or self.refusals < (1 if self.together else settings.confirm):
            return None
        self.refusals, self.together = 0, True
        self.newest, self.proposal = None, None
        return self.confirmed

    def _close(self, proposal: KnownModel, refusals: int) -> None:
        self.proposal, self.tried, self.refusals = None, proposal.last, refusals

    def _suits(self, client: int, loss: float) -> bool:
        """Whether the proposal does a client no harm; for one that named no loss before, any finite one is none."""
        known = self.losses.get(client)
        return math.isfinite(loss) and (known is None or loss <= ceiling(known, self.entitlement))

    def _begin(self) -> None:
        """Try the newest model, where there is no proposal, and it has not been tried and is not the confirmed one."""
        newest, confirmed = self.newest, self.confirmed
        if self.proposal is not None or newest is None or newest.round <= self.tried:
            return
        if confirmed is None or not _same(newest.theta, confirmed.theta):
            self.proposal = replace(newest, losses=dict(newest.losses))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two models [D] are the same; where a checkpoint was read, they are two tensors."""
    return one is other or (one.device == other.device and torch.equal(one, other))
