"""After an upgrade: what `init` wrote for other versions, written for those installed; keys and certificates stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from dqnfed_flwr.deploy.commands import command_files, node_files, server_environment
from dqnfed_flwr.deploy.files import changing, demand, is_there, write_public
from dqnfed_flwr.deploy.plan import Federation
from dqnfed_flwr.deploy.plan_files import BUNDLE, PLAN, plan_text, read_plan
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version


def refresh(directory: Path) -> list[Path]:
    """Set a federation's versions to those installed, and rewrite plan, environments and commands.

    Returns
    -------
    list[Path]
        The files that were written, which are those that have changed.

    Raises
    ------
    ConfigError
        If a folder is missing or another user's, or `directory` is that of a node; nothing was changed.
    RunError
        If the machine fails half way.
    """
    if is_there(directory / BUNDLE):
        raise ConfigError(
            f"{directory} is the folder of one node; refresh the federation at the server, and copy environment, "
            f"commands.txt and {BUNDLE} from its nodes/NAME"
        )
    directory = directory.absolute()
    federation = replace(read_plan(directory), flwr=version("flwr"), dqnfed=package_version())
    with changing(directory):
        texts = _texts(directory, federation)
        demand(list(dict.fromkeys(path.parent for path in texts)))
        stale = [path for path, text in texts.items() if not path.exists() or path.read_bytes() != text.encode()]
        for path in stale:
            write_public(path, texts[path])
    return stale


def _texts(directory: Path, federation: Federation) -> Mapping[Path, str]:
    """All files of a federation that hold no secret and are not an operator's, with what belongs into them."""
    texts = {directory / "server" / "environment": server_environment(federation)}
    texts |= {directory / "commands" / name: text for name, text in command_files(directory, federation).items()}
    for node in federation.nodes:
        place = directory / "nodes" / node.name
        texts |= {place / name: text for name, text in node_files(federation, node).items()}
    return {**texts, directory / PLAN: plan_text(federation)}
