"""Ours ± σ beside the paper's, one description for terminal, Markdown and page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dqnfed_flwr.compare.figures import Summary, ranks
from dqnfed_flwr.compare.provenance import mixture_notes
from dqnfed_flwr.compare.remarks import remarks
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.sheets import Cell, Table
from dqnfed_flwr.compare.tables import UNKNOWN
from dqnfed_flwr.reproduce.measures import Measure, measure
from dqnfed_flwr.reproduce.parts import paper_names
from dqnfed_flwr.reproduce.published import impossible, published_figures
from dqnfed_flwr.reproduce.scale import AS_IN_MANIFEST
from dqnfed_flwr.reproduce.schema import Part

OTHERWISE = "*"


@dataclass(frozen=True, slots=True)
class Beside:
    """A column: what we measured, what the paper says, and the ranks within each: of the paper among all its rows."""

    measure: Measure
    ours: tuple[Summary, ...]
    paper: tuple[float, ...]
    ranks: tuple[int, ...]
    paper_ranks: tuple[int, ...]
    same: tuple[bool, ...]

    def our_text(self, place: int) -> str:
        """Mean ± standard deviation over seeds."""
        found, digits = self.ours[place], self.measure.digits
        if math.isnan(found.mean):
            return UNKNOWN
        return f"{found.mean:.{digits}f}" + ("" if math.isnan(found.std) else f" ± {found.std:.{digits}f}")

    def paper_text(self, place: int) -> str:
        """The published figure, with a mark where ours was run with other settings."""
        if math.isnan(self.paper[place]):
            return UNKNOWN
        return f"{self.paper[place]:.{self.measure.digits}f}" + ("" if self.same[place] else OTHERWISE)

    @property
    def marked(self) -> bool:
        """Whether a published figure stands beside ours with other settings."""
        return any(not same and not math.isnan(figure) for figure, same in zip(self.paper, self.same, strict=True))


def beside(part: Part, comparison: Comparison) -> list[Beside]:
    """The columns of a part."""
    published = published_figures(part)
    names, same = zip(*paper_names(part, comparison.plan.entries), strict=True)
    found = []
    for key in part.columns:
        column = measure(key)
        ours = tuple(column.ours(comparison, place) for place in range(len(comparison.rows)))
        printed = {name: figures.get(key, math.nan) for name, figures in published.items()}
        places = dict(zip(printed, _ranks(column, [*printed.values()]), strict=True))
        found.append(
            Beside(
                column,
                ours,
                tuple(printed.get(name, math.nan) for name in names),
                _ranks(column, comparison.ranked([summary.mean for summary in ours])),
                tuple(places.get(name, 0) for name in names),
                same,
            )
        )
    return found


def paper_table(part: Part, comparison: Comparison) -> Table:
    """A row a method; two columns a figure where the paper has it."""
    columns = beside(part, comparison)
    headings = ["method"]
    for column in columns:
        headings += [column.measure.heading, *(["paper"] if _printed(column) else [])]
    rows = []
    for place, row in enumerate(comparison.rows):
        cells = [Cell(row.label)]
        for column in columns:
            cells.append(Cell(column.our_text(place), column.ranks[place]))
            if _printed(column):
                cells.append(Cell(column.paper_text(place), column.paper_ranks[place]))
        rows.append(tuple(cells))
    marked = any(column.marked for column in columns)
    return Table(part.title, tuple(headings), tuple(rows), notes_of(part, comparison, marked=marked))


def notes_of(part: Part, comparison: Comparison, *, marked: bool = False) -> tuple[str, ...]:
    """What must be known to read the table, scale first; `marked` where the mark beside published figures stands."""
    notes = [comparison.plan.note or AS_IN_MANIFEST]
    notes.append(
        "Ours: mean ± standard deviation over seeds; accuracies in per cent. Bold: best; underlined or slanted: second "
        "best."
    )
    if marked:
        notes.append(f"{OTHERWISE} the paper's figure of the method, which was run with other settings here.")
    notes += [*remarks(comparison), *published_doubts(part), *part.remarks]
    notes += [f"{row.label}: {text}" for row in comparison.rows for text in row.failures or [row.reason] if text]
    notes += [f"{method} was left out: {reason}" for method, reason in comparison.plan.skipped.items()]
    return (*notes, *mixture_notes(comparison))


def published_doubts(part: Part) -> list[str]:
    """What cannot be true of the published figures."""
    clients = int(part.own.get("clients", 10))
    kinds: dict[str, list[str]] = {}
    for name, figures in published_figures(part).items():
        for kind, fault in impossible(figures, clients).items():
            kinds.setdefault(kind, []).append(f"{name}: {fault}")
    if not kinds:
        return []
    told = " ".join(_first(faults) for faults in kinds.values())
    return [f"The paper's figures contradict each other. {told} Compare such figures inside our own runs."]


def _first(faults: list[str]) -> str:
    """The first of several faults of a kind, and how many more there are."""
    rest = len(faults) - 1
    return faults[0] + (f"; the same of {rest} more row{'s' * (rest > 1)}" if rest else "") + "."


def _printed(column: Beside) -> bool:
    return not all(math.isnan(value) for value in column.paper)


def _ranks(column: Measure, values: list[float]) -> tuple[int, ...]:
    if column.higher is None:
        return (0,) * len(values)
    return tuple(ranks(values, higher=column.higher, digits=column.digits))
