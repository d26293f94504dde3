"""The sets known by name, and whether they are on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dqnfed_flwr.data.forms import FORMS, NAMED, Named
from dqnfed_flwr.data.npz import checksums, map_kept
from dqnfed_flwr.data.sets import npz_file
from dqnfed_flwr.data.sources import is_source
from dqnfed_flwr.data.store import data_root, readable
from dqnfed_flwr.data.torchvision_sets import DOWNLOADS, TORCHVISION_SETS
from dqnfed_flwr.errors import DataError


@dataclass(frozen=True)
class Entry:
    """A set: its name, whether it is there, and where; or what to do to have it."""

    name: str
    state: str
    where: str


def catalogue() -> Iterator[Entry]:
    """All sets with a name, those that come by themselves first."""
    yield Entry("digits", "yes", "comes with scikit-learn")
    with readable():
        yield from (_kept(name) or _public(name) for name in sorted(TORCHVISION_SETS))
        yield from (_kept(name) or _to_be_put(name, named) for name, named in NAMED.items())


def npz_of(name: str) -> Path:
    """Path of a set's arrays, fetched or decoded where that is still to be done.

    Raises
    ------
    DataError
        If the set is unknown, or cannot be had.
    """
    if not name.endswith(".npz") and (path := npz_file(name)) is not None:
        if is_source(name):  # the public sets are checked wherever they are asked for
            map_kept(path)
        return path
    raise DataError(
        f"data: {name!r} is nothing to fetch or decode; allowed: {', '.join(sorted(TORCHVISION_SETS))}, "
        f"{', '.join(NAMED)}, or FORM:PATH with one of the forms {', '.join(FORMS)}"
    )


def _kept(name: str) -> Entry | None:
    file = data_root() / f"{name}.npz"
    if not file.exists():
        return None
    try:
        checksums(file)
    except DataError:
        return Entry(name, "damaged", f"{file}: delete it, and it is made anew")
    return Entry(name, "yes", str(file))


def _public(name: str) -> Entry:
    begun = any((data_root() / DOWNLOADS / name).glob("*"))
    return Entry(name, "begun" if begun else "no", f"fetched on first use, or by: dqnfed data fetch {name}")


def _to_be_put(name: str, named: Named) -> Entry:
    root = data_root()
    lies = [root / place for _, place in named.candidates if (root / place).exists()]
    if lies:
        return Entry(name, "to be decoded", str(lies[0]))
    return Entry(name, "no", f"put {named.put.format(root=root)}")
