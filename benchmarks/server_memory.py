"""Memory of the server at its peak: K rows of D float32 values taken in one by one, one solve, one step.

A process of its own, so that nothing but the server counts: the peak of the resident memory, less what was resident
after the imports. A row exists once before it is taken in, as a reply does. Linux only (/proc/self/status).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks._common import Bar, Json, arguments, report
from benchmarks._server import LastReply, drawn_row

BARS = (Bar("memory_over_rows_plus_100mb", "<=", 1.0),)
ALLOWED_SHARE, ALLOWED_BYTES = 1.15, 100e6


def measure(clients: int, parameters: int) -> dict[str, Json]:
    """Peak bytes of one round of the server, and their share of what is allowed."""
    _warm_up()
    before = resident("VmRSS")
    server = LastReply(clients, parameters)
    for client in range(clients - 1):
        server.take(client, drawn_row(client, parameters))
    server.finish(drawn_row(clients - 1, parameters))
    peak = resident("VmHWM") - before
    allowed = ALLOWED_SHARE * clients * parameters * 4 + ALLOWED_BYTES
    return {
        "clients": clients,
        "parameters": parameters,
        "rows_bytes": clients * parameters * 4,
        "peak_memory_bytes": peak,
        "memory_over_rows_plus_100mb": peak / allowed,
    }


def resident(field: str) -> int:
    """`VmRSS` or `VmHWM` (its peak) of this process, in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _warm_up() -> None:
    """Make the libraries allocate what they keep, thread stacks and workspaces, and import what they import late."""
    server = LastReply(2, 8)
    server.take(0, drawn_row(0, 8))
    server.finish(drawn_row(1, 8))


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=100, metavar="K")
    parser.add_argument("--parameters", type=int, default=650_000, metavar="D")
    options = parser.parse_args(argv)
    report("server memory", measure(options.clients, options.parameters), BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
