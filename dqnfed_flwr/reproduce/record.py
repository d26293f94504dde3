"""`reproduction.json`: which parts of which manifest lie in a directory, so that a report finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.reproduce.schema import Manifest, check_manifest

REPRODUCTION = "reproduction.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A manifest as it was when it was run, and the commands that ran its parts."""

    name: str
    manifest: Manifest
    commands: dict[str, str]


def write_reproduction(directory: Path, reproduction: Reproduction) -> Path:
    """Write the record; commands of parts that were run before, under the same name, are kept.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    path = directory / REPRODUCTION
    before = read_reproduction(directory) if path.exists() else None
    kept = before.commands if before and before.name == reproduction.name else {}
    record = {
        "schema": SCHEMA,
        "name": reproduction.name,
        "manifest": reproduction.manifest.model_dump(by_alias=True),
        "commands": {**kept, **reproduction.commands},
    }
    try:
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def read_reproduction(directory: Path) -> Reproduction:
    """Read the record.

    Raises
    ------
    ConfigError
        If it is missing or damaged.
    """
    path = directory / REPRODUCTION
    try:
        found = json.loads(path.read_text("utf-8"))
        return Reproduction(found["name"], check_manifest(found["manifest"], str(path)), dict(found["commands"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read as a reproduction ({error})") from None
