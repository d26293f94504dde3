"""Which runs a comparison consists of and where each goes, checked before the first begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dqnfed_flwr.compare.row_specs import ALL, Point, RowSpec, pairs, parse_methods, parse_seeds, with_grids
from dqnfed_flwr.config import KNOWN, Scalar, Settings, resolve
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, DQNFedError
from dqnfed_flwr.run_files import CHECKPOINT, RUN, UNREADABLE

RUNS, GRID = "runs", "grid"
LOG = "log.txt"
LONGEST_NAME = 200
VALIDATION = "split.validation-fraction"
VALIDATION_SHARE = 0.1
JSON = "comparison.json"
"""Figures of a comparison, in its folder."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a row, a point of its grid, a seed, and where it goes."""

    spec: RowSpec
    point: Point = field(hash=False)
    seed: int
    settings: Settings
    folder: Path

    @property
    def name(self) -> str:
        """As progress shows it."""
        return f"{self.spec.named(self.point)}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return (self.folder / RUN).exists()


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison that can begin.

    Attributes
    ----------
    config : Mapping[str, Scalar]
        What all rows share, as dotted keys.
    specs, directory : tuple[RowSpec, ...], Path
        The rows, and the folder of the results.
    seeds, grid_seed : tuple[int, ...], int
        Of the final runs, and of the runs of a grid.
    grid_rounds : int | None
        Rounds of the runs of a grid; None takes those of the final run.
    skipped : Mapping[str, str]
        Methods of `all` that do not fit the configuration, with the reason.
    note : str
        What its tables say of it, such as how it differs from a published experiment; may be empty.
    """

    config: Mapping[str, Scalar]
    specs: tuple[RowSpec, ...]
    seeds: tuple[int, ...]
    directory: Path
    grid_seed: int
    grid_rounds: int | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    _checked: dict[str, Settings] = field(default_factory=dict, repr=False, compare=False)
    """What was validated before, by the whole mapping: the same is asked for again and again."""

    def settings(self, spec: RowSpec, point: Point, seed: int, rounds: int | None = None) -> Settings:
        """Settings of a run, without its folder; `rounds` in place of its own. Faulty ones are a `ConfigError`."""
        given = {**self.config, **spec.own, **point, "method": spec.method, "seed": seed}
        given |= {"rounds": rounds} if rounds else {}
        if (key := repr(given)) not in self._checked:
            self._checked[key] = Settings.from_mapping(given)
        return self._checked[key]

    def final(self, spec: RowSpec, point: Point) -> list[Job]:
        """The final runs of a row at a point, one a seed."""
        return [self._job(spec, point, self.settings(spec, point, seed), RUNS) for seed in self.seeds]

    def search(self, spec: RowSpec) -> list[Job]:
        """The runs of a row's grid, one a point; none where there is nothing to choose."""
        jobs = []
        for point in spec.points if spec.axes else ():
            settings, kind = self.settings(spec, point, self.grid_seed), RUNS
            if self.grid_rounds and self.grid_rounds != settings.rounds:  # else the run serves as a final one too
                settings, kind = self.settings(spec, point, self.grid_seed, self.grid_rounds), GRID
            jobs.append(self._job(spec, point, settings, kind))
        return jobs

    def check_search(self, spec: RowSpec, point: Point) -> None:
        """Refuse (`ConfigError`) a point that cannot be tried in the rounds of a grid."""
        if not (spec.axes and self.grid_rounds):
            return
        try:
            self.settings(spec, point, self.grid_seed, self.grid_rounds)
        except ConfigError as error:
            raise ConfigError("\n".join(f"--grid-rounds: {line}" for line in str(error).splitlines())) from None

    def possible(self) -> list[Job]:
        """Every run that may come to be, whatever the grids choose; each once."""
        jobs = [job for spec in self.specs for job in self.search(spec)]
        jobs += [job for spec in self.specs for point in spec.points for job in self.final(spec, point)]
        return each_once(jobs)

    @property
    def most_runs(self) -> int:
        """How many runs there are at most."""
        return sum(len(self.search(spec)) + len(self.seeds) for spec in self.specs)

    def _job(self, spec: RowSpec, point: Point, settings: Settings, kind: str) -> Job:
        name = _folder_name([spec.method, *pairs({**spec.own, **point})])
        folder = self.directory / kind / name / f"seed-{settings.seed}"
        settings = settings.model_copy(update={"output": str(folder), "resume": False})
        return Job(spec, point, settings.seed, settings, folder)


