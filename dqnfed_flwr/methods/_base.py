"""What a method is: it turns the figures of a round into coefficients over the rows.

Most methods need only inner products and derive from `GramMethod`: a small function from a `RoundBatch` to K weights.
Those that need a vector of size D derive from `Method` and ask the basis for it: the type says what a method costs.

The file of a method ends with `METHODS`, a `Profile` for each method in it; `config.methods` finds them there. Such a
file imports torch only where it uses it, because reading settings must not load torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.types import Combination, Extras, Float64Array, FloatArray, RoundBatch

if TYPE_CHECKING:
    from torch import Tensor

    from dqnfed_flwr.linalg.gram import Basis
    from dqnfed_flwr.linalg.min_norm import GramSolution

ZERO_GRADIENT, BAD_RATE = "zero-gradient", "bad-rate"
"""Why a method leaves a client out of a round."""
T = TypeVar("T")
State = Mapping[str, NDArray[np.generic]]
CurvatureMatrix = Literal["hessian", "gauss-newton"]
SOFTMAX = "solves with the Gauss-Newton matrix of a cross-entropy; use {key} hessian"
"""Why a method refuses other tasks than classification, with the key of its matrix."""


@dataclass(frozen=True, slots=True)
class RoundRows:
    """The D-sized side of a round.

    Attributes
    ----------
    basis : Basis
        Rows of the clients, and free slots behind them for references.
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

    basis: Basis
    slots: tuple[int, ...]
    vectors: Mapping[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    others: tuple[int, ...] = ()
    hidden: int = 0

    @property
    def capacity(self) -> int:
        """B, slots that a method sees: the clients', then its own."""
        return self.basis.capacity - self.hidden

    def combine(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the clients' rows by K weights."""
        return self.sum(self.spread(weights))

    def sum(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the rows in all slots, by B weights."""
        return self.basis.combine(np.pad(weights, (0, self.hidden)))

    def spread(self, weights: Float64Array) -> Float64Array:
        """Lay K weights out over all slots [B]."""
        out = np.zeros(self.capacity)
        out[list(self.slots)] = weights
        return out

    def mean_vector(self, name: str, shares: Float64Array) -> Tensor:
        """Mean of the clients' arrays `name` by sample shares [K], summed in the order of the clients."""
        if name not in self.vectors:
            raise RunError(f"this method needs the clients' {name!r}, which their replies do not hold")
        first, *_ = self.vectors[name]
        import torch

        total = np.zeros_like(first)
        for share, vector in zip(shares, self.vectors[name], strict=True):
            total += vector * total.dtype.type(share)
        return torch.from_numpy(total)

    def columns(self, part: slice) -> Float64Array:
        """The clients' rows in some columns, in float64 [K, width]: a copy."""
        return self.basis.columns(self.slots, part)

    def column_blocks(self) -> list[slice]:
        """Consecutive blocks of columns, each small enough for a float64 copy of all rows."""
        return self.basis.column_blocks()


class Memory(Protocol):
    """Something that a method remembers between rounds."""

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Named arrays, under names that no other memory of the method has."""

    def restore_state(self, state: State) -> None:
        """Take up its part of a state; the arrays of others may be in it."""


TAKEN = "taken"


class Taken:
    """The round of the last reply of each client that counted; a client that keeps state compares it with its own."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        """Whether a reply of `client` was ever taken in."""
        return client in self._rounds

    def note(self, clients: Iterable[int], round_number: int) -> None:
        """Replies of `clients` in a round count."""
        self._rounds |= dict.fromkeys(clients, round_number)

    def forget(self) -> None:
        """Take all clients for new."""
        self._rounds.clear()

    def directives(self, client: int) -> Mapping[str, float]:
        """The directive for `client`: its round, 0 for a new client."""
        return {TAKEN: float(self._rounds.get(client, 0))}

    def export(self) -> NDArray[np.int64]:
        """Clients and rounds, int64 [n, 2]."""
        return np.array(sorted(self._rounds.items()), dtype=np.int64).reshape(-1, 2)

    def restore(self, pairs: NDArray[np.generic]) -> None:
        """Inverse of `export`."""
        self._rounds = {int(client): int(number) for client, number in np.asarray(pairs, np.int64)}


class Method(ABC):
    """A rule that combines clients, made from the settings of a run.

    Parameters
    ----------
    run : RunSettings
        Kept as `_run`. Its `row_lr`, kept as `_row_lr`, makes a step of a row: eta for a gradient, 1 for the
        displacement of passes.

    Attributes
    ----------
    reference_rows : int
        Slots beyond the K clients that the method uses in the basis; they follow the clients' slots.
    reads_products : bool
        Whether it looks at inner products of different rows. If not, and if the step rule compares no slopes, the
        server does not compute them; `RoundBatch.gram` then holds its diagonal alone.
    guaranteed : bool
        Whether the step lowers the loss of each client whose row is given, so that a client can hold up the others.
    rests : bool
        Whether the server's model stays where it is: rounds go on without a step, and clients stop early by themselves.
    """

    reference_rows: int = 0
    reads_products: bool = True
    guaranteed: bool = False
    rests: bool = False

    _memories: Sequence[Memory] = ()
    _vectors: Sequence[str] = ()
    """What it remembers between rounds, where it writes no `export_state`; attributes `_NAME` that hold a vector."""

    def __init__(self, run: RunSettings) -> None:
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
        """Weights over all slots of the basis, from the state that `observe` left.

        No state changes here that a second call would see.
        """

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
        """What the method remembers between rounds, for a checkpoint.

        The arrays may be the method's own; they are not written to once they were given out, but replaced.
        """
        own = {name: getattr(self, f"_{name}") for name in self._vectors}
        found = {name: vector.cpu().numpy() for name, vector in own.items() if vector is not None}
        return found | {name: values for memory in self._memories for name, values in memory.export_state().items()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        import torch

        for name in self._vectors:
            setattr(self, f"_{name}", torch.from_numpy(np.array(state[name])) if name in state else None)
        for memory in self._memories:
            memory.restore_state(state)


class GramMethod(Method):
    """A method that never sees a vector of size D."""

    @abstractmethod
    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K clients' rows [K]."""

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """`weights`, laid out over the slots of the basis."""
        combination = self.weights(batch)
        return replace(combination, weights=rows.spread(combination.weights))


class VectorMethod(Method):
    """A method that makes a vector of size D of the rows: server momentum, masks of coordinates, medians."""

    reference_rows = 1

    @abstractmethod
    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """The step [D], in the dtype of the rows."""

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """`step`, put into the last row of the basis with weight 1, and `notes`."""
        weights = np.zeros(rows.capacity)
        weights[-1] = 1.0
        rows.basis.put(rows.capacity - 1, self.step(batch, rows))
        return Combination(weights, notes=self.notes())

    def notes(self) -> Mapping[str, float]:
        """Figures for the event log, of the last `step`."""
        return {}

    def propose(self, batch: RoundBatch, rows: RoundRows) -> tuple[Tensor, Mapping[str, float]]:
        """`step` itself, which takes up no row of the basis, and `notes`."""
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


def make_method(run: RunSettings) -> Method:
    """A fresh method as `run.method` names it."""
    method: Method = run.profile.build(run)
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


def cg_title(matrix: CurvatureMatrix) -> str:
    """What a title says of conjugate gradients on products with this matrix."""
    return "CG" if matrix == "hessian" else "CG, Gauss-Newton"
