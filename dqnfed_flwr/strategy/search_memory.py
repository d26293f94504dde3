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
    begun: str = ""
    vain: str = ""
    status: str = ""

    def begin(self, round_number: int, step: Tensor, judged_by: Sequence[object]) -> str:
        """Note the first step [D] of a round; how its search ended the last time, empty if it is to be done.

        `judged_by` is all else that decides on its length, as JSON can write it.
        """
        if self.round == round_number:
            return ""  # another step of this round
        digest = hashlib.sha256(json.dumps(judged_by).encode())
        digest.update(step.numpy().tobytes())
        self.round, self.begun = round_number, digest.hexdigest()
        return self.status if self.begun == self.vain else ""

    def in_vain(self, status: str) -> None:
        """The search under way, with all steps tried in its round, found nothing."""
        self.vain, self.status = self.begun, status

    def forget(self) -> None:
        """The model has moved."""
        self.vain = self.status = ""
