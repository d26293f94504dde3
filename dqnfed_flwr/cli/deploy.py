"""`dqnfed deploy`: what a federation on real machines needs, made, changed and checked."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import FAILED, PlainTyper, reported
from dqnfed_flwr.cli.deploy_programs import TAKES_OTHERS, flwr, identity, superlink, supernode, warm
from dqnfed_flwr.deploy.files import alone, at_home
from dqnfed_flwr.errors import RunError

if TYPE_CHECKING:
    from dqnfed_flwr.deploy.findings import Finding

app = PlainTyper()
audit_app = PlainTyper()
app.add_typer(audit_app, name="audit")
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the federation.", show_default=False, readable=False)
]
Data = Annotated[
    str, typer.Option(metavar="PATH", help="Data on the device: an absolute .npz path, or module:function.")
]


@app.callback()
def deploy() -> None:
    """Set up a federation on real machines: certificates, keys, commands, checks."""


@app.command()
@reported
def init(
    directory: Directory,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="How many SuperNodes.")],
    host: Annotated[str, typer.Option(metavar="NAME", help="Name or address under which nodes reach the server.")],
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further name or address of the server; may be given again."),
    ] = None,
    fleet_port: Annotated[int, typer.Option(help="Port for nodes, on all interfaces.")] = 9092,
    control_port: Annotated[int, typer.Option(help="Port for operators and the SuperExec, on loopback.")] = 8000,
    node_port: Annotated[
        int, typer.Option(help="Port of the first node on its own loopback; the next take the next.")
    ] = 9094,
    days: Annotated[int, typer.Option(help="How long the server certificate is valid.")] = 365,
    data: Data = "",
) -> None:
    """Write authority, certificate, keys, secrets, connection and commands of a new federation into DIR.

    \b
    Examples:
      dqnfed deploy init federation --nodes 3 --host localhost
      dqnfed deploy init /srv/fl --nodes 3 --host fl.example.org --address 192.0.2.10 --data /data/site.npz

    DIR must be new. Files that hold secrets can be read by you alone; nothing secret is printed.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy.build import create
    from dqnfed_flwr.deploy.plan import Federation, Node

    place = _place(directory)
    members = tuple(Node(f"node-{k}", k, node_port + k, data) for k in range(nodes))
    federation = Federation(host, tuple(address or ()), fleet_port, control_port, days, members)
    create(place, federation)
    for line in (
        f"{place} holds a federation of {nodes} node{'s' if nodes > 1 else ''}.",
        f"  commands/          what to start where; begin with {place / 'commands' / 'superlink.txt'}",
        "  nodes/NAME/        copy each to its device, over a private channel, and to nobody else",
        "  ca/                the authority's key: keep it away from server and nodes if you can",
        f"next: start the SuperLink, then: dqnfed deploy register {shlex.quote(str(directory))}",
    ):
        typer.echo(line)
    if shared := federation.shared_ports():
        typer.echo(
            f"dqnfed: {', '.join(shared)}; if they run on the server's machine, make DIR anew with another --node-port",
            err=True,
        )


@app.command(name="add-node")
@reported
def add_node(
    directory: Directory,
    name: Annotated[str, typer.Option(help="Its name; node-K by default.", show_default=False)] = "",
    data: Data = "",
) -> None:
    """Make key and folder of one more node."""
    from dqnfed_flwr.deploy import build

    place = _place(directory)
    with alone(place):
        node = build.add_node(place, name, data)
    typer.echo(f"{node.name} is client {node.partition}; copy {place / 'nodes' / node.name} to its device")
    typer.echo(f"then: dqnfed deploy register {shlex.quote(str(directory))}")


