"""FedCorr: find noisy clients, correct their labels, then train with any method.

Xu, Chen, Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022, Algorithm 1.

1. `preprocessing` passes, each over all clients in an order drawn anew, one client a round. After a pass a mixture of
   two Gaussians over the clients' local intrinsic dimensions tells noisy clients from clean; noisy ones correct labels.
2. `finetuning` rounds of FedAvg on clients whose estimated noise is at most `CLEAN`. Then the others correct labels.
3. The remaining rounds are those of the method `last`, on the corrected labels.

Here is what the server does, in `client` what clients do, in `labels` what both learn of labels.

Deviations from the paper: clients correct labels when they train next, at the model that they then receive, since
only clients that train get a message; that is the model at the end of the pass for the first one only, and the model at
the end of stage 2 with full participation. In stage 1 the turn of an absent client goes to the next one present.
Dimensions count by their mean over a client's visits, which is the accumulated value where no client missed a turn.
If no client counts as clean, stage 2 trains all (note `no_clean_clients`). Rates that decay do so over all stages.

Deviations from published code: see `client`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import Method, RoundRows, State
from dqnfed_flwr.methods.fedcorr.labels import upper_component
from dqnfed_flwr.schema.group import Group, expert, own
from dqnfed_flwr.schema.plan import LastStage, Profile, RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.schema.work import WorkProfile
from dqnfed_flwr.types import Combination, Extras, FloatArray, RoundBatch, Sees, under

if TYPE_CHECKING:
    from torch import Tensor

Stage = Literal[1, 2, 3]
DECISION, NOISE = "fedcorr-decision", "fedcorr-noise"
"""Directives: number of the last decision on who is noisy, and the noise estimated for the client."""
LID, LEVEL, RELABELLED = "fedcorr-lid", "fedcorr-level", "fedcorr-relabelled"
UNMEASURED, FALLBACKS = "fedcorr-unmeasured", "fedcorr-fallbacks"
"""Figures of a client: dimension, noise if it is noisy, labels changed, samples without a dimension, failed fits."""


_ORDER, _SAMPLE = 21, 22  # streams of the seed
_LAST = "last/"
CLEAN = 0.1
"""Estimated noise up to which a client counts as clean: kappa, as in the published code."""
MOST_DIMENSIONS = 1e6
"""Largest mean local intrinsic dimension of predictions that is believed; they have as many as there are classes."""


class FedCorrSettings(Group):
    """FedCorr."""

    last: str = own("fedavg", "the method of stage 3; its own settings count")
    preprocessing: int = expert(5, "T1, passes over all clients in stage 1", ge=1)
    finetuning: int = expert(10, "rounds of stage 2, on clean clients", ge=0)
    mixup: float = expert(1.0, "parameter of the beta distribution of mixup; 0 for none", ge=0)


@dataclass(frozen=True, slots=True)
class Stages:
    """Which round belongs to which stage: T1 `passes` of `clients` rounds each, then `finetuning` rounds."""

    clients: int
    passes: int
    finetuning: int

    @classmethod
    def of(cls, settings: RunSettings) -> Stages:
        """Those of a run."""
        own_settings = settings.group_of(FedCorrSettings)
        return cls(settings.clients, own_settings.preprocessing, own_settings.finetuning)

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


class FedCorr(Method):
    """The three stages on the server; `last` is the method of stage 3."""

    def __init__(self, run: RunPlan, last: Method) -> None:
        super().__init__(run)
        self._stages, self._seed = Stages.of(run.settings), run.settings.seed
        self._clients, self._sampled = run.settings.clients, run.settings.sampled
        self._last = last
        self._estimates = NoiseEstimates(run.settings.clients, run.settings.seed)
        self._round = 0
        self.reference_rows, self.sees = last.reference_rows, Sees.PRODUCTS | last.sees
        self._enter(0)

    @property
    def inner(self) -> Method:
        """The method of stage 3."""
        return self._last.inner

    def extras(self, dim: int) -> Extras:
        """What stage 3 needs."""
        wanted = self._last.extras(dim)
        return replace(wanted, figures=(*wanted.figures, RELABELLED))

    def extras_of(self, round_number: int, client: int, dim: int) -> Extras:
        """Figures of the labels in stages 1 and 2."""
        stage = self._stages.stage(round_number)
        if stage == 3:
            wanted = self._last.extras_of(round_number, client, dim)
            return replace(wanted, figures=(*wanted.figures, RELABELLED))
        if stage == 2:
            return Extras(figures=(RELABELLED,))
        limits = {LID: (0.0, MOST_DIMENSIONS), LEVEL: (0.0, 1.0)}
        return Extras({}, (LID, LEVEL, RELABELLED, UNMEASURED, FALLBACKS), limits)

    def offered(self, round_number: int, sampled: int) -> int:
        """All clients in stages 1 and 2."""
        if self._stages.stage(round_number) == 3:
            return self._last.offered(round_number, sampled)
        return self._clients

    def select(self, round_number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        """One client in stage 1, clean ones in stage 2; none whose number is not below that of the clients."""
        clients = tuple(client for client in clients if client < self._clients)
        stage = self._stages.stage(round_number)
        if stage == 3:
            return self._last.select(round_number, clients)
        if stage == 2:
            return self._sample_clean(round_number, clients)
        number, place = self._stages.turn(round_number)
        order = np.random.default_rng((self._seed, _ORDER, number)).permutation(self._clients)
        turns = (int(client) for client in np.roll(order, -place))
        return tuple(client for client in turns if client in clients)[:1]

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """The last decision and the client's noise; in stage 3, that labels are to be corrected once more."""
        noise = float(self._estimates.noise[client]) if client < self._clients else 0.0
        decision = self._estimates.decisions
        further: Mapping[str, float] = {}
        if self._stages.stage(round_number) == 3:
            further = self._last.directives(round_number, client)
            decision += self._stages.finetuning > 0 and noise > CLEAN
        return {**further, DECISION: float(decision), NOISE: noise}

    def sends(self, round_number: int) -> Mapping[str, Tensor]:
        """What stage 3 sends."""
        return self._last.sends(round_number) if self._stages.stage(round_number) == 3 else {}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take in dimensions; decide at the end of a pass."""
        self._enter(batch.round)
        stage = self._stages.stage(batch.round)
        if stage == 3:
            self._last.observe(batch, rows)
        elif stage == 1:
            self._estimates.measure(batch)
            if self._stages.turn(batch.round)[1] == self._clients - 1:
                self._estimates.decide()

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """FedAvg in stages 1 and 2, then what the last method says."""
        stage = self._stages.stage(batch.round)
        combination = self._last.combine(batch, rows) if stage == 3 else Combination(rows.spread(batch.shares))
        notes = {**combination.notes, "stage": float(stage), **self._counts(batch)}
        if stage < 3:
            notes |= self._decided(batch.round)
        return replace(combination, notes=notes)

    def _enter(self, round_number: int) -> None:
        """Note the last round whose figures are known; stage 3 promises what its method does."""
        self._round = round_number
        self.guaranteed = self._last.guaranteed and self._stages.stage(round_number + 1) == 3

    def disown(self, clients: Collection[int]) -> None:
        """For the method of stage 3."""
        self._last.disown(clients)

    def keep_late(self, client: int, round_number: int, now: int, read: Callable[[], FloatArray]) -> bool:
        """For the method of stage 3, of its rounds."""
        return self._stages.stage(round_number) == 3 and self._last.keep_late(client, round_number, now, read)

    def step_taken(self, step: Tensor, factor: float) -> None:
        """For the method of stage 3, in its rounds."""
        if self._stages.stage(self._round) == 3:
            self._last.step_taken(step, factor)

    def fall_back(self) -> bool:
        """What the last method says, in stage 3."""
        return self._stages.stage(self._round) == 3 and self._last.fall_back()

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What is known of the clients, and the memory of the last method."""
        last = {_LAST + name: value for name, value in self._last.export_state().items()}
        return {"round": np.array(self._round), **self._estimates.export(), **last}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._enter(int(state["round"]))
        self._estimates.restore({name: value for name, value in state.items() if not name.startswith(_LAST)})
        self._last.restore_state(under(_LAST, state))

    def _sample_clean(self, round_number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        clean = [client for client in clients if self._estimates.noise[client] <= CLEAN] or list(clients)
        rng = np.random.default_rng((self._seed, _SAMPLE, round_number))
        return tuple(sorted(rng.permutation(clean)[: self._sampled].tolist()))

    def _counts(self, batch: RoundBatch) -> dict[str, float]:
        """Sums over the clients of the round."""
        names = {"relabelled": RELABELLED, "lid_missing": UNMEASURED, "client_fallbacks": FALLBACKS}
        return {note: float(batch.figures[name].sum()) for note, name in names.items() if name in batch.figures}

    def _decided(self, round_number: int) -> dict[str, float]:
        """How many count as noisy; at the end of a pass the noise of each, in stage 2 whether none counts as clean."""
        noise = self._estimates.noise
        notes = {"noisy_clients": float(np.count_nonzero(noise)), "fallbacks": float(self._estimates.fallbacks)}
        if self._stages.stage(round_number) == 2:
            return notes | {"no_clean_clients": float(bool((noise > CLEAN).all()))}
        if self._stages.turn(round_number)[1] == self._clients - 1:
            notes |= {f"noise_{client}": float(noise[client]) for client in np.flatnonzero(noise)}
        return notes


class NoiseEstimates:
    """Local intrinsic dimensions by client, accumulated over passes, and what follows from them.

    Attributes
    ----------
    noise : Float64Array
        Estimated noise of each client [clients], as decided last; 0 for those that count as clean.
    decisions : int
        Decisions made, one a pass.
    fallbacks : int
        Decisions whose mixture did not converge, or for which there were not two different dimensions.
    """

    def __init__(self, clients: int, seed: int) -> None:
        self._seed = seed
        self._sums, self._visits = np.zeros(clients), np.zeros(clients, dtype=np.int64)
        self._levels = np.zeros(clients)
        self.noise = np.zeros(clients)
        self.decisions = self.fallbacks = 0

    def measure(self, batch: RoundBatch) -> None:
        """Take in dimension and noise level of the clients of a round; a dimension of 0 was not measurable."""
        if LID not in batch.figures:
            return
        for client, lid, level in zip(batch.clients, batch.figures[LID], batch.figures[LEVEL], strict=True):
            self._sums[client] += lid
            self._visits[client] += lid > 0
            self._levels[client] = level

    def decide(self) -> None:
        """Tell noisy clients from clean: those whose dimension belongs to the upper of two Gaussians.

        A client that was visited more or less often than others counts with its mean. The noise of a noisy client is
        the level that it reported last.
        """
        measured = np.flatnonzero(self._visits)
        split = upper_component(self._sums[measured] / self._visits[measured], self._seed)
        noisy = measured[split.upper]
        self.noise[:] = 0
        self.noise[noisy] = self._levels[noisy]
        self.decisions += 1
        self.fallbacks += split.status != "converged"

    def export(self) -> dict[str, NDArray[np.generic]]:
        """Everything as named arrays, copied."""
        return {
            "sums": self._sums.copy(),
            "visits": self._visits.copy(),
            "levels": self._levels.copy(),
            "noise": self.noise.copy(),
            "counts": np.array([self.decisions, self.fallbacks]),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export`."""
        self._sums, self._levels = np.array(state["sums"], np.float64), np.array(state["levels"], np.float64)
        self._visits, self.noise = np.array(state["visits"], np.int64), np.array(state["noise"], np.float64)
        self.decisions, self.fallbacks = (int(count) for count in np.asarray(state["counts"], np.int64))


def _build(run: RunPlan) -> FedCorr:
    return FedCorr(run, run.last.method.build(run.last))


class _FedCorr(Profile):
    def classes_only(self, run: RunPlan) -> str:
        return "corrects class labels; use task classification, or another method"

    def faults(self, run: RunPlan) -> Iterator[str]:
        """What is wrong with the settings for stages 1 and 2; stage 3 has those of its method."""
        settings, stages = run.settings, Stages.of(run.settings)
        if settings.rounds <= stages.before_last:
            yield (
                f"rounds: found {settings.rounds}, but fedcorr.preprocessing {stages.passes} x clients "
                f"{stages.clients} + fedcorr.finetuning {stages.finetuning} take {stages.before_last} before the "
                "last stage; give more"
            )
        if (least := settings.min_clients) > 1:
            yield f"min-clients: fedcorr trains one client a round in its first stage, found {least}; use 1"

    def last_stage(self, settings: RunSettings) -> LastStage:
        return LastStage(settings.group_of(FedCorrSettings).last, f"{self.name}.last", Stages.of(settings).before_last)


METHODS = (
    _FedCorr(
        name="fedcorr",
        title="FedCorr",
        settings=FedCorrSettings,
        build=_build,
        works=(WorkProfile("fedcorr", "dqnfed_flwr.methods.fedcorr.client:FedCorrWork", passes=True),),
    ),
)
