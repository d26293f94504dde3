"""What a federation consists of, and the files that say so: `federation.toml`, and `node.toml` on every device."""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import tomli_w

from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.deploy.files import as_owner, is_there, write_public
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version

if TYPE_CHECKING:
    from dqnfed_flwr.deploy.findings import Finding, Findings
    from dqnfed_flwr.deploy.orders import App, Refused
    from dqnfed_flwr.deploy.pki import Identity

PLAN, BUNDLE = "federation.toml", "node.toml"
BUNDLE_KEYS = {"name": str, "partition": int, "port": int, "data": str, "superlink": str, "flwr": str, "dqnfed": str}
RESERVED = ("superlink", "superexec", "operator", "server", "exporter", "metrics")
"""Names of the server's own commands and folders, which no node may have."""
LARGEST_PORT = 65535
MOST_DAYS = 36_500
HTTP_SINCE = (1, 40)
"""From this Flower on, nodes, operator and SuperExec share one port of the SuperLink, and speak HTTP."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class Node:
    """One SuperNode."""

    name: str
    """Lower-case letters, digits and hyphens; its folder is called so."""
    partition: int
    """Number of the client that it is."""
    port: int
    """Of its Runtime API, on its own loopback."""
    data: str = ""
    """Path of its file on the device, or `module:function`; empty for what the run's settings say."""

    @property
    def config(self) -> str:
        """What `--node-config` takes."""
        return f'partition-id={self.partition} name="{self.name}"' + (f' data="{self.data}"' if self.data else "")


def minor(release: str) -> tuple[int, ...]:
    """Major and minor number, which Flower's programs must share."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


class Transport(ABC):
    """How nodes and a SuperLink speak: doors, certificates that are shown, and checks of both."""

    listener: str
    """The program that listens on the Fleet port, in words."""
    endpoints: str
    """The programs that serve the server certificate, in words: they are restarted for a new one."""
    options: Mapping[str, object] = MappingProxyType({})
    """Of uvicorn, besides Flower's."""
    advice: tuple[str, ...] = ()
    """How a Flower speaks of which that is to be known, and what to do about it."""

    def superlink_arguments(self, fleet_port: int) -> Sequence[str]:
        """Options of `flower-superlink`, by default none."""
        del fleet_port
        return ()

    @abstractmethod
    def fleet(self, listed: Path, authorities: Path) -> Callable[[App, Refused], App]:
        """What puts a door before a SuperLink's app for nodes on the list in a folder, certified by `authorities`.

        That app does not begin to serve without the door. `RunError` if this Flower serves nodes elsewhere.
        """

    @abstractmethod
    def show(self, identity: Identity) -> bool:
        """Have Flower's SuperNode show `identity` when it opens its connection; False if it opens it elsewhere."""

    @abstractmethod
    def closed(self, port: int, ca: Path, place: str) -> Finding:
        """Whether the Fleet port of this machine turns away who shows no certificate; `place` is the federation's."""

    @abstractmethod
    def admitted(self, host: str, port: int, ca: Path, identity: Identity) -> Findings:
        """Whether a node is let in with its certificate, and how far its clock is off; its key is another matter."""


@cache
def transport_of(release: str) -> Transport:
    """How nodes of that Flower speak."""
    if minor(release) >= HTTP_SINCE:
        from dqnfed_flwr.deploy.http_transport import Http

        return Http()
    from dqnfed_flwr.deploy.grpc_transport import Grpc  # grpc is slow to load

    return Grpc()


@dataclass(frozen=True, slots=True)
class Federation:
    """What `deploy init` was given, and the releases that the folder was made for; holds no secret."""

    host: str
    """Name or address under which nodes reach the server."""
    others: tuple[str, ...] = ()
    """Further names and addresses of the server certificate."""
    fleet_port: int = 9092
    """Where nodes connect, on all interfaces."""
    control_port: int = 8000
    """Where operator and SuperExec connect, on loopback."""
    days: int = 365
    """How long a server certificate is valid."""
    nodes: tuple[Node, ...] = ()
    """By partition."""
    flwr: str = field(default_factory=lambda: version("flwr"))
    dqnfed: str = field(default_factory=package_version)

    @property
    def superlink(self) -> str:
        """Address for nodes."""
        return f"[{self.host}]:{self.fleet_port}" if ":" in self.host else f"{self.host}:{self.fleet_port}"

    @property
    def transport(self) -> Transport:
        """How the nodes of its Flower speak with the server."""
        return transport_of(self.flwr)

    @property
    def local(self) -> bool:
        """Whether nodes reach the server over loopback, so that all of them run on its machine."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    def node(self, name: str) -> Node:
        """The node of that name; `ConfigError` if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"no node {name!r}; there are {', '.join(node.name for node in self.nodes) or 'none'}")

    def shared_ports(self) -> list[str]:
        """Nodes whose port is one of the server's, in words; harmless on machines of their own."""
        server = {self.fleet_port: "--fleet-port", self.control_port: "--control-port"}
        return [f"{node.name} and {server[node.port]} have {node.port}" for node in self.nodes if node.port in server]

    def check(self) -> None:
        """Refuse (`ConfigError`) names, addresses, ports, days or nodes that are unfit or given twice."""
        for name in (self.host, *self.others):
            _check_host(name)
        for port in (self.fleet_port, self.control_port, *(node.port for node in self.nodes)):
            if not 0 < port <= LARGEST_PORT:
                raise ConfigError(f"port: found {port}; allowed are 1 to {LARGEST_PORT}")
        if self.fleet_port == self.control_port:
            raise ConfigError(f"--fleet-port and --control-port are both {self.fleet_port}; give two ports")
        if not 1 <= self.days <= MOST_DAYS:
            raise ConfigError(f"--days: found {self.days}; allowed are 1 to {MOST_DAYS}")
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ConfigError("two nodes have one name; give each its own")
        for node in self.nodes:
            _check_node(node)


