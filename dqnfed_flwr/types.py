"""The shape vocabulary: what clients send, what a method sees and what it returns.

| name | paper (Hamidi and Ye, TMLR 2025) | meaning | shape |
|---|---|---|---|
| `K` | K, |S^t| | clients whose reply counts in this round | |
| `B` | | rows of a round: the K gradients, then the reference rows of an anchored method | |
| `D` | d | trainable parameters of the model | |
| `theta` | theta^t | global model, flattened | [D] |
| `grads` | g_k | local gradients, one row a client | [K, D] |
| `losses` | f_k(theta^t) | local training losses | [K] |
| `rates` | d~_k, (18) | squared Newton decrement of a client | [K] |
| `gram` | | inner products of the rows | [B, B] |
| `step` | eta^t d^t, (17) | theta^{t+1} = theta^t - alpha * step | [D] |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    Vector = NDArray[np.floating] | Tensor

Float64Array = NDArray[np.float64]
FloatArray = NDArray[np.floating]
T = TypeVar("T")


def on_host(vector: Vector) -> FloatArray:
    """A vector as an array: itself, or the memory of a tensor.

    Of a tensor on a device it is one copy, which the tensor keeps: it must not be written to later. From CUDA it goes
    into memory that the card writes by itself: 45 MB took 0.9 ms from an H200, and 30 to 37 into any other memory.
    """
    if isinstance(vector, np.ndarray):
        return vector
    vector = vector.detach() if vector.requires_grad else vector
    if vector.device.type == "cpu":
        return np.asarray(vector.numpy())
    kept = vector.__dict__.get(_HOST)
    if kept is None:
        like = vector.new_empty(vector.shape, device="cpu", pin_memory=vector.is_cuda)
        kept = vector.__dict__[_HOST] = like.copy_(vector).numpy()
    return np.asarray(kept)


_HOST = "_on_host"
"""The attribute of a tensor under which its copy lies."""


def under(prefix: str, named: Mapping[str, T]) -> dict[str, T]:
    """What stands in `named` under names that begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def ladder_rungs(factor: float, above: int, below: int) -> tuple[float, ...]:
    """`factor` * 2^above, by halves, down to `factor` / 2^below; empty if both are 0."""
    return tuple(factor * 2.0**power for power in range(above, -below - 1, -1)) if above or below else ()


@dataclass(frozen=True, slots=True)
class SearchHints:
    """What a method tells the step rule `search`.

    Attributes
    ----------
    fair : bool
        Its step also serves equal losses, so that the search asks for that.
    lost : bool
        A participant of the round before is absent, so that no more than factor 1 is tried.
    stretch : float
        sigma, |step| over the length that the step had before the method gave it another one.
    """

    fair: bool = False
    lost: bool = False
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientTask:
    """What one exchange asks of one client.

    The message carries the candidate model `theta_hat` = theta^{t-1} - `factor` * `step`, and `step` itself when the
    client needs the line through it (to probe, or for a curvature pair).

    Attributes
    ----------
    exchange : int
        Running number of the exchange, from 1; a client's cached curvature is keyed by it.
    round : int
        The round whose gradients are asked for.
    train : bool
        Return loss, gradient and rate at `theta_hat`.
    probe : bool
        Return the training loss at `theta_hat`, and more rungs of the ladder as set by `grow` and `halvings`.
    evaluate : bool
        Return counts of right answers, or the task's figure, on the test (and validation) part at `theta_hat`.
    factor : float
        Factor alpha that was applied to `step` in `theta_hat`; 0 when there is no step.
    grow : bool
        Also report the loss at 2 * `factor`.
    halvings : int
        How often the client may halve the factor when its own acceptance test fails at `factor`.
    reference_loss : float
        The client's loss at theta^{t-1}, as it reported it; with `guarantee.window` W the largest of its last W.
    entitlement : float
        e: a loss below it may rise up to it, see `guarantee.harm`; -infinity where none may.
    slope : float
        g_k . step, the slope of its loss along the step at theta^{t-1}; 0 where its row could not be used.
    num_classes : int
        Classes of the federation's model; 0 leaves it to the client's own data.
    directives : Mapping[str, float]
        What the method tells this client for its local work, by name.
    rungs_above, rungs_below : int
        Also report the loss at every rung from `factor` * 2^rungs_above by halves down to `factor` / 2^rungs_below;
        see `rungs`.
    """

    exchange: int
    round: int
    train: bool = True
    probe: bool = False
    evaluate: bool = False
    factor: float = 0.0
    grow: bool = False
    halvings: int = 0
    reference_loss: float = 0.0
    entitlement: float = 0.0
    slope: float = 0.0
    num_classes: int = 0
    directives: Mapping[str, float] = field(default_factory=dict)
    rungs_above: int = 0
    rungs_below: int = 0

    @property
    def rungs(self) -> tuple[float, ...]:
        """Factors of the ladder, falling; empty where no other than the candidate's is asked for."""
        return ladder_rungs(self.factor, self.rungs_above, self.rungs_below)

    @property
    def halved(self) -> list[float]:
        """The factors that a client may go back to when its test fails at `factor`, falling."""
        return [self.factor * 0.5**rung for rung in range(1, self.halvings + 1)]


