"""What a method is: it turns the figures of a round into coefficients over the rows.

Most methods need only inner products and derive from `GramMethod`: a small function from a `RoundBatch` to K weights.
Those that make a vector of size D derive from `VectorMethod`. `sees` declares what is read of rows: no more is given.

The file of a method ends with `METHODS`, a `Profile` for each method in it; `config.methods` finds them there. Such a
file imports torch only where it uses it, because reading settings must not load torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Combination, Extras, Float64Array, FloatArray, RoundBatch, Sees, on_host

if TYPE_CHECKING:
    from torch import Tensor

    from dqnfed_flwr.linalg.min_norm import GramSolution
    from dqnfed_flwr.linalg.rows import RowSet

ZERO_GRADIENT, BAD_RATE = "zero-gradient", "bad-rate"
"""Why a method leaves a client out of a round."""
State = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The D-sized side of a round, as far as a method `sees` it: `RunError` where it reads more.

    Attributes
    ----------
    held : RowSet
        Rows of the clients, and free slots behind them for references; for the server, not for a method.
    slots : tuple[int, ...]
        Slot of each client's row, in the order of `RoundBatch.clients`.
    vectors : Mapping[str, tuple[FloatArray, ...]]
        Further arrays of the clients by name, in the same order, as the method asked for them in `extras`; empty for a
        client that was not asked.
    others : tuple[int, ...]
        Slots of rows that have no part in the step; how the losses behind them fall along it is of interest.
    hidden : int
        How many of the last slots belong to somebody else: an anchor does not see those of the method around it.
    """

    held: RowSet
    slots: tuple[int, ...]
    vectors: Mapping[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    others: tuple[int, ...] = ()
    hidden: int = 0
    sees: Sees = Sees.ALL

    @property
    def capacity(self) -> int:
        """B, slots that a method sees: the clients', then its own."""
        return self.held.capacity - self.hidden

    @property
    def dim(self) -> int:
        """D."""
        return self.held.dim

    def combine(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the clients' rows by K weights."""
        return self.sum(self.spread(weights))

    def sum(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the rows in all slots, by B weights."""
        return self._read(Sees.SUM).combine(np.pad(weights, (0, self.hidden)))

    def gram(self, slots: Sequence[int]) -> Float64Array:
        """Inner products of the rows in `slots`; 0 where there is no row."""
        return self._read(Sees.PRODUCTS).gram(slots)

    def squared_norm(self, slot: int) -> float:
        """|row|^2 of the row in `slot`; infinite or NaN where it is not fit."""
        return self.held.squared_norm(slot)

    def put(self, slot: int, row: Tensor | FloatArray) -> None:
        """Put a reference [D] into a slot of the method's own."""
        self.held.put(slot, row)

    def drop(self, slot: int) -> None:
        """Forget it."""
        self.held.drop(slot)

    def spread(self, weights: Float64Array) -> Float64Array:
        """Lay K weights out over all slots [B]."""
        out = np.zeros(self.capacity)
        out[list(self.slots)] = weights
        return out

    def mean_vector(self, name: str, shares: Float64Array) -> Tensor:
        """Mean of the clients' arrays `name` by sample shares [K], summed in the order of the clients."""
        if name not in self.vectors:
            raise RunError(f"this method needs the clients' {name!r}, which their replies do not hold")
        import torch

        total = np.zeros_like(self.vectors[name][0])
        for share, vector in zip(shares, self.vectors[name], strict=True):
            total += vector * total.dtype.type(share)
        return torch.from_numpy(total)

    def columns(self, part: slice) -> Float64Array:
        """The clients' rows in some columns, in float64 [K, width]: a copy."""
        return self._read(Sees.COLUMNS).columns(self.slots, part)

    def column_blocks(self) -> list[slice]:
        """Consecutive blocks of columns, each small enough for a float64 copy of all rows."""
        return self.held.column_blocks()

    def assemble(self, parts: Iterable[tuple[slice, Float64Array]]) -> Tensor:
        """A vector [D] like a row, of some columns and their values; 0 elsewhere."""
        return self.held.assemble(parts)

    def copies(self) -> list[FloatArray]:
        """The clients' rows, each [D], to be kept."""
        return self._read(Sees.COLUMNS).copies(self.slots)

    def _read(self, what: Sees) -> RowSet:
        if what not in self.sees:
            raise RunError(f"the method reads {what.name} of rows, which it does not declare in `sees`: {self.sees}")
        return self.held


class Memory(Protocol):
    """Something that a method remembers between rounds."""

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Named arrays, under names that no other memory of the method has."""

    def restore_state(self, state: State) -> None:
        """Take up its part of a state; the arrays of others may be in it."""


class Method(ABC):
    """A rule that combines clients, made from the settings of a run.

    Parameters
    ----------
    run : RunPlan
        Kept as `_run`. Its `row_lr`, kept as `_row_lr`, makes a step of a row: eta for a gradient, 1 for the
        displacement of passes.

    Attributes
    ----------
    reference_rows : int
        Slots beyond the K clients that the method uses; they follow the clients'.
    sees : Sees
        What it reads of rows; all that there is if it does not say. Without `PRODUCTS`, and if the step rule compares
        no slopes, the server does not compute them; `RoundBatch.gram` then holds its diagonal alone.
    guaranteed : bool
        Whether the step lowers the loss of each client whose row is given, so that a client can hold up the others.
    rests : bool
        Whether the server's model stays: rounds go on without a step, and clients stop early by themselves.
    one_row, keeps_late : bool
        Whether its step is the row of one client; whether late rows of clients that each round asks are of use.
    """

    reference_rows: int = 0
    sees: Sees = Sees.ALL
    guaranteed: bool = False
    rests: bool = False
    one_row: bool = False
    keeps_late: bool = False
    _remembered: Sequence[str] = ()
    _memories: Sequence[Memory] = ()  # both are kept: attributes `_NAME` (whole numbers or tuples, arrays, tensors)

    def __init__(self, run: RunPlan) -> None:
        self._run, self._row_lr = run, run.row_lr

    def extras(self, dim: int) -> Extras:
        """What clients must send besides gradient, loss and rate, for a model of D = `dim`."""
        return Extras()

    @property
    def inner(self) -> Method:
        """The method itself, or the one that it hands its last rounds over to."""
        return self

    def extras_of(self, round_number: int, client: int, dim: int) -> Extras:
        """As `extras`, where it is not the same in every round and for every client."""
        return self.extras(dim)

    def offered(self, round_number: int, sampled: int) -> int:
        """How many clients, drawn from those present, `select` chooses from; by default the run's `sampled`."""
        return sampled

    def select(self, round_number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        """Who trains in a round, rising; `clients` is the strategy's own sample, and the default."""
        return clients

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """What the message to a client says about its local work of a round."""
        return {}

    def sends(self, round_number: int) -> Mapping[str, Tensor]:
        """Vectors [D], by name, that go with the model to all clients that train in a round."""
        return {}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take in the figures of a round, once, before `combine`, which may be asked more than once."""
        del batch, rows

    @abstractmethod
    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Weights over all slots, from what `observe` left; no state changes here that a second call would see."""

    def propose(self, batch: RoundBatch, rows: RoundRows) -> tuple[Tensor, Mapping[str, float]]:
        """What `combine` gives, as the step [D] itself and the notes: for a method that changes the step."""
        combination = self.combine(batch, rows)
        return rows.sum(combination.weights), combination.notes

    def step_taken(self, step: Tensor, factor: float) -> None:
        """The round is over: theta^{t+1} = theta^t - `factor` * `step` [D]; factor 0 if the step was not taken."""
        del step, factor

    def fall_back(self) -> bool:
        """No length of the last step was accepted; True if the method will propose another step at this model."""
        return False

    def keep_late(self, client: int, round_number: int, now: int, read: Callable[[], FloatArray]) -> bool:
        """Whether a row of a round that came late is of use, `now` being the next round; if so, read and keep it."""
        return False

    def disown(self, clients: Collection[int]) -> None:
        """Forget what these clients sent: they are not believed, or set aside, from this round on."""
        del clients

    def forget(self) -> None:
        """Begin a memory of earlier steps anew, because the step made with it was no descent."""
        return

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What it remembers between rounds: arrays that are not written to once they were given out, but replaced."""
        kept = {name: getattr(self, f"_{name}") for name in self._remembered}
        kept = {name: np.asarray(one) if isinstance(one, int | tuple) else one for name, one in kept.items()}
        arrays = {name: on_host(value) for name, value in kept.items() if value is not None}
        return arrays | {name: values for memory in self._memories for name, values in memory.export_state().items()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        for name in self._remembered:
            setattr(self, f"_{name}", _as_kept(name, state, getattr(self, f"_{name}")))
        for memory in self._memories:
            memory.restore_state(state)


def _as_kept(name: str, state: State, now: Any) -> Any:
    """What was remembered, of the type of `now`, a fresh method's: where that is None, a tensor or still None."""
    if now is None and name not in state:
        return None
    found = state[name]
    if isinstance(now, np.ndarray):
        return np.array(found)
    if isinstance(now, int | tuple):
        return type(now)(found.tolist())
    import torch

    return torch.from_numpy(np.array(found))


class GramMethod(Method):
    """A method that never sees a vector of size D."""

    sees = Sees.PRODUCTS

    @abstractmethod
    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K clients' rows [K]."""

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """`weights`, laid out over all slots."""
        combination = self.weights(batch)
        return replace(combination, weights=rows.spread(combination.weights))


class VectorMethod(Method):
    """A method that makes a vector of size D of the rows: server momentum, masks of coordinates, medians."""

    reference_rows = 1

    @abstractmethod
    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """The step [D], in the dtype of the rows."""

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """`step`, put into the last slot with weight 1, and `notes`."""
        rows.put(rows.capacity - 1, self.step(batch, rows))
        return Combination(np.eye(rows.capacity)[-1], notes=self.notes())

    def notes(self) -> Mapping[str, float]:
        """Figures for the event log, of the last `step`."""
        return {}

    def propose(self, batch: RoundBatch, rows: RoundRows) -> tuple[Tensor, Mapping[str, float]]:
        """`step` itself, which takes up no slot, and `notes`."""
        return self.step(batch, rows), self.notes()


class LayerMethod(VectorMethod):
    """A method that decides layer by layer.

    Attributes
    ----------
    layers : tuple[slice, ...]
        Columns of each layer, weight and bias together, in the order of the model; set by the strategy before the
        first round.
    head : NDArray[np.int64]
        Columns of the last layer by output class [C, m], a class's bias last; empty where it is no linear layer.
    """

    layers: tuple[slice, ...] = ()
    head: NDArray[np.int64] = np.empty((0, 0), np.int64)


def make_method(run: RunPlan) -> Method:
    """A fresh method of a run."""
    method: Method = run.method.build(run)
    return method


def left_out(batch: RoundBatch, fit: NDArray[np.bool_]) -> dict[int, str]:
    """Clients outside of the mask `fit` [K], with the reason: a zero gradient, else the rate."""
    moving = np.diag(batch.gram) > 0
    return {
        client: BAD_RATE if moves else ZERO_GRADIENT
        for client, moves, taken in zip(batch.clients, moving, fit, strict=True)
        if not taken
    }


def answer(weights: Float64Array, solution: GramSolution, excluded: Mapping[int, str], **more: Any) -> Combination:
    """`weights` with what `solution` says of itself, and `more` fields of a `Combination`."""
    return Combination(
        weights,
        rank=solution.rank,
        condition=solution.condition,
        residual=solution.residual,
        excluded=excluded,
        **{"status": solution.status, **more},
    )
