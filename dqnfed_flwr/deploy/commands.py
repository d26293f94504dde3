"""The exact command of every role, and the environment in which it runs.

Commands name files relative to the folder of the role, so a folder works wherever it was copied to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from dqnfed_flwr.deploy.plan import BUNDLE, Federation, Node, bundle_text
from dqnfed_flwr.engine.flwr_command import CONNECTION, QUIET
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import LIMITS

ENVIRONMENT = {**QUIET, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Of all roles: Flower's own, and an executor that looks for work twice a second, not once."""
RESTART_SECONDS = 5
"""Pause before a command of `commands/` that failed is started again, as the units do; Ctrl-C is no failure."""
DEVICE = Path("/etc/dqnfed/nodes")
ENVIRONMENT_FILE, COMMANDS_FILE = "environment", "commands.txt"
_OPTION, _VARIABLE = "--node-config", "DQNFED_NODE_CONFIG"
_PAIR = re.compile(r"""(\S+?)=("[^"]*"|'[^']*'|\S+)""")  # as Flower reads a node config


def superlink_arguments(federation: Federation) -> list[str]:
    """Start the SuperLink, in `server/`."""
    return [
        *("dqnfed", "deploy", "superlink", "--operators", "operators", "--nodes", "nodes", "--audit", "state"),
        "flower-superlink",
        *("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"),
        "--enable-supernode-auth",
        *("--isolation", "process", "--superexec-auth-secret-file", "superexec.secret"),
        *("--database", "state/superlink.db"),
        *federation.transport.superlink_arguments(federation.fleet_port),
        *("--host", "127.0.0.1", "--port", str(federation.control_port)),
    ]


def superexec_arguments(federation: Federation) -> list[str]:
    """Start the SuperExec that starts ServerApps, in `server/`."""
    return [
        *("flower-superexec", "--root-certificates", "ca.crt"),
        *("--runtime-api-address", f"127.0.0.1:{federation.control_port}"),
        *("--superexec-auth-secret-file", "superexec.secret"),
    ]


def supernode_arguments(federation: Federation, node: Node, limits: str = "") -> list[str]:
    """Start a SuperNode, in its folder; `limits` of its site go into its node config."""
    return [
        *("dqnfed", "deploy", "supernode", "--certificate", "node.crt", "flower-supernode"),
        *("--root-certificates", "ca.crt", "--superlink", federation.superlink),
        *("--auth-supernode-private-key", "node.key", _OPTION, node.config + limits),
        *("--isolation", "process", "--superexec-auth-secret-file", "superexec.secret"),
        *("--host", "127.0.0.1", "--port", str(node.port)),
    ]


def node_superexec_arguments(node: Node) -> list[str]:
    """Start the SuperExec that starts ClientApps, in the node's folder; its connection stays on loopback."""
    return [
        *("dqnfed", "deploy", "warm", "--apps", "apps", "flower-superexec"),
        *("--insecure", "--runtime-api-address", f"127.0.0.1:{node.port}"),
        *("--superexec-auth-secret-file", "superexec.secret"),
    ]


def server_environment(federation: Federation) -> str:
    """Environment of SuperLink and its SuperExec, for a shell or systemd."""
    return _environment(
        DQNFED_FLEET_ADDRESS=f"0.0.0.0:{federation.fleet_port}", DQNFED_CONTROL_PORT=str(federation.control_port)
    )


def node_files(federation: Federation, node: Node, limits: str = "") -> dict[str, str]:
    """Texts of a node's folder, by file name, made for the place where units look for it on a device."""
    about = {"DQNFED_SUPERLINK": federation.superlink, "DQNFED_NODE_PORT": str(node.port)}
    return {
        ENVIRONMENT_FILE: _environment(**about, **{_VARIABLE: node.config + limits}),
        COMMANDS_FILE: _node_commands(federation, node, DEVICE / node.name, limits),
        BUNDLE: bundle_text(federation, node),
    }


