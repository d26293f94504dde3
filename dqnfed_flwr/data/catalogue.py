"""The sets known by name, and whether they are on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dqnfed_flwr.data.sets import TORCHVISION
from dqnfed_flwr.data.sources import FORMS, NAMED, is_source, source_npz
from dqnfed_flwr.data.store import data_root
from dqnfed_flwr.data.torchvision_sets import DOWNLOADS, TORCHVISION_SETS, torchvision_npz
from dqnfed_flwr.errors import DataError


@dataclass(frozen=True)
class Entry:
    """A set: its name, whether it is there, and where; or what to do to have it."""

    name: str
    state: str
    where: str


def catalogue() -> Iterator[Entry]:
    """All sets with a name, those that come by themselves first."""
    root = data_root()
    yield Entry("digits", "yes", "comes with scikit-learn")
    for name in sorted(TORCHVISION_SETS):
        begun = any((root / DOWNLOADS / name).glob("*"))
        missing = Entry(name, "begun" if begun else "no", f"fetched on first use, or by: dqnfed data fetch {name}")
        yield _kept(name) or missing
    for name, named in NAMED.items():
        lies = [root / place for _, place in named.candidates if (root / place).exists()]
        missing = Entry(name, "no", f"put {named.put.format(root=root)}")
        yield _kept(name) or (Entry(name, "to be decoded", str(lies[0])) if lies else missing)


def npz_of(name: str) -> Path:
    """Path of a set's arrays, fetched or decoded where that is still to be done.

    Raises
    ------
    DataError
        If the set is unknown, or cannot be had.
    """
    if is_source(name):
        return source_npz(name)
    if name.startswith(TORCHVISION) or name in TORCHVISION_SETS:
        return torchvision_npz(name.removeprefix(TORCHVISION))
    raise DataError(
        f"data: {name!r} is nothing to fetch or decode; allowed: {', '.join(sorted(TORCHVISION_SETS))}, "
        f"{', '.join(NAMED)}, or FORM:PATH with one of the forms {', '.join(FORMS)}"
    )


def _kept(name: str) -> Entry | None:
    file = data_root() / f"{name}.npz"
    return Entry(name, "yes", str(file)) if file.exists() else None
