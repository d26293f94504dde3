"""Messages that bring the step alone: the server adopts what it sends, and knows what each node has of the model.

The step u is rounded before anything is done with it: c = Q(u + e) is what clients test, what is taken, and what the
method hears of, so that the promise to the clients is about the model that they all have. e is what rounding left of
the steps before (error feedback). It is dropped where it is longer than the step, and after a round that did not move
the model.

With 2 bits a value, or in low rank, c is as coarse as every client's descent allows: of a few roundings, from the
coarsest on, the first is taken that leaves each client `KEPT` of the slope that it has along u, by the rows that the
server holds, or has it climb by as little more. Where clients oppose each other that is a finer one, or one without e;
where none is, the finest without e. Where the server does not know the slopes it is the finest, with e.

A node that answered has the model that its message was about, and the step. It is sent how that step ended, any steps
that it missed, and the next one; or the whole model, where that is shorter, or it said that it has none. What nodes
have is not written into checkpoints: a server that is resumed sends the model once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr import wire
from dqnfed_flwr.linalg.sweeps import squared_norm
from dqnfed_flwr.params import digest
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.solve import Slopes, unknown
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.wire import Course, Leg
from dqnfed_flwr.wire.codecs import KINDS, Codec
from dqnfed_flwr.wire.levels import Levels
from dqnfed_flwr.wire.low_rank import LowRank
from dqnfed_flwr.wire.rounding import Parts, Shape

_ROUNDING = 6
"""Stream of the seed; those of clients are others."""
SPACINGS = (2.0, 1.0, 0.0)
"""Of `Levels`, from the coarsest on."""
RANKS = (1, 2, 4, 8, 16)
"""Of `LowRank`."""
KEPT, KEPT_OF_A_SAMPLE = 0.85, 2 / 3
"""Of a client's slope along the step, at least this share is left by rounding; steps that many will miss are sent more
often, and may be coarser."""
MOST_TAKEN = 64
"""Steps that are kept for those who miss them."""
LEFT, REST, PATH, SENT = "left", "rest", "path", "sent"


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that was taken, as it was sent, and the digest of the model that it began at."""

    before: int
    leg: Leg


@dataclass(frozen=True, slots=True)
class Holder:
    """What a node has: the digest of a model, and the parts of a step."""

    model: int
    parts: Parts


@dataclass(frozen=True, slots=True)
class Line:
    """What the last exchange was about: the model, the candidate, and the leg between them, if there was one."""

    base: Tensor
    candidate: Tensor
    leg: Leg | None


