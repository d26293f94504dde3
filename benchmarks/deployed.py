"""A federation of real processes on this machine, with TLS and keys: DQN-Fed beside Flower's own FedAvg.

Both train over the same SuperNodes, from the same start, with clients that compute one gradient of the same model, and
without evaluation: a model of 650 parameters, whose messages are as good as empty, and one of 11 million, 44 MB each
way. Seconds a round are medians, and means, of the time between the ends of rounds; the last round of DQN-Fed, whose
exchange brings no gradients, is left out. Some of its rounds send the step as well: the mean has them, the median not.
`_first_gradient.py` says how the start of a client is timed, warm as a node starts it by default, and cold; its memory
is the peak of what is resident. Memory of nodes is proportional set size. `--nodes 30 --rounds 20 --payloads empty`
measures many nodes on one machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks import _fedavg_app
from benchmarks._common import Bar, Json, arguments, median, report, settings_of
from benchmarks._federation import Loopback, loopback, node
from benchmarks._memory import of_groups, proportional
from dqnfed_flwr.engine.flwr_command import CONNECTION
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.run_files import EVENTS

BARS = (
    Bar("exchanges_a_round", "<=", 1.2),
    Bar("empty_over_fedavg", "<=", 1.15),
    Bar("empty_mean_over_fedavg", "<=", 1.15),
    Bar("large_over_fedavg", "<=", 1.15),
    Bar("large_mean_over_fedavg", "<=", 1.15),
    Bar("client_start_seconds", "<=", 2.0),
    Bar("client_memory_bytes", "<=", 500e6),
    Bar("idle_node_memory_bytes", "<=", 300e6),
)
MODELS = {"empty": "logistic", "large": "benchmarks._fedavg_app:wide"}
CLIENTS = (("client", "warm", 0), ("cold_client", "cold", 0), ("cold_client_small_chunk", "cold", 25))
"""Prefix of figures, way to start, and samples at a time (`local.chunk`); 0 chooses by itself."""
ROUND_SECONDS = 600.0
SAME_START = ("seed", "model", "data", "start")
"""Groups of settings on which the first model depends; not for one of the two alone."""
FEWEST_ROUNDS = 3
SETTLE_SECONDS = 5.0
SMALL_SHARE = 0.02
NODES_NICE = "10"


def shared_settings(payload: str, nodes: int, rounds: int) -> dict[str, Any]:
    """Settings of both, as far as they are the same."""
    return {
        "clients": nodes,
        "rounds": rounds,
        "model": MODELS[payload],
        "data": "benchmarks._fedavg_app:few",
        "num-classes": _fedavg_app.CLASSES,
        "evaluate-every": 0,
        "local.threads": 1,
        "deadline": ROUND_SECONDS / 2,
    }


def ends_of_rounds(log: Path, rounds: int, whose: str) -> list[float]:
    """When each line came into `log`; tells how far `whose` rounds are."""
    ends: list[float] = []
    since = time.monotonic()
    while len(ends) < rounds:
        lines = len(log.read_text().splitlines()) if log.exists() else 0
        if lines > len(ends):
            ends += [time.monotonic()] * (lines - len(ends))
            print(f"{whose}: {lines} of {rounds} rounds", file=sys.stderr, flush=True)
        if time.monotonic() - (ends[-1] if ends else since) > ROUND_SECONDS:
            raise SystemExit(f"{log}: no round within {ROUND_SECONDS:.0f} s, after {lines} of {rounds}")
        time.sleep(SMALL_SHARE)
    return ends


def seconds(whose: str, ends: Sequence[float]) -> dict[str, float]:
    """Median and mean of the time from one end to the next."""
    passed = [after - before for before, after in pairwise(ends)]
    return {f"{whose}_seconds": median(passed), f"{whose}_mean_seconds": sum(passed) / len(passed)}


def dqn_fed(federation: Loopback, place: Path, payload: str, rounds: int, more: Mapping[str, Any]) -> dict[str, float]:
    """Seconds, exchanges and participants a round of DQN-Fed."""
    output = place / f"dqn-fed-{payload}"
    nodes = len(federation.federation.nodes)
    settings = {**shared_settings(payload, nodes, rounds), **more, "output": str(output)}
    run_id = federation.submit(settings, place / f"app-{payload}")
    ends = ends_of_rounds(output / EVENTS, rounds, f"DQN-Fed, {payload}")
    if (status := federation.await_end(run_id)) != "finished:completed":
        raise SystemExit(f"DQN-Fed ended as {status}: {federation.story(run_id)}")
    events = read_result(output).events
    return {
        **seconds(payload, ends[:-1]),
        "exchanges_a_round": sum(event.cost.exchanges for event in events) / len(events),
        "participants_a_round": sum(len(event.participants) for event in events) / len(events),
    }


def fedavg(federation: Loopback, place: Path, payload: str, rounds: int) -> dict[str, float]:
    """Seconds a round of Flower's FedAvg."""
    times = place / f"fedavg-{payload}"
    nodes = len(federation.federation.nodes)
    own = {"strategy-rounds": rounds, "times": str(times), "nodes": nodes}
    app = place / f"fedavg-app-{payload}"
    write_fedavg_app(app, {**shared_settings(payload, nodes, rounds), **own})
    answer = federation.flwr.json("run", str(app), CONNECTION)
    if "run-id" not in answer:
        raise SystemExit(f"FedAvg was not started: {answer}")
    run_id = str(answer["run-id"])
    ends = ends_of_rounds(times, rounds + 1, f"FedAvg, {payload}")
    federation.output = None
    if (status := federation.await_end(run_id)) != "finished:completed":
        raise SystemExit(f"FedAvg ended as {status}: {federation.story(run_id)}")
    return seconds(f"{payload}_fedavg", ends[1:])


