"""Runs as they are compared: read back from their folders, by test figures; trials of a grid by validation alone.

What the figure of a run is, accuracy or another, its `run.json` says; the task itself is not asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.row_specs import Point
from dqnfed_flwr.engine.result import client_figures
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.fairness import checked_values, fairness_report
from dqnfed_flwr.run_files import EVENTS, RUN
from dqnfed_flwr.strategy.state import STALLED
from dqnfed_flwr.telemetry.event_log import read_events
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.telemetry.totals import Totals
from dqnfed_flwr.types import ACCURACY, Figure

Accuracies = Mapping[int, float]
Select = Literal["mean", "worst10"]
ANEW = "remove that folder and make the run anew"


@dataclass(frozen=True)
class Record:
    """A run of a comparison; one that failed has a `reason`, and no evaluations, events or notes.

    Attributes
    ----------
    job : Job
        What was to be run.
    status, reason : str
        As in `run.json`, or `failed`; and why.
    evaluations : tuple[Accuracies, ...]
        Test accuracy of every client, or the run's `figure` in its place, once for each of the last evaluations that
        count.
    events : tuple[RoundEvent, ...]
        One a round. The last has the accuracies of the final model, where that round's was no evaluation and early
        stopping did not choose another model.
    noted : Mapping[str, Any]
        All of its `run.json`.
    figure : Figure
        What its evaluations are.
    """

    job: Job
    status: str
    reason: str = ""
    evaluations: tuple[Accuracies, ...] = ()
    events: tuple[RoundEvent, ...] = ()
    noted: Mapping[str, Any] = field(default_factory=dict)
    figure: Figure = ACCURACY

    @property
    def good(self) -> bool:
        """Whether the run came to its end with figures of its clients."""
        return bool(self.evaluations)

    @property
    def stalled(self) -> bool:
        """Whether its model stood still."""
        return self.status == STALLED

    @property
    def keeps_best(self) -> bool:
        """Whether early stopping chose its final model, so that the last evaluations are not that one's."""
        return self.job.settings.early_stopping > 0

    @cached_property
    def accuracies(self) -> Accuracies:
        """Mean over the evaluations of each client; one that missed some is averaged over the others."""
        found: dict[int, list[float]] = {}
        for evaluation in self.evaluations:
            for client, value in evaluation.items():
                found.setdefault(client, []).append(value)
        return {client: sum(values) / len(values) for client, values in sorted(found.items())}

    @cached_property
    def figures(self) -> dict[str, float]:
        """Fairness of the clients' figures, what rounds did to the clients, and what it took.

        NaN where unknown; empty if the run failed. Fairness is that of each evaluation, averaged over them: a spread or
        a tail is one of a model that there was.
        """
        if not self.evaluations:
            return {}
        reports = [fairness_report(evaluation, self.figure) for evaluation in self.evaluations]
        rounds = len(self.events)
        ratios = [event.improved_of_asked for event in self.events]
        totals = Totals.of(self.events)
        seconds = sum(event.cost.seconds.get("total", 0.0) for event in self.events)
        exchanges = sum(event.cost.exchanges for event in self.events)
        return {
            **{key: float(np.mean([report[key] for report in reports])) for key in reports[0]},
            "rho_mean": mean_of(ratios),
            "rho_min": min((ratio for ratio in ratios if not math.isnan(ratio)), default=math.nan),
            "unharmed_mean": mean_of(event.unharmed_ratio for event in self.events),
            "rho_moved": totals.improved_of_asked,
            "unharmed_moved": totals.unharmed_ratio,
            "stalled": self.stalled,
            "rounds": rounds,
            "rounds_moved": totals.moved,
            "rounds_improved": totals.improved,
            "asked_mean": totals.asked,
            "heard_mean": totals.heard,
            "overruled": sum(totals.overruled.values()),
            "exchanges": exchanges,
            "exchanges_per_round": exchanges / rounds if rounds else math.nan,
            "bytes_up": sum(event.cost.bytes_up for event in self.events),
            "bytes_down": sum(event.cost.bytes_down for event in self.events),
            "seconds": seconds,
            "seconds_per_round": seconds / rounds if rounds else math.nan,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """A point of a row's grid, and how it came out.

    `figures` are `mean` and `worst10` of the clients' validation parts, of that `figure`, averaged over the
    evaluations that count; a trial that failed has none, but a `reason`. `evaluations` is how many these were; 0 where
    that is not known, or early stopping chose the model.
    """

    point: Point
    seed: int
    rounds: int
    figures: dict[str, float]
    reason: str = ""
    evaluations: int = 0
    figure: Figure = ACCURACY


def read_record(job: Job, failure: str = "", last: int = 1) -> Record:
    """Read what a run left; one with a `failure`, or whose files are damaged or contradict each other, has failed.

    The `last` evaluations count. 1 takes that of the final model, as does early stopping, which keeps another model
    than the last ones.
    """
    if failure:
        return Record(job, "failed", failure)
    try:
        found = json.loads((job.folder / RUN).read_text("utf-8"))
        events = tuple(read_events(job.folder / EVENTS))
        figure, final = Figure.from_json(found.get("figure")), client_figures(found)
        validation = {int(client): float(value) for client, value in found["validation"].items()}
        status = str(found["status"])
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError) as error:
        return Record(job, "failed", f"{job.folder}: its files cannot be read ({error}); {ANEW}")
    except OSError as error:  # such as missing rights: what is there may be whole
        return Record(job, "failed", f"{job.folder}: its files cannot be read ({error})")
    if fault := _fault(found, events, final, figure):
        return Record(job, "failed", f"{job.folder}: {fault}; {ANEW}")
    record = Record(job, status, "", (final,), events, found, figure)
    chosen = record.keeps_best and any(event.evaluated.validation for event in events)
    if events and not events[-1].evaluated.test and not chosen:
        found_last = replace(events[-1].evaluated, test=final or None, validation=validation or None)
        ended = replace(events[-1], evaluated=found_last)
        record = replace(record, events=(*events[:-1], ended))
    known = last_of((event.evaluated.test for event in record.events), last)
    if last > 1 and known and not record.keeps_best:
        return replace(record, evaluations=known)
    return record if final else Record(job, "failed", _why_none(found, figure))


