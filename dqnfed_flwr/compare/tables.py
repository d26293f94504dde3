"""The tables of a comparison: what stands in them and below them, and the same as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

from dqnfed_flwr.compare.plan import LOG
from dqnfed_flwr.compare.provenance import mixture_notes
from dqnfed_flwr.compare.record import Record, Trial
from dqnfed_flwr.compare.results import COMPARED, UNKNOWN, Comparison, Interval, Row, Summary, ranks
from dqnfed_flwr.compare.row_specs import pairs
from dqnfed_flwr.compare.terms import Entry, one_full_step, terms_notes
from dqnfed_flwr.config import resolve
from dqnfed_flwr.engine.notices import left_out_words, listed
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, OVERRULED
from dqnfed_flwr.telemetry.events import TEST
from dqnfed_flwr.telemetry.standstill import causes
from dqnfed_flwr.telemetry.totals import Totals, unmoved_at_end
from dqnfed_flwr.types import ACCURACY, Figure, decimals

REASON = 40
"""Letters of a reason in a cell; the notes have all of it."""
MARKS = {0: "{}", 1: "**{}**", 2: "_{}_"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its rank in the column: 1 best, 2 second best, 0 any other."""

    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A title, headings, rows of cells, and notes below."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A figure: its heading, digits, whether higher is better (None: neither), and that of the row at a place."""

    heading: str
    digits: int
    higher: bool | None
    figure: Callable[[Comparison, int], Summary]

    def cells(self, comparison: Comparison) -> list[Cell]:
        """Mean ± standard deviation over seeds, one a row, the best two marked."""
        found = [self.figure(comparison, place) for place in range(len(comparison.rows))]
        marks = ranks(comparison.ranked([each.mean for each in found]), higher=self.higher, digits=self.digits)
        return [Cell(each.text(self.digits), mark) for each, mark in zip(found, marks, strict=True)]


def figure_of(key: str, scale: float = 1.0) -> Callable[[Comparison, int], Summary]:
    """What a `Column` shows of the figures of a run."""
    return lambda comparison, place: comparison.figures[place].get(key, Summary()).times(scale)


FAIRNESS = ("mean", "std", "worst10", "best10", "worst")
"""Figures of the clients, in the unit of what they are evaluated by."""
COST = (
    Column("ρ mean", 3, True, figure_of("rho_mean")),
    Column("ρ minimum", 3, True, figure_of("rho_min")),
    Column("not harmed", 3, True, figure_of("unharmed_mean")),
    Column("rounds", 1, None, figure_of("rounds")),
    Column("moved", 1, None, figure_of("rounds_moved")),
    Column("ρ where moved", 3, True, figure_of("rho_moved")),
    Column("not harmed there", 3, True, figure_of("unharmed_moved")),
    Column("heard", 1, None, figure_of("heard_mean")),
    Column("overruled", 1, None, figure_of("overruled")),
    Column("exchanges a round", 2, False, figure_of("exchanges_per_round")),
    Column("seconds a round", 3, False, figure_of("seconds_per_round")),
)


def fairness_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Figures of fairness: where less is better, the worst clients are those with the most."""
    figure, higher = comparison.figure, comparison.figure.higher
    digits = figure_digits(comparison, FAIRNESS)
    headings = ("mean", "σ", "worst 10 %", "best 10 %", "worst")
    shown = [
        Column(heading, digits, key != "std" and higher, figure_of(key, figure.scale))
        for key, heading in zip(FAIRNESS, headings, strict=True)
    ]
    return (
        *shown,
        Column("angle °", 2, False, figure_of("angle_deg")),
        Column("KL", 5, False, figure_of("kl_uniform")),
    )


def figure_digits(comparison: Comparison, keys: Sequence[str]) -> int:
    """Digits behind the point: 2 in per cent, else as many as the largest of these figures needs."""
    if comparison.figure.percent:
        return 2
    known = [abs(found[key].mean) for found in comparison.figures for key in keys if key in found]
    return decimals(max((value for value in known if not math.isnan(value)), default=1.0))


def of_clients(figure: Figure) -> str:
    """What a table of the clients' figures is called."""
    if figure.percent:
        return f"Test {figure.name} of the clients, in percent"
    return f"Test {figure.name} of the clients" + ("" if figure.higher else ", less is better")


def tables(comparison: Comparison) -> list[Table]:
    """All tables that have something to say."""
    title, columns = of_clients(comparison.figure), fairness_columns(comparison)
    first = _figures_table(comparison, title, columns, _main_notes(comparison))
    second = _figures_table(comparison, "Losses that did not rise (ρ), and what it took", COST, ())
    found = [difference_table(comparison), shift_table(comparison), grid_table(comparison)]
    return [first, second, *(table for table in found if table)]


def _figures_table(comparison: Comparison, title: str, columns: Sequence[Column], notes: tuple[str, ...]) -> Table:
    """A row a method, mean ± standard deviation over seeds, the best two of each column marked."""
    shown = [column.cells(comparison) for column in columns]
    rows = tuple(
        (Cell(row.label), Cell(_runs(row, len(comparison.plan.seeds))), *cells)
        for row, cells in zip(comparison.rows, zip(*shown, strict=True), strict=True)
    )
    return Table(title, ("method", "runs", *(column.heading for column in columns)), rows, notes)


