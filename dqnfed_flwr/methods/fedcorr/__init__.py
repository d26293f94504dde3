"""FedCorr: find noisy clients, correct their labels, then train with any method.

Xu, Chen, Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022, Algorithm 1.

1. `preprocessing` passes, each over all clients in an order drawn anew, one client a round. After a pass a mixture of
   two Gaussians over the clients' local intrinsic dimensions tells noisy clients from clean; noisy ones correct labels.
2. `finetuning` rounds of FedAvg on clients whose estimated noise is at most `clean`. Then the others correct labels.
3. The remaining rounds are those of the method `last`, on the corrected labels.

`server` holds what the server does, `client` what clients do, `labels` what both learn of labels.

Deviations from the paper: clients correct labels when they train next, at the model that they then receive, since
nobody else is told to; that is the model at the end of the pass for the first one only, and the model at the end of
stage 2 with full participation. In stage 1 a client that is absent gives its turn to the next one present. Dimensions
count by their mean over a client's visits, which is the accumulated value where nobody missed a turn. If no client
counts as clean, stage 2 trains all (note `no_clean_clients`). Rates that decay do so over all stages.

Deviations from published code: see `client`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import field_validator

from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import BLIND, Profile, RunSettings
from dqnfed_flwr.schema.work import LocalWork

Stage = Literal[1, 2, 3]
DECISION, NOISE = "fedcorr-decision", "fedcorr-noise"
"""Directives: number of the last decision on who is noisy, and the noise estimated for the client."""
LID, LEVEL, RELABELLED = "fedcorr-lid", "fedcorr-level", "fedcorr-relabelled"
UNMEASURED, FALLBACKS = "fedcorr-unmeasured", "fedcorr-fallbacks"
"""Figures of a client: dimension, noise if it is noisy, labels changed, samples without a dimension, failed fits."""


class FedCorrSettings(Group):
    """FedCorr."""

    last: str = own("fedavg", "the method of stage 3; its own settings count")
    preprocessing: int = own(5, "T1, passes over all clients in stage 1", ge=1)
    finetuning: int = own(10, "rounds of stage 2, on clean clients", ge=0)
    relabel: float = own(0.5, "share of the samples seen as noisy that is relabelled", ge=0, le=1)
    confidence: float = own(0.5, "smallest confidence of a new label", ge=0, le=1)
    beta: float = own(5.0, "weight of the adaptive proximal term", ge=0)
    mixup: float = own(1.0, "parameter of the beta distribution of mixup; 0 for none", ge=0)
    clean: float = own(0.1, "estimated noise up to which a client counts as clean", ge=0, le=1)

    @field_validator("last")
    @classmethod
    def _check_last(cls, last: str) -> str:
        if last == "fedcorr":
            raise ValueError("found 'fedcorr'; the last stage needs a method of another name, such as fedavg")
        return last


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
    def of(cls, run: RunSettings) -> Stages:
        """Those of a run."""
        own_settings = run.group_of(FedCorrSettings)
        return cls(run.clients, own_settings.preprocessing, own_settings.finetuning)

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


def _faults(run: RunSettings) -> Iterator[str]:
    """What is wrong with the settings for stages 1 and 2; stage 3 has those of its method."""
    stages = Stages.of(run)
    if run.rounds <= stages.before_last:
        yield (
            f"rounds: found {run.rounds}, but fedcorr.preprocessing {stages.passes} x clients {stages.clients} + "
            f"fedcorr.finetuning {stages.finetuning} take {stages.before_last} before the last stage; give more"
        )
    if run.min_clients > 1:
        yield f"min-clients: fedcorr trains one client a round in its first stage, found {run.min_clients}; use 1"


def _build(run: RunSettings) -> Any:
    from dqnfed_flwr.methods.fedcorr.server import FedCorr

    last = run.stage_settings
    return FedCorr(run, last.profile.build(last))


METHODS = (
    Profile(
        name="fedcorr",
        title="FedCorr",
        settings=FedCorrSettings,
        build=_build,
        works=(LocalWork("fedcorr", "dqnfed_flwr.methods.fedcorr.client:FedCorrWork", passes=True),),
        rules=(*BLIND, "probed", "search"),
        faults=_faults,
        last="last",
        rounds_before_last=lambda run: Stages.of(run).before_last,
    ),
)
