"""kill -9 at random moments of a run, for a federation whose programs are started again some seconds later."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from benchmarks._federation import Loopback
from benchmarks._programs import wait_for
from tests.helpers.processes import child

KINDS = ("client", "supernode", "node-superexec", "superexec", "serverapp", "superlink")
VICTIM_SECONDS = 240.0
"""A ServerApp that was lost is there again after Flower has missed its heartbeats for a minute."""


@dataclass(frozen=True, slots=True)
class Killed:
    """One blow."""

    kinds: tuple[str, ...]
    after_round: int


class Killer:
    """Deals blows to a running federation.

    Parameters
    ----------
    federation : Loopback
        With a run that is followed by `dqnfed submit`.
    seed : int
        Of moments and nodes.
    moment : float
        Longest wait between the end of a round and a blow, in seconds: about the length of a round.
    """

    def __init__(self, federation: Loopback, seed: int, moment: float) -> None:
        self._federation, self._random, self._moment = federation, Random(seed), moment
        self.nodes = [node.name for node in federation.federation.nodes]

    def strike(self, blows: Sequence[tuple[str, ...]]) -> Iterator[Killed]:
        """Kill the processes of each blow at once, one blow a round, from the end of the first round on.

        A SuperExec takes what it started with it by chance: it does where a unit or a container holds both.
        """
        for number, kinds in enumerate(blows, start=1):
            self._federation.await_round(number)
            time.sleep(self._random.uniform(0, self._moment))
            for process, kind in [(self._find(kind), kind) for kind in kinds]:
                kill = os.killpg if kind.endswith("superexec") and self._random.random() < 0.5 else os.kill
                with suppress(ProcessLookupError):
                    kill(process, signal.SIGKILL)
            yield Killed(kinds, self._federation.rounds_done())

    def _find(self, kind: str) -> int:
        """A living process of that kind, waited for where there is none at the moment."""
        node = self._random.choice(self.nodes)

        def look() -> int | None:
            match kind:
                case "client":
                    return self._child(f"{node}-superexec", "flwr-clientapp")
                case "serverapp":
                    return self._child("superexec", "flwr-serverapp")
                case "supernode":
                    return self._living(node)
                case "node-superexec":
                    return self._living(f"{node}-superexec")
                case _:
                    return self._living(kind)

        found: int = wait_for(look, VICTIM_SECONDS, self._federation.texts, pause=0.05)
        return found

    def _living(self, name: str) -> int | None:
        program = self._federation.programs[name]
        return None if program.process is None or program.status is not None else program.process.pid

    def _child(self, name: str, word: str) -> int | None:
        parent = self._living(name)
        return None if parent is None else child(parent, word)
