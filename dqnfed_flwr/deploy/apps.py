"""Which apps a node runs: a folder `apps` with a file for each, named after the hash of the app's content.

The node's SuperExec, under `dqnfed deploy warm --apps`, looks there for every message; `prefork.allowed` says at what.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy.files import as_owner, changing, give_away, is_there, write_public
from dqnfed_flwr.deploy.plan import BUNDLE, read_plan
from dqnfed_flwr.deploy.prefork.allowed import NotAllowedError, app_hash, bundle_files
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version

FOLDER, FOLDER_MODE = "apps", 0o755
_HASH = re.compile("[0-9a-f]{64}")


@cache
def own_hash() -> str:
    """The hash of the app that `dqnfed submit` sends, as it is installed here."""
    with tempfile.TemporaryDirectory(prefix="dqnfed-") as place:
        write_app(Path(place) / "app", Settings())
        return hash_of_folder(Path(place) / "app")


def hash_of_folder(app: Path) -> str:
    """The hash of an app that Flower would build from a folder; `ConfigError` if it cannot."""
    from flwr.cli.build import build_fab_from_disk

    try:
        return app_hash(bundle_files(build_fab_from_disk(app)))
    except (ValueError, OSError, LookupError, NotAllowedError) as error:
        raise ConfigError(f"{app}: no Flower app ({error}); name a folder with its pyproject.toml") from None


def hash_of(app: str) -> str:
    """The hash that `app` means: one itself, a folder, a packed app (.fab), or empty for this package's own."""
    if not app:
        return own_hash()
    if _HASH.fullmatch(app):
        return app
    path = Path(app).expanduser()
    if path.is_dir():
        return hash_of_folder(path)
    try:
        return app_hash(bundle_files(path.read_bytes()))
    except (OSError, ValueError, NotAllowedError) as error:
        raise ConfigError(
            f"APP: found {app!r}; give a hash of 64 digits, the folder of a Flower app or a .fab file ({error})"
        ) from None


def write(place: Path, found: str, words: str = "") -> None:
    """List an app in a node's folder, readable for a client that is another user; `words` say what it is."""
    folder = place / FOLDER
    if not folder.exists():
        folder.mkdir()
        give_away(folder)
    folder.chmod(FOLDER_MODE)
    write_public(folder / found, f"{words or f'dqnfed-flwr {package_version()}'}\n")


def allow(directory: Path, app: str) -> tuple[str, list[Path]]:
    """List an app in the folder of a node, or those of all nodes of a federation; its hash, and the nodes' folders."""
    found = hash_of(app)
    if is_there(directory / BUNDLE):
        nodes = [directory]
    else:
        nodes = [directory / "nodes" / node.name for node in read_plan(directory).nodes]
    here = [node for node in nodes if node.is_dir()]
    if not here:
        raise ConfigError(f"{directory}: no node's folder is here; do this on the device, with the folder there")
    with changing(directory):
        for node in here:
            write(node, found, app)
    return found, here


def allowed(place: Path) -> list[str]:
    """Hashes of the apps that a node runs."""
    with as_owner(place):
        return sorted(path.name for path in (place / FOLDER).glob("*") if _HASH.fullmatch(path.name))


def untold(directory: Path, found: str) -> list[str]:
    """Nodes of a federation's folder whose list, as it lies here, has not that app."""
    nodes = [directory / "nodes" / node.name for node in read_plan(directory).nodes]
    return [node.name for node in nodes if (node / FOLDER).is_dir() and found not in allowed(node)]
