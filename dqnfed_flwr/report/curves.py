"""A figure of a comparison over the rounds: what the charts draw as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.labels import Look
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

POINTS = 240
"""Points of a line at most; more are averaged."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of all seeds of a row over the rounds that know it: arrays [T], means over seeds.

    Megabytes and seconds count from the beginning; `std`, the deviation over seeds, is 0 with one seed.
    """

    rounds: Float64Array
    megabytes: Float64Array
    seconds: Float64Array
    mean: Float64Array
    std: Float64Array


def curve_of(records: Sequence[Record], figure: Callable[[RoundEvent], float]) -> Curve | None:
    """A figure over the rounds, from the first round in which all seeds know it.

    Where seeds know it in different rounds, the latest known value stands; a run that ended early keeps its last one.
    None if no run knows it.
    """
    known = [found for record in records if record.good and (found := _known(record.events, figure)).size]
    if not known:
        return None
    rounds = np.unique(np.concatenate([found[0] for found in known]))
    rounds = rounds[rounds >= max(found[0, 0] for found in known)]
    latest = np.stack([found[:, np.searchsorted(found[0], rounds, side="right") - 1] for found in known])
    mean = latest.mean(axis=0)
    std = latest[:, 3].std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(rounds)
    return Curve(rounds, mean[1], mean[2], mean[3], std)


def curves_of(comparison: Comparison, look: Look, figure: Callable[[RoundEvent], float]) -> dict[int, Curve]:
    """A figure over the rounds for the rows of `look`, by place; without those whose runs do not know it."""
    found = {place: curve_of(comparison.rows[place].records, figure) for place in look}
    return {place: curve for place, curve in found.items() if curve is not None}


def thinned(values: Float64Array) -> Float64Array:
    """At most so many values, each the mean of its neighbours; the first and last as they are."""
    if values.size <= POINTS:
        return values
    inner = [float(part.mean()) for part in np.array_split(values[1:-1], POINTS - 2)]
    return np.array([values[0], *inner, values[-1]])


def _known(events: Sequence[RoundEvent], figure: Callable[[RoundEvent], float]) -> Float64Array:
    """Round, megabytes so far, seconds so far and figure [4, T] of the rounds that know it."""
    traffic = np.cumsum([event.bytes_up + event.bytes_down for event in events]) / 1e6
    seconds = np.cumsum([event.seconds.get("total", 0.0) for event in events])
    rows = np.array(
        [(event.round, *place, figure(event)) for event, *place in zip(events, traffic, seconds, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 4)
    return rows[~np.isnan(rows[:, 3])].T
