"""Fairness of a federation: pure functions of per-client figures.

Accuracies a_1..a_K are shares of right answers in [0, 1]. Figures that compare the clients with each other (angle, KL,
Jain's index) do not change when all accuracies are multiplied by one number; where every accuracy is 0 the clients are
equal, and these figures take their value for equal clients (0, 0 and 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError, ShapeError
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.types import Float64Array

Accuracies = Mapping[int, float] | Mapping[str, float] | Sequence[float] | NDArray[np.floating]
TAILS = (5, 10, 20)
ROUNDING = 1e-12


class ClientShift(NamedTuple):
    """What a method changed against a baseline, see `suffering_and_well_performing`; NaN where a group is empty."""

    suffering_improved: float
    well_performing_degraded: float


def fairness_report(accuracies: Accuracies) -> dict[str, float]:
    """Spread of the clients' accuracies.

    Parameters
    ----------
    accuracies : Mapping, sequence or array
        Accuracy in [0, 1] of each client [K], K >= 1; of a mapping only the values count.

    Returns
    -------
    dict[str, float]
        `mean`; `std` (population); `worst`; `worst5`, `worst10`, `worst20` and `best5`, `best10`, `best20`, the mean
        of the lowest and highest ceil(p K / 100) clients, so of at least one; `angle_deg` and `angle_rad`, between
        (a_1..a_K) and the all-ones vector; `kl_uniform`, KL(a / sum a || uniform) in nats, 0 to log K; `jain`,
        (sum a)^2 / (K sum a^2), 1/K to 1. All are finite.

    Raises
    ------
    ShapeError
        If there is no client, or the array is not one-dimensional.
    DataError
        If an accuracy is no number in [0, 1].
    """
    values = checked_accuracies(accuracies)
    rising = np.sort(values)
    report = {"mean": float(values.mean()), "std": float(values.std()), "worst": float(rising[0])}
    report |= {f"worst{tail}": float(rising[: _tail_size(tail, values.size)].mean()) for tail in TAILS}
    report |= {f"best{tail}": float(rising[-_tail_size(tail, values.size) :].mean()) for tail in TAILS}
    angle = _angle(rising)
    return report | {
        "angle_deg": math.degrees(angle),
        "angle_rad": angle,
        "kl_uniform": _kl_uniform(rising),
        "jain": math.cos(angle) ** 2,
    }


def improved_ratio(
    before: Sequence[float] | Float64Array, after: Sequence[float] | Float64Array, entitlement: float = 0.0
) -> float:
    """rho_t (29): share of the clients whose training loss did not rise; with an entitlement, that were not harmed.

    Parameters
    ----------
    before, after : Sequence[float] or Float64Array
        f_k(theta^t) and f_k(theta^{t+1}) of the participants, in the same order [K]. NaN in `after` stands for a
        client that did not answer again; it is not counted. An unchanged loss counts as improved, and so does one
        that rose by no more than `guarantee.harm.resolution`, the tolerance of every comparison of losses.
    entitlement : float
        e: a loss may rise as long as it stays below; 0 for (29).

    Returns
    -------
    float
        In [0, 1]; NaN if no client answered again.

    Raises
    ------
    ShapeError
        If the two have not the same length.
    DataError
        If `before` holds NaN.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ShapeError(
            f"improved_ratio: losses of shapes {first.shape} before and {second.shape} after; "
            "give one loss of every participant, in the same order"
        )
    if np.isnan(first).any():
        raise DataError("improved_ratio: a loss before the round is NaN; leave out clients that reported none")
    answered = ~np.isnan(second)
    if not answered.any():
        return math.nan
    return float(np.mean(not_above(second[answered], first[answered], entitlement)))


def suffering_and_well_performing(accuracies: Accuracies, baseline: Accuracies) -> ClientShift:
    """How a method moved the clients that a baseline served badly and well (Semi-VRed, Table 1).

    A client suffers when its accuracy under the baseline, FedAvg with the same seed, is below the baseline's mean over
    clients, and performs well otherwise.

    Parameters
    ----------
    accuracies, baseline : Mapping, sequence or array
        Accuracies in [0, 1] of the same clients [K], matched by place or, in mappings, by key;
        the keys 7 and "7", as JSON has it, are the same client.

    Returns
    -------
    ClientShift
        Share of the suffering clients whose accuracy is above that under the baseline, and share of the
        well-performing ones whose accuracy is below it. The first is NaN if no client suffers.

    Raises
    ------
    ShapeError
        If the two are not about the same clients.
    DataError
        If an accuracy is no number in [0, 1].
    """
    if isinstance(accuracies, Mapping) and isinstance(baseline, Mapping):
        baseline = _in_the_order_of(accuracies, baseline)
    elif isinstance(accuracies, Mapping) or isinstance(baseline, Mapping):
        raise ShapeError("accuracies and baseline: one is a mapping and one is not; give two of a kind")
    now, then = checked_accuracies(accuracies), checked_accuracies(baseline, "baseline")
    if now.size != then.size:
        raise ShapeError(f"accuracies and baseline: {now.size} and {then.size} clients; give the same clients")
    suffering = then < then.mean() - ROUNDING  # the mean of equal figures may be above all of them
    return ClientShift(
        float(np.mean(now[suffering] > then[suffering])) if suffering.any() else math.nan,
        float(np.mean(now[~suffering] < then[~suffering])) if not suffering.all() else math.nan,
    )


def checked_accuracies(accuracies: Accuracies, name: str = "accuracies") -> Float64Array:
    """Accuracies as an array [K], K >= 1, in their order.

    Raises
    ------
    ShapeError
        If there is no client, or the array is not one-dimensional.
    DataError
        If an accuracy is no number in [0, 1]; the message begins with `name`.
    """
    labels = list(accuracies) if isinstance(accuracies, Mapping) else None
    given = list(accuracies.values()) if isinstance(accuracies, Mapping) else accuracies
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}: found something that is no number; give one accuracy in [0, 1] a client") from None
    if values.ndim != 1 or not values.size:
        raise ShapeError(f"{name}: found shape {values.shape}; give one accuracy for each of at least one client")
    unfit = np.flatnonzero(~((values >= 0) & (values <= 1)))
    if unfit.size:
        place = int(unfit[0])
        client = place if labels is None else labels[place]
        raise DataError(f"{name}: client {client} has {values[place]}; an accuracy is a number in [0, 1]")
    return values


def _in_the_order_of(
    accuracies: Mapping[int, float] | Mapping[str, float], baseline: Mapping[Any, float]
) -> list[float]:
    clients = [str(client) for client in accuracies]
    by_client = {str(client): value for client, value in baseline.items()}
    lone = sorted(by_client.keys() ^ set(clients))
    if lone:
        raise ShapeError(f"accuracies and baseline: only one has client {', '.join(lone)}; give the same clients")
    return [by_client[client] for client in clients]


def _tail_size(percent: int, clients: int) -> int:
    return -(-percent * clients // 100)


def _angle(values: Float64Array) -> float:
    """Angle to the all-ones vector; the arc tangent keeps the digits that an arc cosine loses near 0."""
    scaled = values / (values.max() or 1.0)
    return math.atan2(float(scaled.std()), float(scaled.mean()))


def _kl_uniform(values: Float64Array) -> float:
    scaled = values / (values.max() or 1.0)
    shares = scaled / (scaled.sum() or 1.0)
    shares = shares[shares > 0]
    return max(0.0, float(np.sum(shares * np.log(shares * values.size))))
