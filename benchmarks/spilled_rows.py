"""A round of the server whose rows do not fit into memory: its memory, and its speed against the disk's.

In a process of its own, which may ask for no more than `--memory`: rows arrive one by one, as replies do, then the
solve, the weighted sum. The disk is measured before, in the same folder: a file of `--probe` bytes is written and
synced, and read from the disk. What the disk would need is writing all rows once and reading them twice, once for the
products and once for the sum. `disk_over_rows` is that time over the round's.

`peak_memory_bytes` is the most that the process held, what it mapped included; the cache that the kernel keeps of the
file is no part of it, and shrinks where memory is needed. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._common import Bar, Json, arguments, report, seconds_once
from benchmarks._server import LastReply, drawn_row
from benchmarks.server_memory import resident
from dqnfed_flwr.linalg.row_store import RowMemory

BARS = (Bar("disk_over_rows", ">=", 0.5), Bar("memory_over_allowed", "<=", 1.0))
PIECE = 1 << 22
SHIFT = 997
"""Values from the beginning of a row to that of the next, in one long row."""


def measure(clients: int, parameters: int, memory: int, folder: Path, probe: int) -> dict[str, Json]:
    """Seconds of the parts of one round, and what the disk would need for the same bytes."""
    write, read = disk_seconds(folder, probe)
    size = clients * parameters * 4
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    drawn = drawn_row(0, parameters + clients * SHIFT)  # no two rows are alike, and none has to be drawn meanwhile
    server = LastReply(clients, parameters, RowMemory(memory // 2, str(folder)))
    since, cpu = time.perf_counter(), time.process_time()
    for client in range(clients - 1):
        server.take(client, drawn[client * SHIFT :][:parameters])
    taken = time.perf_counter() - since
    after = seconds_once(lambda: server.finish(drawn[-parameters:]))
    wanted = (write + 2 * read) / probe * size
    peak = resident("VmHWM")
    return {
        "clients": clients,
        "parameters": parameters,
        "rows_bytes": size,
        "disk_write_bytes_per_second": probe / write,
        "disk_read_bytes_per_second": probe / read,
        "streaming_seconds": taken,
        "after_last_reply_seconds": after,
        "processor_seconds": time.process_time() - cpu,
        "disk_seconds": wanted,
        "disk_over_rows": wanted / (taken + after),
        "reads_over_after_last_reply": 2 * read / probe * size / after,
        "peak_memory_bytes": peak,
        "memory_over_allowed": peak / memory,
    }


def disk_seconds(folder: Path, size: int) -> tuple[float, float]:
    """Seconds to write `size` bytes into a file of `folder` until they are on the disk, and to read them from there."""
    piece = np.random.default_rng(0).bytes(PIECE)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        since = time.perf_counter()
        for _ in range(size // PIECE):
            file.write(piece)
        os.fsync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        into, between = bytearray(PIECE), time.perf_counter()
        while file.readinto(into):
            pass
        return written - since, time.perf_counter() - between


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure in another process, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=200, metavar="K")
    parser.add_argument("--parameters", type=int, default=11_000_000, metavar="D")
    parser.add_argument("--memory", type=int, default=3 * 10**9, metavar="BYTES")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    parser.add_argument("--probe", type=int, default=2 * 10**9, metavar="BYTES", help="written to measure the disk")
    parser.add_argument("--here", action="store_true", help="measure in this process and print JSON")
    options = parser.parse_args(argv)
    sizes = (options.clients, options.parameters, options.memory, options.folder, options.probe)
    if options.here:
        print(json.dumps(measure(*sizes)))
        return
    values = dict(zip(("--clients", "--parameters", "--memory", "--folder", "--probe"), map(str, sizes), strict=True))
    given = [word for pair in values.items() for word in pair]
    command = [sys.executable, "-m", "benchmarks.spilled_rows", "--here", *given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report("rows in a file", json.loads(done.stdout), BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
