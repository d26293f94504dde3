"""Seconds a round of a federation of real processes, with its Fleet port under attack and without.

One run goes on for the whole measurement, and three take turns beside it: nobody, the attack of `_flood.py` by somebody
without a certificate, and by a node on the list. The attack is 200 slow connections and messages of 400 MB. An attacker
has a machine of its own; here it shares the processors of the federation, so it runs at the lowest priority. The run is
one of FedAvg in this package's strategy, each round of which is one exchange. Seconds are means, as rounds are whole
numbers of Flower's pauses; the first seconds of a turn, in which the attack starts, do not count. Three SuperNodes,
models of 650 parameters and of 11 million, 44 MB each way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
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


def rounds_within(log: Path, seconds: float, skip: float) -> list[float]:
    """Seconds of the rounds that begin and end within the next `seconds`, less the first `skip`, by the event log."""
    since = time.monotonic()
    ends: list[float] = []
    size = log.stat().st_size
    while (now := time.monotonic()) - since < seconds:
        grown = log.stat().st_size
        if grown > size and now - since > skip:
            ends.append(now)
        size = grown
        time.sleep(0.02)
    return [after - before for before, after in pairwise(ends)]


def beside(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program at the lowest priority."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, process.pid, int(LOWEST))
    with suppress(OSError):  # a kernel without groups of processes by session
        Path(f"/proc/{process.pid}/autogroup").write_text(LOWEST)
    return process


def turns(federation: Loopback, log: Path, number: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each round, by who is there, over `number` turns of each."""
    pair = _flood.listed_pair(federation, "intruder")
    commands = {
        "quiet": None,
        "stranger": _flood.command(federation, seconds),
        "node": _flood.command(federation, seconds, pair),
    }
    found: dict[str, list[float]] = {who: [] for who in commands}
    for turn in range(number):
        for who, command in commands.items():
            print(f"turn {turn + 1} of {number}: {who}", file=sys.stderr, flush=True)
            process = beside(command) if command else None
            found[who] += rounds_within(log, seconds, START_SECONDS)
            if process:
                process.wait(4 * seconds)
    return found


def measure(payload: str, number: int, seconds: float) -> dict[str, Json]:
    """Figures of one size of model."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        output = place / "run"
        with loopback(place, [node(k) for k in range(NODES)]) as federation:
            federation.start()
            time.sleep(SETTLE_SECONDS)
            settings = {**shared_settings(payload, NODES, MANY_ROUNDS), "method": "fedavg", "output": str(output)}
            federation.submit(settings, place / "app")
            federation.await_round(FIRST_ROUNDS)
            found = turns(federation, output / EVENTS, number, seconds)
    mean = {who: sum(rounds) / max(len(rounds), 1) for who, rounds in found.items()}
    figures: dict[str, Json] = {f"{payload}_{who}_rounds": len(rounds) for who, rounds in found.items()}
    figures |= {f"{payload}_{who}_seconds": value for who, value in mean.items()}
    figures |= {f"{payload}_{who}_longest_seconds": max(rounds, default=0.0) for who, rounds in found.items()}
    return figures | {f"{payload}_{who}_over_quiet": mean[who] / mean["quiet"] for who in ("stranger", "node")}


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
