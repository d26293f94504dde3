"""FedCorr's stages, the names by which server and clients speak of them, and what settings they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dqnfed_flwr.config.settings import Settings

Stage = Literal[1, 2, 3]
DECISION, NOISE = "fedcorr-decision", "fedcorr-noise"
"""Directives: number of the last decision on who is noisy, and the noise estimated for the client."""
LID, LEVEL, RELABELLED = "fedcorr-lid", "fedcorr-level", "fedcorr-relabelled"
UNMEASURED, FALLBACKS = "fedcorr-unmeasured", "fedcorr-fallbacks"
"""Figures of a client: dimension, noise if it is noisy, labels changed, samples without a dimension, failed fits."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Which round belongs to which stage.

    Attributes
    ----------
    clients : int
        Rounds of a pass of stage 1.
    passes : int
        T1.
    finetuning : int
        Rounds of stage 2.
    """

    clients: int
    passes: int
    finetuning: int

    @classmethod
    def of(cls, settings: Settings) -> Stages:
        """Those of a run."""
        return cls(settings.clients, settings.fedcorr.preprocessing, settings.fedcorr.finetuning)

    @property
    def before_last(self) -> int:
        """Rounds of stages 1 and 2."""
        return self.clients * self.passes + self.finetuning

    def stage(self, round_number: int) -> Stage:
        """The stage of a round."""
        if round_number > self.before_last:
            return 3
        return 1 if round_number <= self.clients * self.passes else 2

    def turn(self, round_number: int) -> tuple[int, int]:
        """Pass of a round of stage 1, from 1, and its place in the pass, from 0."""
        number, place = divmod(round_number - 1, self.clients)
        return number + 1, place


def fedcorr_faults(settings: Settings) -> Iterator[str]:
    """What is wrong with the settings for stages 1 and 2; stage 3 has those of its method."""
    stages = Stages.of(settings)
    if settings.rounds <= stages.before_last:
        yield (
            f"rounds: found {settings.rounds}, but fedcorr.preprocessing {stages.passes} x clients {stages.clients} + "
            f"fedcorr.finetuning {stages.finetuning} take {stages.before_last} before the last stage; give more"
        )
    if settings.min_clients > 1:
        yield f"min-clients: fedcorr trains one client a round in its first stage, found {settings.min_clients}; use 1"
