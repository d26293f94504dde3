"""What becomes of a step: offered as a candidate, judged by its participants, accepted, cut, relaxed or given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING

import numpy as np
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.guarantee.held_out import FEWEST
from dqnfed_flwr.guarantee.overrule import Certificate, infinite_everywhere
from dqnfed_flwr.schema.groups import WHOLE
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import Ladder, StepRule, Verdict, hardly_moves, mean_loss_falls
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.hearing import (
    Hearing,
    Judgement,
    catch_liars,
    judge_candidate,
    remember_round,
    withdraw_votes,
)
from dqnfed_flwr.strategy.round_event import round_event
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.side import Direction, Side
from dqnfed_flwr.strategy.solve import NOT_FINITE, Solved, pending_step
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.telemetry.events import AlongStep, DroppedClient, RoundEvent, RunStatus
from dqnfed_flwr.types import ClientReply, Probe, RoundBatch, ladder_rungs

STATIONARY, UNJUDGED, NO_STEP, LINE_SEARCH_FAILED = "stationary", "unjudged", "no-step", "line-search-failed"
CONTESTED, HELD_OUT, WITHDRAWN = "contested", "held-out", "withdrawn"
SEARCHED = "searched_before"
"""Note of a round whose search was not done again: the model, the step and its judges are those of an earlier round."""
RESTING: Mapping[str, RunStatus] = {STATIONARY: "pareto-stationary", HELD_OUT: "held-out-stationary"}
"""Ends of a round that show why the model rests, and the end of a run that follows from it."""
UNMOVED_ROUNDS = 6
"""Rounds in a row without a step, after which a run is at its end in which clients may lie, or rows are rounded."""
UNFIT = "its loss is finite at no factor at which the others' are"
OF_ROUNDED = ". This is of rounded rows, not of the gradients: go on from the model with messages.row=32 to know"
DIAGNOSED_ABOVE, DIAGNOSED_BELOW = 2, 8
"""Doublings and halvings of a first candidate at which losses are asked for, where `step.diagnose-every` is due."""
RELAXED_BACKOFF = 0.25
"""A relaxed step that does not lower the mean loss is cut to this share."""


class StepSearch:
    """Tries the steps of a run, one after the other, by the losses of their participants.

    `state` is changed in place; `on_round` is called with the event of every round that is over.
    """

    def __init__(
        self, run: RunPlan, state: RunState, side: Side, rule: StepRule, on_round: Callable[[RoundEvent], None]
    ) -> None:
        self._run, self._settings, self._state, self._side, self._method = run, run.settings, state, side, side.method
        self._rule, self._on_round = rule, on_round
        self._told_unable: set[int] = set()

    def begin(
        self,
        direction: Direction,
        collected: Collected,
        hearing: Hearing,
        dropped: list[DroppedClient],
        *,
        asked: Sequence[int],
    ) -> None:
        """Make the step of a solve the pending one and offer it, or end the round where there is none to try.

        Arguments are those of `pending_step`.
        """
        batch, solved = direction.batch, direction.solved
        pending = pending_step(batch, solved, collected, hearing, dropped, asked=asked)
        pending.limits = self._side.limits(pending.losses)
        if self._settings.step.on_stationary == "relax":
            pending.tried.mean_row = collected.rows_of(hearing.heard, ()).combine(batch.shares)
        self._state.begin(pending, direction.buffers)
        if solved.norm > 0:
            ladder = self._rule.propose(pending.known_scale(self._settings.guarantee))
            pending.tried.first = ladder.factor
            if status := self._state.search.begin(pending.round, pending.step, pending.clients, judged_by(pending)):
                pending.combination = replace(pending.combination, notes={**pending.combination.notes, SEARCHED: 1.0})
                self._give_up(pending, status)
                return
            self._offer(pending, self._diagnosed(pending.round, ladder))
        elif self._method.inner.rests:
            self._offer(pending, Ladder(0.0))
        elif (status := solved.combination.status) in (NOT_FINITE, NO_STEP):
            self._give_up(pending, str(status))
        elif _rests_on_nothing(solved, collected, batch) or self._nobody_trained(collected):
            self._give_up(pending, NO_STEP)
        else:
            self._no_common_step(pending)

    def judge(self, pending: PendingStep, schedule: Schedule, collected: Collected) -> bool:
        """Judge the candidate, and accept it, cut it, or give the step up.

        `schedule` is that of the exchange that carried the candidate, `collected` what it brought, a probe at least.
        True if the candidate is the model now, so that the rows collected there are of use.
        """
        if pending.tried.along is None and self._is_diagnosed(pending.round):
            pending.tried.along = _along(pending.ladder, collected.probes)
        if self._run.judges_held_out:
            self._note_unable(pending, pending.votes.counted(collected.probes))
        withdraw, verdict = partial(self._withdraw_votes, pending), partial(self._verdict, pending)
        judgement, factor = judge_candidate(pending, collected, withdraw, verdict)
        if judgement is Judgement.ACCEPTED:
            self._accept(pending, factor, schedule, collected)
            return True
        self._state.add_dropped(collected.dropped.values())
        if judgement is Judgement.CONTESTED:
            self._give_up(pending, CONTESTED)
        elif judgement is Judgement.NO_LENGTH:
            self._state.reject()
            refusing = [probe for probe in pending.votes.counted(collected.probes).values() if not probe.holds]
            self._no_common_step(pending, held_out=bool(refusing) and all(p.held_out is False for p in refusing))
        else:
            self._offer(pending, self._rule.retry(factor))
        return False

    def _is_diagnosed(self, round_number: int) -> bool:
        every = self._settings.step.diagnose_every
        return bool(every) and round_number % every == 0

    def _diagnosed(self, round_number: int, ladder: Ladder) -> Ladder:
        """The first ladder of a round, with the lengths of a diagnosis where one is due; a rule's own rungs stay."""
        if ladder.rungs_above or ladder.rungs_below or not self._is_diagnosed(round_number):
            return ladder
        return replace(ladder, rungs_above=DIAGNOSED_ABOVE, rungs_below=DIAGNOSED_BELOW)

    def _nobody_trained(self, collected: Collected) -> bool:
        """Whether all rows are zeros that local passes left, which are no gradients and show nothing of a rest."""
        rows = collected.rows.held
        return self._run.last.work.passes and not any(map(rows.squared_norm, rows.filled))

    def _note_unable(self, pending: PendingStep, votes: Mapping[int, Probe]) -> None:
        """Keep, and say once of each client, who cannot judge by a held-out part."""
        pending.votes.note_unable(votes)
        if new := sorted(set(pending.votes.unable).difference(self._told_unable)):
            self._told_unable.update(new)
            log(WARNING, _why_unable(new))

    def _withdraw_votes(
        self, pending: PendingStep, votes: Mapping[int, Probe], caught: Mapping[int, str], last_chance: bool
    ) -> bool:
        """Where a step depends on votes, withdraw those of liars and of the overruled; True if any was withdrawn."""
        standing = self._state.standing
        if not pending.tried.relaxed and self._run.rule.judged_by == "losses":
            unfit = dict.fromkeys(infinite_everywhere(votes), UNFIT)
            return catch_liars(pending, votes, {**caught, **unfit}, standing, last_chance=last_chance)
        if pending.tried.relaxed or self._run.rule.judged_by != "test" or not self._rule.asks(pending.round):
            return False
        return withdraw_votes(pending, votes, caught, standing, self._settings.guarantee, last_chance=last_chance)

    def abandon(self, pending: PendingStep, *, withdrawn: bool = False) -> None:
        """End the round without the step, which no client is left to judge, or whose model is `withdrawn`."""
        self._give_up(pending, WITHDRAWN if withdrawn else UNJUDGED, known=not withdrawn)

    def _offer(self, pending: PendingStep, ladder: Ladder) -> None:
        """Make the model at the ladder's factor the candidate."""
        since = time.perf_counter()
        self._side.place(pending, ladder)
        pending.ladder = ladder
        self._state.cost.add_time("step", since)

    def _verdict(self, pending: PendingStep, probes: Mapping[int, Probe]) -> Verdict:
        if not pending.tried.relaxed:
            return self._rule.judge(pending.ladder, probes, pending.known_scale(self._settings.guarantee))
        factor = pending.ladder.factor
        if mean_loss_falls(probes, pending.losses, pending.shares):
            return Verdict(accepted=True, factor=factor)
        smaller = RELAXED_BACKOFF * factor
        if hardly_moves(smaller, pending.scale, self._settings.step.min_move):
            return Verdict(accepted=False, factor=0.0, stationary=True)
        return Verdict(accepted=False, factor=smaller)

    def _accept(self, pending: PendingStep, factor: float, schedule: Schedule, collected: Collected) -> None:
        """The candidate is the model."""
        self._state.accept(keep_move=self._side.keeps_move)
        if self._settings.guarantee.window > 1:
            self._state.keep_losses(pending, self._settings.guarantee.window)
        self._state.search.forget()
        self._method.step_taken(pending.step, factor)
        losses = {client: probe.loss for client, probe in collected.probes.items()}
        late = [drop for client, drop in collected.dropped.items() if client not in schedule.train]
        status = "relaxed" if pending.tried.relaxed else pending.combination.status
        self._finish(pending, factor, losses, status, collected.answered, late)

    def _no_common_step(self, pending: PendingStep, *, held_out: bool = False) -> None:
        """No step suits everybody: try the method's others, relax, or leave the model as it is.

        `held_out` says that those who refuse do so by their held-out parts.
        """
        if pending.tried.misses and not pending.tried.relaxed and self._method.fall_back():
            self._state.solve_anew(pending)
            return
        choice = self._settings.step.on_stationary
        if choice == "relax" and pending.votes.heard and pending.tried.mean_row is not None:
            self._relax(pending, pending.tried.mean_row)
            return
        found = pending.certificate
        status = HELD_OUT if held_out else STATIONARY if found.stationary else LINE_SEARCH_FAILED
        if self._answers_repeat(pending):
            self._state.search.in_vain(pending.round, status)
        self._give_up(pending, status)
        if choice != "stop" or not self._all_had_a_say(pending) or not self._at_an_end(pending):
            return
        if held_out:
            self._state.status = "held-out-stationary"
            log(INFO, _why_held_out(pending))
            return
        self._state.status = "pareto-stationary" if found.stationary else "line-search-failed"
        log(WARNING, _why_no_step(pending, found) + OF_ROUNDED * (self._run.row_bits < WHOLE))

    def _answers_repeat(self, pending: PendingStep) -> bool:
        """Whether judges would say the same of the same step in another round: by their training losses alone."""
        doubted = self._run.judges_held_out or self._settings.guarantee.liars(len(pending.asked))
        return not doubted and not pending.scale.contested

    def _all_had_a_say(self, pending: PendingStep) -> bool:
        """Whether everybody who is there took part, with a row; a few do not end a run."""
        without_row = set(pending.votes.voteless).difference(pending.votes.caught)
        return self._side.everybody_in(set(pending.clients).difference(without_row))

    def _at_an_end(self, pending: PendingStep) -> bool:
        """Whether no step is to be expected either: after some rounds in a row without one where the next differs.

        It does where clients may lie, and where rounding is drawn anew.
        """
        liars = self._run.rule.judged_by == "test" and self._settings.guarantee.liars(len(pending.asked))
        needed = UNMOVED_ROUNDS if liars or self._run.draws_anew else 1 + (self._run.step_bits < WHOLE)
        return not pending.scale.contested and self._state.unmoved >= needed

    def _relax(self, pending: PendingStep, mean_row: Tensor) -> None:
        """Go on along the mean row, as long as FedAvg's step, judged by the mean loss."""
        step = self._side.adopt(self._run.row_lr * mean_row)
        pending.step, pending.tried.mean_row, pending.tried.relaxed = step, None, True
        pending.scale = replace(pending.scale, norm=float(step.norm()))
        pending.ladder = Ladder(0.0)
        self._offer(pending, Ladder(1.0))

    def _give_up(self, pending: PendingStep, status: str, *, known: bool = True) -> None:
        """The round ends with the model of the state, where losses are those before, if they are `known`."""
        self._method.step_taken(pending.step, 0.0)
        self._state.stay()
        self._finish(pending, 0.0, pending.losses if known else {}, status, {}, [])

    def _finish(
        self,
        pending: PendingStep,
        factor: float,
        losses: Mapping[int, float],
        status: str,
        evaluated: Mapping[int, ClientReply],
        dropped: list[DroppedClient],
    ) -> None:
        remember_round(self._state, pending, factor, losses)
        self._state.count_move(pending, factor, losses, RESTING.get(status))
        dropped = [*dropped, *self._side.stragglers.take_late(), *self._state.dropped]
        cost = self._state.cost
        event = round_event(pending, factor, losses, status, evaluated, dropped, cost, self._side.figure)
        event = replace(event, privacy=self._side.privacy, notes=event.notes | self._state.confirmed_note)
        self._state.end_round(pending, self._settings.rounds)
        self._watch_validation(event)
        if not self._method.inner.rests:
            self._state.status = self._state.standstill(self._settings.step.patience) or self._state.status
        self._on_round(event)
        self._side.round_over(event)

    def _watch_validation(self, event: RoundEvent) -> None:
        patience = self._settings.early_stopping
        found = event.evaluated
        if not patience or not found.validation or self._method.inner.rests:
            return
        mean = sum(found.validation.values()) / len(found.validation)
        self._state.watch(event.round, mean, patience, sign=found.figure.sign)
        if self._state.status == "early-stopped" and self._state.best:
            name, best = found.figure.name, self._state.best.round
            log(INFO, "Stopped early: round %d had the best validation %s", best, name)


