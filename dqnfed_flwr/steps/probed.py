"""The probed rule: a candidate counts if the participants' losses fell, by the test of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields

from dqnfed_flwr.schema.groups import MAX_FALL_EACH, WHOLE, StepSettings
from dqnfed_flwr.schema.plan import RuleProfile, RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale, Verdict, hardly_moves, smallest_factor
from dqnfed_flwr.types import Probe

LARGE = 2_000_000
"""Parameters of a model whose step costs more to send along each time than an exchange more now and then."""
EXCEPTION = 2.0**-6
"""A factor below this share of the first candidate is that of one round, and says nothing of the next."""
_NAMES = {False: "", True: "contested_"}


@dataclass(slots=True)
class Pace:
    """Factors that a rule remembers: the next, the first of this round, that of the last with a miss, and of late."""

    factor: float
    first: float
    missed: float
    late: float


class Probed(StepRule):
    """Accept a candidate where the loss of every participant with a vote fell, by the Armijo test of each.

    The first candidate of a round is the factor last accepted. It is doubled when the test would have held there as
    well (asked every `grow_every` rounds), and drawn back to what was accepted after a miss. After a miss that cost
    more than a halving, doubling is asked for in every round until the candidate is half of the one that missed.

    With `probe-first` every first candidate goes out alone, with twice its factor, and clients only compute losses. The
    next exchange has the longer of the two if both suit all and the mean loss is lower there, and clients train. That
    is two exchanges a round, and a length that is turned down costs no training.

    A single round can ask for a very short step, as where a participant is seldom asked. After a factor below the share
    `EXCEPTION` of the round's first candidate, the next round begins with the largest factor of late, which is halved
    for each round since; the next doublings make that good. Where all rounds are like that, each of the first few has a
    miss more.

    With a finite `max_fall` c no candidate is larger than c sum_k (f_k - b) / sum_k (g_k . step), b the floor of the
    losses: to first order, the participants' mean loss falls by no more than the share c of what it is above b. Where
    b is not known it counts as 0, and with a loss below that there is no bound. Where few take part the test says
    nothing about the others, and without a bound the step goes as far as those few losses fall. It is the mean that
    counts, because one loss that is nearly b must not shorten the step for all. The bound holds for its round alone: a
    factor that nothing else held back is the next round's candidate again. It is never below the smallest move worth
    trying, `min_move`.

    Rounds in which a client has a vote because it was overruled the last time (`StepScale.contested`) have factors of
    their own: what a liar asks for there does not slow down other rounds.

    With the ladder `after-miss`, and with `auto` after round 1 where the model has `LARGE` parameters or more, the
    first candidate goes out by itself, and a miss halves it unseen. From then on its rungs are asked for, so that a
    client which refuses them all is found out as before.

    `sent_anyway` says that the step is sent with every candidate: then `auto` asks for the rungs with the first.
    `max_fall` is c for so many participants (the function below), infinite for no bound.
    """

    def __init__(
        self,
        settings: StepSettings,
        *,
        max_fall: Callable[[int], float] = lambda _: math.inf,
        sent_anyway: bool = False,
    ) -> None:
        self._settings, self._max_fall, self._sent_anyway = settings, max_fall, sent_anyway
        self._paces = {contested: Pace(*[settings.start] * 4) for contested in (False, True)}

    def propose(self, scale: StepScale) -> Ladder:
        """The factor accepted last, or the largest allowed, with the rungs around it."""
        pace, every = self._paces[scale.contested], self._settings.grow_every
        most = min(self._settings.max_factor, self._bound(scale))
        factor = pace.first = min(pace.factor, most)
        due = bool(every) and (scale.round % every == 0 or 2 * factor < pace.missed)
        if self._settings.probe_first:
            longer = 2 * factor <= most
            return Ladder(factor, longer, self._settings.halvings, rungs_above=int(longer), alone=True)
        return Ladder(factor, due and 2 * factor <= most, self._settings.halvings if self._at_once(scale) else 0)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept if the tests of all participants with a vote hold; else the largest rung at which they would."""
        pace = self._paces[scale.contested]
        if all(probe.holds for probe in probes.values()):
            grown = ladder.grow and sum(not probe.grown_holds for probe in probes.values()) <= scale.doubters
            if grown and ladder.alone and _longer_is_better(probes.values()):
                return Verdict(accepted=False, factor=2 * ladder.factor)
            grown = grown and not ladder.alone
            reached = 2 * ladder.factor if grown else ladder.factor
            pace.factor = max(pace.factor, reached)  # a miss lowers it, so only the bound keeps them apart
            pace.late = max(pace.factor, pace.late / 2)
            if pace.factor < EXCEPTION * pace.first:
                pace.factor, pace.missed = pace.late, 4 * pace.late
            return Verdict(accepted=True, factor=ladder.factor)
        lowest = ladder.factor * 0.5 ** (ladder.halvings + 1)
        factor = min(_reach(probe, ladder.factor, lowest) for probe in probes.values())
        pace.factor, pace.missed = factor, pace.first
        if hardly_moves(factor, scale, self._settings.min_move):
            pace.factor = pace.missed = pace.late = self._settings.start
            return Verdict(accepted=False, factor=0.0, stationary=True)
        return Verdict(accepted=False, factor=factor)

    def retry(self, factor: float) -> Ladder:
        """A smaller factor, with the rungs below it."""
        return Ladder(factor, halvings=self._settings.halvings)

    def _bound(self, scale: StepScale) -> float:
        """The largest factor that `max_fall` allows this step; infinite where it allows any."""
        promised, max_fall = sum(scale.slopes.values()), self._max_fall(len(scale.losses))
        if promised <= 0 or math.isinf(max_fall):
            return math.inf
        losses, floor = scale.losses.values(), scale.floor or 0.0
        if scale.floor is None and min(losses) < floor:
            return math.inf
        most = max_fall * sum(max(loss - floor, 0.0) for loss in losses) / promised  # rounding may take one below
        return most if math.isinf(most) else max(most, smallest_factor(scale, self._settings.min_move))

    def _at_once(self, scale: StepScale) -> bool:
        """Whether the rungs are asked for with the first candidate; in round 1 no factor is known to do."""
        if self._settings.ladder == "auto":
            return self._sent_anyway or scale.dim < LARGE or scale.round == 1
        return self._settings.ladder == "always"

    def export_state(self) -> dict[str, float]:
        """The factors of both kinds of rounds; those of contested ones by names of their own."""
        return {f"{_NAMES[kind]}{key}": x for kind, pace in self._paces.items() for key, x in asdict(pace).items()}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take them up."""
        for kind, name in _NAMES.items():
            self._paces[kind] = Pace(**{each.name: state[f"{name}{each.name}"] for each in fields(Pace)})


def _longer_is_better(probes: Collection[Probe]) -> bool:
    """Whether the mean loss is lower at the first rung, twice the candidate's factor, than at the candidate."""
    return sum(probe.losses[0] for probe in probes) < sum(probe.loss for probe in probes)


def _reach(probe: Probe, factor: float, lowest: float) -> float:
    if probe.holds:
        return factor
    return lowest if probe.back_factor is None else probe.back_factor


def max_fall_of(settings: RunSettings) -> Callable[[int], float]:
    """`step.max-fall` with 0 resolved: by participants a share of their mean loss; infinite for no bound."""
    given, sampled = settings.step.max_fall, settings.sampled < settings.clients
    return lambda participants: given or (MAX_FALL_EACH * participants if sampled else math.inf)


def _build(run: RunPlan) -> Probed:
    sent_anyway = run.step_bits < WHOLE
    settings = run.settings.step
    if run.private:  # every loss costs budget: two an exchange, and none for halves
        settings = settings.model_copy(update={"halvings": 0})
    return Probed(settings, max_fall=max_fall_of(run.settings), sent_anyway=sent_anyway)


RULES = (RuleProfile("probed", _build, judged_by="test"),)
