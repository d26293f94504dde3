"""The tables of a comparison, and the same as Markdown; `notes` has what stands below them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

from dqnfed_flwr.compare.notes import main_notes
from dqnfed_flwr.compare.record import Trial
from dqnfed_flwr.compare.results import COMPARED, UNKNOWN, Comparison, Interval, Row, Summary, ranks
from dqnfed_flwr.compare.row_specs import pairs
from dqnfed_flwr.types import Figure, decimals

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
    first = _figures_table(comparison, title, columns, main_notes(comparison))
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
