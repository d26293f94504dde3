"""What a method is: it turns the figures of a round into coefficients over the rows.

Most methods need only inner products and derive from `GramMethod`: a small function from a `RoundBatch` to K weights.
Those that need a vector of size D derive from `Method` and ask the basis for it: the type says what a method costs.

The file of a method ends with `METHODS`, a `Profile` for each method in it; `methods.table` finds them there. Such a
file imports torch only where it uses it, because reading settings must not load torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.types import Combination, Extras, Float64Array, FloatArray, RoundBatch

if TYPE_CHECKING:
    from torch import Tensor

    from dqnfed_flwr.linalg.gram import Basis

ZERO_GRADIENT, BAD_RATE = "zero-gradient", "bad-rate"
"""Why a method leaves a client out of a round."""
State = Mapping[str, NDArray[np.generic]]
CurvatureMatrix = Literal["hessian", "gauss-newton"]


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
        Further arrays of the clients by name, in the same order, as the method asked for them in `extras`.
    others : tuple[int, ...]
        Slots of rows that have no part in the step; how the losses behind them fall along it is of interest.
    """

    basis: Basis
    slots: tuple[int, ...]
    vectors: Mapping[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    others: tuple[int, ...] = ()

    def combine(self, weights: Float64Array) -> Tensor:
        """Weighted sum [D] of the clients' rows by K weights."""
        return self.basis.combine(self.spread(weights))

    def spread(self, weights: Float64Array) -> Float64Array:
        """Lay K weights out over all slots of the basis."""
        out = np.zeros(self.basis.capacity)
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


TAKEN = "taken"


class Taken:
    """The round of the last reply that was taken in, by client. A client keeps state; this keeps both in step."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        """Whether a reply of `client` was ever taken in."""
        return client in self._rounds

    def note(self, clients: Iterable[int], round_number: int) -> None:
        """Replies of `clients` in a round count."""
        self._rounds |= dict.fromkeys(clients, round_number)

    def forget(self) -> None:
        """Take everybody for new."""
        self._rounds.clear()

    def directives(self, client: int) -> Mapping[str, float]:
        """What `client` is told; round 0 for a new one."""
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
        Of the run. `row_lr` is kept: it makes a step of a row, eta for a gradient, 1 for the displacement of passes.

    Attributes
    ----------
    reference_rows : int
        Slots beyond the K clients that the method uses in the basis; they follow the clients' slots.
    guaranteed : bool
        Whether the step lowers the loss of each client whose row is given, so that a client can hold up the others.
    """

    reference_rows: int = 0
    guaranteed: bool = False

    def __init__(self, run: RunSettings) -> None:
        self._row_lr = run.row_lr

    def extras(self, dim: int) -> Extras:
        """What clients must send beside gradient, loss and rate, for a model of D = `dim`."""
        del dim
        return Extras()

    @property
    def inner(self) -> Method:
        """The method itself, or the one that it hands its last rounds over to."""
        return self

    def round_extras(self, round_number: int, dim: int) -> Extras:
        """As `extras`, where it is not the same in every round."""
        del round_number
        return self.extras(dim)

    def offered(self, round_number: int, sampled: int) -> int:
        """How many clients, drawn from those present, `select` chooses from; by default the run's `sampled`."""
        del round_number
        return sampled

    def select(self, round_number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        """Who trains in a round, rising; `clients` is the strategy's own sample, and the default."""
        del round_number
        return clients

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """What a client is told for its local work of a round."""
        del round_number, client
        return {}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take in the figures of a round, once, before `combine`, which may be asked more than once."""
        del batch, rows

    @abstractmethod
    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Decide the round, from the state that `observe` left; no state changes here that a second call would see.

        Parameters
        ----------
        batch : RoundBatch
            Figures of the K clients present.
        rows : RoundRows
            Their rows.

        Returns
        -------
        Combination
            With `weights` over all slots of the basis.
        """

    def settle(self, step: Tensor, factor: float) -> None:
        """Learn how the last `combine` was used: theta^{t+1} = theta^t - `factor` * `step` [D], 0 if not at all."""
        del step, factor

    def fall_back(self) -> bool:
        """Hear that no length of the last step was accepted; True if the method will propose another one there."""
        return False

    def disown(self, clients: Collection[int]) -> None:
        """Forget what these clients brought: they are not believed, or set aside, from this round on."""
        del clients

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What the method remembers between rounds, for a checkpoint.

        The arrays may be the method's own; they are not written to once they were given out, but replaced.
        """
        return {}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        del state


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
        """`step`, put into the last row of the basis with weight 1; `notes` go along."""
        weights = np.zeros(rows.basis.capacity)
        weights[-1] = 1.0
        rows.basis.put(rows.basis.capacity - 1, self.step(batch, rows))
        return Combination(weights, notes=self.notes())

    def notes(self) -> Mapping[str, float]:
        """Figures for the event log, of the last `step`."""
        return {}


class LayerMethod(VectorMethod):
    """A method that decides layer by layer.

    Attributes
    ----------
    layers : tuple[slice, ...]
        Columns of each layer, weight and bias together, in the order of the model; told by the strategy before the
        first round.
    head : NDArray[np.int64]
        Columns of the last layer by output class [C, m], a class's bias last; empty where it is no linear layer.
    """

    layers: tuple[slice, ...] = ()
    head: NDArray[np.int64] = np.empty((0, 0), np.int64)


def cg_title(matrix: CurvatureMatrix) -> str:
    """What a title says of conjugate gradients on products with this matrix."""
    return "CG" if matrix == "hessian" else "CG, Gauss-Newton"