def judged_by(pending: PendingStep) -> list[object]:
    """What decides on the length of a step, besides the step and the participants."""
    groups = [pending.votes.heard, pending.votes.voteless, pending.votes.aside, pending.votes.caught]
    return [
        *groups,
        pending.tried.first,
        pending.entitlement,
        pending.scale.contested,
        pending.losses,
        pending.slopes,
        pending.limits,
    ]


def _along(ladder: Ladder, probes: Mapping[int, Probe]) -> AlongStep | None:
    """What was reported at the rungs of a ladder, if it has any."""
    factors = ladder_rungs(ladder.factor, ladder.rungs_above, ladder.rungs_below)
    return AlongStep(list(factors), {c: list(probe.losses) for c, probe in probes.items()}) if factors else None


def _why_unable(clients: Sequence[int]) -> str:
    return (
        f"Clients {', '.join(map(str, clients))} cannot judge by a held-out part: they have fewer than {FEWEST} "
        "samples there, or know of no earlier model. Their training losses judge; hold out more samples "
        "(split.validation-fraction, or held_out of a LocalTask)"
    )


def _why_held_out(pending: PendingStep) -> str:
    return (
        f"Stopped by the clients in round {pending.round}: on the held-out parts of clients "
        f"{', '.join(map(str, pending.votes.refused_held_out))} the loss rises at every length of the step"
    )