class ShortMessages:
    """The steps of a run as they are sent, and who has which; the `run` says in how many bits a value, below 32.

    Attributes
    ----------
    shapes : tuple[Shape, ...]
        Those of the model's parameters, in reals; steps in low rank need them.
    """

    def __init__(self, run: RunPlan) -> None:
        self.shapes: tuple[Shape, ...] = ()
        self._seed, self._codec = run.settings.seed, KINDS["step"].codecs[run.step_bits]
        self._kept = KEPT if run.settings.sampled == run.settings.clients else KEPT_OF_A_SAMPLE
        self._left: Tensor | None = None  # e
        self._rest: Tensor | None = None  # e, if the pending step is taken
        self._parts: Parts = {}  # of the pending step
        self._path: tuple[float, ...] = ()  # factors of its candidates, as they were reached from each other
        self._line: Line | None = None
        self._taken: list[Taken] = []
        self._holders: dict[int, Holder] = {}
        self._told: dict[int, tuple[int, Holder]] = {}  # what a client has, once it answers, with its node
        self._digests: list[tuple[Tensor, int]] = []

    def adopt(self, step: Tensor, number: int, slopes: Slopes = unknown) -> Tensor:
        """The step c [D] that is sent in place of `step` in the round `number`; a step of zeros is itself."""
        length = squared_norm(step.numpy())
        if not 0 < length < torch.inf:
            return step
        left, self._path = self._left, ()
        aims = [step] if left is None or squared_norm(left.numpy()) > length else [step + left, step]
        roundings = self._roundings()
        wanted = slopes(step) if len(roundings) > 1 else None
        if wanted is None:
            return self._rounded(aims[0], roundings[-1], number)
        least = wanted - (1 - self._kept) * abs(wanted)
        for aimed, rounding in product(aims, roundings):
            adopted = self._rounded(aimed, rounding, number)
            found = slopes(adopted)
            if found is not None and (found >= least).all() and adopted.any():
                break
        return adopted

    def _roundings(self) -> tuple[Codec, ...]:
        """What a step may be rounded by, from the coarsest on."""
        if isinstance(self._codec, LowRank):
            return tuple(LowRank(rank, self.shapes) for rank in RANKS)
        return tuple(map(Levels, SPACINGS)) if isinstance(self._codec, Levels) else (self._codec,)

    def _rounded(self, aimed: Tensor, codec: Codec, number: int) -> Tensor:
        """What is sent in place of a vector [D]; note its parts, and what it lacks."""
        draws = np.random.default_rng((self._seed, number, 0, _ROUNDING))
        self._parts = codec.pack(aimed.numpy(), draws)
        adopted = torch.from_numpy(codec.unpack(self._parts, tuple(aimed.shape))).to(aimed.dtype)
        self._rest = aimed - adopted
        return adopted

    def place(self, factor: float, *, anew: bool) -> None:
        """The candidate is at this factor, seen from the one before it, or `anew` from the model."""
        self._path = (factor,) if anew else (*self._path, factor)

    def round_over(self, *, moved: bool) -> None:
        """The step was taken, or not."""
        self._left, self._rest = self._rest if moved else None, None

    def models(
        self, schedule: Schedule, state: RunState, nodes: Mapping[int, int], further: Mapping[str, Tensor]
    ) -> dict[int, ArrayRecord]:
        """What the client on each of the `nodes` is sent in place of the candidate; nodes are by client.

        Those that train are sent the `further` vectors of the method, too.
        """
        vectors = {name: vector.numpy() for name, vector in further.items()}
        pending = state.pending is not None and state.pending.ladder.factor > 0
        line = Line(state.theta, state.candidate, Leg(self._path, self._parts)) if pending else None
        self._go_on(line or Line(state.candidate, state.candidate, None))

        @cache
        def model(place: int | None, *, first: bool, train: bool) -> ArrayRecord:
            return wire.encode_course(self._course(place, first=first), state.buffers, vectors if train else {})

        found: dict[int, ArrayRecord] = {}
        for client, node in nodes.items():
            place, first = self._start(self._holders.get(node))
            found[client] = model(place, first=first, train=schedule.tasks[client].train and bool(vectors))
            self._told[client] = node, self._after(place, self._holders.get(node))
        return found

    def received(self, collected: Collected) -> None:
        """Note who has what by now; a client whose reply did not count may have either."""
        lost = {client for client, drop in collected.dropped.items() if drop.reason == wire.LOST_MODEL}
        for client in {*collected.answered, *lost}:
            self.answered(client, lost=client in lost)

    def answered(self, client: int, *, lost: bool) -> None:
        """A client, in time or late, has what it was last told of, or has `lost` the model that this builds on."""
        if client not in self._told:
            return
        node, holder = self._told.pop(client)
        if lost:
            self._holders.pop(node, None)
        else:
            self._holders[node] = holder

    def _go_on(self, line: Line) -> None:
        """The exchange is about this line; keep the step that led to its model."""
        last, self._line = self._line, line
        if last is not None and line.base is not last.base:
            led_here = last.leg is not None and line.base is last.candidate
            self._taken = [*self._taken, Taken(self._digest(last.base), last.leg)] if led_here and last.leg else []
            del self._taken[:-MOST_TAKEN]
            while sum(_size(taken.leg.parts) for taken in self._taken[1:]) >= line.base.nbytes:
                del self._taken[0]
        known = [(of, value) for of, value in self._digests if of is line.base or of is line.candidate]
        self._digests = known

    def _start(self, held: Holder | None) -> tuple[int | None, bool]:
        """Where among the steps taken a node begins, None with the whole model; whether it has the first step it needs.

        The step that is pending comes after the last of those taken.
        """
        line, steps = self._now, [*(taken.leg for taken in self._taken)]
        before = [*(taken.before for taken in self._taken), self._digest(line.base)]
        if held is None or held.model not in before:
            return None, False
        place = len(before) - 1 - before[::-1].index(held.model)
        needed = [*steps[place:], *([line.leg] if line.leg else [])]
        first = bool(needed) and needed[0].parts is held.parts
        sent = sum(_size(leg.parts) for leg in steps[place + (first and place < len(steps)) :])
        return (place, first) if sent < line.base.nbytes else (None, False)

    def _course(self, place: int | None, *, first: bool) -> Course:
        line = self._now
        taken = [] if place is None else self._taken[place:]
        legs = [*(one.leg for one in taken), *([line.leg] if line.leg else [])]
        if first:
            legs[0] = Leg(legs[0].path)
        digests = [*(one.before for one in taken), self._digest(line.base)]
        digests += [self._digest(line.candidate)] if line.leg else []
        return Course(tuple(digests), tuple(legs), line.base.numpy() if place is None else None)

    def _after(self, place: int | None, held: Holder | None) -> Holder:
        """What a node has that took a course up."""
        line, taken = self._now, [] if place is None else self._taken[place:]
        legs = [*(one.leg for one in taken), *([line.leg] if line.leg else [])]
        parts = legs[-1].parts if legs else held.parts if held and place is not None else {}
        return Holder(self._digest(line.base), parts)

    @property
    def _now(self) -> Line:
        if self._line is None:
            raise LookupError("no exchange has begun")
        return self._line

    def _digest(self, vector: Tensor) -> int:
        """The digest of a model, computed once while it is in use."""
        for known, value in self._digests:
            if known is vector:
                return value
        self._digests.append((vector, digest(vector.numpy())))
        return self._digests[-1][1]

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """All that the next exchange needs; empty before there is a step."""
        kept = {name: tensor.numpy() for name, tensor in ((LEFT, self._left), (REST, self._rest)) if tensor is not None}
        path = {PATH: np.array(self._path)} if self._parts else {}
        return {**kept, **path, **{SENT + end: values for end, values in self._parts.items()}}

    def restore_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export_state`; nobody has a model then."""
        self._left, self._rest = (torch.from_numpy(np.array(state[n])) if n in state else None for n in (LEFT, REST))
        self._parts = {name.removeprefix(SENT): v for name, v in state.items() if name.startswith(SENT)}
        self._path = tuple(map(float, state[PATH])) if self._parts else ()
        self._holders.clear()


def _size(parts: Parts) -> int:
    return sum(values.nbytes for values in parts.values())
