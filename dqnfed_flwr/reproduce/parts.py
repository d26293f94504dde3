"""From a part of a manifest to the plan of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from dqnfed_flwr.compare.entries import ALL, Entry, concerns, parse_seeds
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.planning import VALIDATION, VALIDATION_SHARE, Request, plan_rows
from dqnfed_flwr.config import Scalar
from dqnfed_flwr.reproduce.asked import rows_asked
from dqnfed_flwr.reproduce.scale import EVALUATIONS, QUIET, deviations
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


def label_of(part: Part, seeds: Sequence[int], plan: Plan) -> str:
    """How a plan, or one that was carried out, differs from the part with its seeds; empty if it does not."""
    quiet = [key for key in QUIET if part.last == 1 or key != EVALUATIONS]
    scale = deviations(part.own, _read(part, plan), plan.seeds, seeds, quiet)
    texts = (_rows_added(part, plan), _grids_omitted(part, plan), _samples_omitted(part, plan))
    omitted = [text for text in texts if text]
    return "; ".join([scale or "as in the manifest", *omitted]) if scale or omitted else ""


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
    plan = plan_rows(
        request,
        _chosen(part, wish),
        seeds_of(part, seeds, wish),
        skip=wish.methods.strip() == ALL,
    )
    return replace(plan, note=label_of(part, seeds, plan))


class Printed(NamedTuple):
    """The paper's name of a row, empty for one that it has not, and whether ours has the settings of that row."""

    name: str
    same: bool


def paper_names(part: Part, entries: Sequence[Entry]) -> list[Printed]:
    """What the paper calls every row.

    A row with other settings has the name of the only one that the paper has of its method, if there is only one.
    """
    exact = {_key(row): row.paper for row in part.rows}
    alone = {method: names[0] for method, names in _by_method(part).items() if len(names) == 1}
    keys = [_key(entry) for entry in entries]
    return [
        Printed(exact[key], same=True) if key in exact else Printed(alone.get(entry.method, ""), same=False)
        for key, entry in zip(keys, entries, strict=True)
    ]


def _read(part: Part, plan: Plan) -> dict[str, Scalar]:
    """The shared settings of a plan, without those laid over the part's that every row replaces or none reads."""

    def counts(key: str) -> bool:
        return any(concerns(key, entry, plan.config) and key not in entry.axes for entry in plan.entries)

    return {key: value for key, value in plan.config.items() if key in part.own or counts(key)}


def _rows_added(part: Part, plan: Plan) -> str:
    known = {_key(row) for row in part.rows}
    added = [entry.spec for entry in plan.entries if entry.own and _key(entry) not in known]
    return f"rows with settings of their own: {', '.join(added)}" if added else ""


def _grids_omitted(part: Part, plan: Plan) -> str:
    gridded = {row.method for row in part.rows if row.grid}
    having = [entry for entry in plan.entries if entry.method in gridded]
    left = [entry.title for entry in having if not entry.axes]
    if not left:
        return ""
    return "no grids searched" if len(left) == len(having) else f"no grid searched for {', '.join(left)}"


def _samples_omitted(part: Part, plan: Plan) -> str:
    then, now = (float(config.get(VALIDATION, 0)) for config in (part.own, plan.config))
    if now <= then:
        return ""
    rest = ""
    if any(row.grid for row in part.rows):
        searched = any(entry.axes for entry in plan.entries)
        rest = ": the rest chose the settings" if searched else ": the rest is kept for choosing settings"
    return f"training samples {100 * (1 - now):g} %{rest}"


def _chosen(part: Part, wish: Wish) -> list[Entry]:
    """Rows of the part, or those that the command line names; a method that no row has comes as it is given."""
    chosen = rows_asked(part, wish.methods) if wish.methods else part.rows
    grids = _searched(part, wish)
    return [_entry(row, grids=grids) if isinstance(row, Row) else row for row in chosen]


def _searched(part: Part, wish: Wish) -> bool:
    return part.reduced.grids or not wish.reduced


def _by_method(part: Part) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in part.rows:
        if row.paper:
            found.setdefault(row.method, []).append(row.paper)
    return found


def _entry(row: Row, *, grids: bool) -> Entry:
    axes = {key: tuple(values) for key, values in row.grid.items()} if grids else {}
    return Entry(row.method, row.own, axes, row.title)


def _key(row: Row | Entry) -> tuple[str, tuple[tuple[str, Scalar], ...]]:
    return row.method, tuple(sorted(row.own.items()))
