"""`dqnfed deploy check`: everything that keeps a federation from working, each with its mend."""

from __future__ import annotations

import datetime as dt
import shlex
from functools import partial
from pathlib import Path

from dqnfed_flwr.deploy import probe, stamps
from dqnfed_flwr.deploy.check_files import (
    authorities,
    data_file,
    files,
    guarded,
    kept,
    node_files,
    owned,
    private,
    server_certificate,
)
from dqnfed_flwr.deploy.check_machine import clock, disk, flower, programs
from dqnfed_flwr.deploy.check_network import node_port, reach, registered, server_ports, skew
from dqnfed_flwr.deploy.files import as_owner, is_there
from dqnfed_flwr.deploy.findings import Finding, Findings, Level
from dqnfed_flwr.deploy.plan import HTTP_SINCE, Federation, doors, minor
from dqnfed_flwr.deploy.plan_files import BUNDLE, read_bundle, read_plan
from dqnfed_flwr.deploy.probe import Port
from dqnfed_flwr.deploy.registry import known
from dqnfed_flwr.version import package_version

SERVICES = Path("/var/lib/dqnfed")
"""Where the systemd units keep the database, runs and data."""
DISK_PAGE = "see docs/operations.md, disk space"


def check(directory: Path, *, now: dt.datetime | None = None) -> list[Finding]:
    """Look at the folder of a federation, or at that of one node on its device.

    Parameters
    ----------
    directory : Path
        What `deploy init` wrote, or one of its `nodes/NAME`.
    now : datetime | None
        The time to judge certificates by; None for now.

    Raises
    ------
    ConfigError
        If it is neither, or another user's.
    """
    directory, now = directory.absolute(), now or dt.datetime.now(dt.UTC)
    with as_owner(directory):
        if is_there(directory / BUNDLE):
            return list(_check_node(directory, now))
        return list(_check_federation(directory, read_plan(directory), now))


def _check_federation(directory: Path, federation: Federation, now: dt.datetime) -> Findings:
    place = shlex.quote(str(directory))
    server = directory / "server"
    yield from files(
        [server / "server.key", server / "superexec.secret"],
        [server / "server.crt", server / "ca.crt", directory / "operator" / "config.toml"],
        "restore it from your backup",
    )
    yield from guarded(lambda: kept(directory / "ca" / "ca.key", "the authority's key"), "restore it from your backup")
    yield from private([directory, directory / "ca", server, directory / "nodes"], "directory")
    for folder in (directory, directory / "ca", server, directory / "operator", directory / "commands"):
        yield from guarded(partial(owned, folder), "restore it from your backup")
    yield from owned(directory / "nodes", with_folders=True)
    for node in federation.nodes:
        mend = f"`dqnfed deploy remove-node {place} {node.name}`, then add-node"
        yield from _node(directory / "nodes" / node.name, mend)
    yield from guarded(lambda: server_certificate(directory, federation, now), f"`dqnfed deploy rotate {place}`")
    yield from programs("server")
    yield from flower(federation.flwr)
    yield from disk(server / "state", f"delete old runs in {server / 'state' / 'runs'}; {DISK_PAGE}")
    if SERVICES.is_dir():
        yield from disk(SERVICES, f"delete old runs in {SERVICES / 'server' / 'runs'}; {DISK_PAGE}")
    yield from clock()
    yield from server_ports(federation, server / "ca.crt", place)
    found = probe.look("127.0.0.1", federation.control_port, server / "ca.crt")[0]
    if found is Port.OURS:
        yield from skew(probe.clock_ahead("127.0.0.1", federation.control_port, server / "ca.crt"))
        yield from registered(directory, federation, place)
    elif found is Port.FREE and (waiting := known(directory)):
        yield Finding(
            Level.WARNING,
            f"no SuperLink runs here, and {len(waiting)} nodes are registered",
            "start it, or look at its log for why it ended",
        )


def _node(place: Path, mend: str) -> Findings:
    """Of a node's folder at home."""
    yield from guarded(lambda: owned(place), mend)
    yield from guarded(lambda: node_files(place, mend, at_home=True), mend)


def _check_node(directory: Path, now: dt.datetime) -> Findings:
    about = read_bundle(directory)
    again = "copy the node's folder again from the federation's `nodes/`"
    yield from owned(directory)
    yield from guarded(lambda: node_files(directory, again), again)
    yield from guarded(lambda: authorities(directory / "ca.crt", now), again)
    yield from programs("node")
    yield from flower(str(about["flwr"]))
    if (mine := package_version()) != about["dqnfed"]:
        yield Finding(
            Level.WARNING,
            f"dqnfed-flwr is {mine} here and {about['dqnfed']} at the server",
            f"install dqnfed-flwr {about['dqnfed']} here; a run's own code wins, but its requirements may differ",
        )
    if data := str(about["data"]):
        yield from guarded(lambda: data_file(data), again)
    for state in (directory, SERVICES):
        if state.is_dir():
            yield from disk(state, f"remove what is old in it; {DISK_PAGE}")
    yield from clock()
    yield from node_port(int(about["port"]))
    host, _, port = str(about["superlink"]).rpartition(":")
    there = (host.strip("[]"), int(port), directory / "ca.crt")
    flwr = str(about["flwr"])
    yield from reach(*there, doors(flwr))
    if probe.look(*there)[0] is Port.OURS:
        over_http = minor(flwr) >= HTTP_SINCE
        yield from skew(probe.clock_ahead(*there) if over_http else stamps.clock_ahead(*there))
