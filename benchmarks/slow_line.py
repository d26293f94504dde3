"""Seconds a round on a slow line: real processes on hosts of their own, whose lines `tc` holds to a rate both ways.

FedAvg with float32, DQN-Fed with whole messages, and with short ones, each with the same clients, which compute one
gradient of a model of 10 million parameters, without evaluation. Two federations, with hosts and lines of their own,
share the machine, and each has some of the runs, one after the other. Seconds are medians of the time between the ends
of rounds; the first round, which has two exchanges, and the last, whose exchange brings no gradients, are left out.
Beside them are the seconds that `dqnfed run --dry-run --line` says, and what lines carried over what the run counts.

Hosts are network namespaces of this process alone. It takes about nine minutes, and Linux with `unshare`, `ip`, `tc`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from benchmarks._common import WHOLE, Bar, Json, arguments, quiet, report, settings_of
from benchmarks._federation import Loopback, loopback, node
from benchmarks._hosts import ALONE, SERVER, Host, Missing, alone, hosts
from benchmarks.deployed import SAME_START, SETTLE_SECONDS, ends_of_rounds, seconds, shared_settings
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.dry_run import Line, dry_run
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import EVENTS

RUNS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"method": "fedavg"},
    "DQN-Fed": WHOLE,
    "8/8": {"messages.row": 8, "messages.step": 8},
    "6/2": {"messages.row": 6, "messages.step": 2},
    "4/2": {"messages.row": 4, "messages.step": 2},
}
"""Settings; short messages are named by the bits a value of rows and of steps."""
SHORT = ("8/8", "6/2", "4/2")
LANES = (("DQN-Fed", "4/2"), ("FedAvg", "8/8", "6/2"))
"""Runs of each federation, which take about as long."""
BARS = tuple(Bar(f"{name}_over_fedavg", "<=", 0.3) for name in SHORT)
MODEL = "benchmarks._fedavg_app:ten_million"
MORE_SHORT = 3
"""Rounds with short messages that are timed for each with whole ones."""
MOST_CLIENTS, MOST_SECONDS = 4, 1800.0


def settings_for(name: str, clients: int, timed: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run in which so many rounds are timed: all but the first and the last."""
    rounds = 2 + timed * (MORE_SHORT if name in SHORT else 1)
    return {**shared_settings("large", clients, rounds), "model": MODEL, **more, **RUNS[name]}


def said_before(settings: Mapping[str, Any], line: Line) -> dict[str, Json]:
    """What a dry run says of the bytes of a client in a round, and of their seconds."""
    with quiet():
        found = dry_run(Settings.from_mapping(settings))
    return {"MB down": found.bytes_down / 1e6, "MB up": found.bytes_up / 1e6, "said": sum(found.on_line(line))}


def measured(
    name: str, federation: Loopback, lines: Sequence[Host], place: Path, settings: Mapping[str, Any]
) -> dict[str, Json]:
    """Seconds a round of a run, exchanges of those timed, replies dropped in all, what lines carried over its count."""
    output, app = (place / f"{part}-{name.replace('/', '-')}" for part in ("run", "app"))
    before = sum(sum(host.carried()) for host in lines)
    run_id = federation.submit({**settings, "output": str(output)}, app)
    ends = ends_of_rounds(output / EVENTS, settings["rounds"], name)
    if (status := federation.await_end(run_id)) != "finished:completed":
        raise SystemExit(f"{name} ended as {status}: {federation.story(run_id)}")
    carried = sum(sum(host.carried()) for host in lines) - before
    events = read_result(output).events
    costs = [event.cost for event in events]
    timed = costs[1:-1]
    return {
        "seconds": seconds(name, ends[:-1])[f"{name}_seconds"],
        "rounds": len(timed),
        "exchanges": sum(cost.exchanges for cost in timed) / len(timed),
        "dropped": sum(len(event.dropped) for event in events),
        "carried": carried / sum(cost.bytes_up + cost.bytes_down for cost in costs),
    }