def _folder_name(parts: Sequence[str]) -> str:
    """A method and its settings as the name of a folder; what file systems would refuse as too long is cut."""
    name = quote(",".join(parts), safe=",=+:")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}~{sha256(name.encode()).hexdigest()[:12]}"


def each_once(jobs: Iterable[Job]) -> list[Job]:
    """Rows may come to the same settings, one by its grid and one by its own: that is one run, and read for both."""
    return list({job.folder: job for job in jobs}.values())


def make_plan(
    config: Mapping[str, Scalar],
    methods: str,
    seeds: str,
    directory: Path,
    grids: Sequence[str] = (),
    grid_rounds: int | None = None,
    grid_seed: int | None = None,
) -> Plan:
    """Check everything that can be known before the first run.

    Parameters
    ----------
    config : Mapping[str, Scalar]
        Dotted keys of the configuration, with `--set` laid over it.
    methods, seeds, grids : str, str, Sequence[str]
        As on the command line: separated by commas, and each `KEY=V1,V2`.
    directory : Path
        Of the results.
    grid_rounds, grid_seed : int | None
        Of the runs of a grid; None takes the rounds of the run, the first seed.

    Raises
    ------
    ConfigError
        Naming every fault, with the methods that have it, or every folder that holds a run of other settings or on
        other data.
    """
    specs = with_grids(parse_methods(methods), grids, config)
    skip = methods.strip() == ALL
    return plan_rows(config, specs, parse_seeds(seeds), directory, grid_rounds, grid_seed, skip=skip)


def plan_rows(
    config: Mapping[str, Scalar],
    specs: Sequence[RowSpec],
    seeds: tuple[int, ...],
    directory: Path,
    grid_rounds: int | None = None,
    grid_seed: int | None = None,
    *,
    skip: bool = False,
) -> Plan:
    """A plan of rows that are known already; all else as in `make_plan`.

    With `skip`, rows that do not fit the configuration are left out, and the plan says so; else all are refused.
    """
    config = {key: value for key, value in config.items() if not (key in KNOWN and KNOWN[key].instead)}
    config.setdefault("local.threads", 1)
    if any(spec.axes for spec in specs):
        config.setdefault(VALIDATION, VALIDATION_SHARE)
        if not config[VALIDATION]:
            raise ConfigError(
                f"{VALIDATION}: found 0; a grid is chosen by validation samples: raise it or leave it out"
            )
    if grid_rounds and any("rounds" in spec.axes for spec in specs):
        raise ConfigError("--grid rounds: cannot be searched with --grid-rounds, which gives every point the same")
    first = seeds[0] if grid_seed is None else grid_seed
    plan = Plan(config, tuple(specs), seeds, directory, first, grid_rounds)
    faults = {spec: found for spec in specs if (found := _faults(plan, spec))}
    plan = _without(plan, faults, skip=skip)
    plan = replace(plan, specs=_titled(plan))
    titles = [spec.title for spec in plan.specs]
    if twice := [title for place, title in enumerate(titles) if title in titles[:place]]:
        raise ConfigError(f"rows: two would be called {twice[0]!r}; give one of them another title")
    runs = {job.folder: job.settings for job in plan.possible()}
    if others := conflicting_runs(runs) or conflicting_figures(plan.directory, plan.config):
        raise ConfigError(
            "\n".join([*others, f"{directory} holds another comparison; name another folder by --output"])
        )
    return plan


def _without(plan: Plan, faults: Mapping[RowSpec, list[str]], *, skip: bool) -> Plan:
    """`plan` without the methods that do not fit, if they were not asked for by name."""
    good = tuple(spec for spec in plan.specs if spec not in faults)
    if faults and (not skip or not good):
        raise ConfigError("\n".join(_gathered(faults, len(plan.specs))))
    return replace(plan, specs=good, skipped={spec.method: "; ".join(texts) for spec, texts in faults.items()})


def _faults(plan: Plan, spec: RowSpec) -> list[str]:
    """What is wrong with a row, at any point of its grid."""
    from dqnfed_flwr import models
    from dqnfed_flwr.methods._base import make_method
    from dqnfed_flwr.tasks import task_of

    found: dict[str, None] = {}
    for point in spec.points:
        try:
            settings = plan.settings(spec, point, plan.grid_seed)
            plan.check_search(spec, point)
            task_of(settings).source.check()
            models.check_name(settings.model)
            make_method(resolve(settings))
        except DQNFedError as error:
            found |= dict.fromkeys(str(error).splitlines())
    return list(found)


