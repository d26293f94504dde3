"""A method inside another one: the anchor, whose step DQN-Fed changes as little as the guarantee demands.

The anchor decides as it would by itself, with settings, local work, further arrays, directives and memory of its own.
Where its local work is one gradient, it sees the rows of the method around it. Where it is any other, clients send its
row next to their gradient, and the anchor's rows are a set of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import Method, RoundRows, State, VectorMethod
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.schema.groups import WHOLE
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.work import GRADIENT
from dqnfed_flwr.types import Extras, FloatArray, RoundBatch, Sees, under

if TYPE_CHECKING:
    from torch import Tensor

    from dqnfed_flwr.linalg.rows import RowSet

ANCHOR = "anchor"
"""The anchor's row among a client's arrays."""
OF_ANCHOR = "anchor."
"""Begins the names of its further arrays, figures and directives."""
STATE = "anchor/"
"""Begins the names of what it remembers."""
_CHOICE = 1_000_004  # stream of the seed, beyond every client's number


class Anchor:
    """The anchor of a run, fed with the rounds of the method around it.

    Parameters
    ----------
    run : RunPlan
        Its own part: `RunPlan.anchor` of the method around it.

    Attributes
    ----------
    method : Method
        The method itself.
    reference_rows : int
        Slots that it needs among those of the method around it, right behind those of the clients.
    """

    def __init__(self, run: RunPlan) -> None:
        self._run = run
        self.method: Method = run.method.build(run)
        self._sent = run.work is not GRADIENT
        shares_rows = not self._sent and not isinstance(self.method, VectorMethod)
        self.reference_rows = self.method.reference_rows if shares_rows else 0
        own_settings = run.group_of(DqnFedSettings)
        self._bits, self._share = own_settings.anchor_bits, own_settings.anchor_share if self._sent else 1.0
        self._spared: frozenset[int] = frozenset()
        self._rows: RowSet | None = None
        self._cut = 0

    def extras(self, dim: int) -> Extras:
        """The anchor's row, where it has one of its own, and what its method asks for."""
        wanted = self.method.extras(dim)
        row = {ANCHOR: (dim,)} if self._sent else {}
        return Extras(
            row | {OF_ANCHOR + name: shape for name, shape in wanted.vectors.items()},
            tuple(OF_ANCHOR + name for name in wanted.figures),
            {OF_ANCHOR + name: limits for name, limits in wanted.limits.items()},
            dict.fromkeys(row, self._bits) if self._bits != WHOLE else {},
        )

    def extras_of(self, client: int, dim: int) -> Extras:
        """As `extras`, for one of the clients that `choose` chose from."""
        return Extras() if client in self._spared else self.extras(dim)

    def choose(self, round_number: int, clients: tuple[int, ...]) -> None:
        """Draw the `share` of a round's clients that send a row for the anchor, at least one; the others are spared."""
        count = max(1, round(self._share * len(clients)))
        if count >= len(clients):
            self._spared = frozenset()
            return
        generator = np.random.default_rng((self._run.settings.seed, round_number, _CHOICE))
        chosen = generator.choice(clients, count, replace=False)
        self._spared = frozenset(clients).difference(chosen.tolist())

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """What the message to a client says about the anchor's local work, or that none is wanted."""
        if client in self._spared:
            return {ANCHOR: 0.0}
        return {OF_ANCHOR + name: value for name, value in self.method.directives(round_number, client).items()}

    def sends(self, round_number: int) -> Mapping[str, Tensor]:
        """Vectors [D] that the anchor's local work needs."""
        return {OF_ANCHOR + name: vector for name, vector in self.method.sends(round_number).items()}

    def observe(self, batch: RoundBatch, rows: RoundRows, hidden: int) -> tuple[RoundBatch, RoundRows]:
        """Take in the figures of a round, and give them as the anchor sees them.

        `hidden` are the slots behind those of the anchor.
        """
        figures, vectors = under(OF_ANCHOR, batch.figures), under(OF_ANCHOR, rows.vectors)
        mine = replace(batch, figures=figures, slack=np.zeros(0))
        sees = self.method.sees | Sees.SUM  # its answer may be weights, which `propose` makes a step of
        seen = replace(rows, vectors=vectors, others=(), hidden=hidden, sees=sees)
        if self._sent:
            mine, seen = self._own(mine, rows, seen)
        if mine.clients:
            self.method.observe(mine, seen)
        return mine, seen

    def _own(self, batch: RoundBatch, rows: RoundRows, seen: RoundRows) -> tuple[RoundBatch, RoundRows]:
        """The round of those that sent a row for the anchor."""
        given = rows.vectors.get(ANCHOR, (np.empty(0),) * len(rows.slots))  # nobody who was asked for one may be left
        there = np.array([row.size > 0 for row in given])
        slots = tuple(slot for slot, sent in zip(rows.slots, there, strict=True) if sent)
        held = self._fill(rows.held, dict(zip(rows.slots, given, strict=True)), slots)
        gram = held.gram(slots) if Sees.PRODUCTS in self.method.sees else held.diagonal(slots)
        shares = batch.shares[there]
        mine = replace(
            batch,
            gram=gram,
            losses=batch.losses[there],
            rates=self._run.settings.local.lr * np.diag(gram),
            shares=shares / shares.sum() if shares.any() else np.full(len(slots), 1 / max(len(slots), 1)),
            clients=tuple(client for client, sent in zip(batch.clients, there, strict=True) if sent),
            examples=batch.examples[there],
        )
        return mine, replace(seen, held=held, slots=slots, hidden=0)

    def propose(self, batch: RoundBatch, rows: RoundRows) -> tuple[Tensor, Mapping[str, float]]:
        """Its step [D], from what `observe` gave, and notes for the event log.

        Products of gradients are as precise as they are by now; those of the anchor's own rows stay as they were.
        """
        batch = batch if self._sent else replace(batch, gram=rows.held.gram(rows.slots))
        step, notes = self.method.propose(batch, rows)
        found = {name if name.startswith(ANCHOR) else f"anchor_{name}": value for name, value in notes.items()}
        return step, {**found, **({"anchor_cut": float(self._cut)} if self._cut else {})}

    def _fill(self, around: RowSet, rows: Mapping[int, FloatArray], slots: tuple[int, ...]) -> RowSet:
        """The anchor's rows in the `slots` that the gradients have in `around`; long rows are cut."""
        if self._rows is None:
            references = self.method.reference_rows
            self._rows = around.alike(self._run.settings.sampled + references, references)
        self._rows.clear()
        for slot in slots:
            self._rows.put(slot, rows[slot])
        longest = self._run.settings.guarantee.longest(len(rows))
        self._cut = len(self._rows.cut_long({slot: slot for slot in slots}, longest))
        return self._rows

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Learn the step that was taken in place of its own."""
        self.method.step_taken(step, factor)

    def forget(self) -> None:
        """Begin a memory of earlier steps anew."""
        self.method.forget()

    def disown(self, clients: Collection[int]) -> None:
        """Forget what these clients sent, and steps that were made of it."""
        self.method.disown(clients)
        if clients:
            self.method.forget()

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What the method remembers, under names of its own."""
        return {STATE + name: values for name, values in self.method.export_state().items()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self.method.restore_state(under(STATE, state))
