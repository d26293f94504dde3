"""Which node keys the SuperLink knows: register, unregister, look up, and who is online. All through Flower's command.

What asks the SuperLink raises `RunError` if none answers; what writes here `ConfigError` if the folder is another
user's.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.deploy.files import alone, changing, is_there, write_public
from dqnfed_flwr.deploy.pki import fingerprint
from dqnfed_flwr.deploy.plan import PLAN, Federation, read_plan
from dqnfed_flwr.deploy.superlink import SuperLink, link_of, patiently
from dqnfed_flwr.errors import RunError

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings

REGISTERED = "registered.json"
IN_USE = "already in use"
START_SECONDS = 60.0
"""How long a SuperLink that was just started may take to answer."""
MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """What is remembered of a registered node: Flower's id for it, and the fingerprint of the key."""

    node_id: str
    key: str


@dataclass(frozen=True, slots=True)
class Presence:
    """Nodes that are online, and those that should be, by name; by Flower's id where they have none here."""

    online: tuple[str, ...]
    missing: tuple[str, ...]


def register(directory: Path, federation: Federation, say: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Register the keys of all nodes that the SuperLink does not know yet.

    If the SuperLink does not answer, it is asked again for up to `START_SECONDS`, and `say` is told so once.

    A node is known if its present key was registered. Returned is, by name, what became of each node: `registered`,
    `known` or why not.
    """
    link, outcome = link_of(directory), {}
    with changing(directory):
        present, entries = patiently(lambda: listed(link), START_SECONDS, say), _entries(directory)
        for node in federation.nodes:
            key, entry = _key(directory, node.name), entries.get(node.name)
            if entry and entry.node_id in present and key in ("", entry.key):
                outcome[node.name] = "known"
                continue
            file = directory / "nodes" / node.name / "node.pub"
            answer = link.flwr.json("supernode", "register", str(file), link.connection, "--name", node.name)
            if "node-id" in answer:
                outcome[node.name] = "registered"
                _keep(directory, node.name, RegisteredNode(str(answer["node-id"]), key))
            else:
                outcome[node.name] = _refusal(answer)
    return outcome


def unregister(directory: Path, name: str) -> bool:
    """Unregister a node's key; False if it was never registered from here, `RunError` if the SuperLink refuses."""
    with changing(directory):
        entries = _entries(directory)
        if name not in entries:
            return False
        link, node_id = link_of(directory), entries[name].node_id
        if node_id in listed(link):
            answer = link.flwr.json("supernode", "unregister", node_id, link.connection)
            if not answer.get("success"):
                raise RunError(f"{name} could not be unregistered: {answer.get('error-message', answer)}")
        _keep(directory, name, None)
    return True


def unregistered_keys(directory: Path) -> list[str]:
    """Flower's ids of registered nodes of which this folder does not know which they are."""
    return sorted(set(listed(link_of(directory))) - set(known(directory).values()))


def _refusal(answer: Mapping[str, Any]) -> str:
    reason = " ".join(str(answer.get("error-message") or answer).split())
    if IN_USE not in reason:
        return reason
    return (
        f"its key is registered already, but {REGISTERED} here does not know as which node: restore that file from "
        "your backup, or `dqnfed deploy remove-node` it and add a new one"
    )


def listed(link: SuperLink) -> dict[str, str]:
    """State of every registered node (`registered`, `online`, `offline`), by Flower's id."""
    nodes: list[Mapping[str, Any]] = link.ask("supernode", "list", link.connection).get("nodes", [])
    return {str(node["node-id"]): str(node["status"]) for node in nodes if node["status"] != "unregistered"}


def known(directory: Path) -> dict[str, str]:
    """Flower's ids of the nodes registered from here, by name; of removed ones too, if that was offline."""
    return {name: entry.node_id for name, entry in _entries(directory).items()}


def names_of(place: str) -> dict[str, str]:
    """Names of the nodes registered from the folder `place`, by Flower's id; none where it is no such folder."""
    try:
        return {node_id: name for name, node_id in known(Path(place).expanduser()).items()}
    except OSError:
        return {}


def known_now(directory: Path, federation: Federation) -> dict[str, str]:
    """Flower's ids of the nodes of `federation` whose present keys were registered from here, by name."""
    names = {node.name for node in federation.nodes}
    return {
        name: entry.node_id
        for name, entry in _entries(directory).items()
        if name in names and _key(directory, name) in ("", entry.key)
    }


def presence(link: SuperLink, place: str) -> Presence:
    """Who is online; a node of the folder `place` that the SuperLink does not list is missing."""
    states, folder = listed(link), Path(place).expanduser()
    try:
        ids = known_now(folder, read_plan(folder)) if is_there(folder / PLAN) else {}
    except OSError:  # another user's keys: then by number
        ids = {}
    names = {node_id: name for name, node_id in ids.items()}
    online = [names.get(node, node) for node, state in states.items() if state == "online"]
    missing = [names.get(node, node) for node, state in states.items() if state != "online"]
    missing += [name for node, name in names.items() if node not in states]
    return Presence(tuple(sorted(online)), tuple(sorted(missing)))


def awaited(found: Presence, settings: Settings, now: dt.datetime) -> str:
    """Who a run that begins `now` waits for and until when; empty where enough nodes are online."""
    there = len(found.online)
    if there >= settings.clients:
        return ""
    names = ", ".join(found.missing[:MOST_NAMED]) or "nodes that are not registered"
    more = f" and {len(found.missing) - MOST_NAMED} more" if len(found.missing) > MOST_NAMED else ""
    enough = there >= settings.min_clients
    deadlines = 1 if enough else 1 + settings.retries
    end = now + dt.timedelta(seconds=deadlines * settings.deadline)
    then = "begins without them" if enough else f"fails with fewer than {settings.min_clients}"
    return (
        f"{there} of {settings.clients} nodes are online; missing: {names}{more}. The run waits for them until "
        f"{end:%Y-%m-%d %H:%M:%S}, then it {then}. Start them, or look at their logs"
    )


def _key(directory: Path, name: str) -> str:
    """Fingerprint of a node's present key; empty if there is none."""
    try:
        return fingerprint((directory / "nodes" / name / "node.pub").read_bytes())
    except FileNotFoundError:
        return ""


def _entries(directory: Path) -> dict[str, RegisteredNode]:
    """What is remembered; nothing where the file is missing or damaged, so that those nodes count as unknown."""
    try:
        found = json.loads((directory / REGISTERED).read_text("utf-8"))
        return {name: RegisteredNode(str(entry["id"]), str(entry["key"])) for name, entry in found.items()}
    except (FileNotFoundError, ValueError, LookupError, AttributeError, TypeError):
        return {}


def _keep(directory: Path, name: str, entry: RegisteredNode | None) -> None:
    """Remember one node, or with None forget it; others that another command remembered meanwhile stay."""
    with alone(directory):
        entries = {**_entries(directory), name: entry}
        plain = {name: {"id": one.node_id, "key": one.key} for name, one in entries.items() if one is not None}
        write_public(directory / REGISTERED, json.dumps(plain, indent=2) + "\n")
