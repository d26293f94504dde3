"""A client's test on its held-out part, and what it keeps for it from round to round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.client.memory import StateArrays
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.guarantee.held_out import FEWEST, block, level, rises_above_any
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import ClientTask, Float64Array

KEPT = 4
"""Rounds whose model is kept: a method that falls back goes back by one, a server that is resumed by one more."""
_ANSWERS = "answers"
LossesAt = Callable[[float], Float64Array]
"""From a factor to the losses of the held-out samples there [n], in float64."""


@dataclass(slots=True)
class HeldOutTest:
    """The test of one exchange: `answer` is the number of the test at the candidate, the next that at twice its factor.

    `earlier` are the losses [n] at the models compared with, `alone` says that the training losses have no say,
    `refused` whether the candidate or a half of it was turned down.
    """

    task: ClientTask
    losses_at: LossesAt
    earlier: Sequence[Float64Array]
    answer: int
    alpha: float
    alone: bool
    refused: bool = False

    def passes(self, factor: float) -> bool:
        """Whether the held-out loss at a factor is above that of no earlier model."""
        grown = factor > self.task.factor
        passed = not rises_above_any(self.losses_at(factor), self.earlier, level(self.alpha, self.answer + grown))
        self.refused |= not passed and not grown
        return passed

    def suits(self, factor: float, loss: float) -> bool:
        """The same where the held-out part decides alone; a training loss that is not finite suits nobody."""
        if math.isfinite(loss):
            return self.passes(factor)
        self.refused |= factor <= self.task.factor
        return False


class HeldOutMemory:
    """What a client remembers: losses of its `samples` held-out samples at earlier models, and when it answered.

    Models are known by the round in which the client trained on them. Such a model became the federation's where the
    client is asked to judge the step of that round, which starts there. Kept are the models of the last `KEPT` rounds,
    and of those that became the federation's one for each doubling of the rounds.

    A round that comes again, because a candidate missed, the method fell back or the server was resumed, starts from
    what was known before it, so the reply has the same bits.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._trained: dict[int, Float64Array] = {}
        self._earlier: dict[int, Float64Array] = {}
        self._answers: list[int] = []  # numbers of exchanges, one for each test, rising

    def before_step(self, round_number: int) -> list[Float64Array]:
        """The losses at the models to compare a step of a round with; none where it is not known where it starts."""
        start = self._trained.get(round_number)
        if start is None:
            return []
        earlier = {number: losses for number, losses in self._earlier.items() if number < round_number}
        if block(round_number) not in map(block, earlier):
            self._earlier = {**earlier, round_number: start}
        return [*earlier.values(), start]

    def count_answer(self, exchange: int, tests: int) -> int:
        """The number of the first of so many `tests` that an exchange asks for, from 1."""
        self._answers = [number for number in self._answers if number < exchange]
        first = len(self._answers) + 1
        self._answers += [exchange] * tests
        return first

    def train(self, round_number: int, losses: Float64Array) -> None:
        """Keep the losses at the model of a round; what is known of later ones belongs to rounds yet to come."""
        self._trained = {number: known for number, known in self._trained.items() if number < round_number}
        self._trained = dict([*self._trained.items(), (round_number, losses)][-KEPT:])
        self._earlier = {number: known for number, known in self._earlier.items() if number < round_number}

    def export(self) -> StateArrays:
        """Everything as named arrays; empty if nothing is kept."""
        if not self._trained:
            return {}
        named = (("trained", self._trained), ("earlier", self._earlier))
        arrays = {f"{name}.{number}": losses for name, known in named for number, losses in known.items()}
        return {_ANSWERS: np.array(self._answers, np.int64), **arrays}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; `ShapeError` if the arrays are no such state, or of other samples."""
        found: dict[str, dict[int, Float64Array]] = {"trained": {}, "earlier": {}}
        for key, values in arrays.items():
            name, _, number = key.partition(".")
            if key == _ANSWERS:
                continue
            if name not in found or not number.isdecimal() or values.shape != (self._samples,):
                raise ShapeError(
                    f"held-out memory: entry {key!r} of shape {values.shape}; this client has {self._samples} held-out "
                    "samples: they stay the same in a run; restore what `export` gave, or start it with an empty state"
                )
            found[name][int(number)] = np.array(values, np.float64)
        self._trained, self._earlier = (dict(sorted(known.items())) for known in found.values())
        self._answers = [int(number) for number in arrays.get(_ANSWERS, ())]


class HeldOutJudge:
    """Judges steps by a client's held-out part.

    `alpha` is the probability with which the client, if it is never harmed, may be the cause of a refusal in a run;
    `alone` says that training losses have no say.
    """

    def __init__(self, alpha: float, samples: int, *, alone: bool) -> None:
        self.memory = HeldOutMemory(samples)
        self._alpha, self._alone = alpha, alone

    def visit(self, task: ClientTask, losses_at: LossesAt) -> HeldOutTest | None:
        """The test that `task` asks for, None where it is not known what to compare with; note the model it trains on.

        A task that asks for both has one pass over the samples at the candidate.
        """
        earlier = self.memory.before_step(task.round - 1) if task.probe else []
        answer = self.memory.count_answer(task.exchange, 1 + task.grow if earlier else 0)
        if task.train:
            self.memory.train(task.round, losses_at(task.factor))
        return HeldOutTest(task, losses_at, earlier, answer, self._alpha, self._alone) if earlier else None


@dataclass(frozen=True, slots=True)
class HeldOutTerms:
    """What a run asks of those who judge by a held-out part; see `HeldOutJudge`."""

    alpha: float
    alone: bool

    @classmethod
    def of(cls, run: RunPlan) -> HeldOutTerms | None:
        """Those of a run; None where training losses judge."""
        alone = run.settings.step.judge == "held-out"
        return cls(run.settings.guarantee.held_out_level, alone) if run.judges_held_out else None

    def judge(self, samples: int) -> HeldOutJudge | None:
        """What judges by so many samples; None where they are too few."""
        return HeldOutJudge(self.alpha, samples, alone=self.alone) if samples >= FEWEST else None
