"""How many files of the package one round passes: what somebody must read who follows a round from end to end.

A run on the digits with every client in this process. Counted are the package's files of which a function is called
from the end of round 1 to the end of round 2, in whatever thread; a third round follows, because the exchange that ends
a run asks for no gradients. A module that is imported counts only if a function of it is called.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import dqnfed_flwr
from benchmarks._common import Bar, Json, arguments, quiet, report, settings_of
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.telemetry.events import Listener, RoundEvent

BARS = (Bar("files", "<=", 45),)
PACKAGE = Path(dqnfed_flwr.__file__).parent
MODULE_LEVEL = "<module>"


class FilesOfRoundTwo:
    """A listener that is also the profile function: it notes the package's files while round 2 is under way."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._counts = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note the file of a function that is called."""
        code = frame.f_code
        if self._counts and event == "call" and code.co_name != MODULE_LEVEL:
            self.files.add(code.co_filename)

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Nothing: round 1 does not count."""

    def on_round(self, event: RoundEvent) -> None:
        """Round 2 begins with the end of round 1."""
        self._counts = event.round == 1

    def on_end(self) -> None:
        """Nothing."""


def files_by_room(run: Callable[[Listener], object]) -> dict[str, list[str]]:
    """Names of the files that round 2 of a run passes, by the folder of the package that holds them.

    `run` makes three rounds with the listener that it is given.
    """
    seen = FilesOfRoundTwo()
    before = sys.getprofile()
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        run(seen)
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    rooms: dict[str, list[str]] = {}
    for path in sorted(Path(file) for file in seen.files):
        if path.is_relative_to(PACKAGE):
            room, _, name = path.relative_to(PACKAGE).as_posix().rpartition("/")
            rooms.setdefault(room or ".", []).append(name)
    return rooms


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=4, metavar="K")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the run")
    options = parser.parse_args(argv)
    keys = {"data": "digits", "clients": options.clients, "rounds": 3, "local.threads": 1, **settings_of(options.set)}
    with quiet():
        rooms = files_by_room(lambda listener: run_in_process(Settings.from_mapping(keys), listeners=[listener]))
    table: list[Json] = [{"room": room, "files": len(names), "names": " ".join(names)} for room, names in rooms.items()]
    figures: dict[str, Json] = {"files": sum(map(len, rooms.values())), "rooms": table}
    report("round_files", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