@app.command(name="remove-node")
@reported
def remove_node(
    directory: Directory,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node.")],
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the SuperLink: the key stays registered there.")
    ] = False,
) -> None:
    """Turn a node's key away from now on, and delete its folder here.

    Exit status: 0 removed, 1 its key is or may still be registered, and nothing was removed, 2 no such node.
    """
    from dqnfed_flwr.deploy import build, registry
    from dqnfed_flwr.deploy.plan import read_plan

    place = _place(directory)
    read_plan(place).node(name)
    was = False if offline else registry.unregister(place, name)
    if not (offline or was) and (unknown := registry.unregistered_keys(place)):
        raise RunError(
            f"{name} is not removed: {registry.REGISTERED} does not say as which node its key was registered, and the "
            f"SuperLink lists nodes that this folder does not know: {', '.join(unknown)}. If one of them is {name}: "
            f"dqnfed deploy flwr {place} supernode unregister ID dqnfed, then do this once more; if none is: "
            "--offline"
        )
    with alone(place):
        build.remove_node(place, name)
    typer.echo(f"{name} is removed" + (" and unregistered" if was else ""))
    if offline and name in registry.known(place):
        typer.echo(
            f"its key is still registered: dqnfed deploy flwr {place} supernode unregister "
            f"{registry.known(place)[name]} dqnfed",
            err=True,
        )


@app.command(name="add-operator")
@reported
def add_operator(
    directory: Directory, name: Annotated[str, typer.Option(help="Their name.", show_default=False)]
) -> None:
    """Make key and certificate of one more operator, who may submit, follow and stop runs."""
    from dqnfed_flwr.deploy import operators

    place = _place(directory)
    with alone(place):
        folder = operators.add(place, name)
    typer.echo(f"{name} is let in from now on; hand {folder} over by a private channel, and delete it here")
    typer.echo(f"there: correct the path in {folder.name}/config.toml, then: dqnfed runs {folder.name}")


@app.command(name="remove-operator")
@reported
def remove_operator(
    directory: Directory, name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operator.")]
) -> None:
    """Let an operator in no longer, from the next call on; running runs go on."""
    from dqnfed_flwr.deploy import operators

    place = _place(directory)
    with alone(place):
        operators.remove(place, name)
    left = ", ".join(operators.allowed(place / "server" / operators.FOLDER)) or "nobody"
    typer.echo(f"{name} is let in no longer; still let in: {left}")
    if left == "nobody":
        again = f"dqnfed deploy add-operator {shlex.quote(str(directory))} --name NAME"
        typer.echo(f"to let somebody in: {again}", err=True)


@audit_app.callback()
def audit() -> None:
    """The log of who ordered what on a federation."""


@audit_app.command()
@reported
def verify(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the federation, or one with audit.log.", readable=False),
    ],
    head: Annotated[str, typer.Option(metavar="HASH", help="A hash noted before; it must be in the log.")] = "",
) -> None:
    """Look for lines of the audit log that were changed, removed or moved, and show the last hash.

    Exit status: 0 none, 1 some, 2 there is no log.
    """
    from dqnfed_flwr.deploy.audit_log import verify
    from dqnfed_flwr.deploy.check import audit_folders

    found: set[str] = set()
    faulty = False
    for folder in audit_folders(_place(directory)):
        verdict = verify(folder)
        found |= verdict.hashes
        for fault in verdict.faults:
            typer.echo(f"{folder}: {fault}", err=True)
        faulty = faulty or bool(verdict.faults)
        typer.echo(f"{folder}: {verdict.count} line{'' if verdict.count == 1 else 's'}, the last is {verdict.head}")
    if head and head not in found:
        typer.echo(f"no line has the hash {head}: another history was written", err=True)
        faulty = True
    if faulty:
        raise typer.Exit(FAILED)


@app.command()
@reported
def register(directory: Directory) -> None:
    """Tell the SuperLink, which must be running or about to, which keys may take part."""
    from dqnfed_flwr.deploy import registry
    from dqnfed_flwr.deploy.plan import read_plan

    place = _place(directory)
    outcome = registry.register(place, read_plan(place), partial(typer.echo, err=True))
    for name, what in outcome.items():
        typer.echo(f"{name}: {what}")
    if not set(outcome.values()) <= {"registered", "known"}:
        raise typer.Exit(FAILED)


