"""Which node keys the SuperLink knows: register, unregister, look up. All through Flower's own command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dqnfed_flwr.deploy.files import write_public
from dqnfed_flwr.deploy.plan import CONNECTION, Federation
from dqnfed_flwr.engine.flwr_command import FlwrCommand, flwr_environment
from dqnfed_flwr.errors import RunError

REGISTERED = "registered.json"
IN_USE = "already in use"


def operator_command(directory: Path) -> FlwrCommand:
    """The `flwr` command with the connection of `directory`."""
    return FlwrCommand(flwr_environment(directory / "operator"))


def register(directory: Path, federation: Federation, flwr: FlwrCommand | None = None) -> dict[str, str]:
    """Register the keys of all nodes that the SuperLink does not know yet.

    Returns
    -------
    dict[str, str]
        What became of each node, by name: `registered`, `known` or why not.

    Raises
    ------
    RunError
        If no SuperLink answers.
    """
    flwr = flwr or operator_command(directory)
    present, ids, outcome = listed(flwr), known(directory), {}
    for node in federation.nodes:
        if ids.get(node.name) in present:
            outcome[node.name] = "known"
            continue
        answer = flwr.json(
            *("supernode", "register", str(directory / "nodes" / node.name / "node.pub"), CONNECTION),
            *("--name", node.name),
        )
        if "node-id" not in answer:
            outcome[node.name] = _refusal(answer)
            continue
        ids[node.name] = str(answer["node-id"])
        outcome[node.name] = "registered"
        write_public(directory / REGISTERED, json.dumps(ids, indent=2) + "\n")
    return outcome


def unregister(directory: Path, name: str, flwr: FlwrCommand | None = None) -> bool:
    """Unregister a node's key; False if it was never registered from here.

    Raises
    ------
    RunError
        If no SuperLink answers, or it refuses.
    """
    ids = known(directory)
    if name not in ids:
        return False
    flwr = flwr or operator_command(directory)
    if ids[name] in listed(flwr):
        answer = flwr.json("supernode", "unregister", ids[name], CONNECTION)
        if not answer.get("success"):
            raise RunError(f"{name} could not be unregistered: {answer.get('error-message', answer)}")
    del ids[name]
    write_public(directory / REGISTERED, json.dumps(ids, indent=2) + "\n")
    return True


def _refusal(answer: Mapping[str, Any]) -> str:
    told = " ".join(str(answer.get("error-message") or answer).split())
    if IN_USE not in told:
        return told
    return (
        f"its key is registered already, but {REGISTERED} here does not know as which node: restore that file from "
        "your backup, or `dqnfed deploy remove-node` it and add a new one"
    )


def listed(flwr: FlwrCommand) -> dict[str, str]:
    """State of every registered node (`registered`, `online`, `offline`), by Flower's id.

    Raises
    ------
    RunError
        If no SuperLink answers.
    """
    answer = flwr.json("supernode", "list", CONNECTION)
    if not answer.get("success"):
        raise RunError(f"the SuperLink does not answer: {answer.get('error-message', answer)}")
    nodes: list[Mapping[str, Any]] = answer.get("nodes", [])
    return {str(node["node-id"]): str(node["status"]) for node in nodes if node["status"] != "unregistered"}


def known(directory: Path) -> dict[str, str]:
    """Flower's ids of the nodes registered from here, by name."""
    try:
        found: dict[str, str] = json.loads((directory / REGISTERED).read_text())
    except (OSError, ValueError):
        return {}
    return found
