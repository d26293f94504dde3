#!/usr/bin/env python3
"""Whether a role listens: `healthcheck.py HOST:PORT ...` ends with 0 if all of them take a connection.

Uses the standard library alone, so that a check costs a few hundredths of a second.
"""

from __future__ import annotations

import socket
import sys

SECONDS = 3.0


def main(addresses: list[str]) -> int:
    """Try every address; say which one does not answer."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
        except (OSError, ValueError) as error:
            print(f"{address}: {error}", file=sys.stderr)
            return 1
    return 0 if addresses else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
