"""The files that say what a federation consists of: `federation.toml`, and `node.toml` on every device."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from dqnfed_flwr.deploy.files import as_owner, is_there, write_public
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.errors import ConfigError

PLAN, BUNDLE = "federation.toml", "node.toml"
BUNDLE_KEYS = {"name": str, "partition": int, "port": int, "data": str, "superlink": str, "flwr": str, "dqnfed": str}


def plan_text(federation: Federation) -> str:
    """Text of `federation.toml`."""
    return tomli_w.dumps(_plain(asdict(federation)))


def write_plan(directory: Path, federation: Federation) -> None:
    """Write `federation.toml`."""
    write_public(directory / PLAN, plan_text(federation))


def read_plan(directory: Path) -> Federation:
    """Read `federation.toml`.

    Raises
    ------
    ConfigError
        If there is none, or it cannot be read.
    """
    if not is_there(directory / PLAN):
        raise ConfigError(f"{directory}: no {PLAN} there; make a federation with `dqnfed deploy init {directory} ...`")
    try:
        with as_owner(directory):
            found = tomllib.loads((directory / PLAN).read_text("utf-8"))
        nodes = tuple(Node(**node) for node in found.pop("nodes", ()))
        return Federation(**{**found, "others": tuple(found.get("others", ())), "nodes": nodes})
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{directory / PLAN}: cannot be read ({error}); restore it from your backup") from None


def bundle_text(federation: Federation, node: Node) -> str:
    """Text of `node.toml`, by which a device checks its own folder."""
    about = {**asdict(node), "superlink": federation.superlink, "flwr": federation.flwr, "dqnfed": federation.dqnfed}
    return tomli_w.dumps(about)


def read_bundle(directory: Path) -> dict[str, Any]:
    """Read `node.toml`.

    Raises
    ------
    ConfigError
        If it cannot be read, or lacks what `bundle_text` wrote.
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
    return found


def _plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in mapping.items()}
