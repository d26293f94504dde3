"""`dqnfed deploy check`: everything that keeps a federation from working, each with its remedy."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path

from dqnfed_flwr.deploy import check_local as local
from dqnfed_flwr.deploy import check_network as network
from dqnfed_flwr.deploy.audit_log import LOG, parts
from dqnfed_flwr.deploy.files import as_owner, is_there
from dqnfed_flwr.deploy.findings import Finding, Findings, Level, failure, guarded, warning
from dqnfed_flwr.deploy.node_certificates import CERTIFICATE, identity_of
from dqnfed_flwr.deploy.plan import BUNDLE, PLAN, Federation, read_bundle, read_plan
from dqnfed_flwr.deploy.registry import known
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version

SERVICES = Path("/var/lib/dqnfed")
"""Where the systemd units keep the database, runs and data."""
DISK_PAGE = "see docs/operations.md, disk space"
BACKUP = "restore it from your backup"


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


def audit_folders(directory: Path) -> list[Path]:
    """Folders with an audit log: `directory` itself, or those of a federation's SuperLink, by hand and as a unit.

    `ConfigError` if there is none.
    """
    places = [directory, directory / "server" / "state"]
    if is_there(directory / PLAN):
        places.append(SERVICES / "superlink")
    found = []
    for place in places:
        with as_owner(place):
            if parts(place):
                found.append(place)
    if not found:
        raise ConfigError(f"{directory}: no {LOG} there; a SuperLink that `dqnfed deploy superlink` runs writes one")
    return found


def _check_federation(directory: Path, federation: Federation, now: dt.datetime) -> Findings:
    place, server = shlex.quote(str(directory)), directory / "server"
    yield from local.files(
        [server / "server.key", server / "superexec.secret"],
        [server / "server.crt", server / "ca.crt", directory / "operator" / "config.toml"],
        BACKUP,
    )
    yield from guarded(local.kept(directory / "ca" / "ca.key", "the authority's key"), BACKUP)
    yield from local.private([directory, directory / "ca", server, directory / "nodes"], "directory")
    for folder in (directory, directory / "ca", server, directory / "operator", directory / "commands"):
        yield from guarded(local.owned(folder), BACKUP)
    yield from local.owned(directory / "nodes", with_folders=True)
    for node in federation.nodes:
        folder, fix = directory / "nodes" / node.name, f"`dqnfed deploy remove-node {place} {node.name}`, then add-node"
        yield from guarded(local.owned(folder), fix)
        yield from guarded(local.node_files(folder, fix, at_home=True), fix)
    yield from guarded(local.server_certificate(directory, federation, now), f"`dqnfed deploy rotate {place}`")
    yield from guarded(local.operator_certificates(directory, now), BACKUP)
    yield from guarded(local.node_certificates_at_server(directory, federation, now), BACKUP)
    yield from local.programs("server")
    yield from local.flower(federation.flwr)
    yield from local.disk(server / "state", f"delete old runs in {server / 'state' / 'runs'}; {DISK_PAGE}")
    if SERVICES.is_dir():
        yield from local.disk(SERVICES, f"delete old runs in {SERVICES / 'server' / 'runs'}; {DISK_PAGE}")
    yield from local.clock()
    yield from network.server_ports(federation, server / "ca.crt", place)
    control = ("127.0.0.1", federation.control_port, server / "ca.crt")
    found = network.look(*control).port
    if found is network.Port.OURS:
        yield from network.skew(network.ahead_by_date(*control))
        yield network.door(federation, server / "ca.crt", place)
        yield from network.registered(directory, federation, place)
    elif found is network.Port.FREE and (waiting := known(directory)):
        yield failure(
            f"no SuperLink runs here, and {len(waiting)} nodes are registered: no run could begin",
            "start it, or look at its log for why it ended",
        )


def _check_node(directory: Path, now: dt.datetime) -> Findings:
    node, server = read_bundle(directory)
    again = "copy the node's folder again from the federation's `nodes/`"
    yield from local.owned(directory)
    yield from guarded(local.node_files(directory, again), again)
    certificate = directory / CERTIFICATE
    known = "copy node.crt from the federation's nodes/NAME; `dqnfed deploy refresh` at the server makes it"
    yield from guarded(local.node_certificate(certificate, directory, directory / "ca.crt", now, known), again)
    renew = "make a new authority with `dqnfed deploy rotate DIR --ca` at the server and copy ca.crt here"
    yield from guarded(local.authorities(directory / "ca.crt", now, renew), again)
    yield from local.programs("node")
    yield from local.flower(server.flwr)
    if (mine := package_version()) != server.dqnfed:
        yield warning(
            f"dqnfed-flwr is {mine} here and {server.dqnfed} at the server",
            f"install dqnfed-flwr {server.dqnfed} here; a run's own code wins, but its requirements may differ",
        )
    if node.data:
        yield from guarded(local.data_file(node.data), again)
    for state in (directory, SERVICES):
        if state.is_dir():
            yield from local.disk(state, f"remove what is old in it; {DISK_PAGE}")
    yield from local.clock()
    yield network.node_port(node.port)
    superlink = (server.host, server.fleet_port, directory / "ca.crt")
    yield (reached := network.reach(*superlink, server.transport.endpoints))
    if reached.level is not Level.OK:
        return
    try:
        shown = identity_of(certificate, directory / "node.key")
    except ConfigError:  # found above
        return
    yield from server.transport.admitted(*superlink, shown)
