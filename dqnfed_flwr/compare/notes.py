"""What stands below the tables of a comparison: on which terms its rows are, and who is not in their figures.

Rows are on equal terms where they do the same local work, and none takes a step whose length nobody looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dqnfed_flwr.compare.plan import LOG
from dqnfed_flwr.compare.provenance import mixture_notes
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.config import resolve
from dqnfed_flwr.engine.notices import left_out_words, listed
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, OVERRULED
from dqnfed_flwr.schema.plan import FREE_LENGTH, LENGTH_KEYS, RunPlan
from dqnfed_flwr.schema.run import AUTO
from dqnfed_flwr.steps.blind import FixedSettings
from dqnfed_flwr.telemetry.events import TEST
from dqnfed_flwr.telemetry.standstill import causes
from dqnfed_flwr.telemetry.totals import Totals, unmoved_at_end
from dqnfed_flwr.types import ACCURACY, Figure


def main_notes(comparison: Comparison) -> tuple[str, ...]:
    """What stands below the first table."""
    any_failed = any(row.failures for row in comparison.rows)
    return (
        *([comparison.plan.note] if comparison.plan.note else []),
        "Mean ± standard deviation over seeds. Bold: best; underlined or slanted: second best.",
        *footnotes(comparison),
        *_full_steps(comparison),
        *failure_notes(comparison),
        *stalled_notes(comparison),
        *([f"{LOG} in the folder of a run that failed has more about it."] if any_failed else []),
        *left_out_notes(comparison),
    )


def _full_steps(comparison: Comparison) -> list[str]:
    """That local SGD is hardly any, with the rows that it concerns."""
    runs = {row.label: [resolve(each.job.settings) for each in row.good] for row in comparison.rows}
    found = [label for label, plans in runs.items() if any(map(one_full_step, plans))]
    text = "one full-batch step a round, which is FedSGD; set local.batch-size or local.epochs"
    return [f"{', '.join(found)}: {text}"] if found else []


def failure_notes(comparison: Comparison) -> list[str]:
    """Why runs, or all of a row, have no figures."""
    return [
        f"{row.label}: {text}" for row in comparison.rows for text in row.failures or row.reason.split("\n") if text
    ]


def stalled_notes(comparison: Comparison) -> list[str]:
    """Which runs stalled, and of each that did the likeliest cause."""
    found = [(row, record) for row in comparison.rows for record in row.good if record.stalled]
    if not found:
        return []
    every = sum(len(row.good) for row in comparison.rows)
    named = (f"{row.label}, seed {record.job.seed}: {_stall(record)}" for row, record in found)
    return [f"{len(found)} of {every} runs stalled: their models stood still, and their figures say little.", *named]


def _stall(record: Record) -> str:
    """How a run that stalled went, with the likeliest cause."""
    likeliest = causes(unmoved_at_end(record.events), 1)
    return f"{Totals.of(record.events).moved_words}" + "".join(f". {cause}" for cause in likeliest)


def left_out_notes(comparison: Comparison) -> list[str]:
    """Which methods are not in the tables, and whether runs come from different code or data."""
    skipped = [f"{method} was left out: {reason}" for method, reason in comparison.plan.skipped.items()]
    return skipped + mixture_notes(comparison)


def footnotes(comparison: Comparison) -> list[str]:
    """What the figures are, on which terms, which runs and clients are not in them, and who was not heard."""
    rows = comparison.rows
    entries = [Entry(row.label, resolve(row.good[0].job.settings), row.spec.axes) for row in rows if row.good]
    return [
        *terms_notes(entries),
        *_which_models(rows, comparison),
        *_without_figure(rows, comparison.figure),
        *(text for row in rows for record in row.good if (text := _missing(row, record))),
        *mostly_left_out(comparison),
        *(text for row in rows if (text := _not_heard(row))),
        *(
            f"{row.label}: {_plural(comparison.figure)} of a personal model on every client, where the others have one "
            "model for all; not ranked."
            for row in rows
            if row.personal and row.good
        ),
    ]


def _plural(figure: Figure) -> str:
    return "accuracies" if figure == ACCURACY else f"figures ({figure.name})"


def _without_figure(rows: Sequence[Row], figure: Figure) -> Iterator[str]:
    """Which clients were evaluated and have no figure, by run; a note for all rows that say the same."""
    having: dict[str, list[str]] = {}
    for row in rows:
        for record in row.good:
            if clients := record.noted.get("without_figure", {}).get(TEST):
                text = f"seed {record.job.seed}, clients {listed(clients)}"
                having.setdefault(text, []).append(row.label)
    for text, labels in having.items():
        yield f"No {figure.name}, so not in the figures: {text} ({', '.join(dict.fromkeys(labels))})."


def _which_models(rows: Sequence[Row], comparison: Comparison) -> Iterator[str]:
    """Of which models the figures are."""
    last, name = comparison.last, comparison.figure.name
    stopped = [row.label for row in rows if any(record.keeps_best for record in row.good)]
    if last > 1 and len(stopped) < sum(bool(row.good) for row in rows):
        yield (
            f"Figures of {name} are those of each of the last {last} evaluations of a run, averaged: a spread or a "
            "tail is one of a model that there was."
        )
    if fewer := [text for row in rows if (text := _fewer(row, last))]:
        yield f"Not all runs have {last} evaluations: {', '.join(fewer)}."
    if last > 1 and stopped:
        yield f"Figures of {name} are those of the model that early stopping kept: {', '.join(stopped)}."


def _fewer(row: Row, last: int) -> str:
    """The fewest evaluations of a run of this row, where they are not as many as asked for; empty else."""
    least = min((len(record.evaluations) for record in row.good if not record.keeps_best), default=last)
    return f"{row.label} {least}" if least < last else ""


def _missing(row: Row, record: Record) -> str:
    """Which clients of a run are not in its figures, though nothing says that they can have none; empty if all are."""
    asked = set(range(record.job.settings.clients)).difference(record.noted.get("without_figure", {}).get(TEST, ()))
    lacking = sorted(client for client in asked if any(client not in each for each in record.evaluations))
    if not lacking:
        return ""
    return (
        f"{row.label}, seed {record.job.seed}: figures are those of {len(asked) - len(lacking)} of the {len(asked)} "
        f"clients; missing from some or all evaluations: {listed(lacking)}."
    )


def mostly_left_out(comparison: Comparison) -> list[str]:
    """Of each run with clients that had no part in most rounds in which they were asked, a line that names them."""
    records = [record for row in comparison.rows for record in row.records]
    found = [(record, left_out_words(Totals.of(record.events))) for record in records]
    return [
        f"{record.job.name}: asked, and without a part in most of the rounds: clients {listed(words)}"
        for record, words in found
        if words
    ]


def _not_heard(row: Row) -> str:
    """How often a client was overruled, or made claims that exclude each other, in the runs of a row; else empty."""
    drops = (drop.reason for record in row.good for event in record.events for drop in event.dropped)
    counts = Counter(reason for reason in drops if reason in (OVERRULED, CONTRADICTION))
    words = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return f"{row.label}: clients were not heard, in all rounds of all seeds: {words}." if words else ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row as it is judged here.

    Attributes
    ----------
    label : str
        Its name in the table.
    run : RunPlan
        Of one of its runs.
    searched : Collection[str]
        The keys that a grid searched for it.
    """

    label: str
    run: RunPlan
    searched: Collection[str] = ()


