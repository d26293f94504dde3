"""Commands of `dqnfed deploy` that run a program of Flower, as an operator or with what it lacks; and a site's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli.command import reported
from dqnfed_flwr.deploy.files import at_home
from dqnfed_flwr.errors import ConfigError

TAKES_OTHERS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""How typer has to read such a command: options behind the first word are the program's own."""


@reported
def flwr(
    place: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of the federation, or of an operator.", show_default=False)
    ],
    words: Annotated[list[str], typer.Argument(metavar="ARGUMENTS...", show_default=False)],
) -> None:
    """Run Flower's own command as an operator of the federation.

    \b
    Example:
      dqnfed deploy flwr federation supernode list dqnfed
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy.superlink import as_operator, operator_folder

    if (home := operator_folder(place)) is None:
        raise ConfigError(f"{place}: neither a federation's folder nor an operator's")
    command = as_operator(home)
    os.execve(command.command[0], [*command.command, *words], command.environment)


@reported
def superlink(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", show_default=False)],
    operators: Annotated[
        Path, typer.Option(metavar="DIR", help="Certificates of those who may use the Control API.", show_default=False)
    ],
    nodes: Annotated[
        Path, typer.Option(metavar="DIR", help="Certificates of nodes that may use the Fleet API.", show_default=False)
    ],
    audit: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the audit log.", show_default=False)],
) -> None:
    """Run a SuperLink that takes calls from operators and nodes of the federation alone.

    The commands of `deploy init` use it. The lists are read at every call.

    \b
    Example:
      dqnfed deploy superlink --operators operators --nodes nodes --audit state flower-superlink ...
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy.door import run_superlink

    run_superlink(command, operators, nodes, audit)


@reported
def supernode(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", show_default=False)],
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="The node's certificate.", show_default=False)],
) -> None:
    """Run a SuperNode that shows its certificate to the SuperLink.

    The commands of `deploy init` use it. The certificate is for the node's own key.

    \b
    Example:
      dqnfed deploy supernode --certificate node.crt flower-supernode --auth-supernode-private-key node.key ...
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy.node_certificates import run_supernode

    run_supernode(command, certificate)


@reported
def warm(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", show_default=False)],
    keep: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="Keep the libraries loaded for so long after the last client."),
    ] = 600.0,
    apps: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run only apps that are listed there; any app without it.", show_default=False
        ),
    ] = None,
) -> None:
    """Run a SuperExec whose ClientApps find torch and Flower loaded.

    Flower starts a process for every message to a client, and loading torch takes it longer than the work of a small
    model. Here every client is forked from a process that has them loaded, with the app of its own run. The commands of
    `deploy init` use it. Linux only; elsewhere COMMAND runs as it is.

    \b
    Example:
      dqnfed deploy warm --apps apps flower-superexec --insecure --runtime-api-address 127.0.0.1:9094 ...
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.deploy.prefork import run_preforked

    run_preforked(command, keep, apps)


@reported
def identity(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="On a device, the folder of its node.", readable=False)
    ],
) -> None:
    """Make a node's identity key where it stays, and show its public half; none that is there is replaced.

    identity.pub is for nodes/NAME of the federation's folder, where the key of that name is deleted, before `refresh`.
    """
    from dqnfed_flwr.deploy import identities

    typer.echo(identities.make(at_home(directory)))
