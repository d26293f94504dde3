"""Figures of a comparison's rows over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of all seeds of a row over the rounds, each array [T].

    Attributes
    ----------
    rounds, megabytes, seconds : Float64Array
        Where it was known: round, traffic and time since the beginning (means over seeds).
    mean, std : Float64Array
        Over seeds; `std` is 0 with one seed.
    """

    rounds: Float64Array
    megabytes: Float64Array
    seconds: Float64Array
    mean: Float64Array
    std: Float64Array

    def window(self, part: int) -> int:
        """Rounds in one `part`-th of them, at least 1."""
        return max(1, self.rounds.size // part)

    def smoothed(self, part: int) -> Curve:
        """A running mean over one `part`-th of the rounds."""
        window = self.window(part)
        kernel, start = np.ones(window) / window, window - 1
        return Curve(
            self.rounds[start:],
            self.megabytes[start:],
            self.seconds[start:],
            np.convolve(self.mean, kernel, mode="valid"),
            np.convolve(self.std, kernel, mode="valid"),
        )


def curves_of(comparison: Comparison, places: Iterable[int], figure: Callable[[RoundEvent], float]) -> dict[int, Curve]:
    """A figure over the rounds for the rows at `places`, by place; without those whose runs do not know it."""
    found = {place: curve(comparison.rows[place].records, figure) for place in places}
    return {place: each for place, each in found.items() if each is not None}


def curve(records: Sequence[Record], figure: Callable[[RoundEvent], float]) -> Curve | None:
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


def _known(events: Sequence[RoundEvent], figure: Callable[[RoundEvent], float]) -> Float64Array:
    """Round, megabytes so far, seconds so far and figure [4, T] of the rounds that know it."""
    traffic = np.cumsum([event.bytes_up + event.bytes_down for event in events]) / 1e6
    seconds = np.cumsum([event.seconds.get("total", 0.0) for event in events])
    rows = np.array(
        [(event.round, *place, figure(event)) for event, *place in zip(events, traffic, seconds, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 4)
    return rows[~np.isnan(rows[:, 3])].T
