"""From a part of a manifest to the plan of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dqnfed_flwr.compare.entries import ALL, Entry, parse_methods, parse_seeds
from dqnfed_flwr.compare.plan import VALIDATION, VALIDATION_SHARE, Plan, Request, plan_rows
from dqnfed_flwr.config import Scalar
from dqnfed_flwr.reproduce.scale import deviations
from dqnfed_flwr.reproduce.schema import Part, Row


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    Attributes
    ----------
    reduced : bool
        Take the form for two cores.
    methods, seeds : str
        As in `dqnfed compare`; empty for those of the manifest.
    overrides : Mapping[str, Scalar]
        Settings laid over all.
    """

    reduced: bool = False
    methods: str = ""
    seeds: str = ""
    overrides: Mapping[str, Scalar] = field(default_factory=dict)


def config_of(part: Part, wish: Wish) -> dict[str, Scalar]:
    """Dotted keys that all rows of a part share; the same whichever rows are asked for, so that more may be added."""
    searched = _searched(part, wish) and any(row.grid for row in part.rows)
    validation = {VALIDATION: VALIDATION_SHARE} if searched else {}
    return {**validation, **part.own, **(part.reduced.own if wish.reduced else {}), **wish.overrides}


def seeds_of(part: Part, seeds: Sequence[int], wish: Wish) -> tuple[int, ...]:
    """The final seeds: those asked for, else of the reduced form, else of the manifest."""
    if wish.seeds:
        return parse_seeds(wish.seeds)
    return tuple(part.reduced.seeds if wish.reduced else seeds)


def label_of(part: Part, seeds: Sequence[int], wish: Wish) -> str:
    """How what is asked for differs from the part; empty if it does not."""
    return deviations(part.own, config_of(part, wish), seeds_of(part, seeds, wish), seeds)


def plan_part(part: Part, seeds: Sequence[int], wish: Wish, directory: Path) -> Plan:
    """The plan of a part, checked.

    Raises
    ------
    ConfigError
        If a method is unknown, or settings are at fault.
    """
    config = config_of(part, wish)
    rounds = part.search.rounds
    length = config.get("rounds")
    if rounds is not None and isinstance(length, int):
        rounds = min(rounds, length)
    request = Request(config, "", "", directory, (), rounds, part.search.seed)
    return plan_rows(
        request,
        _chosen(part, wish),
        seeds_of(part, seeds, wish),
        skip=wish.methods.strip() == ALL,
        note=label_of(part, seeds, wish),
    )


class Printed(NamedTuple):
    """The paper's name of a row, empty for one that it has not, and whether ours has the settings of that row."""

    name: str
    same: bool


def paper_names(part: Part, entries: Sequence[Entry]) -> list[Printed]:
    """What the paper calls every row.

    A row with other settings has the name of the only one that the paper has of its method, if there is only one.
    """
    exact = {_key(row.method, row.own): row.paper for row in part.rows}
    alone = {method: names[0] for method, names in _by_method(part).items() if len(names) == 1}
    keys = [_key(entry.method, entry.own) for entry in entries]
    return [
        Printed(exact[key], same=True) if key in exact else Printed(alone.get(entry.method, ""), same=False)
        for key, entry in zip(keys, entries, strict=True)
    ]


def _chosen(part: Part, wish: Wish) -> list[Entry]:
    """Rows of the part, or those that the command line names; a method that no row has comes as it is given."""
    rows = [_entry(row, grids=_searched(part, wish)) for row in part.rows]
    if not wish.methods:
        return rows
    chosen: list[Entry] = []
    for asked in parse_methods(_by_paper_name(wish.methods, part)):
        chosen += [row for row in rows if row.method == asked.method and not asked.own] or [asked]
    return chosen


def _searched(part: Part, wish: Wish) -> bool:
    return part.reduced.grids or not wish.reduced


def _by_paper_name(methods: str, part: Part) -> str:
    names = {row.paper.lower(): row.method for row in part.rows if row.paper}
    return ",".join(dict.fromkeys(names.get(word.strip().lower(), word.strip()) for word in methods.split(",")))


def _by_method(part: Part) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in part.rows:
        if row.paper:
            found.setdefault(row.method, []).append(row.paper)
    return found


def _entry(row: Row, *, grids: bool) -> Entry:
    axes = {key: tuple(values) for key, values in row.grid.items()} if grids else {}
    return Entry(row.method, row.own, axes, row.title)


def _key(method: str, own: Mapping[str, Scalar]) -> tuple[str, tuple[tuple[str, Scalar], ...]]:
    return method, tuple(sorted(own.items()))
