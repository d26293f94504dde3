"""Seconds an exchange of a federation of real processes, with its Fleet port under attack and without.

One run goes on for the whole measurement, and three take turns beside it: nobody, the attack of `_flood.py` by somebody
without a certificate, and by a node on the list. The attack is 200 slow connections and messages of 400 MB. An attacker
has a machine of its own; here it shares the processors of the federation, so it runs at the lowest priority. Rounds
differ in how many exchanges they take, so seconds are those of a round over its exchanges, as a mean; the first seconds
of a turn, in which the attack starts, do not count. Three SuperNodes, models of 650 parameters and of 11 million, 44 MB
each way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks import _flood
from benchmarks._common import Bar, Json, arguments, report
from benchmarks._federation import ROOT, Loopback, loopback, node
from benchmarks.deployed import MODELS, SETTLE_SECONDS, shared_settings
from dqnfed_flwr.run_files import EVENTS

BARS = tuple(Bar(f"{payload}_{who}_over_quiet", "<=", 1.1) for payload in MODELS for who in ("stranger", "node"))
NODES, MANY_ROUNDS, FIRST_ROUNDS = 3, 1_000_000, 5
START_SECONDS = 8.0
LOWEST = "19"


@dataclass(frozen=True, slots=True)
class Turn:
    """What was seen in a turn: when rounds ended, and in how many exchanges each was made."""

    ends: list[float]
    exchanges: list[int]

    @property
    def rounds(self) -> list[float]:
        """Seconds of each round but the first, whose beginning was not seen."""
        return [after - before for before, after in pairwise(self.ends)]


class Watch:
    """The rounds of a run, by when its event log has them."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def turn(self, seconds: float, skip: float) -> Turn:
        """The rounds that end within the next `seconds`, less the first `skip`."""
        since = time.monotonic()
        seen = Turn([], [])
        with self.log.open() as log:
            part = ""
            while (now := time.monotonic()) - since < seconds:
                *lines, part = (part + log.read()).split("\n")
                if lines and now - since > skip:
                    seen.ends.append(now)
                    seen.exchanges.append(sum(json.loads(line)["exchanges"] for line in lines))
                time.sleep(0.05)
        return seen


def beside(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program at the lowest priority."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, process.pid, int(LOWEST))
    with suppress(OSError):  # a kernel without groups of processes by session
        Path(f"/proc/{process.pid}/autogroup").write_text(LOWEST)
    return process


def turns(federation: Loopback, watch: Watch, number: int, seconds: float) -> dict[str, list[Turn]]:
    """`number` turns of each, by who is there."""
    pair = _flood.listed_pair(federation, "intruder")
    commands = {
        "quiet": None,
        "stranger": _flood.command(federation, seconds),
        "node": _flood.command(federation, seconds, pair),
    }
    found: dict[str, list[Turn]] = {who: [] for who in commands}
    for turn in range(number):
        for who, command in commands.items():
            process = beside(command) if command else None
            found[who].append(watch.turn(seconds, START_SECONDS))
            print(f"turn {turn + 1} of {number}, {who}: {len(found[who][-1].ends)} rounds", file=sys.stderr, flush=True)
            if process:
                process.wait(4 * seconds)
    return found


def figures_of(turns: Sequence[Turn]) -> dict[str, float]:
    """Rounds, seconds an exchange, and the longest round."""
    rounds = [each for turn in turns for each in turn.rounds]
    exchanges = sum(count for turn in turns for count in turn.exchanges[1:])
    return {"rounds": len(rounds), "seconds": sum(rounds) / max(exchanges, 1), "longest": max(rounds, default=0.0)}


def measure(payload: str, number: int, seconds: float) -> dict[str, Json]:
    """Figures of one size of model."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        output = place / "run"
        with loopback(place, [node(k) for k in range(NODES)]) as federation:
            federation.start()
            time.sleep(SETTLE_SECONDS)
            settings = {**shared_settings(payload, NODES, MANY_ROUNDS), "output": str(output)}
            federation.submit(settings, place / "app")
            federation.await_round(FIRST_ROUNDS)
            found = turns(federation, Watch(output / EVENTS), number, seconds)
    each = {who: figures_of(seen) for who, seen in found.items()}
    over = {who: each[who]["seconds"] / each["quiet"]["seconds"] for who in ("stranger", "node")}
    figures: dict[str, Json] = {f"{payload}_{who}_{name}": each[who][name] for who in each for name in each[who]}
    return figures | {f"{payload}_{who}_over_quiet": value for who, value in over.items()}


def main(given: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="how often each of the three has its turn")
    parser.add_argument("--seconds", type=float, default=100.0, metavar="S", help="length of a turn")
    parser.add_argument("--payloads", nargs="+", choices=sorted(MODELS), default=sorted(MODELS), help="sizes of models")
    options = parser.parse_args(given)
    figures: dict[str, Json] = {}
    for payload in options.payloads:
        figures |= measure(payload, options.turns, options.seconds)
    report("under attack", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