def plan_text(federation: Federation) -> str:
    """Text of `federation.toml`."""
    return tomli_w.dumps(
        {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(federation).items()}
    )


def write_plan(directory: Path, federation: Federation) -> None:
    """Write `federation.toml`."""
    write_public(directory / PLAN, plan_text(federation))


def read_plan(directory: Path) -> Federation:
    """Read `federation.toml`; `ConfigError` if there is none, or it cannot be read."""
    if not is_there(directory / PLAN):
        raise ConfigError(f"{directory}: no {PLAN} there; make a federation with `dqnfed deploy init {directory} ...`")
    try:
        with as_owner(directory):
            found = tomllib.loads((directory / PLAN).read_text("utf-8"))
        for kind, given in ((Federation, found), *((Node, node) for node in found["nodes"])):
            if missing := {each.name for each in fields(kind)} - given.keys():
                raise KeyError(min(missing))
        nodes = tuple(Node(**node) for node in found["nodes"])
        return Federation(**{**found, "others": tuple(found["others"]), "nodes": nodes})
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{directory / PLAN}: cannot be read ({error}); restore it from your backup") from None


def bundle_text(federation: Federation, node: Node) -> str:
    """Text of `node.toml`, by which a device checks its own folder."""
    about = {"superlink": federation.superlink, "flwr": federation.flwr, "dqnfed": federation.dqnfed}
    return tomli_w.dumps({**asdict(node), **about})


def read_bundle(directory: Path) -> tuple[Node, Federation]:
    """Read `node.toml`: a node, and what it says of the federation.

    `ConfigError` if it cannot be read, or lacks what `bundle_text` wrote.
    """
    path, again = directory / BUNDLE, "copy the node's folder again"
    try:
        with as_owner(directory):
            found = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {again}") from None
    for key, kind in BUNDLE_KEYS.items():
        if not isinstance(found.get(key), kind):
            needed = "a number" if kind is int else "a text"
            raise ConfigError(f"{path}: {key}: found {found.get(key)!r}, needed is {needed}; {again}")
    if not re.fullmatch(r".+:\d{1,5}", found["superlink"]):
        raise ConfigError(f"{path}: superlink: found {found['superlink']!r}, needed is HOST:PORT; {again}")
    host, _, port = found["superlink"].rpartition(":")
    node = Node(found["name"], found["partition"], found["port"], found["data"])
    return node, Federation(host.strip("[]"), fleet_port=int(port), flwr=found["flwr"], dqnfed=found["dqnfed"])


def _check_host(name: str) -> None:
    """Refuse what is neither an address nor a host name."""
    try:
        address = ip_address(name)
    except ValueError:
        if not _HOST.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
            raise ConfigError(
                f"host: found {name!r}; give a host name such as fl.example.org or an IP address, without port"
            ) from None
        return
    if str(address) != name or getattr(address, "scope_id", None):
        usual = str(address).partition("%")[0]
        raise ConfigError(f"host: found {name!r}; certificates have this address as {usual}: give it in that form")


def check_name(what: str, name: str) -> None:
    """Refuse (`ConfigError`) a name that cannot be that of a folder; `what` says whose it is."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{what}: found {name!r}; use lower-case letters, digits and hyphens, at most 63")


def _check_node(node: Node) -> None:
    """Refuse a node whose name or data cannot be written into commands."""
    check_name("node", node.name)
    if node.name in RESERVED:
        raise ConfigError(f"node: found {node.name!r}, a name of the server's own; not allowed: {', '.join(RESERVED)}")
    unquoted = node.data.isprintable() and not any(character in node.data for character in "\"'\\$` ")
    if not (unquoted and all(path.is_absolute() for path in source_of(node.data).paths)):
        raise ConfigError(
            f"--data: found {node.data!r}; give module:function, or an absolute path of printable characters "
            "without spaces or quotes"
        )
