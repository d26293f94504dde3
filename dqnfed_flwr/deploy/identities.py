"""Who nodes are to each other: in a masked run they trust no server with their keys.

Each has a private key in its folder, and a list of all, by partition. A site may hold its list against those of others
before it copies it, and change it by hand: it is the site's word on whom its client takes for a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from dqnfed_flwr.deploy.files import as_owner, is_there, write_private, write_public
from dqnfed_flwr.deploy.plan import Node
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST
from dqnfed_flwr.masked.secrets import from_system, signing_public

PUBLIC = "identity.pub"
"""In hexadecimal, as the private key is."""


def make(folder: Path) -> str:
    """Make the key of a node in a folder; its public half. `ConfigError` if there is one already, or no folder."""
    if there := [name for name in (IDENTITY, PUBLIC) if is_there(folder / name)]:
        raise ConfigError(
            f"{folder} has {' and '.join(there)} already, and no key is replaced; delete them for a new one"
        )
    if not folder.is_dir():
        raise ConfigError(f"{folder}: No such folder; name that of a node, as it was copied from the server")
    private = from_system(IDENTITY)
    public = signing_public(private).hex()
    with as_owner(folder):
        write_private(folder / IDENTITY, private.hex().encode())
        write_public(folder / PUBLIC, public)
    return public


def write(directory: Path, nodes: Sequence[Node]) -> list[Path]:
    """Make the keys of nodes that have none, and the list of all for each; the files that have changed.

    A node whose folder is not kept here, or not its public key, is on no list. Where only the public one is, the site
    has the other.
    """
    found = {node: directory / "nodes" / node.name for node in nodes}
    places = {node: place for node, place in found.items() if place.is_dir()}
    changed = []
    for place in places.values():
        if not is_there(place / IDENTITY) and not is_there(place / PUBLIC):
            make(place)
            changed.append(place / IDENTITY)
    peers = {
        node.name: {"partition": node.partition, "key": (place / PUBLIC).read_text("ascii").strip()}
        for node, place in places.items()
        if is_there(place / PUBLIC)
    }
    text = tomli_w.dumps({"peers": peers})
    for place in places.values():
        if not is_there(place / PEERS_LIST) or (place / PEERS_LIST).read_text("utf-8") != text:
            write_public(place / PEERS_LIST, text)
            changed.append(place / PEERS_LIST)
    return changed