@app.command()
@reported
def rotate(
    directory: Directory,
    ca: Annotated[bool, typer.Option("--ca", help="A new authority as well; nodes need the new ca.crt first.")] = False,
    days: Annotated[int, typer.Option(help="How long it is valid; as before by default.", show_default=False)] = 0,
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address of the server to add; may be given again."),
    ] = None,
) -> None:
    """Make a new server certificate, before the old one expires or for further names of the server."""
    from dqnfed_flwr.deploy.build import rotate
    from dqnfed_flwr.deploy.pki import first_certificate

    place = _place(directory)
    with alone(place):
        federation = rotate(place, authority=ca, days=days, others=address or ())
    names, endpoints = ", ".join((federation.host, *federation.others)), federation.transport.endpoints
    end = first_certificate((place / "server" / "server.crt").read_bytes()).not_valid_after_utc
    typer.echo(f"a new server certificate for {names} is valid until {end:%Y-%m-%d}, those of operators as well")
    if ca:
        typer.echo(
            "and a new authority: 1. copy ca.crt and node.crt from each nodes/NAME to its device and restart it;"
        )
        typer.echo(f"2. only then restart {endpoints} and the SuperExec. ca.crt holds the old authority as well.")
        typer.echo(
            "until 2., the SuperLink turns away the operators of this folder, dqnfed deploy check and the exporter"
        )
    else:
        typer.echo(f"restart {endpoints} to use it; nodes need nothing new")


@app.command()
@reported
def refresh(directory: Directory) -> None:
    """Write commands and environments for the versions installed now; after an upgrade, at the server, then on devices.

    Keys, certificates and the operator's connection stay as they are; missing certificates of nodes are made. What you
    added to the files is lost, but for limits of a site in its node config: privacy, epsilon, delta, min-samples. On a
    device, DIR is the folder of its node.
    """
    from dqnfed_flwr.deploy.build import refresh, refreshed

    place = _place(directory)
    with alone(place):
        written = refresh(place)
    for line in refreshed(place, written):
        typer.echo(line)


@app.command()
@reported
def check(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of the federation, or on a device the folder of its node.", readable=False
        ),
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not well.")] = False,
) -> None:
    """Look for all that keeps a federation from working, and say how to mend it.

    Exit status: 0 all is well or only warnings, 1 something must be mended, 2 DIR is no such folder, or another user's.
    """
    from dqnfed_flwr.deploy.check import check
    from dqnfed_flwr.deploy.findings import Level, failed

    findings = check(_place(directory))
    for finding in findings:
        if finding.level is not Level.OK or not quiet:
            _show(finding)
    if failed(findings):
        raise typer.Exit(FAILED)


@app.command()
@reported
def allow(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="On a device the folder of its node; at the server that of the federation.",
            readable=False,
        ),
    ],
    application: Annotated[
        str, typer.Argument(metavar="[APP]", help="Its hash, its folder or a .fab; this package's own by default.")
    ] = "",
) -> None:
    """Have a node run an app, from its next message on.

    Nodes run listed apps alone. The hash is over the content of all files; a run's settings do not count.

    \b
    Examples:
      dqnfed deploy allow /etc/dqnfed/nodes/node-0
      dqnfed deploy allow /etc/dqnfed/nodes/node-0 3f0a...
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy import apps

    found, nodes = apps.allow(_place(directory), application)
    typer.echo(f"{', '.join(node.name for node in nodes)}: app {found} is allowed")


for program in (flwr, superlink, supernode, warm):
    app.command(context_settings=TAKES_OTHERS)(program)
app.command()(identity)


def _place(directory: Path) -> Path:
    """The folder without `~`, `.` and `..`, as it is written into files; links in it stay links."""
    return Path(os.path.abspath(at_home(directory)))  # resolve() would follow links


def _show(finding: Finding) -> None:
    typer.echo(f"{finding.level:<8} {finding.what}")
    if finding.fix:
        typer.echo(f"         mend: {finding.fix}")