def _runs(row: Row, wanted: int) -> str:
    return f"{len(row.good)} of {wanted}" if row.good else f"failed: {shorten(row.reason, REASON)}"


def difference_table(comparison: Comparison) -> Table | None:
    """Each row less the reference, with intervals."""
    reference = comparison.reference
    if reference is None or not any(comparison.differences):
        return None
    figure, digits = comparison.figure, figure_digits(comparison, COMPARED)
    unit = "in percentage points" if figure.percent else f"in {figure.name}"

    def text(found: Interval, row: Row) -> str:
        """Marked where one is better than the other: a model for all and a personal one are not the same."""
        return found.text(figure.scale, digits) + (found.mark if row.personal == reference.personal else "")

    rows = tuple(
        (Cell(row.label), *(Cell(text(found[key], row) if found else UNKNOWN) for key in COMPARED))
        for row, found in zip(comparison.rows, comparison.differences, strict=True)
        if row is not reference
    )
    return Table(
        f"Difference to {reference.label}, {unit}, with 95 % intervals over seeds",
        ("method", "mean", "worst 10 %"),
        rows,
        (
            "Paired by seed: Student's interval of the seeds' differences; one seed has none. ▲ and ▼: the interval "
            f"excludes 0; {'above' if figure.higher else 'below'} means better than the reference. Not corrected for "
            "the number of rows.",
        ),
    )


def shift_table(comparison: Comparison) -> Table | None:
    """What became of the clients that FedAvg served badly and well."""
    if not any(comparison.shifts):
        return None
    name = comparison.baseline.label if comparison.baseline else ""
    side = "below" if comparison.figure.higher else "above"
    rows = tuple(
        (Cell(row.label), *(Cell(summary.times(100).text(1)) for summary in shift))
        for row, shift in zip(comparison.rows, comparison.shifts, strict=True)
        if shift
    )
    return Table(
        f"Clients against {name} with the same seed",
        ("method", "suffering, improved %", "well-performing, degraded %"),
        rows,
        (f"A client suffers where {name} leaves it {side} its mean over clients; the others perform well.",),
    )


def grid_table(comparison: Comparison) -> Table | None:
    """Every point that was tried, the chosen ones marked."""
    figure = comparison.figure
    rows = [_trial_cells(row, trial, figure) for row in comparison.rows for trial in row.trials]
    if not rows:
        return None
    plan, percent = comparison.plan, " %" if figure.percent else ""
    rounds = sorted({trial.rounds for row in comparison.rows for trial in row.trials})
    alike = [row.spec.title for row in comparison.rows if _alike(row.trials)]
    return Table(
        f"Search by validation {figure.name} ({comparison.select})",
        ("method", "settings", f"validation mean{percent}", "validation worst 10 %", ""),
        tuple(rows),
        (
            f"Seed {plan.grid_seed}, {' or '.join(map(str, rounds))} rounds. The test part has no say in the choice.",
            *_window_notes(comparison),
            *(f"{title}: all points came out alike; the first was taken." for title in alike),
        ),
    )


def _window_notes(comparison: Comparison) -> Iterator[str]:
    """Over how many evaluations the figures of the trials are averaged."""
    last = comparison.last
    if last > 1:
        yield f"Averaged over the last {last} evaluations of a trial, as the figures of the final runs are."
    counts = {
        row.spec.title: [trial.evaluations for trial in row.trials if trial.evaluations] for row in comparison.rows
    }
    fewer = [f"{title} {min(found)}" for title, found in counts.items() if found and min(found) < last]
    if fewer:
        yield f"Not all trials have {last} evaluations: {', '.join(fewer)}."


def _trial_cells(row: Row, trial: Trial, figure: Figure) -> tuple[Cell, ...]:
    chosen = row.chose(trial)
    texts = [figure.text(trial.figures[key], 2) if trial.figures else UNKNOWN for key in ("mean", "worst10")]
    figures = [Cell(text.removesuffix(figure.unit)) for text in texts]
    outcome = f"failed: {trial.reason}" if trial.reason else ("chosen" if chosen else "")
    return Cell(row.spec.title), Cell(", ".join(pairs(trial.point)), int(chosen)), *figures, Cell(outcome)


def _alike(trials: Sequence[Trial]) -> bool:
    """Whether several points have the same figures, so that nothing was chosen."""
    return len(trials) > 1 and bool(trials[0].figures) and all(t.figures == trials[0].figures for t in trials)


def _main_notes(comparison: Comparison) -> tuple[str, ...]:
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


def markdown(found: Sequence[Table], title: str = "# Comparison") -> str:
    """Tables as Markdown, below a heading."""
    parts = [title]
    for table in found:
        lines = [_line(table.headings), "|---" * len(table.headings) + "|"]
        lines += [_line([MARKS[cell.rank].format(_escaped(cell.text)) for cell in row]) for row in table.rows]
        parts += [f"## {table.title}", "\n".join(lines)]
        if table.notes:
            parts.append("\n".join(f"- {_escaped(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("_", "\\_").replace("*", "\\*")
