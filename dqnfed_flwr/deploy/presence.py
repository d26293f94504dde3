"""Which nodes are online, by name where a federation's folder knows them, and how long a run waits for the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy.files import is_there
from dqnfed_flwr.deploy.plan import PLAN, read_plan
from dqnfed_flwr.deploy.registry import known_now, listed_by
from dqnfed_flwr.deploy.superlink import SuperLink

MOST_NAMED = 12
ONLINE = "online"


@dataclass(frozen=True, slots=True)
class Presence:
    """Nodes that are online, and those that should be, by name; by Flower's id where they have none here."""

    online: tuple[str, ...]
    missing: tuple[str, ...]


def presence(link: SuperLink, place: str) -> Presence:
    """Who is online; `RunError` if the SuperLink does not say."""
    states = listed_by(link)
    folder = Path(place).expanduser()
    try:
        known = known_now(folder, read_plan(folder)) if is_there(folder / PLAN) else {}
    except OSError:  # another user's keys: then by number
        known = {}
    return seen(states, {node_id: name for name, node_id in known.items()})


def seen(states: Mapping[str, str], names: Mapping[str, str]) -> Presence:
    """The same from states and names by Flower's id; a node with a name that the SuperLink does not list is missing."""
    online = [names.get(node, node) for node, state in states.items() if state == ONLINE]
    missing = [names.get(node, node) for node, state in states.items() if state != ONLINE]
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
