"""`reproduction.json`: which parts of which manifests lie in a directory, so that a report finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.reproduce.schema import Manifest, check_manifest

REPRODUCTION = "reproduction.json"
SCHEMA = 2
"""1 held a single manifest, beside the schema."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A manifest as it was when it was run, and the commands that ran its parts."""

    name: str
    manifest: Manifest
    commands: dict[str, str]

    @property
    def key(self) -> str:
        """What it is known by in a directory: a shipped name, or that of the user's file, wherever it lies."""
        return Path(self.name).name


def write_reproduction(directory: Path, reproduction: Reproduction) -> Path:
    """Put a manifest into the record, in place of an earlier form of itself; what others ran there is kept.

    Commands of its parts that were run before are kept too.

    Raises
    ------
    ConfigError
        If there is a record that cannot be read.
    RunError
        If it cannot be written.
    """
    path = directory / REPRODUCTION
    found = {each.key: each for each in read_reproductions(directory)} if path.exists() else {}
    before = found.get(reproduction.key)
    kept = before.commands if before else {}
    found[reproduction.key] = replace(reproduction, commands={**kept, **reproduction.commands})
    record = {"schema": SCHEMA, "manifests": [_written(each) for each in found.values()]}
    new = path.with_suffix(".new")
    try:
        new.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
        new.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def read_reproductions(directory: Path) -> list[Reproduction]:
    """Read the record: one entry a manifest, in the order in which they first ran.

    Raises
    ------
    ConfigError
        If it is missing or damaged.
    """
    path = directory / REPRODUCTION
    try:
        found = json.loads(path.read_text("utf-8"))
        return [_read(item, path) for item in found.get("manifests", [found])]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read as a reproduction ({error})") from None


def _written(reproduction: Reproduction) -> dict[str, Any]:
    return {
        "name": reproduction.name,
        "manifest": reproduction.manifest.model_dump(by_alias=True),
        "commands": reproduction.commands,
    }


def _read(item: Any, path: Path) -> Reproduction:
    return Reproduction(item["name"], check_manifest(item["manifest"], str(path)), dict(item["commands"]))
