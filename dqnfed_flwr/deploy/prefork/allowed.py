"""Which apps a node runs: those whose content its owner has listed, looked at anew in every process of a client.

Loaded by path, without the package, in processes that have not loaded any app yet; only the standard library is needed
until `guard` finds Flower there. Run as a script, `python allowed.py flwr-clientapp OPTIONS`, it is that program of
Flower with the look at apps before it.

The hash of an app is over names and contents of its files. Of pyproject.toml the table `tool.flwr.app.config` does not
count: it holds a run's settings, which are another at every submission. Three things are held against it: what the
SuperNode hands over, the files as they lie installed, and every source file once more when it is imported. Compiled
files are not read, for they may say something else than their source.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from importlib.machinery import FileFinder, SourceFileLoader
from importlib.metadata import distribution
from pathlib import Path
from types import CodeType
from typing import Any

PROJECT, INFO, CACHE = "pyproject.toml", ".info/", "__pycache__"
LARGEST_APP = 100_000_000
"""Bytes of an app's files together; Flower's own limit, of the packed app, is 10 MB."""

Manifest = dict[str, str]
"""SHA-256 of the files of an app, by their paths in it."""


class NotAllowedError(Exception):
    """The node's owner has not allowed the app, or it is not what was allowed."""


def bundle_files(bundle: bytes) -> dict[str, bytes]:
    """Files of a packed app (FAB), without its own list of them; `NotAllowedError` if there are too many bytes."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        members = [member for member in packed.infolist() if not member.is_dir()]
        if sum(member.file_size for member in members) > LARGEST_APP:
            raise NotAllowedError(f"the app is larger than {LARGEST_APP} bytes")
        return {one.filename: packed.read(one) for one in members if not one.filename.startswith(INFO)}


def manifest_of(files: Mapping[str, bytes]) -> Manifest:
    """Hashes of files."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def app_hash(files: Mapping[str, bytes]) -> str:
    """The hash by which an app is allowed; `NotAllowedError` if it has no readable pyproject.toml."""
    try:
        project = tomllib.loads(files[PROJECT].decode())
        project["tool"]["flwr"]["app"].pop("config", None)
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise NotAllowedError(f"the app has no {PROJECT} of a Flower app ({error})") from None
    plain = json.dumps(project, sort_keys=True, default=str).encode()
    return hashlib.sha256(json.dumps(sorted(manifest_of({**files, PROJECT: plain}).items())).encode()).hexdigest()


def settings_in(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The run config of an app, which its hash does not cover."""
    found = tomllib.loads(files[PROJECT].decode())["tool"]["flwr"]["app"].get("config", {})
    return dict(found) if isinstance(found, dict) else {}


def difference(manifest: Manifest, place: Path) -> str:
    """What an installed app has otherwise than `manifest`: the first such file; empty if there is none."""
    everything = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*"))}
    found = {name: path for name, path in everything.items() if path.is_symlink() or not path.is_dir()}
    for name, path in found.items():
        if CACHE in Path(name).parts and not path.is_symlink():
            continue  # never read: see `Sources`
        if name not in manifest:
            return f"{name} was added"
        if path.is_symlink() or hashlib.sha256(path.read_bytes()).hexdigest() != manifest[name]:
            return f"{name} was changed"
    return next((f"{name} is missing" for name in sorted(manifest) if name not in found), "")


class Sources(SourceFileLoader):
    """Loads a module of an app from its source, if that is as listed."""

    def __init__(self, name: str, path: str, place: Path, manifest: Manifest) -> None:
        super().__init__(name, path)
        self.place, self.manifest = place, manifest

    def get_code(self, fullname: str) -> CodeType:
        """Compile what was looked at."""
        path = self.get_filename(fullname)
        real, content = Path(path).resolve(), Path(path).read_bytes()
        name = real.relative_to(self.place).as_posix() if real.is_relative_to(self.place) else ""
        if hashlib.sha256(content).hexdigest() != self.manifest.get(name):
            raise NotAllowedError(f"{path} was changed after its app was allowed")
        return compile(content, path, "exec", dont_inherit=True)


def only_sources_below(given: Path, manifest: Manifest) -> None:
    """Have all modules below `place`, whatever links lead there, loaded by `Sources`."""
    place = given.resolve()

    class Mine(Sources):
        def __init__(self, name: str, path: str) -> None:
            super().__init__(name, path, place, manifest)

    def hook(path: str) -> FileFinder:
        if not (Path(path).is_relative_to(given) or Path(path).resolve().is_relative_to(place)):
            raise ImportError
        return FileFinder(path, (Mine, [".py"]))

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def guard(folder: Path, client: Any) -> None:
    """Have Flower's module `client` (flwr.supernode.runtime.run_clientapp) run no app that is not listed in `folder`.

    It fails where the module has not the functions that are replaced: a later Flower runs nothing rather than anything.
    """
    install: Callable[..., Path] = client.install_from_fab
    loader: Callable[..., Callable[[str, str, str], Any]] = client.get_load_client_app_fn
    place_of: Callable[[str, str, str], Path] = client.get_project_dir
    looked_at: list[Path] = []

    def install_allowed(bundle: bytes, *given: Any, **options: Any) -> Path:
        files = bundle_files(bundle)
        found = app_hash(files)
        if not (folder / found).is_file():
            raise NotAllowedError(
                f"this node does not run app {found}: its owner has not allowed it. On the device: "
                f"dqnfed deploy allow {folder.parent} {found}"
            )
        place = install(bundle, *given, **options)
        if words := difference(manifest_of(files), place):
            raise NotAllowedError(f"the installed app {place} is not the one that was allowed: {words}; remove it")
        only_sources_below(place, manifest_of(files))
        looked_at.append(place.resolve())
        return place

    def load_allowed(*given: Any, **options: Any) -> Callable[[str, str, str], Any]:
        load = loader(*given, **options)

        def load_looked_at(fab_id: str, fab_version: str, fab_hash: str) -> Any:
            place = place_of(fab_id, fab_version, fab_hash).resolve()
            if place not in looked_at:
                raise NotAllowedError(f"{place} is not the app that came with the message")
            return load(fab_id, fab_version, fab_hash)

        return load_looked_at

    client.install_from_fab, client.get_load_client_app_fn = install_allowed, load_allowed


def guard_this_process() -> None:
    """Do so if the environment names a folder of allowed apps."""
    if folder := os.environ.get("DQNFED_APPS"):
        guard(Path(folder), importlib.import_module("flwr.supernode.runtime.run_clientapp"))


def main() -> None:
    """Be the program that the first argument names."""
    del sys.argv[0]
    guard_this_process()
    (found,) = distribution("flwr").entry_points.select(group="console_scripts", name=sys.argv[0])
    sys.exit(found.load()())


if __name__ == "__main__":
    main()
