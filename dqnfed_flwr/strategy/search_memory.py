"""The search for a length that ended without one: the next round need not do it again on the same model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class SearchMemory:
    """The search that is under way, and the last one that found no length, with how its round ended.

    A search is known by its first step, the factor it begins with, and all that its judges are asked: with the same
    participants, losses and rules, clients give the same answers again.
    """

    round: int = 0
    judges: tuple[int, ...] = ()
    begun: str = ""
    vain: str = ""
    status: str = ""

    def begin(self, round_number: int, step: Tensor, judges: Sequence[int], judged_by: Sequence[object]) -> str:
        """Note the first step [D] of a round; how its search ended the last time, empty if it is to be done.

        `judges` are the participants, and `judged_by` is all else that decides on its length, as JSON can write it.
        Where a further step of the round has other judges, the search is not one that can be known again.
        """
        if self.round == round_number:
            self.begun = self.begun if tuple(judges) == self.judges else ""
            return ""
        self.judges = tuple(judges)
        digest = hashlib.sha256(json.dumps([list(judges), *judged_by]).encode())
        digest.update(step.numpy().tobytes())
        self.round, self.begun = round_number, digest.hexdigest()
        return self.status if self.begun == self.vain else ""

    def in_vain(self, round_number: int, status: str) -> None:
        """A round ended without a length, with all steps tried in it; one in which none was tried says nothing."""
        if self.round == round_number and self.begun:
            self.vain, self.status = self.begun, status

    def forget(self) -> None:
        """The model has moved."""
        self.vain = self.status = ""
