"""The folder of a user's YAML file: his modules are imported from it, and the relative paths in it begin there.

That holds where the clients are on this machine. Nodes have their own paths and modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from dqnfed_flwr.config import KNOWN, Settings, flatten, nest
from dqnfed_flwr.config.loading import load_config, shipped
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.data.user import is_object

INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders that hold installed packages."""
_used: list[str] = []
"""Folders that this process imported from, the latest first."""


def load_own(name_or_path: str | Path) -> dict[str, Any]:
    """Read an experiment as `load_config` does, by dotted keys, with absolute paths; modules beside it can be imported.

    A relative path begins in the folder of the file; one that is not there, but in the working directory, is taken
    from there.

    Raises
    ------
    ConfigError
        As `load_config`.
    """
    flat = flatten(nest(load_config(name_or_path)))
    folder = folder_of(name_or_path, shipped())
    if folder is None:
        return dict(flat)
    import_from(folder)
    return absolute(flat, [folder, Path.cwd()])


def own_settings(config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Dotted keys, unchecked, of a mapping, whose relative paths begin in the working directory, or as `load_own`."""
    if isinstance(config, Mapping):
        return absolute(flatten(nest(config)), [Path.cwd()])
    return load_own(config)


def folder_of(name_or_path: str | Path, names: Sequence[str]) -> Path | None:
    """Where a file of the user's lies; None for one of the shipped `names`."""
    return None if str(name_or_path) in names else Path(name_or_path).expanduser().parent.resolve()


def absolute(flat: Mapping[str, Any], places: Sequence[Path]) -> dict[str, Any]:
    """Settings by dotted keys, the relative paths among them begun at the first of `places` where they exist.

    One that exists nowhere begins at the first place.
    """

    def placed(text: str) -> str:
        path = Path(text).expanduser()
        found = next((place / path for place in places if (place / path).exists()), places[0] / path)
        return str(found.parent.resolve() / found.name)

    found = dict(flat)
    for key, value in flat.items():
        if not isinstance(value, str) or not value:
            continue
        if key == "data":
            found[key] = source_of(value).placed(placed)
        elif key in KNOWN and KNOWN[key].path:
            found[key] = placed(value)
    return found


def import_from(folder: Path) -> None:
    """Put a folder on the import path, behind the standard library and before installed packages.

    A module of the same name that came from an earlier such folder is forgotten, so that this one's is imported.
    """
    place = str(folder)
    earlier = [used for used in _used if used != place]
    for found in iter_modules([place]):
        module = sys.modules.get(found.name)
        if module is not None and _home(module) in earlier:
            for name in [name for name in sys.modules if name.partition(".")[0] == found.name]:
                del sys.modules[name]
    _used[:] = [place, *earlier]
    others = [entry for entry in sys.path if entry not in _used]
    at = next((at for at, entry in enumerate(others) if Path(entry).name in INSTALLED), 0)
    sys.path[:] = [*others[:at], *_used, *others[at:]]


def module_folders(settings: Settings) -> tuple[str, ...]:
    """Folders from which what `task`, `data` and `model` name was imported here, each once."""
    modules = (sys.modules.get(name) for name in _modules(settings))
    return tuple(dict.fromkeys(home for module in modules if module is not None and (home := _home(module))))


def import_again(settings: Settings, folders: Sequence[str]) -> None:
    """Make modules of a run importable that are not: the `folders` from which it had them go last on the path."""
    if any(not _there(name) for name in _modules(settings)):
        sys.path += [folder for folder in folders if folder not in sys.path and Path(folder).is_dir()]


def _modules(settings: Settings) -> Iterator[str]:
    """First packages or modules of the user's task and functions."""
    named = [settings.task, settings.model, *([settings.data] if source_of(settings.data).is_code else [])]
    for name in named:
        if ":" in name and not is_object(name):
            yield name.partition(":")[0].partition(".")[0]


def _there(name: str) -> bool:
    with suppress(ValueError, ImportError):
        return name in sys.modules or find_spec(name) is not None
    return False


def _home(module: ModuleType) -> str:
    """The folder on the import path from which a module came; empty where it came from no folder."""
    file = getattr(module, "__file__", None) or ""
    place = Path(file).parent
    return str(place.parent if hasattr(module, "__path__") else place) if file else ""
