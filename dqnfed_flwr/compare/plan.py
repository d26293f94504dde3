"""Which runs a comparison consists of, and where each goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from dqnfed_flwr.compare.entries import Entry, Point, show
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.run_files import CHECKPOINT, RUN

RUNS, GRID = "runs", "grid"
LOG = "log.txt"
LONGEST_NAME = 200


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
