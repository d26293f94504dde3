"""What differs between rounds of the package's own clients and rounds of a strategy that somebody else wrote.

The loop, the hearing, the search for a length, the event of a round and its checkpoint are the same for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.exchange import Stragglers
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.solve import Solved
from dqnfed_flwr.strategy.state import PendingStep
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent, Spent
from dqnfed_flwr.types import Figure, RoundBatch
from dqnfed_flwr.wire import Buffers


class TooFewReplies(Exception):  # no error: the loop catches it and asks once more
    """An exchange brought too little to make a step of: `dropped` are left out, `unusable` gave nothing of use."""

    def __init__(self, what: str, dropped: Collection[DroppedClient] = (), unusable: Iterable[int] = ()) -> None:
        super().__init__(what)
        self.what, self.dropped, self.unusable = what, dropped, tuple(unusable)


@dataclass(frozen=True, slots=True)
class Direction:
    """The step of a round: the figures it was made of, the solve, and the buffers of the model that it leads to."""

    batch: RoundBatch
    solved: Solved
    buffers: Buffers = field(default_factory=dict)


class Side(Protocol):
    """Clients, and who makes a step of what they say."""

    @property
    def method(self) -> Method:
        """What makes the step of the rows."""

    @property
    def figure(self) -> Figure:
        """What clients are evaluated by."""

    @property
    def can_train(self) -> bool:
        """Whether enough clients are free to make a step of."""

    @property
    def not_asked(self) -> list[DroppedClient]:
        """Clients that the last exchange left out from the start."""

    @property
    def stragglers(self) -> Stragglers:
        """The replies that clients owe."""

    @property
    def keeps_move(self) -> bool:
        """Whether clients that train need the step that led to the model."""

    @property
    def privacy(self) -> Spent | None:
        """What clients have given of their records; None where that is not bounded."""

    def limits(self, losses: Mapping[int, float]) -> dict[int, float]:
        """What the losses of some clients may come up to after a step, where that is not the losses alone."""

    def ready(self, pending: PendingStep | None) -> str:
        """Wait until an exchange can go out; why it cannot, empty where it can."""

    def exchange(self) -> tuple[Schedule, Collected]:
        """Send the candidate out, with what is asked of each client, and take the replies in."""

    def note_answers(self, collected: Collected, faults: Mapping[int, DroppedClient], *, accepted: bool) -> None:
        """Note who answered, whose answer to training did not count, and whether the candidate sent is `accepted`."""

    def check(self, collected: Collected, schedule: Schedule) -> None:
        """Raise `TooFewReplies` where no step can be made of what came."""

    def direction(self, collected: Collected, hearing: Hearing, schedule: Schedule) -> Direction:
        """The step of those who are heard; `TooFewReplies` where that is nobody, and somebody must be."""

    def adopt(self, step: Tensor) -> Tensor:
        """The step that clients will be sent in place of `step` [D], which may be itself."""

    def place(self, pending: PendingStep, ladder: Ladder) -> None:
        """Make the model at the ladder's factor along the `pending` step the candidate; it has its old ladder yet."""

    def everybody_in(self, clients: Collection[int]) -> bool:
        """Whether these are all the clients that there are."""

    def round_over(self, event: RoundEvent) -> None:
        """A round is over, with the candidate as the model where it moved."""