@dataclass(frozen=True, slots=True)
class Extras:
    """What a method asks clients for in addition to gradient, loss and rate.

    Attributes
    ----------
    vectors : Mapping[str, tuple[int, ...]]
        Shapes of arrays, by name; they come in the dtype of the model.
    figures : tuple[str, ...]
        Names of figures.
    limits : Mapping[str, tuple[float, float]]
        Least and largest value of those figures that have limits; what lies outside is turned away.
    bits : Mapping[str, int]
        Bits a value of those vectors that come rounded, as `wire.codecs` has it.
    """

    vectors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe:
    """Training losses of one client along theta^{t-1} - alpha * step, and whether its own tests held there.

    Attributes
    ----------
    loss : float
        At the candidate (alpha = the factor sent).
    holds : bool
        Whether the client accepts it, by the tests that `step.judge` names.
    grown_holds : bool | None
        Whether it accepts twice the factor; None when not asked for.
    back_factor : float | None
        When it does not accept the candidate: the largest halved factor that it does; None when none was found.
    back_loss : float | None
        The loss at `back_factor`.
    losses : tuple[float, ...]
        At the rungs asked for, see `ClientTask.rungs`; infinite where the model diverges.
    behind_loss : float | None
        Where no halved factor suits, or only the last one h: the loss at theta^{t-1} + h * step, as far the other way.
    held_out : bool | None
        False where the test on held-out samples turned the candidate or a half of it down, True where it turned nothing
        down, None where there was none.
    """

    loss: float
    holds: bool
    grown_holds: bool | None = None
    back_factor: float | None = None
    back_loss: float | None = None
    losses: tuple[float, ...] = ()
    behind_loss: float | None = None
    held_out: bool | None = None


SIGNIFICANT = 4
"""Digits of a figure that is not shown in per cent."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a client: its name, whether more of it is better, and whether it is a share, shown in per cent.

    `counted` where it follows from counts of right answers, which clients send in its place.
    """

    name: str
    higher: bool = True
    percent: bool = False
    counted: bool = field(default=False, compare=False, repr=False, metadata={"transient": True})  # not written

    @property
    def limits(self) -> tuple[float, float] | None:
        """What it lies between; None where that is not known."""
        return (0.0, 1.0) if self.percent else None

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is: figures times it are the better the larger they are."""
        return 1 if self.higher else -1

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def scaled_limits(self) -> tuple[float, float] | None:
        """The same of `limits`."""
        return None if self.limits is None else (self.scale * self.limits[0], self.scale * self.limits[1])

    @property
    def unit(self) -> str:
        """What stands behind a value that is shown; with a blank before it, or empty."""
        return " %" if self.percent else ""

    def text(self, value: float, digits: int = 1) -> str:
        """A value as it is shown: in per cent with so many `digits`, any other with `SIGNIFICANT` ones."""
        return self.label(self.scale * value, digits)

    def label(self, scaled: float, digits: int = 1) -> str:
        """The same of a value that is multiplied by `scale` already."""
        return f"{scaled:.{digits if self.percent else decimals(scaled)}f}{self.unit}"

    def to_json(self) -> dict[str, str | bool]:
        """What `from_json` reads."""
        return {"name": self.name, "higher_is_better": self.higher, "percent": self.percent}

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> Figure:
        """The figure that a record names; accuracy where it names none.

        TypeError or KeyError if it is no such record.
        """
        if record is None:
            return ACCURACY
        found = record["name"], record["higher_is_better"], record["percent"]
        if [type(part) for part in found] != [str, bool, bool]:
            raise TypeError(f"no figure: {record!r}")
        return cls(*found)


ACCURACY = Figure("accuracy", percent=True, counted=True)
"""The share of right answers."""


def decimals(largest: float) -> int:
    """Decimals with which the largest of some values has `SIGNIFICANT` digits, from 0 to 12."""
    if not math.isfinite(largest) or not largest:
        return SIGNIFICANT - 1
    return min(max(SIGNIFICANT - 1 - math.floor(math.log10(abs(largest))), 0), 12)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Counts of one client on one part of its data; other figures than the share of right answers, by name."""

    correct: int
    examples: int
    loss: float
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def figure(self) -> float:
        """The first of the figures, or the share of right answers; NaN where there is no example."""
        if self.figures:
            return next(iter(self.figures.values()))
        return self.correct / self.examples if self.examples else float("nan")


