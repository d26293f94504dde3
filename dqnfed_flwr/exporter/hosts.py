"""Under which names the exporter may be asked: those of loopback, of this machine, addresses, and what is added."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence

_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::\d*)?")


class Hosts:
    """The known names, whatever their case and the port behind them.

    An address is always known. The attack that this is for, DNS rebinding, needs a name that its author controls.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        machine = socket.gethostname()
        self._names = {_plain(name) for name in ("localhost", machine, machine.partition(".")[0], *names)}

    def know(self, headers: Sequence[str]) -> bool:
        """Whether there is one header `Host`, and it holds a known name."""
        if len(headers) != 1:
            return False
        found = _HOST.fullmatch(headers[0].strip())
        name = _plain(found[1] or found[2]) if found else ""
        return name in self._names or _is_address(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
