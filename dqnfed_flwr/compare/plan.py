"""Which runs a comparison consists of, checked before the first of them begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from dqnfed_flwr.compare.earlier import foreign
from dqnfed_flwr.compare.entries import (
    ALL,
    ROWS_DECIDE,
    Entry,
    Point,
    parse_methods,
    parse_seeds,
    short,
    show,
    with_grids,
)
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.errors import ConfigError, DQNFedError
from dqnfed_flwr.run_files import CHECKPOINT, RUN

RUNS, GRID = "runs", "grid"
LOG = "log.txt"
VALIDATION = "split.validation-fraction"
VALIDATION_SHARE = 0.1
LONGEST_NAME = 200


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


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a row, a point of its grid, a seed, and where it goes."""

    entry: Entry
    point: Point = field(hash=False)
    seed: int
    settings: Settings
    folder: Path

    @property
    def name(self) -> str:
        """As progress shows it."""
        return f"{self.entry.named(self.point)}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return self.record.exists()

    @property
    def record(self) -> Path:
        """Of its result."""
        return self.folder / RUN

    @property
    def checkpoint(self) -> Path:
        """From which it goes on, if it was interrupted."""
        return self.folder / CHECKPOINT


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison that can begin.

    Attributes
    ----------
    config : Mapping[str, Scalar]
        What all rows share, as dotted keys.
    entries : tuple[Entry, ...]
        The rows.
    seeds : tuple[int, ...]
        Of the final runs.
    directory : Path
        Of the results.
    grid_seed : int
        Of the runs of a grid.
    grid_rounds : int | None
        Their rounds; None takes those of the final run.
    skipped : Mapping[str, str]
        Methods of `all` that do not fit the configuration, with the reason.
    note : str
        What its tables say of it, such as how it differs from a published experiment; may be empty.
    """

    config: Mapping[str, Scalar]
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    directory: Path
    grid_seed: int
    grid_rounds: int | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def settings(self, entry: Entry, point: Point, seed: int) -> Settings:
        """Settings of a final run, without its folder.

        Raises
        ------
        ConfigError
            If they are at fault.
        """
        return Settings.from_mapping({**self.config, **entry.own, **point, "method": entry.method, "seed": seed})

    def final(self, entry: Entry, point: Point) -> list[Job]:
        """The final runs of a row at a point, one a seed."""
        return [self._job(entry, point, seed, self.settings(entry, point, seed), RUNS) for seed in self.seeds]

    def search(self, entry: Entry) -> list[Job]:
        """The runs of a row's grid, one a point; none where there is nothing to choose."""
        if not entry.axes:
            return []
        jobs = []
        for point in entry.points:
            settings = self.settings(entry, point, self.grid_seed)
            rounds = self.grid_rounds or settings.rounds
            kind = RUNS if rounds == settings.rounds else GRID  # a run of full length serves as a final one too
            settings = settings.model_copy(update={"rounds": rounds})
            jobs.append(self._job(entry, point, self.grid_seed, settings, kind))
        return jobs

    def possible(self) -> list[Job]:
        """Every run that may come to be, whatever the grids choose; each once."""
        jobs = [job for entry in self.entries for job in self.search(entry)]
        jobs += [job for entry in self.entries for point in entry.points for job in self.final(entry, point)]
        return each_once(jobs)

    def _job(self, entry: Entry, point: Point, seed: int, settings: Settings, kind: str) -> Job:
        parts = [entry.method, *(f"{key}={show(value)}" for key, value in {**entry.own, **point}.items())]
        folder = self.directory / kind / _folder_name(parts) / f"seed-{seed}"
        output = {"output": str(folder), "resume": False}
        return Job(entry, point, seed, Settings.from_mapping({**settings.flat(), **output}), folder)


def _folder_name(parts: Sequence[str]) -> str:
    """A method and its settings as the name of a folder; what file systems would refuse as too long is cut."""
    name = quote(",".join(parts), safe=",=+:")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}~{sha256(name.encode()).hexdigest()[:12]}"


def each_once(jobs: Iterable[Job]) -> list[Job]:
    """Rows may come to the same settings, one by its grid and one by its own: that is one run, and read for both."""
    return list({job.folder: job for job in jobs}.values())


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
        with_grids(parse_methods(request.methods), request.grids),
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
    config = {key: value for key, value in request.config.items() if key not in ROWS_DECIDE}
    config.setdefault("local.threads", 1)
    if any(entry.axes for entry in entries) and not config.get(VALIDATION):
        config[VALIDATION] = VALIDATION_SHARE
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
    if others := foreign(plan.possible()):
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
    from dqnfed_flwr.methods.registry import make_method

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
    """The rows with their titles, where they have none; those that would share one show what is their own."""
    titles = [plan.settings(entry, entry.points[0], plan.grid_seed).title for entry in plan.entries]
    return tuple(
        replace(
            entry,
            title=entry.title
            or (f"{title} [{short(entry.method, entry.own)}]" if entry.own and titles.count(title) > 1 else title),
        )
        for entry, title in zip(plan.entries, titles, strict=True)
    )