def side_by_side(works: Sequence[Callable[[], dict[str, Json]]]) -> list[dict[str, Json]]:
    """What the works come to, each in a thread; the first failure, or `MOST_SECONDS`, ends the wait for the others."""
    ended: Queue[tuple[int, dict[str, Json] | BaseException]] = Queue()

    def carry_out(number: int, work: Callable[[], dict[str, Json]]) -> None:
        try:
            ended.put((number, work()))
        except BaseException as error:  # raised again below
            ended.put((number, error))

    for number, work in enumerate(works):
        threading.Thread(target=carry_out, args=(number, work), daemon=True).start()
    found: dict[int, dict[str, Json]] = {}
    end = time.monotonic() + MOST_SECONDS
    while len(found) < len(works):
        try:
            number, come = ended.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            raise SystemExit(f"slow_line: not over within {MOST_SECONDS:.0f} s; run it on an idle machine") from None
        if isinstance(come, BaseException):
            raise come
        found[number] = come
    return [found[number] for number in range(len(works))]


def measure(settings: Mapping[str, Mapping[str, Any]], clients: int, line: Line) -> dict[str, dict[str, Json]]:
    """Figures of the runs of these settings, by name."""
    lanes = [chosen for lane in LANES if (chosen := [name for name in lane if name in settings])]
    up, down = (f"{rate:.0f}bit" for rate in (line.up, line.down))
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = stack.enter_context(hosts(len(lanes) * clients, ("ip", "tc")))
        works: list[Callable[[], dict[str, Json]]] = []
        for number, names in enumerate(lanes):
            own, folder = found[number * clients : (number + 1) * clients], place / str(number)
            folder.mkdir()
            federation = stack.enter_context(loopback(folder, [node(k) for k in range(clients)], host=SERVER))
            for k, host in enumerate(own):
                for part in (f"node-{k}", f"node-{k}-superexec"):
                    host.move(federation.programs[part])
            federation.start()
            for host in own:
                host.limit(up, down)

            def work(
                names: Sequence[str] = names, own: Sequence[Host] = own, federation: Loopback = federation
            ) -> dict[str, Json]:
                return {name: measured(name, federation, own, federation.logs, settings[name]) for name in names}

            works.append(work)
        time.sleep(SETTLE_SECONDS)
        come = side_by_side(works)
    return {name: each for lane in come for name, each in lane.items() if isinstance(each, dict)}


def figures_of(said: Mapping[str, Mapping[str, Json]], found: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """The table of the runs, what was said beside what was found, and seconds over FedAvg's."""
    base = found.get("FedAvg", {}).get("seconds")
    table: list[Json] = [{"run": name, **said[name], **each} for name, each in found.items()]
    figures: dict[str, Json] = {"runs": table}
    for name, each in found.items():
        if isinstance(base, float) and isinstance(each["seconds"], float) and name != "FedAvg":
            figures[f"{name}_over_fedavg"] = each["seconds"] / base
    return figures


def main(given: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    words = list(sys.argv[1:] if given is None else given)
    parser = arguments(__doc__)
    parser.add_argument("--line", default="10Mbit", metavar="RATE[/UP]", help="a client's line, as for dqnfed run")
    parser.add_argument("--clients", type=int, default=2, metavar="N", help="SuperNodes of each federation")
    parser.add_argument("--timed", type=int, default=1, metavar="N", help="rounds with whole messages that are timed")
    parser.add_argument("--only", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN", help="some of the runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    options = parser.parse_args(words)
    try:
        line, more = Line.of(options.line), settings_of(options.set)
    except ConfigError as error:
        parser.error(str(error))
    if not 2 <= options.clients <= MOST_CLIENTS:
        parser.error(f"--clients: found {options.clients}; allowed are 2 to {MOST_CLIENTS}: all share this machine")
    if options.timed < 1:
        parser.error(f"--timed: found {options.timed}; allowed is 1 or more")
    if other := [key for key in more if key in shared_settings("large", 1, 1) and key not in SAME_START]:
        parser.error(f"--set {other[0]}: the benchmark sets it itself")
    try:
        if ALONE not in os.environ:
            raise SystemExit(alone([sys.executable, "-m", "benchmarks.slow_line", *words]))
        settings = {name: settings_for(name, options.clients, options.timed, more) for name in options.only}
        said = {name: said_before(each, line) for name, each in settings.items()}
        found = measure(settings, options.clients, line)
    except Missing as missing:
        raise SystemExit(
            f"slow_line: no hosts with lines of their own on this machine ({missing}); run it on Linux as root, or "
            "where user namespaces are allowed, with unshare, ip, tc and the kernel's bridge, veth and tbf"
        ) from None
    report("slow line", figures_of(said, {name: found[name] for name in options.only}), BARS, options.json)


if __name__ == "__main__":
    main()
