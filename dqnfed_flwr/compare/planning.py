"""From what is asked for to a plan: everything that can be checked before the first run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dqnfed_flwr.compare.earlier import foreign, foreign_figures
from dqnfed_flwr.compare.entries import ALL, Entry, parse_methods, parse_seeds, short, with_grids
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.config import KNOWN, Scalar
from dqnfed_flwr.errors import ConfigError, DQNFedError

VALIDATION = "split.validation-fraction"
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; texts are as on the command line.

    Attributes
    ----------
    config : Mapping[str, Scalar]
        Dotted keys of the configuration, with `--set` laid over it.
    methods, seeds : str
        Separated by commas.
    directory : Path
        Of the results.
    grids : Sequence[str]
        `KEY=V1,V2`.
    grid_rounds, grid_seed : int | None
        Of the runs of a grid; None takes the rounds of the run, the first seed.
    """

    config: Mapping[str, Scalar]
    methods: str
    seeds: str
    directory: Path
    grids: Sequence[str] = ()
    grid_rounds: int | None = None
    grid_seed: int | None = None


def make_plan(request: Request) -> Plan:
    """Check everything that can be known before the first run.

    Raises
    ------
    ConfigError
        Naming every fault, with the methods that have it, or every folder that holds a run of other settings or on
        other data.
    """
    return plan_rows(
        request,
        with_grids(parse_methods(request.methods), request.grids, request.config),
        parse_seeds(request.seeds),
        skip=request.methods.strip() == ALL,
    )


def plan_rows(
    request: Request, entries: Sequence[Entry], seeds: tuple[int, ...], *, skip: bool = False, note: str = ""
) -> Plan:
    """A plan of rows that are known already; of `request` the methods, seeds and grids are not looked at.

    Parameters
    ----------
    request : Request
        Configuration, folder, rounds and seed of the grids.
    entries : Sequence[Entry]
        The rows, with their axes.
    seeds : tuple[int, ...]
        Of the final runs.
    skip : bool
        Leave rows that do not fit the configuration out, and say so, in place of refusing all.
    note : str
        Of the plan.

    Raises
    ------
    ConfigError
        As `make_plan`.
    """
    config = {key: value for key, value in request.config.items() if not (key in KNOWN and KNOWN[key].instead)}
    config.setdefault("local.threads", 1)
    if any(entry.axes for entry in entries):
        config.setdefault(VALIDATION, VALIDATION_SHARE)
        if not config[VALIDATION]:
            raise ConfigError(
                f"{VALIDATION}: found 0; a grid is chosen by validation samples: raise it or leave it out"
            )
    if request.grid_rounds and any("rounds" in entry.axes for entry in entries):
        raise ConfigError("--grid rounds: cannot be searched with --grid-rounds, which gives every point the same")
    first = seeds[0] if request.grid_seed is None else request.grid_seed
    plan = Plan(config, tuple(entries), seeds, request.directory, first, request.grid_rounds, note=note)
    faults = {entry: found for entry in entries if (found := _faults(plan, entry))}
    plan = _without(plan, faults, skip=skip)
    plan = replace(plan, entries=_titled(plan))
    titles = [entry.title for entry in plan.entries]
    if twice := [title for place, title in enumerate(titles) if title in titles[:place]]:
        raise ConfigError(f"rows: two would be called {twice[0]!r}; give one of them another title")
    if others := foreign(plan.possible()) or foreign_figures(plan.directory, plan.config):
        raise ConfigError(
            "\n".join(others) + f"\n{plan.directory} holds another comparison; name another folder by --output"
        )
    return plan


def _without(plan: Plan, faults: Mapping[Entry, list[str]], *, skip: bool) -> Plan:
    """`plan` without the methods that do not fit, if they were not asked for by name."""
    good = tuple(entry for entry in plan.entries if entry not in faults)
    if faults and (not skip or not good):
        raise ConfigError("\n".join(_gathered(faults, len(plan.entries))))
    return replace(plan, entries=good, skipped={entry.method: "; ".join(text) for entry, text in faults.items()})


def _faults(plan: Plan, entry: Entry) -> list[str]:
    """What is wrong with a row, at any point of its grid."""
    from dqnfed_flwr import models
    from dqnfed_flwr.data import sets
    from dqnfed_flwr.methods.table import make_method

    found: dict[str, None] = {}
    for point in entry.points:
        try:
            settings = plan.settings(entry, point, plan.grid_seed)
            sets.check_name(settings.data)
            models.check_name(settings.model)
            make_method(settings)
        except DQNFedError as error:
            found |= dict.fromkeys(str(error).splitlines())
    return list(found)


def _gathered(faults: Mapping[Entry, list[str]], entries: int) -> list[str]:
    """Each fault once, with the methods that have it; what all have is the configuration's."""
    having: dict[str, list[str]] = {}
    for entry, texts in faults.items():
        for text in texts:
            having.setdefault(text, []).append(entry.spec)
    return [text if len(names) == entries > 1 else f"{', '.join(names)}: {text}" for text, names in having.items()]


def _titled(plan: Plan) -> tuple[Entry, ...]:
    """The rows with their titles: the method, and what is their own, where they have none."""

    def title(entry: Entry) -> str:
        method = plan.settings(entry, entry.points[0], plan.grid_seed).title
        return f"{method} [{short(entry.method, entry.own)}]" if entry.own else method

    return tuple(replace(entry, title=entry.title or title(entry)) for entry in plan.entries)