def _why_no_step(pending: PendingStep, found: Certificate) -> str:
    if found.stationary:
        weights = sorted(found.weights.items(), key=lambda item: -item[1])
        named = ", ".join(f"{client} ({weight:.2f})" for client, weight in weights)
        if not named:
            return f"Pareto-stationary after round {pending.round}: every gradient is 0"
        return (
            f"Pareto-stationary after round {pending.round}: the unit gradients of clients {named}, weighted so, sum "
            f"to a vector of length {found.distance:.2g}"
        )
    refused = ", ".join(map(str, pending.votes.refused))
    return (
        f"Round {pending.round}: clients {refused} refused its steps until no length was left to try, though a common "
        f"direction exists (its cosine with every gradient is {found.distance:.2g})"
    )


def _rests_on_nothing(solved: Solved, collected: Collected, batch: RoundBatch) -> bool:
    """Whether a step vanished because all its weight lies on rows of zeros, while other clients' rows are not.

    A rule such as Krum or a median can come to that by a single client, and the model is not stationary for the others.
    """
    rows, weights = collected.rows.held, solved.combination.weights
    weighed = [slot for slot in rows.filled if weights[slot]]
    return bool(weighed) and not any(map(rows.squared_norm, weighed)) and bool(np.diag(batch.gram).any())
