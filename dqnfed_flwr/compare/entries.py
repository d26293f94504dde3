"""What the command line names: methods with settings of their own, seeds, and keys to search over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType

from dqnfed_flwr.config import GROUP_OF_METHOD, KNOWN, Scalar, Settings, is_retired, said_of
from dqnfed_flwr.config.loading import parse_scalar
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.table import profile_of

ALL = "all"
FIRST = ("dqn-fed", "fedavg")
"""The first rows where all methods are compared; the others follow in the order of the registry."""
Point = Mapping[str, Scalar]
NOTHING: Point = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the comparison.

    Attributes
    ----------
    method : str
        Its name.
    own : Point
        Settings given with it.
    axes : Mapping[str, tuple[Scalar, ...]]
        Keys to search over, each with its values.
    title : str
        Its name in tables.
    """

    method: str
    own: Point = field(default_factory=dict, hash=False)
    axes: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict, hash=False)
    title: str = ""

    @property
    def points(self) -> list[dict[str, Scalar]]:
        """The product of the axes, the last key changing fastest; one empty point where nothing is searched."""
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]

    @property
    def spec(self) -> str:
        """As it is given on the command line."""
        return "@".join([self.method, *(f"{key}={show(value)}" for key, value in self.own.items())])

    def named(self, point: Point) -> str:
        """`title`, with a point of the grid."""
        return self.title + (f" ({short(self.method, point)})" if point else "")


def parse_methods(text: str) -> list[Entry]:
    """Read `a,b@key=value@key=value,…`.

    Raises
    ------
    ConfigError
        Naming every method that is unknown or stands twice, and every setting that cannot be one of a single row.
    """
    if text.strip() == ALL:
        from dqnfed_flwr.methods.table import METHODS

        return [Entry(method) for method in sorted(METHODS, key=lambda name: [name != first for first in FIRST])]
    entries, faults = [], []
    for spec in (part.strip() for part in text.split(",")):
        method, *pairs = spec.split("@")
        try:
            entry = Entry(method, _own(pairs, f"--methods {spec}"))
            _check_name(method)
        except ConfigError as error:
            faults.append(str(error))
            continue
        faults += [f"--methods {spec}: {_for_all(key)}" for key in _common(entry.own)]
        if entry in entries:
            faults.append(f"--methods: {spec} is given twice")
        entries.append(entry)
    if faults:
        raise ConfigError("\n".join(faults))
    return entries


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `0,1,2`.

    Raises
    ------
    ConfigError
        If one is no whole number from 0, or stands twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds: found {text!r}; give whole numbers from 0, such as 0,1,2")
    seeds = tuple(int(part) for part in parts)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: found {text!r}, with a seed twice")
    return seeds


def with_grids(entries: Sequence[Entry], grids: Sequence[str], base: Point = NOTHING) -> list[Entry]:
    """Give every entry the axes of `KEY=V1,V2` that concern it where `base` is what all rows share.

    Raises
    ------
    ConfigError
        Naming every key that is unknown, that all rows must share, or that concerns none of the entries.
    """
    axes: dict[str, tuple[Scalar, ...]] = {}
    faults: list[str] = []
    for grid in grids:
        key, values = _axis(grid)
        if key in axes:
            faults.append(f"--grid: {key} is given twice")
        axes[key] = values
    known = Settings().flat()
    for key in axes:
        if key not in known:
            words = said_of(key) if is_retired(key) else f"{key}: unknown key; dqnfed settings lists all"
            faults.append(f"--grid {words}")
        elif _common([key]):
            faults.append(f"--grid {_for_all(key)}")
        elif not any(concerns(key, entry, base) for entry in entries):
            chosen = ", ".join(entry.spec for entry in entries)
            faults.append(f"--grid {key}: none of the methods has this key open ({chosen})")
    if faults:
        raise ConfigError("\n".join(faults))
    return [
        Entry(entry.method, entry.own, {key: values for key, values in axes.items() if concerns(key, entry, base)})
        for entry in entries
    ]


def concerns(key: str, entry: Entry, base: Point = NOTHING) -> bool:
    """Whether a key means something to a method that does not fix it already."""
    group, dot, _ = key.partition(".")
    return key not in entry.own and (not dot or group not in GROUP_OF_METHOD or group in groups_of(entry, base))


def groups_of(entry: Entry, base: Point = NOTHING) -> tuple[str, ...]:
    """The groups of settings that a method reads; one with stages reads also those of the method it ends with."""
    profile = profile_of(entry.method)
    last = {**base, **entry.own}.get(f"{profile.key}.{profile.last}") if profile.last else None
    return (profile.key, *((profile_of(str(last)).key,) if last else ()))


def short(method: str, point: Point) -> str:
    """A point as a person reads it: without the group where it is that of the method."""
    groups = groups_of(Entry(method))
    shown = ((key.partition(".")[2] if key.partition(".")[0] in groups else key, value) for key, value in point.items())
    return ", ".join(f"{key}={show(value)}" for key, value in shown)


def show(value: Scalar) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _check_name(method: str) -> None:
    try:
        profile_of(method)
    except ConfigError as error:
        raise ConfigError(f"--methods: {error}, or {ALL} by itself") from None


def shared(key: str) -> bool:
    """Whether rows can only be compared where this setting is the same; their folders, of course, differ."""
    return KNOWN[key].about in ("data", "experiment")


def check_overrides(keys: Iterable[str]) -> None:
    """Refuse keys of `--set` that rows, seeds and folders decide.

    Raises
    ------
    ConfigError
        Naming them, each with what to do.
    """
    if taken := [f"--set {key}: {KNOWN[key].instead}" for key in keys if key in KNOWN and KNOWN[key].instead]:
        raise ConfigError("\n".join(taken))


def _common(keys: Mapping[str, Scalar] | Sequence[str]) -> list[str]:
    return [key for key in keys if key in KNOWN and KNOWN[key].shared]


def _for_all(key: str) -> str:
    """Why a row cannot have a key of its own, and what to do."""
    if KNOWN[key].instead:
        return f"{key}: {KNOWN[key].instead}"
    return f"{key} must be the same for all; give it by --set"


def _own(pairs: Sequence[str], where: str) -> dict[str, Scalar]:
    own: dict[str, Scalar] = {}
    for key, value in (_pair(pair, where) for pair in pairs):
        if key in own:
            raise ConfigError(f"{where}: {key} is given twice")
        own[key] = value
    return own


def _pair(text: str, where: str) -> tuple[str, Scalar]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{where}: found {text!r}; give KEY=VALUE behind @")
    try:
        return key.strip(), parse_scalar(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _axis(grid: str) -> tuple[str, tuple[Scalar, ...]]:
    key, _, values = grid.partition("=")
    pairs = [_pair(f"{key}={value}", f"--grid {grid}") for value in values.split(",") if value.strip()]
    if not key.strip() or not pairs:
        raise ConfigError(f"--grid: found {grid!r}; give KEY=V1,V2, such as --grid q-ffl.q=0.1,1")
    found = tuple(value for _, value in pairs)
    if len(set(map(repr, found))) < len(found):
        raise ConfigError(f"--grid: found {grid!r}, with a value twice")
    return key.strip(), found
