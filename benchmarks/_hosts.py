"""Hosts on a network: network namespaces on a bridge of this machine, with loss, a rate limit and partitions.

Rules and limits are set inside the namespaces, so the machine's own firewall stays as it is; the bridge and the
namespaces are gone when the block ends. In `alone` they are gone however their process ends, and need no root.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks._programs import Program, die_with_parent

SUBNET = "10.203.77"
SERVER = f"{SUBNET}.1"
ETC = Path("/etc/netns")
"""Where `ip netns exec` finds a namespace's own files of /etc."""
ALONE = "DQNFED_ALONE"
"""Set for what runs in `alone`."""
NAMESPACES = (
    *("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"', "sh"),
)


class Missing(Exception):
    """What this machine lacks."""


def call(*command: str) -> None:
    """Run a command; its complaint as `Missing`."""
    said(*command)


def said(*command: str) -> str:
    """What a command says; its complaint as `Missing`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise Missing(f"no program {command[0]}") from None
    if done.returncode:
        raise Missing(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def alone(arguments: Sequence[str]) -> int:
    """Run a program in namespaces of its own, as their root; the status with which it ended.

    The kernel ends all that it started, and removes its hosts, when it ends or this process does, in whatever way; its
    temporary files go unless this process is killed.

    Raises
    ------
    Missing
        If this process may not have such namespaces.
    """
    call(*NAMESPACES, "true")
    before = signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, ALONE: "1", "TMPDIR": folder}
        process = subprocess.Popen([*NAMESPACES, *arguments], env=environment, preexec_fn=die_with_parent())
        try:
            return process.wait()
        finally:
            process.kill()
            process.wait()
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Host:
    """A network namespace with one address.

    Attributes
    ----------
    name, link : str
        Of the namespace, and of the bridge's end of its line.
    """

    def __init__(self, name: str, link: str) -> None:
        self.name, self.link = name, link

    def call(self, *command: str) -> None:
        """Run a command in the namespace."""
        call(*self.words, *command)

    def move(self, program: Program) -> None:
        """Have a program, not started yet, run here."""
        program.arguments = [*self.words, *program.command]

    @property
    def words(self) -> list[str]:
        """What leads a command here."""
        return ["ip", "netns", "exec", self.name]

    def know(self, name: str, address: str) -> None:
        """Know an address by a name, in an /etc/hosts of its own that is gone when the block of `hosts` ends."""
        place = ETC / self.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")

    def lose(self, share: float) -> None:
        """Drop so many of the packets each way, by chance."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.call("iptables", "-w", "-A", chain, side, "eth0", *chance, "-j", "DROP")

    def cut(self) -> None:
        """Drop all packets each way."""
        self.lose(1.0)

    def mend(self) -> None:
        """Drop nothing any more."""
        for chain in ("INPUT", "OUTPUT"):
            self.call("iptables", "-w", "-F", chain)

    def limit(self, rate: str, down: str = "") -> None:
        """Send no faster than `rate`, say `1mbit`, and receive no faster than `down`, where it is given."""
        bucket = ("burst", "16kb", "latency", "1s")
        self.call("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, *bucket)
        if down:
            call("tc", "qdisc", "replace", "dev", self.link, "root", "tbf", "rate", down, *bucket)

    def carried(self) -> tuple[int, int]:
        """Bytes that its line has carried, to the host and from it, with all headers but those of the wire."""
        counted = json.loads(said("ip", "-json", "-statistics", "link", "show", self.link))[0]["stats64"]
        return counted["tx"]["bytes"], counted["rx"]["bytes"]


def check_rights(what: str, needed: Sequence[str]) -> None:
    """Raise `Missing` where this process has no rights to `what`, or the machine lacks one of the programs."""
    if os.geteuid():
        raise Missing(f"{what}: root is needed")
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise Missing(f"{what}: no program {', '.join(missing)}")


@contextmanager
def hosts(count: int, needed: Sequence[str] = ("ip", "tc", "iptables")) -> Iterator[list[Host]]:
    """So many hosts on a bridge whose address is `SERVER`; `needed` are programs that they are used with.

    Raises
    ------
    Missing
        If this machine cannot have them; says why.
    """
    check_rights("network namespaces", needed)
    tag = f"dq{secrets.token_hex(3)}"
    found = [Host(f"{tag}-{k}", f"{tag}v{k}") for k in range(count)]
    try:
        call("ip", "link", "add", tag, "type", "bridge")
        call("ip", "addr", "add", f"{SERVER}/24", "dev", tag)
        call("ip", "link", "set", tag, "up")
        for k, host in enumerate(found):
            _connect(host, tag, f"{SUBNET}.{10 + k}")
        yield found
    finally:
        links = [host.link for host in found]  # the kernel takes its time over those of a namespace
        gone = [*(("link", "del", name) for name in (*links, tag)), *(("netns", "del", host.name) for host in found)]
        for words in gone:
            subprocess.run(["ip", *words], capture_output=True, timeout=30, check=False)
        for host in found:
            shutil.rmtree(ETC / host.name, ignore_errors=True)


def _connect(host: Host, bridge: str, address: str) -> None:
    call("ip", "netns", "add", host.name)
    call("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    call("ip", "link", "set", host.link, "master", bridge, "up")
    host.call("ip", "addr", "add", f"{address}/24", "dev", "eth0")
    host.call("ip", "link", "set", "lo", "up")
    host.call("ip", "link", "set", "eth0", "up")
