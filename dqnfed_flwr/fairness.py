"""Fairness of a federation: pure functions of per-client figures.

What is compared is the figure of a run, one value a_k a client: accuracy, a share in [0, 1], or whatever the task has,
in its own unit, where more or less may be better. What compares the clients with each other (angle, KL, Jain's index)
does not change when all values are multiplied by one number; where every value is 0 the clients are equal, and it has
its value for equal clients (0, 0 and 1). It makes no sense where values may be negative, and is NaN there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError, ShapeError
from dqnfed_flwr.guarantee.harm import STRICT, not_above
from dqnfed_flwr.types import ACCURACY, Figure, Float64Array

Values = Mapping[int, float] | Mapping[str, float] | Sequence[float] | NDArray[np.floating]
TAILS = (5, 10, 20)
RELATIVE = ("angle_deg", "angle_rad", "kl_uniform", "jain")
"""What compares values by their ratios, so that they may not be negative."""
ROUNDING = 1e-12


class ClientShift(NamedTuple):
    """What a method changed against a baseline, see `suffering_and_well_performing`; NaN where a group is empty."""

    suffering_improved: float
    well_performing_degraded: float


def fairness_report(values: Values, figure: Figure = ACCURACY) -> dict[str, float]:
    """Spread of a figure over the clients.

    Parameters
    ----------
    values : Mapping, sequence or array
        The figure of each client [K], K >= 1, in its own unit; of a mapping only the values count.
    figure : Figure
        What it is; accuracies, in [0, 1], by default.

    Returns
    -------
    dict[str, float]
        `mean`; `std` (population); `worst`; `worst5`, `worst10`, `worst20` and `best5`, `best10`, `best20`, the mean
        of the worst and best ceil(p K / 100) clients, so of at least one, where the worst are the lowest, or the
        highest where less is better; `angle_deg` and `angle_rad`, between (a_1..a_K) and the all-ones vector;
        `kl_uniform`, KL(a / sum a || uniform) in nats, 0 to log K; `jain`, (sum a)^2 / (K sum a^2), 1/K to 1. All are
        finite, but for the last four where a value is negative: they are NaN.

    Raises
    ------
    ShapeError
        If there is no client, or the array is not one-dimensional.
    DataError
        If a value is not finite, or not within the limits of the figure, such as an accuracy outside [0, 1].
    """
    found = checked_values(values, figure=figure)
    rising = np.sort(found)
    worst_first = rising if figure.higher else rising[::-1]
    report = {"mean": float(found.mean()), "std": float(found.std()), "worst": float(worst_first[0])}
    report |= {f"worst{tail}": float(worst_first[: tail_size(tail, found.size)].mean()) for tail in TAILS}
    report |= {f"best{tail}": float(worst_first[-tail_size(tail, found.size) :].mean()) for tail in TAILS}
    if rising[0] < 0:
        return report | dict.fromkeys(RELATIVE, math.nan)
    angle = _angle(rising)
    return report | {
        "angle_deg": math.degrees(angle),
        "angle_rad": angle,
        "kl_uniform": _kl_uniform(rising),
        "jain": math.cos(angle) ** 2,
    }


def improved_ratio(
    before: Sequence[float] | Float64Array, after: Sequence[float] | Float64Array, entitlement: float = STRICT
) -> float:
    """rho_t (29): share of the clients whose training loss did not rise; with an entitlement, that were not harmed.

    Parameters
    ----------
    before, after : Sequence[float] or Float64Array
        f_k(theta^t) and f_k(theta^{t+1}) of the participants, in the same order [K]. NaN in `after` stands for a
        client that did not answer again; it is not counted. An unchanged loss counts as improved, and so does one
        that rose by no more than `guarantee.harm.resolution`, the tolerance of every comparison of losses.
    entitlement : float
        e: a loss may rise as long as it stays below; none may, as in (29), by default.

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