def _gathered(faults: Mapping[RowSpec, list[str]], rows: int) -> list[str]:
    """Each fault once, with the methods that have it; what all have is the configuration's."""
    having: dict[str, list[str]] = {}
    for spec, texts in faults.items():
        for text in texts:
            having.setdefault(text, []).append(spec.given)
    return [text if len(names) == rows > 1 else f"{', '.join(names)}: {text}" for text, names in having.items()]


def _titled(plan: Plan) -> tuple[RowSpec, ...]:
    """The rows with their titles: the method, and what is their own, where they have none."""

    def title(spec: RowSpec) -> str:
        run = resolve(plan.settings(spec, spec.points[0], plan.grid_seed))
        more = {key: value for key, value in spec.own.items() if key not in run.method.keys_in_title}
        return f"{run.title} [{spec.summary(more)}]" if more else run.title

    return tuple(replace(spec, title=spec.title or title(spec)) for spec in plan.specs)


def conflicting_runs(runs: Mapping[Path, Settings]) -> list[str]:
    """Which folders hold a finished or unfinished run of other settings or on other data, and how it differs.

    `runs` are the settings to be run, by folder. Data are looked at only if a run is there that noted their
    fingerprint. A result that cannot be read is a `ConfigError`.
    """
    there = {folder: found for folder in runs if (found := _found(folder)) is not None}
    data = dict.fromkeys(runs[folder].data for folder, found in there.items() if found["fingerprint"])
    now = {name: _fingerprint(name) for name in data}
    texts = [_conflict(folder, runs[folder], found, now) for folder, found in there.items()]
    return [text for text in texts if text]


def conflicting_figures(directory: Path, config: Mapping[str, Scalar]) -> list[str]:
    """Whether a comparison of rows that share `config` would overwrite figures of rows that share other settings."""
    path = directory / JSON
    try:
        found = json.loads(path.read_text("utf-8"))
        changed = _changed(dict(found["settings"]), config)
        kept = any(run["status"] != "failed" for row in found["methods"] for run in row["runs"])
    except UNREADABLE:
        return []  # there is nothing that can still be read
    return [f"{path} has figures of runs of other settings; {'; '.join(changed)}"] if changed and kept else []


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    then, now = ({**Settings().flat(), **given} for given in (then, now))
    return [
        f"{key}: {then.get(key)!r} there, {now.get(key)!r} now"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key) and not (key in KNOWN and KNOWN[key].changes == "nothing")
    ]


def _conflict(
    folder: Path, settings: Settings, found: Mapping[str, Any], fingerprints: Mapping[str, str | None]
) -> str:
    """How the run in a folder differs from the one that is to be made; empty if it does not."""
    from dqnfed_flwr.strategy.checkpoint import differ

    if changed := _changed(found["settings"], settings.flat()):
        return f"{folder} holds a run of other settings; {'; '.join(changed)}"
    data = settings.data
    then, now = found["fingerprint"], fingerprints.get(data)
    if differ(then, now):
        return f"{folder} holds a run on other data; fingerprint of {data}: {then} there, {now} now"
    return ""


def _fingerprint(data: str) -> str | None:
    """Of the data as they are now; None where they cannot be read, so that no run on them can come to be."""
    from dqnfed_flwr.data.sources import source_of

    try:
        return source_of(data).fingerprint()
    except DataError:
        return None


def _found(folder: Path) -> Mapping[str, Any] | None:
    """Settings and fingerprint of the finished or unfinished run in a folder; None if none can be read."""
    from dqnfed_flwr.strategy.checkpoint import read_record

    path = folder / RUN
    if path.exists():
        try:
            record = json.loads(path.read_text())
            return {"settings": dict(record["settings"]), "fingerprint": record["fingerprint"]}
        except UNREADABLE as error:
            raise ConfigError(f"{path}: cannot be read ({error}); remove it, and the run is made anew") from None
    try:
        record = read_record(folder / CHECKPOINT)
        return {"settings": dict(record["settings"]), "fingerprint": record["fingerprint"]}
    except (CheckpointError, *UNREADABLE):
        return None