def terms_notes(entries: Sequence[Entry]) -> list[str]:
    """Which rows do other local work than most, and why; whose step may have the wrong length; what is rounded."""
    return [*_work_notes(entries), *_length_notes(entries), *_message_notes(entries)]


def first_order(run: RunPlan) -> bool:
    """Whether a row belongs to those that share one local work: its clients send nothing of a second derivative."""
    return not any(work.twice for work in run.works)


def one_full_step(run: RunPlan) -> bool:
    """Whether a client's local SGD is one step on all its samples, as in FedSGD."""
    return run.work.passes and run.settings.local.epochs == 1 and not run.settings.local.batch_size


def local_work(run: RunPlan) -> str:
    """The local work of a round in words, as far as rows can differ in it."""
    last, local = run.last, run.settings.local
    passes = f"{local.epochs} epoch{'s' * (local.epochs > 1)} of SGD"
    passes += f" in batches of {local.batch_size}" if local.batch_size else " on all samples at once"
    if last.work.passes:
        return passes
    gradient = f"one gradient of {local.gradient_batch or 'all'} samples"
    if last.anchor and last.sends_anchor_row:
        return f"{gradient} and {local_work(last.anchor)}"
    if last.work.gradient_row and not last.work.epochs:
        return gradient
    return f"{local.epochs} step{'s' * (local.epochs > 1)} of {last.work.name}"


def _work_notes(entries: Sequence[Entry]) -> list[str]:
    """One note a reason; none where all rows of first order do the same."""
    alike = [entry for entry in entries if first_order(entry.run)]
    works = Counter(local_work(entry.run) for entry in alike)
    if len(works) < 2:
        return []
    usual = _usual(alike, works)
    others: dict[tuple[str, str], list[str]] = {}
    for entry in alike:
        if (work := local_work(entry.run)) != usual:
            others.setdefault((work, _reason(entry.run)), []).append(entry.label)
    return [
        f"{', '.join(labels)}: {work} a round, where the other rows take {usual}: {reason}."
        for (work, reason), labels in others.items()
    ]


def _usual(entries: Iterable[Entry], works: Counter[str]) -> str:
    """The local work that the others are held against: passes of SGD where there are any, else the most frequent."""
    passes = Counter(local_work(each.run) for each in entries if each.run.last.work.passes)
    return (passes or works).most_common(1)[0][0]


def _reason(run: RunPlan) -> str:
    """Why a row does other local work."""
    last, method = run.last, run.last.method
    by_default = run.settings.local.work == AUTO or last.work is method.works[0]
    return (by_default and method.one_gradient) or "its settings say so"


def _length_notes(entries: Sequence[Entry]) -> list[str]:
    """The rows whose step has no length of its own and was taken as it came."""
    found = [entry.label for entry in entries if _length_untried(entry)]
    keys = " and ".join(LENGTH_KEYS)
    text = f"the length of the step is free, and {keys} were not searched; figures may be below what is possible"
    return [f"{', '.join(found)}: {text}."] if found else []


def _message_notes(entries: Sequence[Entry]) -> list[str]:
    """Which rows send what in fewer bits than others."""
    having: dict[str, list[str]] = {}
    for entry in entries:
        having.setdefault(entry.run.rounded, []).append(entry.label)
    if len(having) < 2:
        return []
    others = ", where the other rows round nothing" if len(having) == 2 and "" in having else ""
    return [f"{', '.join(labels)}: {rounded}{others}." for rounded, labels in having.items() if rounded]


def _length_untried(entry: Entry) -> bool:
    last = entry.run.last
    step = last.group_of(FixedSettings)
    as_it_came = last.rule.name == "newton" or (last.rule.name == "fixed" and (step.lr, step.decay) == (1.0, 1.0))
    return last.method.rule == FREE_LENGTH and as_it_came and not set(LENGTH_KEYS) & set(entry.searched)
