"""By how much the SuperLink of a federation on loopback grows, and keys that others than its nodes show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks._federation import Loopback
from dqnfed_flwr.deploy import pki

BOUND = 1.2
"""By what factor an attack may make it grow."""


def growth(server: Loopback) -> Callable[[], float]:
    """What says, when it is called, by what factor the SuperLink's memory has grown at most since now."""
    process = server.programs["superlink"].process
    assert process is not None
    place = Path(f"/proc/{process.pid}")

    def read(what: str) -> int:
        lines = (place / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what))

    before = read("VmRSS")
    (place / "clear_refs").write_text("5")  # forgets the largest figure
    return lambda: read("VmHWM") / before


def strange_pair(place: Path) -> tuple[Path, Path]:
    """Certificate and key of another authority, in the folder `place`."""
    pair, identity = (place / "shown.crt", place / "shown.key"), pki.make_operator(pki.make_authority(), "node-0", 9)
    pair[0].write_bytes(identity.certificate)
    pair[1].write_bytes(identity.key)
    return pair
