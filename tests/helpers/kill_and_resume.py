"""Run a federation in processes that are killed, each continuing where the one before was, until one gets to the end.

    python -m tests.helpers.kill_and_resume DIRECTORY SEED KILLS SETTINGS

runs once undisturbed into DIRECTORY/whole, then with kills into DIRECTORY/killed, and prints, as a JSON list, how many
rounds the log held at each kill that hit a run under way. Processes are forked from one that has imported everything,
so that a life of a fraction of a second is spent in the run, and that has computed nothing: one life in a thousand, in
whose parent PyTorch had been at work, ended with a segmentation fault.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dqnfed_flwr import run
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS


def forked(work: Callable[[], object]) -> int:
    """Do this in a process of its own; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def import_what_runs_need(mapping: dict[str, Any], listing: Path) -> None:
    """Import here what a run in another process has to; `listing` is the file in which it says so."""
    finish(forked(lambda: (run(mapping), listing.write_text(json.dumps([*sys.modules])))))
    for name in json.loads(listing.read_text()):
        with suppress(ImportError):  # some are made, not imported
            importlib.import_module(name)


def live(mapping: dict[str, Any], output: Path) -> int:
    """Start or continue the run in a process of its own; its id."""
    return forked(lambda: run({**mapping, "output": str(output)}, resume=(output / CHECKPOINT).exists()))


def rounds_logged(output: Path) -> int:
    """Lines of the event log."""
    return len((output / EVENTS).read_text().splitlines()) if (output / EVENTS).exists() else 0


def finish(child: int) -> None:
    """Wait for a process that must come to the end of its run."""
    _came_to_its_end(os.waitpid(child, 0)[1])


def killed(child: int, after: float) -> bool:
    """Kill the process once it has lived for `after` seconds; False if it came to the end of its run before."""
    until = time.perf_counter() + after
    while time.perf_counter() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _came_to_its_end(status)
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    _came_to_its_end(status)
    return False


def _came_to_its_end(status: int) -> None:
    if status:
        raise SystemExit(f"a process that nobody killed ended with {os.waitstatus_to_exitcode(status)}")


def main(directory: Path, seed: int, kills: int, mapping: dict[str, Any]) -> list[int]:
    """Kill `kills` times, each at a random share of the time that the whole run takes; then let one finish.

    A machine that stood still meanwhile makes that time too long: should nothing be hit, it is measured again.
    """
    import_what_runs_need({**mapping, "rounds": 1, "seed": 999}, directory / "modules.json")
    since = time.perf_counter()
    finish(live(mapping, directory / "whole"))
    seconds = time.perf_counter() - since
    moments = random.Random(seed)
    hit: list[int] = []
    for _ in range(kills):
        since = time.perf_counter()
        if killed(live(mapping, directory / "killed"), moments.uniform(0.05, 0.6) * seconds):
            hit.append(rounds_logged(directory / "killed"))
        elif not hit:
            seconds = time.perf_counter() - since
            shutil.rmtree(directory / "killed")
    finish(live(mapping, directory / "killed"))
    return hit


if __name__ == "__main__":
    place, number, times, given = sys.argv[1:]
    print(json.dumps(main(Path(place), int(number), int(times), json.loads(given))))