def trial_of(record: Record, last: int = 1) -> Trial:
    """The run of a grid point, seen by the validation figures of its `last` evaluations alone."""
    job = record.job
    reports = [fairness_report(validation, record.figure) for validation in validations_of(record, last)]
    reason = record.reason or ("" if reports else "no client was evaluated on its validation part")
    keys = () if reason else ("mean", "worst10")
    figures = {key: sum(report[key] for report in reports) / len(reports) for key in keys}
    evaluations = 0 if record.keeps_best else len(reports)
    return Trial(job.point, job.seed, job.settings.rounds, figures, reason, evaluations, record.figure)


def validations_of(record: Record, last: int) -> list[Accuracies]:
    """Validation figures at the `last` evaluations; after early stopping those of the best model, which it kept."""
    known = [event.evaluated.validation for event in record.events if event.evaluated.validation]
    if known and record.keeps_best:
        sign = record.figure.sign
        return [max(known, key=lambda values: sign * sum(values.values()) / len(values))]  # of equals the first
    return list(last_of(known, last))


def last_of(evaluations: Iterable[Accuracies | None], count: int) -> tuple[Accuracies, ...]:
    """The `count` last evaluations that took place: what figures are averaged over, and what a grid chooses by."""
    return tuple(each for each in evaluations if each)[-count:]


def choose(trials: Sequence[Trial], by: Select = "mean") -> int | None:
    """Place of the best of a row's trials; of equal ones the first, None if all failed."""
    places = [place for place, trial in enumerate(trials) if trial.figures]
    return max(places, key=lambda place: trials[place].figure.sign * trials[place].figures[by], default=None)


def mean_of(values: Iterable[float]) -> float:
    """Mean of the values that are known; NaN where none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _why_none(found: Mapping[str, Any], figure: Figure) -> str:
    """Why a run has no figure of any client."""
    without = found.get("without_figure", {}).get("test", ())
    if without:
        return f"none of the {len(without)} clients that were evaluated has a figure ({figure.name})"
    return "no client was evaluated"


def _fault(found: Mapping[str, Any], events: Sequence[RoundEvent], final: Accuracies, figure: Figure) -> str:
    """What is wrong with a run whose files can be read; empty if nothing is."""
    if missing := [key for key in ("rounds", "versions", "commits", "fingerprint") if key not in found]:
        return f"{RUN} lacks {missing[0]}"
    if found["rounds"] != len(events):
        return f"{RUN} tells of {found['rounds']} rounds, {EVENTS} of {len(events)}"
    evaluated = {f"{EVENTS}, round {event.round}": event.evaluated.test or {} for event in events} | {RUN: final}
    try:
        for where, values in evaluated.items():
            if values:
                checked_values(values, where, figure)
    except DQNFedError as error:
        return str(error)
    return ""