@dataclass(frozen=True, slots=True)
class ClientReply:
    """What a client returns for a `ClientTask`; the vectors have dtype float32 or float64 and shape [D].

    Attributes
    ----------
    row : FloatArray | Tensor | None
        Row g_k of the round (or theta - theta_k when the local work is SGD), None unless trained; a tensor where it
        stays on the client's device until somebody needs its bytes.
    vectors : Mapping[str, FloatArray]
        Further arrays that the method asks for, by name.
    coded : Mapping[str, NDArray]
        The parts of the row where it goes in fewer bits a value: `row` is then what they stand for.
    row_error : float
        Length of what rounding may have changed `row` by, as the server finds it.
    packed : Mapping[str, Mapping[str, NDArray]]
        The parts of those that a client sends in a few bits a value; the server has them among `vectors`.
    figures : Mapping[str, float]
        Further figures that it asks for.
    buffers : Mapping[str, NDArray]
        Buffers of the model (BatchNorm statistics and the like) after local work that changes them.
    loss : float
        f_k at the received model, before any local step; NaN unless trained.
    rate : float
        d~_k; NaN unless trained.
    num_examples : int
        Training samples of the client.
    probe : Probe | None
        The losses along the step; None unless asked for.
    test, validation : Evaluation | None
        Figures of these parts at the received model; None unless asked for, or where the client keeps no such part.
    pairs_kept, pairs_rejected : int
        Curvature pairs behind `rate`, and those the curvature filter turned away in this exchange.
    seconds : float
        What the work took the client.
    """

    num_examples: int
    row: Vector | None = None
    row_error: float = 0.0
    vectors: Mapping[str, FloatArray] = field(default_factory=dict)
    coded: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    packed: Mapping[str, Mapping[str, NDArray[np.generic]]] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    buffers: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    loss: float = float("nan")
    rate: float = float("nan")
    probe: Probe | None = None
    test: Evaluation | None = None
    validation: Evaluation | None = None
    pairs_kept: int = 0
    pairs_rejected: int = 0
    seconds: float = 0.0


class Sees(Flag):
    """What a method reads of rows. The weighted sum that makes the step the server makes, for any of them."""

    NORMS = 0
    """Their norms alone."""
    PRODUCTS = auto()
    """Inner products of different rows, references among them; norm and slopes of the step are then made of these."""
    SUM = auto()
    """Weighted sums [D], to make a step of."""
    COLUMNS = auto()
    """Values of single rows: columns, or copies to keep for a later round."""
    ALL = PRODUCTS | SUM | COLUMNS


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """What a method decides on: inner products and K-sized figures, clients in the order of their partitions.

    Attributes
    ----------
    gram : Float64Array
        Inner products of the clients' rows [K, K].
    losses, rates : Float64Array
        [K].
    shares : Float64Array
        Share of samples p_k of each client among those present [K]; sums to 1. It is 0 for a client whose row was set
        aside before and has no part in the mean yet.
    clients : tuple[int, ...]
        Partition numbers, rising.
    round : int
        From 1.
    figures : Mapping[str, Float64Array]
        Further figures of the clients that the method asked for, each [K].
    examples : Float64Array
        Samples of each client, as checked [K]; empty where they are not known.
    slack : Float64Array
        By how much each loss may rise, e - f_k where that is positive, else 0 [K]; empty for none.
    theta_norm : float
        Euclidean norm of the model that the rows belong to.
    floor : float
        Least value of a loss, as the task says; 0 where that is not known.
    """

    gram: Float64Array
    losses: Float64Array
    rates: Float64Array
    shares: Float64Array
    clients: tuple[int, ...]
    round: int
    figures: Mapping[str, Float64Array] = field(default_factory=dict)
    examples: Float64Array = field(default_factory=lambda: np.zeros(0))
    slack: Float64Array = field(default_factory=lambda: np.zeros(0))
    theta_norm: float = 0.0
    floor: float = 0.0

    @property
    def served(self) -> NDArray[np.bool_]:
        """Clients whose loss is below their entitlement [K]."""
        return self.slack > 0 if self.slack.size else np.zeros(len(self.clients), dtype=bool)


@dataclass(frozen=True, slots=True)
class Combination:
    """A method's answer: coefficients over all rows, step = weights @ rows.

    Attributes
    ----------
    weights : Float64Array
        [B]; an entry for every slot, the K clients first.
    length : float
        The method's natural length eta^t (17): the step is `length` times the paper's direction d^t. 1 where the
        method has none.
    rank : int
        Numerical rank of the clients' unit-diagonal Gramian.
    condition : float
        Its condition number after the cut-off.
    residual : float
        Relative residual of the conditions that the step should meet.
    status : str
        `converged`, `stationary` (no common descent direction), or the named fallback.
    excluded : Mapping[int, str]
        Clients left out of the solve, with the reason (`zero-gradient`, `bad-rate`).
    notes : Mapping[str, float]
        Further figures for the event log.
    hints : SearchHints
        For the step rule `search`.
    """

    weights: Float64Array
    length: float = 1.0
    rank: int = 0
    condition: float = float("nan")
    residual: float = 0.0
    status: str = "converged"
    excluded: Mapping[int, str] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)
    hints: SearchHints = field(default_factory=SearchHints)