def command_files(directory: Path, federation: Federation, limits: Mapping[str, str]) -> dict[str, str]:
    """Texts of `commands/`, by file name; `limits` are those of sites, by node."""
    server, home = directory / "server", 'FLWR_HOME="$PWD/state/flwr"'
    state = 'DQNFED_OUTPUT="$PWD/state/runs" DQNFED_METRICS="$PWD/state/metrics"'
    clients = 1 + max((node.partition for node in federation.nodes), default=-1)
    return {
        "superlink.txt": _shell(server, home, superlink_arguments(federation)),
        "superexec.txt": _shell(server, f"{home} {state}", superexec_arguments(federation)),
        "operator.txt": _operator_commands(directory, clients),
        **{
            f"{node.name}.txt": _node_commands(
                federation, node, directory / "nodes" / node.name, limits.get(node.name, "")
            )
            for node in federation.nodes
        },
    }


def limits_in(directory: Path, federation: Federation) -> dict[str, str]:
    """What sites have set of `LIMITS` in a federation's folder, by node, each as text that follows its node config."""
    return {
        node.name: limits_of(directory / "nodes" / node.name, directory / "commands" / f"{node.name}.txt")
        for node in federation.nodes
    }


def limits_of(place: Path, *more: Path) -> str:
    """The same of one node, from the files of its folder and `more`; empty where there are none.

    `ConfigError` if these say different things, or one cannot be read.
    """
    found: dict[str, str] = {}
    for path in (place / ENVIRONMENT_FILE, place / COMMANDS_FILE, *more):
        try:
            pairs = _limit_pairs(path.read_text("utf-8") if path.exists() else "")
        except ValueError as error:
            raise ConfigError(
                f"{path}: its node config cannot be read ({error}); mend it, or delete the file"
            ) from None
        for key, value in pairs:
            if found.setdefault(key, value) != value:
                raise ConfigError(
                    f"{path}: found {key}={value} in the node config, and {key}={found[key]} in another file of this "
                    "node; let its site say the same in both"
                )
    return "".join(f' {key}="{value}"' for key, value in found.items())


def _limit_pairs(text: str) -> Sequence[tuple[str, str]]:
    """Of the node configs in a file."""
    lines = [line for line in text.splitlines() if _OPTION in line or line.startswith(f"{_VARIABLE}=")]
    configs = [
        word.removeprefix(f"{_OPTION}=").removeprefix(f"{_VARIABLE}=")
        for line in lines
        for before, word in pairwise(["", *shlex.split(line, comments=True)])
        if before == _OPTION or word.startswith((f"{_OPTION}=", f"{_VARIABLE}="))
    ]
    pairs = _PAIR.findall(" ".join(configs))
    return [(key, value.strip("\"'")) for key, value in pairs if key in LIMITS]


def _node_commands(federation: Federation, node: Node, place: Path, limits: str) -> str:
    """Both commands of a device; `place` is where its folder lies."""
    home = 'FLWR_HOME="$PWD/flwr"'
    return (
        f"# The SuperNode; copy the folder {node.name} to the device and change the path below.\n"
        + _shell(place, home, supernode_arguments(federation, node, limits))
        + "\n# Its SuperExec, in a second shell.\n"
        + _shell(place, home, node_superexec_arguments(node))
    )


def _operator_commands(directory: Path, clients: int) -> str:
    """What an operator types."""
    place = shlex.quote(str(directory))
    return (
        "# Once, and after every add-node, when the SuperLink runs: who may take part.\n"
        f"dqnfed deploy register {place}\n"
        f"\n# Is everything as it should be?\ndqnfed deploy check {place}\n"
        f"\n# A run; results go to {place}/server/state/runs/RUN, with the systemd units to\n"
        "# /var/lib/dqnfed/server/runs/RUN, unless --output names another folder on the server.\n"
        f"dqnfed submit digits {place} --set clients={clients}\ndqnfed runs {place}\n"
        f"\n# The same with Flower's own command.\ndqnfed deploy flwr {place} list {CONNECTION}\n"
    )


def _shell(place: Path, variables: str, arguments: list[str]) -> str:
    enter = f"cd {shlex.quote(str(place))} && set -a && . ./environment && set +a"
    return f"{enter} &&\nuntil {variables} {shlex.join(arguments)}; do sleep {RESTART_SECONDS}; done\n"


def _environment(**variables: str) -> str:
    quoted = {name: value.replace('"', '\\"') for name, value in {**ENVIRONMENT, **variables}.items()}
    return "".join(f'{name}="{value}"\n' for name, value in quoted.items())
