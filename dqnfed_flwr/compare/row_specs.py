"""What the command line names: methods with settings of their own, seeds, and keys to search over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from dqnfed_flwr.config import GROUP_OF_METHOD, KNOWN, PRESETS, Scalar, Settings, resolve, unknown_key, without_effect
from dqnfed_flwr.config.loading import parse_scalar
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.errors import ConfigError

ALL = "all"
FIRST = ("dqn-fed", "fedavg")
"""The first rows where all methods are compared; the others follow in alphabetical order."""
Point = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class RowSpec:
    """A row of the comparison, as it is asked for.

    Attributes
    ----------
    method, title : str
        Its name, and its name in tables.
    own : Point
        Settings given with it.
    axes : Mapping[str, tuple[Scalar, ...]]
        Keys to search over, each with its values.
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
    def given(self) -> str:
        """As it is given on the command line."""
        return "@".join([self.method, *pairs(self.own)])

    def named(self, point: Point) -> str:
        """`title`, with a point of the grid."""
        return self.title + (f" ({self.summary(point)})" if point else "")

    def summary(self, point: Point) -> str:
        """Settings as a person reads them: without the group where it is that of the method."""
        prefixes = tuple(f"{group}." for group in groups_of(RowSpec(self.method), {}))
        return ", ".join(text.partition(".")[2] if text.startswith(prefixes) else text for text in pairs(point))


def parse_methods(text: str) -> list[RowSpec]:
    """Read `a,b@key=value@key=value,…`, where a and b are methods or presets.

    Raises
    ------
    ConfigError
        Naming every method that is unknown or stands twice, and every setting that cannot be one of a single row.
    """
    if text.strip() == ALL:
        from dqnfed_flwr.config.methods import METHODS

        return [RowSpec(method) for method in sorted(METHODS, key=lambda name: [name != first for first in FIRST])]
    specs: list[RowSpec] = []
    faults = []
    for given in (part.strip() for part in text.split(",")):
        method, *own = given.split("@")
        try:
            spec = _row(method, _own(own, f"--methods {given}"))
            _check_name(spec.method)
        except ConfigError as error:
            faults.append(str(error))
            continue
        faults += [f"--methods {given}: {_for_all(key)}" for key in spec.own if _is_common(key)]
        if spec in specs:
            faults.append(f"--methods: {given} is given twice")
        specs.append(spec)
    if faults:
        raise ConfigError("\n".join(faults))
    return specs


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


def with_grids(specs: Sequence[RowSpec], grids: Sequence[str], base: Point) -> list[RowSpec]:
    """Give every row the axes of `KEY=V1,V2` that concern it, and that it reads, where `base` is what all rows share.

    Raises
    ------
    ConfigError
        Naming every key that is unknown, that all rows must share, or that concerns none of the rows.
    """
    axes: dict[str, tuple[Scalar, ...]] = {}
    faults: list[str] = []
    for grid in grids:
        key, values = _axis(grid)
        if key in axes:
            faults.append(f"--grid: {key} is given twice")
        axes[key] = values
    known = Settings().flat()
    named = {key: values for key, values in axes.items() if key in known and not _is_common(key)}
    searched = [replace(spec, axes=_axes_of(spec, named, base)) for spec in specs]
    for key in axes:
        if key not in known:
            faults.append(f"--grid {unknown_key(key)}")
        elif _is_common(key):
            faults.append(f"--grid {_for_all(key)}")
        elif not any(key in spec.axes for spec in searched):
            chosen = ", ".join(spec.given for spec in specs)
            faults.append(f"--grid {key}: none of the methods has this key open ({chosen})")
    if faults:
        raise ConfigError("\n".join(faults))
    return searched


def _axes_of(spec: RowSpec, axes: Mapping[str, tuple[Scalar, ...]], base: Point) -> Mapping[str, tuple[Scalar, ...]]:
    """The axes that concern a method, which reads them at some of their points; faults are for the plan to tell."""
    mine = replace(spec, axes={key: values for key, values in axes.items() if concerns(key, spec, base)})
    if not mine.axes:
        return {}
    try:
        found = [Settings.from_mapping({**base, **spec.own, **point, "method": spec.method}) for point in mine.points]
    except ConfigError:
        return mine.axes
    return {key: values for key, values in mine.axes.items() if any(not without_effect(each, [key]) for each in found)}


def concerns(key: str, spec: RowSpec, base: Point) -> bool:
    """Whether a key means something to a method that does not fix it already."""
    group, dot, _ = key.partition(".")
    return key not in spec.own and (not dot or group not in GROUP_OF_METHOD or group in groups_of(spec, base))


def groups_of(spec: RowSpec, base: Point) -> tuple[str, ...]:
    """The groups of settings that a method reads, with those of the method it ends with and of its anchor."""
    try:
        run = resolve(Settings.unchecked({**base, **spec.own, "method": spec.method}))
    except ConfigError:  # said where the run is planned
        return (profile_of(spec.method).key,)
    return tuple(part.method.key for part in run.parts)


def pairs(point: Point) -> list[str]:
    """Each setting as `KEY=VALUE`."""
    return [f"{key}={yaml_text(value)}" for key, value in point.items()]


def yaml_text(value: Scalar) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def check_overrides(keys: Iterable[str]) -> None:
    """Refuse keys of `--set` that rows, seeds and folders decide.

    Raises
    ------
    ConfigError
        Naming them, each with what to do.
    """
    if taken := [f"--set {key}: {KNOWN[key].instead}" for key in keys if key in KNOWN and KNOWN[key].instead]:
        raise ConfigError("\n".join(taken))


def _row(name: str, own: Point) -> RowSpec:
    """The row of a method, or of a preset, with settings of its own."""
    if name not in PRESETS:
        return RowSpec(name, own)
    preset = PRESETS[name]
    return RowSpec(str(preset.settings["method"]), {**preset.own, **own}, title=preset.title)


def _check_name(method: str) -> None:
    try:
        profile_of(method)
    except ConfigError as error:
        raise ConfigError(f"--methods: {error}; {', '.join(PRESETS)}; or {ALL} by itself") from None


def _is_common(key: str) -> bool:
    return key in KNOWN and KNOWN[key].shared


def _for_all(key: str) -> str:
    """Why a row cannot have a key of its own, and what to do."""
    if KNOWN[key].instead:
        return f"{key}: {KNOWN[key].instead}"
    return f"{key} must be the same for all; give it by --set"


def _own(texts: Sequence[str], where: str) -> dict[str, Scalar]:
    own: dict[str, Scalar] = {}
    for key, value in (_pair(text, where) for text in texts):
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
    found = tuple(_pair(f"{key}={value}", f"--grid {grid}")[1] for value in values.split(",") if value.strip())
    if not key.strip() or not found:
        raise ConfigError(f"--grid: found {grid!r}; give KEY=V1,V2, such as --grid q-ffl.q=0.1,1")
    if len(set(map(repr, found))) < len(found):
        raise ConfigError(f"--grid: found {grid!r}, with a value twice")
    return key.strip(), found
