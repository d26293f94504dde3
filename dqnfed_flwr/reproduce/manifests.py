"""Manifests on disk: the shipped ones by name, a user's own by file, and those whose parts were run in a directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dqnfed_flwr.config import flatten, nest
from dqnfed_flwr.config.loading import read_own, read_yaml
from dqnfed_flwr.data.own_folder import absolute, folder_of, import_from
from dqnfed_flwr.errors import ConfigError, writing
from dqnfed_flwr.reproduce.measures import SHIPPED
from dqnfed_flwr.reproduce.schema import Manifest, ManifestRow, Part, Reduced, check_manifest
from dqnfed_flwr.run_files import UNREADABLE, replacing

REPRODUCTION = "reproduction.json"
S = TypeVar("S", Part, Reduced, ManifestRow)
SCHEMA = 2
"""1 held a single manifest, next to the schema."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A manifest as it was when it was run, and the commands that ran its parts."""

    name: str
    manifest: Manifest
    commands: dict[str, str]

    @property
    def key(self) -> str:
        """Its name in a directory: a shipped name, or that of the user's file, wherever it lies."""
        return Path(self.name).name


def manifest_names() -> list[str]:
    """Names of the shipped manifests, in the order in which a person counts."""
    names = [file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml")]
    return sorted(names, key=lambda name: [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)])


def load_manifest(name_or_path: str) -> Manifest:
    """Read and check a manifest: a shipped name, or a YAML file.

    Raises
    ------
    ConfigError
        If there is no such manifest, or it is at fault: naming the file, the key, and what is allowed.
    """
    found = _read(name_or_path)
    if isinstance(parts := found.get("parts"), dict):
        found["parts"] = {key: _like(part, f"{name_or_path}: parts.{key}", ()) for key, part in parts.items()}
    manifest = check_manifest(found, name_or_path)
    folder = folder_of(name_or_path, manifest_names())
    if folder is None:
        return manifest
    import_from(folder)
    return manifest.model_copy(update={"parts": {key: _rooted(part, folder) for key, part in manifest.parts.items()}})


def write_reproduction(directory: Path, reproduction: Reproduction) -> Path:
    """Put a manifest into the record, in place of an earlier form of itself.

    Commands of its other parts, and other manifests, are kept.

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
    manifests = [
        {"name": each.name, "manifest": each.manifest.model_dump(by_alias=True), "commands": each.commands}
        for each in found.values()
    ]
    text = json.dumps({"schema": SCHEMA, "manifests": manifests}, indent=2, ensure_ascii=False)
    with writing(path), replacing(path) as file:
        file.write(f"{text}\n".encode())
    return path


def read_reproductions(directory: Path) -> list[Reproduction]:
    """Read the record: one item a manifest, in the order in which they first ran.

    Raises
    ------
    ConfigError
        If it is missing or damaged.
    """
    path = directory / REPRODUCTION
    try:
        found = json.loads(path.read_text("utf-8"))
        return [
            Reproduction(item["name"], check_manifest(item["manifest"], str(path)), dict(item["commands"]))
            for item in found["manifests"]
        ]
    except UNREADABLE as error:
        raise ConfigError(f"{path}: cannot be read as a reproduction ({error})") from None


def _read(name: str) -> dict[str, Any]:
    if name in manifest_names():
        return read_yaml(SHIPPED.joinpath(f"{name}.yaml").read_text("utf-8"), name)
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{name!r} is no shipped manifest ({', '.join(manifest_names())}); a file of your own ends in .yaml"
        )
    return read_own(path, name, "dqnfed reproduce --list shows the shipped ones")


def _rooted(part: Part, folder: Path) -> Part:
    """A part of a user's file with absolute paths."""
    places = [folder, Path.cwd()]

    def rooted(one: S) -> S:
        return one.model_copy(update={"settings": nest(absolute(flatten(nest(one.settings)), places))})

    changed = {"reduced": rooted(part.reduced), "rows": [rooted(row) for row in part.rows]}
    return rooted(part).model_copy(update=changed)


def _like(part: Any, where: str, seen: tuple[str, ...]) -> Any:
    """A part over the one that it is like, and that over the one before."""
    if not isinstance(part, dict) or not part.get("like"):
        return part
    wanted = str(part["like"])
    source, _, key = wanted.partition(".")
    found = _read(source).get("parts", {}) if source in manifest_names() else {}
    if key not in found or wanted in seen:
        raise ConfigError(f"{where}.like: found {part['like']!r}; give MANIFEST.PART of a shipped manifest")
    base = _like(found[key], where, (*seen, wanted))
    return _merged(_nested(base, where), _nested(part, where))


def _nested(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A part whose settings, those of its reduced form too, are nested, however they were written."""
    nested = dict(part)
    if isinstance(nested.get("settings"), Mapping):
        try:
            nested["settings"] = nest(nested["settings"])
        except ConfigError as error:
            raise ConfigError(f"{where}.settings: {error}") from None
    if isinstance(nested.get("reduced"), Mapping):
        nested["reduced"] = _nested(nested["reduced"], f"{where}.reduced")
    return nested


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
