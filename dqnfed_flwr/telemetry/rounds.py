"""The last rounds of a run in short, for the page of `dqnfed dashboard`: a bounded file of JSON lines."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from pathlib import Path
from typing import Any

from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.telemetry.textfile import replace_file

KEPT = 500
"""Rounds in the file at least; it is made anew when it holds twice as many."""
NAMED = 10
"""Clients named in a round at most: the worst, those left out, and those that refused."""


def short(event: RoundEvent, at: float) -> dict[str, Any]:
    """What the page shows of a round; its size does not depend on the number of clients.

    Parameters
    ----------
    event : RoundEvent
        The round.
    at : float
        When it was settled, seconds since 1970; NaN if that is not known.
    """
    before, after = ([v for v in losses if v == v] for losses in (event.losses_before, event.losses_after))
    record: dict[str, Any] = {
        "round": event.round,
        "at": at,
        "ratio": event.improved_ratio,
        "unharmed": event.unharmed_ratio,
        "asked": event.asked,
        "participants": len(event.participants),
        "heard": len(event.heard),
        "overruled": len(event.overruled),
        "harmed": len(event.harmed),
        "refused": event.refused[:NAMED],
        "moved": event.moved,
        "loss": [_mean(before), _mean(after)],
        "factor": event.factor,
        "status": event.status,
        "seconds": event.seconds.get("total", math.nan),
        "dropped": dict(Counter(drop.reason for drop in event.dropped)),
        "left_out": [[drop.client, drop.reason] for drop in event.dropped[:NAMED]],
    }
    if event.accuracy:
        rising = sorted(event.accuracy.items(), key=lambda item: (item[1], item[0]))
        values = [value for _, value in rising]
        tail = -(-len(values) // 10)
        record["accuracy"] = {
            "mean": _mean(values),
            "min": values[0],
            "worst10": _mean(values[:tail]),
            "best10": _mean(values[-tail:]),
            "max": values[-1],
        }
        record["worst"] = [list(item) for item in rising[:NAMED]]
    return {key: _known(value) for key, value in record.items()}


class RoundFile:
    """Lines of `short`, appended round by round; older ones fall out.

    Parameters
    ----------
    path : Path
        The file; its directory exists.
    kept : int
        How many rounds a reader finds at least, once there were so many.

    Raises
    ------
    OSError
        From `begin` and `flush`, if the file cannot be written; the rounds are kept for the next `flush`.
    """

    def __init__(self, path: Path, kept: int = KEPT) -> None:
        self._path = path
        self._lines: deque[str] = deque(maxlen=kept)
        self._fresh = 0
        self._written = 0

    def begin(self) -> None:
        """Replace what an earlier process left."""
        self._rewrite()

    def append(self, record: dict[str, Any]) -> None:
        """Add a round, for the next `flush` to write."""
        self._lines.append(json.dumps(record, separators=(",", ":")))
        self._fresh += 1

    def flush(self) -> None:
        """Write the rounds that were added."""
        kept = self._lines.maxlen or 1
        if self._written + self._fresh > 2 * kept or self._fresh > len(self._lines) or not self._path.exists():
            self._rewrite()
        elif self._fresh:
            lines = list(self._lines)[-self._fresh :]
            with self._path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            self._written += self._fresh
        self._fresh = 0

    def _rewrite(self) -> None:
        replace_file(self._path, "".join(f"{line}\n" for line in self._lines).encode())
        self._written = len(self._lines)


def read_rounds(path: Path, last: int = KEPT) -> list[dict[str, Any]]:
    """The last rounds of a file; lines that are none, such as one cut short, are passed over.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines()[-last:]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            found.append(record)
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _known(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return value