def write_fedavg_app(directory: Path, config: dict[str, Any]) -> None:
    """Lay out the app of `_fedavg_app`."""
    (directory / "fedavg_app").mkdir(parents=True)
    (directory / "fedavg_app" / "__init__.py").touch()
    shutil.copy(str(_fedavg_app.__file__), directory / "fedavg_app" / "app.py")
    components = {"serverapp": "fedavg_app.app:server_app", "clientapp": "fedavg_app.app:client_app"}
    app = {"publisher": "dqnfed", "fab-include": ["fedavg_app/*.py"], "components": components, "config": config}
    project = {"name": "fedavg-app", "version": version("dqnfed-flwr"), "license": "Apache-2.0"}
    text = tomli_w.dumps({"project": {**project, "description": "Beside DQN-Fed"}, "tool": {"flwr": {"app": app}}})
    (directory / "pyproject.toml").write_text(text)


def memory(federation: Loopback, names: Sequence[str]) -> int:
    """Bytes of these programs and of what they have started."""
    processes = (federation.programs[name].process for name in names)
    return proportional(of_groups(process.pid for process in processes if process is not None))


def first_gradient(start: str, chunk: int, repeats: int) -> dict[str, Json]:
    """From the start of a client to its first gradient of the CNN: seconds, processor time, memory's peak."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "benchmarks._first_gradient", start, str(chunk)]
    found = []
    for _ in range(repeats + 1):  # the first one warms the disk's cache
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append([float(word) for word in done.stdout.split()])
    seconds, used, peaks = zip(*found[1:], strict=True)
    return {"start_seconds": median(seconds), "start_cpu_seconds": median(used), "memory_bytes": max(peaks)}


def of_federation(
    federation: Loopback, place: Path, rounds: int, payloads: Sequence[str], more: Mapping[str, Any]
) -> dict[str, Json]:
    """Memory before any work, seconds of both methods, memory afterwards."""
    nodes = federation.federation.nodes
    edges = [f"{one.name}{part}" for one in nodes for part in ("", "-superexec")]
    figures: dict[str, Json] = {
        "idle_node_memory_bytes": memory(federation, edges) / len(nodes),
        "idle_memory_bytes": memory(federation, list(federation.programs)),
    }
    for payload in payloads:
        ours = dqn_fed(federation, place, payload, rounds, more)
        stock = fedavg(federation, place, payload, rounds)
        figures |= {**ours, **stock}
        for name in ("", "_mean"):
            over = ours[f"{payload}{name}_seconds"] / stock[f"{payload}_fedavg{name}_seconds"]
            figures[f"{payload}{name}_over_fedavg"] = over
    figures["memory_after_bytes"] = memory(federation, list(federation.programs))
    return figures


def let_nodes_yield(federation: Loopback) -> None:
    """Nodes give way to the server, as CPUWeight has it in the units: here they share its processors."""
    for one in federation.federation.nodes:
        for name in (one.name, f"{one.name}-superexec"):
            process = federation.programs[name].process
            if process is not None:
                with suppress(OSError):  # a kernel without groups of processes by session
                    Path(f"/proc/{process.pid}/autogroup").write_text(NODES_NICE)


def measure(nodes: int, rounds: int, payloads: Sequence[str], repeats: int, more: Mapping[str, Any]) -> dict[str, Json]:
    """All figures."""
    figures: dict[str, Json] = {"nodes": nodes, "rounds": rounds, "flwr": version("flwr")}
    if repeats:
        for name, start, chunk in CLIENTS:
            figures |= {f"{name}_{key}": value for key, value in first_gradient(start, chunk, repeats).items()}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with loopback(place, [node(k) for k in range(nodes)]) as federation:
            federation.start()
            let_nodes_yield(federation)
            time.sleep(SETTLE_SECONDS)
            with federation.kept_running(*list(federation.programs)):
                figures |= of_federation(federation, place, rounds, payloads, more)
    return figures


def main(given: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="SuperNodes, each with its executor")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds of each run")
    parser.add_argument("--payloads", nargs="+", choices=sorted(MODELS), default=sorted(MODELS), help="sizes of models")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="client processes started; 0 for none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of DQN-Fed's runs")
    options = parser.parse_args(given)
    more = settings_of(options.set)
    if other := [key for key in more if key.partition(".")[0] in SAME_START]:
        parser.error(f"--set {other[0]}: both start from the same model; settings of DQN-Fed's step are for --set")
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds {options.rounds}: a time between rounds takes {FEWEST_ROUNDS}")
    figures = measure(options.nodes, options.rounds, options.payloads, options.repeats, more)
    report("deployed", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
