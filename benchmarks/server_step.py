"""What the server owes after the last reply, against Flower's FedAvg and against the paper's recursion.

Work after the last reply is the real path of DQN-Fed's two-sided form: the last row into the basis, the solve, the
weighted sum. The rows before it were taken in while others were under way (`streaming_seconds`); every turn is a round
from its beginning. It is held against
`flwr.serverapp.strategy.strategy_utils.aggregate_arrayrecords` over the same values, in arrays whose `numpy()`
returns what is decoded already, so that reading the wire form is in neither figure. The two take turns, and the
ratios are of medians; the JSON holds the fastest of each as well.

`memory_bandwidth_bytes_per_second` is the fastest of a few ways to read all rows once. The memory is that of
`server_memory.py`, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from benchmarks._common import Bar, Json, arguments, median, report, seconds_of, seconds_once
from benchmarks._server import EXAMPLES, Float32Array, LastReply, drawn_rates, drawn_row
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.wire.codecs import Array

READS = 5
MEMORY = Bar("memory_over_rows_plus_100mb", "<=", 1.0)
TWO_READS = Bar("after_last_reply_over_two_reads", "<=", 1.3)
BARS = {
    (100, 650_000): (
        Bar("after_last_reply_over_fedavg", "<=", 0.4),
        TWO_READS,
        Bar("recursion_over_step", ">=", 15),
        Bar("recursion_over_after_last_reply", ">=", 80),
        MEMORY,
    ),
    (10, 11_000_000): (Bar("after_last_reply_over_fedavg", "<=", 0.5), TWO_READS, MEMORY),
}
"""By K and D; other sizes are held against the memory alone."""


def measure(clients: int, parameters: int, repeats: int, *, recursion: bool) -> dict[str, Json]:
    """All figures; the memory first, in its own process, before this one holds any rows."""
    memory = server_memory(clients, parameters)
    rows = np.stack([drawn_row(client, parameters) for client in range(clients)])
    server = LastReply(clients, parameters)
    seconds = round_seconds(server, rows, repeats)
    bandwidth = memory_bandwidth(rows)
    solved = server.solve()
    after, fedavg, streaming = (median(seconds[part]) for part in ("after_last_reply", "fedavg", "streaming"))
    figures: dict[str, Json] = {
        "clients": clients,
        "parameters": parameters,
        "repeats": repeats,
        "after_last_reply_over_fedavg": after / fedavg,
        "after_last_reply_seconds": after,
        "after_last_reply_seconds_fastest": min(seconds["after_last_reply"]),
        "fedavg_seconds": fedavg,
        "fedavg_seconds_fastest": min(seconds["fedavg"]),
        "fastest_over_fastest": min(seconds["after_last_reply"]) / min(seconds["fedavg"]),
        **{f"{part}_seconds": median(seconds[part]) for part in ("put", "solve")},
        "streaming_seconds": streaming,
        "memory_bandwidth_bytes_per_second": bandwidth,
        "after_last_reply_over_two_reads": after / (2 * rows.nbytes / bandwidth),
        "condition": solved.combination.condition,
        **memory,
    }
    if recursion:
        rates = drawn_rates(clients) * parameters
        sequential = seconds_once(lambda: newton_rate_step(rows, rates))
        figures["recursion_seconds"] = sequential
        figures["recursion_over_step"] = sequential / (streaming + after)
        figures["recursion_over_after_last_reply"] = sequential / after
    return figures


def round_seconds(server: LastReply, rows: Float32Array, repeats: int) -> dict[str, list[float]]:
    """Seconds of the parts of whole rounds, and of Flower's aggregation between them.

    The first round does not count: it is the first to touch the server's memory.
    """
    records = [
        RecordDict({"arrays": ArrayRecord({"0": Array(row)}), "metrics": MetricRecord({"num-examples": EXAMPLES})})
        for row in rows
    ]
    seconds: dict[str, list[float]] = {name: [] for name in ("fedavg", "streaming", "put", "solve", "after_last_reply")}
    for _ in range(repeats + 1):
        seconds["fedavg"].append(seconds_once(lambda: aggregate_arrayrecords(records, "num-examples")))
        server.begin()
        since = time.perf_counter()
        for client, row in enumerate(rows[:-1]):
            server.take(client, row)
        streamed = time.perf_counter()
        server.take(len(rows) - 1, rows[-1])
        taken = time.perf_counter()
        server.solve()
        done = time.perf_counter()
        parts = {"streaming": streamed - since, "put": taken - streamed, "solve": done - taken}
        for name, value in (parts | {"after_last_reply": done - streamed}).items():
            seconds[name].append(value)
    return {name: values[1:] for name, values in seconds.items()}


def memory_bandwidth(rows: Float32Array) -> float:
    """Bytes a second of the fastest way at hand to read all rows once."""
    tensor = torch.from_numpy(rows)
    weights, column = torch.ones(len(rows)), torch.ones(rows.shape[1])
    words = rows.reshape(-1)[: rows.size // 2 * 2].view(np.int64)
    parts = np.array_split(words, os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:
        ways: tuple[Callable[[], object], ...] = (
            lambda: tensor.sum(),
            lambda: torch.mv(tensor, column),
            lambda: torch.mv(tensor.t(), weights),
            lambda: list(pool.map(np.bitwise_or.reduce, parts)),
            lambda: list(pool.map(np.max, parts)),
        )
        fastest = min(min(seconds_of(way, READS)) for way in ways)
    return rows.nbytes / fastest


def server_memory(clients: int, parameters: int) -> Mapping[str, Json]:
    """The figures of `server_memory.py`."""
    script = Path(__file__).with_name("server_memory.py")
    command = [sys.executable, str(script), "--clients", str(clients), "--parameters", str(parameters), "--json", "-"]
    place = os.pathsep.join(filter(None, (str(script.parent.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": place}, stdout=subprocess.PIPE, text=True, check=True
    )
    record = json.loads(done.stdout)
    return {name: record[name] for name in ("peak_memory_bytes", "memory_over_rows_plus_100mb")}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=100, metavar="K")
    parser.add_argument("--parameters", type=int, default=650_000, metavar="D")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="turns of which the median counts")
    parser.add_argument("--no-recursion", action="store_true", help="leave the sequential recursion out")
    options = parser.parse_args(argv)
    figures = measure(options.clients, options.parameters, options.repeats, recursion=not options.no_recursion)
    bars = BARS.get((options.clients, options.parameters), (MEMORY,))
    report("server step", figures, bars, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