def suffering_and_well_performing(values: Values, baseline: Values, figure: Figure = ACCURACY) -> ClientShift:
    """How a method moved the clients that a baseline served badly and well (Semi-VRed, Table 1).

    A client suffers when its figure under the baseline, FedAvg with the same seed, is worse than the baseline's mean
    over clients, and performs well otherwise.

    Parameters
    ----------
    values, baseline : Mapping, sequence or array
        The figure of the same clients [K], matched by place or, in mappings, by key; the keys 7 and "7", as JSON has
        it, are the same client.
    figure : Figure
        What it is; accuracies, in [0, 1], by default.

    Returns
    -------
    ClientShift
        Share of the suffering clients that are better than under the baseline, and share of the well-performing ones
        that are worse. The first is NaN if no client suffers.

    Raises
    ------
    ShapeError
        If the two are not about the same clients.
    DataError
        If a value is not finite, or not within the limits of the figure.
    """
    name = "accuracies" if figure == ACCURACY else "values"
    if isinstance(values, Mapping) and isinstance(baseline, Mapping):
        baseline = _in_the_order_of(values, baseline, name)
    elif isinstance(values, Mapping) or isinstance(baseline, Mapping):
        raise ShapeError(f"{name} and baseline: one is a mapping and one is not; give two of a kind")
    now = figure.sign * checked_values(values, figure=figure)
    then = figure.sign * checked_values(baseline, "baseline", figure)
    if now.size != then.size:
        raise ShapeError(f"{name} and baseline: {now.size} and {then.size} clients; give the same clients")
    rounding = ROUNDING * max(1.0, float(np.abs(then).max()))
    suffering = then < then.mean() - rounding  # the mean of equal figures may be above all of them
    return ClientShift(
        float(np.mean(now[suffering] > then[suffering])) if suffering.any() else math.nan,
        float(np.mean(now[~suffering] < then[~suffering])) if not suffering.all() else math.nan,
    )


def checked_values(values: Values, name: str = "", figure: Figure = ACCURACY) -> Float64Array:
    """A figure of the clients as an array [K], K >= 1, in their order.

    Raises
    ------
    ShapeError
        If there is no client, or the array is not one-dimensional.
    DataError
        If a value is not finite, or not within the limits of the figure; the message begins with `name`.
    """
    name = name or ("accuracies" if figure == ACCURACY else "values")
    article = "an" if figure.name[:1].lower() in "aeiou" else "a"
    allowed = "number in [0, 1]" if figure.limits else "finite number"
    labels = list(values) if isinstance(values, Mapping) else None
    given = list(values.values()) if isinstance(values, Mapping) else values
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        within = " in [0, 1]" if figure.limits else ""
        raise DataError(f"{name}: found something that is no number; give one {figure.name}{within} a client") from None
    if found.ndim != 1 or not found.size:
        raise ShapeError(f"{name}: found shape {found.shape}; give one {figure.name} for each of at least one client")
    low, high = figure.limits or (-math.inf, math.inf)
    unfit = np.flatnonzero(~((found >= low) & (found <= high) & np.isfinite(found)))
    if unfit.size:
        place = int(unfit[0])
        client = place if labels is None else labels[place]
        raise DataError(f"{name}: client {client} has {found[place]}; {article} {figure.name} is a {allowed}")
    return found


def _in_the_order_of(
    values: Mapping[int, float] | Mapping[str, float], baseline: Mapping[Any, float], name: str
) -> list[float]:
    clients = [str(client) for client in values]
    by_client = {str(client): value for client, value in baseline.items()}
    lone = sorted(by_client.keys() ^ set(clients))
    if lone:
        raise ShapeError(f"{name} and baseline: only one has client {', '.join(lone)}; give the same clients")
    return [by_client[client] for client in clients]


def tail_size(percent: int, clients: int) -> int:
    """How many of so many clients are the worst, or best, `percent` of them, 1 to 100: at least one."""
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
