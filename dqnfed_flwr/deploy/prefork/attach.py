"""What stands for a forked client where Flower looks for the process that it started.

Run as a script that needs nothing but the standard library, so that it is there in hundredths of a second. It hands its
arguments, folder, environment and output to the fork server, waits, and ends as the client ended. Without a fork server
it becomes the program itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

CONNECT_SECONDS = 5.0


def main() -> None:
    """Run the program named by the first argument, as a fork where that can be."""
    path, python = os.environ["DQNFED_WARM_PATH"], os.environ["DQNFED_WARM_PYTHON"]
    address = os.environ.get("DQNFED_WARM_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DQNFED_WARM_")}
    environment["PATH"] = path
    unforked = [python, "-P", str(Path(__file__).with_name("allowed.py")), *sys.argv[1:]]
    if address is None:  # where processes cannot be forked safely
        os.execve(python, unforked, environment)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(address)
        request = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "environment": environment}).encode()
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(request)
    except OSError as error:
        print(f"dqnfed: no warm start, {error}; the client starts cold", file=sys.stderr)
        os.execve(python, unforked, environment)
    connection.settimeout(None)
    sys.exit(_follow(connection))


def _follow(connection: socket.socket) -> int:
    """Hand signals on to the client, and wait for the status with which it ends."""
    lines = connection.makefile("r")
    client = int(lines.readline() or 0)

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if client:
            os.kill(client, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    status = int(lines.readline() or 1)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    main()
