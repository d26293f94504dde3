"""Who nodes are to each other: in a masked run they trust no server with their keys.

Each has a private key in its folder, and a list of all, by partition. A site may hold its list against those of others
before it copies it, and change it by hand: it is the site's word on whom its client takes for a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from dqnfed_flwr.deploy.files import is_there, write_private, write_public
from dqnfed_flwr.deploy.plan import Node
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST
from dqnfed_flwr.masked.secrets import from_system, signing_public

PUBLIC = "identity.pub"
"""In hexadecimal, as the private key is."""


def write(directory: Path, nodes: Sequence[Node]) -> list[Path]:
    """Make the keys of nodes that have none, and the list of all for each; the files that have changed.

    A node whose folder is not kept here, or not its public key, is on no list.
    """
    found = {node: directory / "nodes" / node.name for node in nodes}
    places = {node: place for node, place in found.items() if place.is_dir()}
    changed = []
    for place in places.values():
        if not is_there(place / IDENTITY) and not is_there(place / PUBLIC):
            private = from_system(IDENTITY)
            write_private(place / IDENTITY, private.hex().encode())
            write_public(place / PUBLIC, signing_public(private).hex())
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
